"""Training curve against gensim: quality by CPU time.

Run `python training_curve.py [SENTENCES] [PLOT]`.
"""

import json
import pathlib
import sys
import tempfile
import time

import matplotlib.pyplot as plt
import numpy as np
from gensim.models import word2vec

import jaxemb

num = int(sys.argv[1]) if len(sys.argv) > 1 else 6_000
plot = sys.argv[2] if len(sys.argv) > 2 else __file__.replace('.py', '.svg')

# Each sentence alternates words of one of 300 topics with frequent words.
rng = np.random.default_rng(0)
topics = np.char.mod('topic%d', rng.integers(0, 300, (num, 1)))
topical = np.char.add(topics, np.char.mod('.%d', rng.integers(0, 10, (num, 8))))
frequent = np.char.mod('word%d', rng.zipf(1.5, (num, 8)) % 3000)
sentences = np.stack([topical, frequent], 2).reshape(num, -1).tolist()


def score(vectors):
  """Returns the fraction of words whose nearest word is of their topic."""
  words = [x for x in vectors.index_to_key if x.startswith('topic')][:500]
  near = [vectors.most_similar(word, topn=1)[0][0] for word in words]
  topics = [[x.split('.')[0] for x in names] for names in (words, near)]
  return np.mean(np.equal(*topics))


curves = {'gensim': [], 'jaxemb': []}
for epochs in 1, 2, 4, 8:
  with tempfile.TemporaryDirectory() as run:
    vectors = jaxemb.train(sentences, epochs=epochs, sample=1e-3, workdir=run)
    report = json.loads(pathlib.Path(run, 'report.json').read_text())
  secs = report['hosts'][0]['secs'] * report['hosts'][0]['mean_cores']
  curves['jaxemb'].append((secs, score(vectors)))
  model = word2vec.Word2Vec(vector_size=100, sg=1, sample=1e-3, workers=2)
  model.build_vocab(sentences)
  start = time.process_time()
  model.train(sentences, total_examples=num, epochs=epochs)
  secs = time.process_time() - start
  curves['gensim'].append((secs, score(model.wv)))
  for name, curve in curves.items():
    secs, quality = curve[-1]
    print(f'{name}: {epochs} epochs, {secs:.2f} s, {quality:.3f}')

plt.rcParams['svg.fonttype'] = 'none'  # text stays text
figure, panel = plt.subplots(figsize=(7, 4), layout='constrained')
for name, curve in curves.items():
  panel.plot(*zip(*curve, strict=True), 'o-', label=name)
panel.set(xscale='log', ylim=(-0.05, 1.05))
panel.xaxis.set_major_formatter('{x:g}')
panel.set(xlabel='CPU seconds of training, for 1, 2, 4 and 8 epochs')
panel.set(ylabel='words whose nearest word has their topic')
panel.legend(loc='center right')
panel.spines[['top', 'right']].set_visible(False)
figure.savefig(plot)
