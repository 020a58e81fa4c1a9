"""Low precision: size and quality of tables with 32, 16 and 8 bits.

Run `python precision.py [TEXT] [PLOT]`. TEXT needs the words of the synthetic
corpus.
"""

import json
import pathlib
import sys
import tempfile

import matplotlib.pyplot as plt

import jaxemb

text = sys.argv[1] if len(sys.argv) > 1 else 'toywiki:500000'
plot = sys.argv[2] if len(sys.argv) > 2 else __file__.replace('.py', '.svg')
dtypes = 'float32', 'bfloat16', 'float16', 'int8'

megabytes, scores = [], []
for dtype in dtypes:
  settings = {'table.dtype': dtype, 'mesh.data': 1}
  settings['train.fused'] = False  # XLA trains all types alike
  with tempfile.TemporaryDirectory() as run:
    jaxemb.train(text, config='wiki', epochs=5, workdir=run, settings=settings)
    report = json.loads(pathlib.Path(run, 'report.json').read_text())
  megabytes.append(report['vector_bytes'] / 1e6)
  scores.append(report['evaluation']['similarity']['score'])
  print(f'{dtype}: {megabytes[-1]:.2f} MB, similarity {scores[-1]:.3f}')

plt.rcParams['svg.fonttype'] = 'none'  # text stays text
figure, panels = plt.subplots(1, 2, figsize=(8, 3), layout='constrained')
titles = 'size of the tables, MB', 'word similarity, rank correlation'
for panel, values, title in zip(
  panels, (megabytes, scores), titles, strict=True
):
  bars = panel.bar(dtypes, values, color=['0.75', 'C0', 'C0', 'C0'])
  panel.bar_label(bars, fmt='%.2f')
  panel.set_title(title)
  panel.spines[['top', 'right']].set_visible(False)
panels[1].set_ylim(0, 1)
figure.savefig(plot)
