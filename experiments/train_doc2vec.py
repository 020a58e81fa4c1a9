"""Trains gensim's Doc2Vec on a file with a document a line, for topics.py.

  python experiments/train_doc2vec.py TOKENS NEW VECTORS SETTINGS

It writes vectors of documents as .npy, those that it infers of the documents in
NEW beside them, and speeds as .json. SETTINGS are the arguments of Doc2Vec, in
JSON. This process imports nothing of jaxemb.
"""

import json
import pathlib
import sys
import time

import numpy as np
from gensim.models import doc2vec


def main(tokens: str, new: str, output: str, settings: str) -> None:
  """Trains, infers, and writes vectors and the report."""
  documents = list(doc2vec.TaggedLineDocument(tokens))
  model = doc2vec.Doc2Vec(**json.loads(settings))
  model.build_vocab(documents)
  start, cpu_start = time.perf_counter(), time.process_time()
  model.train(documents, total_examples=model.corpus_count, epochs=model.epochs)
  train_secs = time.perf_counter() - start
  cpu_secs = time.process_time() - cpu_start
  unseen = [x.split() for x in pathlib.Path(new).read_text().splitlines()]
  start = time.perf_counter()
  inferred = np.array([model.infer_vector(x) for x in unseen])
  infer_secs = time.perf_counter() - start
  path = pathlib.Path(output)
  np.save(path, model.dv.vectors)
  np.save(path.with_suffix('.new.npy'), inferred)
  # Those of the vocabulary, as jaxemb counts them.
  words = sum(model.wv.get_vecattr(x, 'count') for x in model.wv.key_to_index)
  report = {
    'words_per_sec': words * model.epochs / train_secs,
    'words_per_cpu_sec': words * model.epochs / cpu_secs,
    'inferred_per_sec': len(unseen) / infer_secs,
  }
  path.with_suffix('.json').write_text(json.dumps(report))


if __name__ == '__main__':
  main(*sys.argv[1:])
