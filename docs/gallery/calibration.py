"""Click calibration: probabilities get too extreme in long training.

Run `python calibration.py [LOG] [PLOT]`.
"""

import json
import pathlib
import sys
import tempfile

import matplotlib.pyplot as plt
import numpy as np

import jaxemb

log = sys.argv[1] if len(sys.argv) > 1 else 'toyclicks:60000'
plot = sys.argv[2] if len(sys.argv) > 2 else __file__.replace('.py', '.svg')
settings = {
  'data.test': '0.1',  # of the rows; the synthetic log has its own
  'train.batch_examples': 512,
  # Decay and early stopping would keep the model calibrated.
  'optimizer.decay': 0.0,
  'optimizer.dense_decay': 0.0,
  'eval.every_epochs': 0.0,
  'train.patience': 0,
  'optimizer.plateau_factor': 1.0,
}

plt.rcParams['svg.fonttype'] = 'none'  # text stays text
figure, panel = plt.subplots(figsize=(5.5, 5), layout='constrained')
panel.plot([0, 1], [0, 1], '--', color='0.6', label='perfect calibration')
for epochs in 4, 16:
  with tempfile.TemporaryDirectory() as run:
    jaxemb.train(
      log, config='ctr', epochs=epochs, workdir=run, settings=settings
    )
    report = json.loads(pathlib.Path(run, 'report.json').read_text())
  rows, predicted, clicked = np.transpose(report['calibration_bins']['test'])
  error = np.average(abs(predicted - clicked), weights=rows)
  area = report['evaluation']['test']['auc']
  print(f'{epochs} epochs: AUC {area:.3f}, calibration error {error:.3f}')
  interval = 1.96 * np.sqrt(clicked * (1 - clicked) / rows)
  label = f'{epochs} epochs, AUC {area:.2f}'
  panel.errorbar(predicted, clicked, interval, fmt='o-', ms=4, label=label)

panel.set(xlim=(0, 1), ylim=(0, 1), aspect='equal')
panel.set(xlabel='predicted probability', ylabel='fraction of clicks')
panel.legend()
panel.spines[['top', 'right']].set_visible(False)
figure.savefig(plot)
