"""Merging: models of different seeds agree up to a rotation.

Run `python merging.py [TEXT] [PLOT]`.
"""

import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt
import numpy as np

import jaxemb

text = sys.argv[1] if len(sys.argv) > 1 else 'toywiki:300000'
plot = sys.argv[2] if len(sys.argv) > 2 else __file__.replace('.py', '.svg')
groups = (
  'lion tiger wolf bear',
  'gold silver iron copper',
  'doctor lawyer teacher baker',
  'tennis golf rugby boxing',
)

with tempfile.TemporaryDirectory() as folder:
  runs = [f'{folder}/{seed}' for seed in (1, 2)]
  models = [
    jaxemb.train(text, sample=1e-3, epochs=10, seed=seed, workdir=run)
    for seed, run in enumerate(runs, 1)
  ]
  command = [sys.executable, '-m', 'jaxemb', 'merge', *runs]
  subprocess.run([*command, f'--output={folder}/merged'], check=True)
  merged = jaxemb.load(f'{folder}/merged').in_memory()

common = [x for x in models[0] if all(x in other for other in models)]
words = [word for group in groups for word in group.split() if word in common]
center = merged[words].mean(0)
axes = np.linalg.svd(merged[words] - center)[2][:2].T
plt.rcParams['svg.fonttype'] = 'none'  # text stays text
figure, panels = plt.subplots(1, 2, figsize=(9, 4.2), layout='constrained')
for panel, is_rotated in zip(panels, (False, True), strict=True):
  rows = [model[common] for model in models]
  if is_rotated:  # each onto the merged vectors, by orthogonal Procrustes
    svds = [np.linalg.svd(x.T @ merged[common]) for x in rows]
    rows = [x @ u @ v for x, (u, _, v) in zip(rows, svds, strict=True)]
  units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in rows]
  cosine = np.mean(np.sum(units[0] * units[1], axis=1))
  name = 'after merging' if is_rotated else 'before merging'
  print(f'{name}: mean cosine of a word in both models {cosine:.3f}')
  panel.set_title(f'{name}: mean cosine {cosine:.2f}')
  index = [common.index(word) for word in words]
  first, second = ((x[index] - center) @ axes for x in rows)
  panel.plot(*np.stack([first.T, second.T], 1), color='0.8', zorder=0)
  panel.plot(*first.T, 'o', label='model 1')
  panel.plot(*second.T, 's', label='model 2')
  for word, point in zip(words, first, strict=True):
    panel.annotate(word, point, fontsize=8)
  panel.set(xticks=[], yticks=[])
panels[0].legend()
figure.savefig(plot)
