"""Trains gensim on a file of tokens, for reproduce.py.

  python experiments/train_gensim.py TOKENS VECTORS SETTINGS

It writes binary vectors and, next to them as .json, its seconds in training.
SETTINGS are the arguments of Word2Vec, or with `bucket` those of FastText, and
`epochs`, in JSON. This process
imports nothing of jaxemb, whose time would count as gensim's.
"""

import json
import pathlib
import sys
import time

from gensim.models import fasttext, word2vec


def main(tokens: str, output: str, settings: str) -> None:
  """Counts the words, trains, and writes the vectors and the report."""
  options = json.loads(settings)
  epochs = options.pop('epochs')
  sentences = word2vec.LineSentence(tokens)
  has_subwords = 'bucket' in options
  make = fasttext.FastText if has_subwords else word2vec.Word2Vec
  model = make(**options)
  model.build_vocab(sentences)
  start = time.perf_counter()
  model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
  report = {'train_secs': time.perf_counter() - start}
  model.wv.save_word2vec_format(output, binary=True)
  pathlib.Path(output).with_suffix('.json').write_text(json.dumps(report))


if __name__ == '__main__':
  main(*sys.argv[1:])
