"""DeepWalk as one has it in Python with gensim, for graphs.py.

  python experiments/deepwalk_gensim.py GRAPH.mat VECTORS SETTINGS

From a graph in Matlab's form to binary vectors: walks are lists in memory, made
by `random.choice` as in the program of DeepWalk's authors. SETTINGS are the
arguments of Word2Vec, and `walks` and `walk_length`, in JSON. This process
imports nothing of jaxemb.
"""

import json
import random
import sys

from gensim.models import word2vec
from scipy import io


def main(graph: str, output: str, settings: str) -> None:
  """Walks, trains, and writes the vectors."""
  options = json.loads(settings)
  num_walks, length = options.pop('walks'), options.pop('walk_length')
  rng = random.Random(options.pop('seed'))
  matrix = io.loadmat(graph)['network'].tocsr()
  names = [str(i) for i in range(matrix.shape[0])]
  ends = [names[i] for i in matrix.indices]
  bounds = zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
  neighbors = {
    name: ends[a:b] for name, (a, b) in zip(names, bounds, strict=True) if a < b
  }
  walks = []
  for _ in range(num_walks):
    starts = list(neighbors)
    rng.shuffle(starts)
    for node in starts:
      walk = [node]
      while len(walk) < length and node in neighbors:
        node = rng.choice(neighbors[node])
        walk.append(node)
      walks.append(walk)
  model = word2vec.Word2Vec(walks, **options)
  model.wv.save_word2vec_format(output, binary=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
