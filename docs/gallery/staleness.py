"""Staleness against quality: replicas that exchange rows less often learn less.

Run `python staleness.py [TEXT] [PLOT]`. TEXT needs the words of the synthetic
corpus.
"""

import json
import pathlib
import sys
import tempfile

import matplotlib.pyplot as plt

import jaxemb

text = sys.argv[1] if len(sys.argv) > 1 else 'toywiki:1000000'
plot = sys.argv[2] if len(sys.argv) > 2 else __file__.replace('.py', '.svg')

staleness, scores = [], []
for words in 1_000, 8_000, 64_000, 512_000:  # between two exchanges
  settings = {'mesh.data': 4, 'strategy.sync_every': words}
  with tempfile.TemporaryDirectory() as run:
    jaxemb.train(text, config='wiki', epochs=3, workdir=run, settings=settings)
    report = json.loads(pathlib.Path(run, 'report.json').read_text())
  staleness.append(report['staleness']['mean_words'])
  scores.append(report['evaluation']['analogies']['score'])
  print(f'staleness {staleness[-1]:,.0f} words, analogies {scores[-1]:.3f}')

plt.rcParams['svg.fonttype'] = 'none'  # text stays text
figure, panel = plt.subplots(figsize=(7, 4), layout='constrained')
panel.plot(staleness, scores, 'o-')
panel.set_xscale('log')
panel.set_ylim(0)
panel.set_xlabel('words of other replicas that a row has missed, on average')
panel.set_ylabel('analogies answered correctly')
panel.spines[['top', 'right']].set_visible(False)
figure.savefig(plot)
