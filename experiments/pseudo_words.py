"""Pseudo-words: does the mixture tell apart two words that were made one?

  python experiments/pseudo_words.py --text=PATH
  python experiments/pseudo_words.py --quick          the embedded corpus

Pairs of unrelated words of similar frequency are merged in the text, so that
the sense of every occurrence is known (Gale, Church and Yarowsky 1992; Schuetze
1992). The config `mixture` is trained on that text, with several senses for the
merged words. The exported model then assigns occurrences to senses by their
context. Half of them say which word a sense stands for; of the other half,

  purity = occurrences whose word is that of their sense / all

so that chance is the fraction of the more frequent word. Words are unrelated if
they share sentences no more often than by chance.
"""

import argparse
import pathlib
import re
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

import experiment
import numpy as np
import planted_senses

from jaxemb import embeddings
from jaxemb.evaluation import multivectors
from jaxemb.text import encode, tokenize
from jaxemb.text.toywiki import toywiki

EXPECTED = 0.90  # purity of 50 pairs, two senses each
_FREQUENCY_RATIO = 1.25  # of the words of a pair, at most
# By frequency: frequent words are next to everything, rare ones teach little.
_RANKS, _QUICK_RANKS = range(300, 5000), range(300, 1500)


def _read(
  args: argparse.Namespace, cache: pathlib.Path
) -> tuple[np.ndarray, list[str]]:
  """Ids of the text, `tokenize.END` after each sentence; and its words."""
  path = args.text
  if not path:
    corpus_words = 200_000 if args.quick else toywiki.DEFAULT_WORDS
    path = str(toywiki.write(cache / 'toywiki', 0, corpus_words).xml)
  settings = encode.Settings('words', True, 5, 0, '')
  corpus = encode.encode(path, settings, cache, lambda *_: None)
  ids = np.array(corpus.ids[: args.words or None])
  return ids, corpus.words


def choose(
  ids: np.ndarray, words: Sequence[str], num: int, seed: int, ranks: range
) -> dict[str, tuple[int, int]]:
  """Draws pairs of words of these ranks by frequency, no word twice.

  Returns the ids of both by the name of what they become.
  """
  rng = np.random.default_rng(seed)
  counts = np.bincount(ids[ids >= 0], minlength=len(words))
  sentence = np.cumsum(ids == tokenize.END)
  num_sentences = int(sentence[-1]) + 1
  order = np.argsort(-counts, kind='stable')[ranks.start : ranks.stop]
  free = order.tolist()
  free = [i for i in free if re.fullmatch(r'[^\W\d_]{4,}', words[i])]
  pairs = {}
  for first in rng.permutation(free).tolist():
    if len(pairs) == num:
      break
    if first not in free:
      continue
    low = counts[first] / _FREQUENCY_RATIO
    high = counts[first] * _FREQUENCY_RATIO
    near = [i for i in free if i != first and low <= counts[i] <= high]
    own = np.unique(sentence[ids == first])
    for second in rng.permutation(near).tolist()[:20]:
      other = np.unique(sentence[ids == second])
      together = len(np.intersect1d(own, other, assume_unique=True))
      if together <= len(own) * len(other) / num_sentences:
        pairs[f'{words[first]}_{words[second]}'] = (first, second)
        free = [i for i in free if i not in (first, second)]
        break
  return pairs


def _purity(
  args: argparse.Namespace,
  ids: np.ndarray,
  words: np.ndarray,
  pair: tuple[int, int],
  table: multivectors.MultiVectors,
) -> float:
  """Of --occurrences of a pair, spread over the text with merged `words`.

  A context is the sentence, or what is near in a long one.
  """
  word, reach = table.index[words[pair[0]]], 20 * table.window
  positions = np.flatnonzero(np.isin(ids, pair))
  step = max(1, len(positions) // args.occurrences)
  assigned = []
  for position in positions[::step][: args.occurrences].tolist():
    start = max(0, position - reach)
    near, at = ids[start : position + reach + 1], position - start
    ends = np.flatnonzero(near == tokenize.END)
    first = int(ends[ends < at].max(initial=-1)) + 1
    last = int(ends[ends > at].min(initial=len(near)))
    tokens = words[near[first:last]].tolist()
    context = table.context(tokens, at - first, args.window)
    sense = int(table.posterior(word, context).argmax())
    assigned.append((sense, int(ids[position] == pair[1])))
  return planted_senses.purity(assigned)


def _run(
  args: argparse.Namespace,
  ids: np.ndarray,
  words: Sequence[str],
  seed: int,
  folder: pathlib.Path,
) -> dict[str, Any]:
  """Chooses pairs and trains."""
  ranks = _QUICK_RANKS if args.quick else _RANKS
  pairs = choose(ids, words, args.pairs, seed, ranks)
  merged = np.array(words, object)
  for name, pair in pairs.items():
    merged[list(pair)] = name
  experiment.write_tokens(ids, merged, folder / 'merged.txt')
  (folder / 'words.txt').write_text('\n'.join(pairs))
  settings = {
    'data.path': folder / 'merged.txt',
    'data.tokens': 'whitespace',
    'eval.paths': 'none',
    'seed': seed,
    'senses.number': args.senses,
    'senses.top_ratio': 0.0,
    'senses.words': folder / 'words.txt',
  }
  experiment.train(args, folder / 'merged', settings, folder / 'cache')
  table = embeddings.load_vectors(folder / 'merged').sense_table
  each = {k: _purity(args, ids, merged, x, table) for k, x in pairs.items()}
  return {
    'purity': statistics.mean(each.values()),
    'at_least_expected': statistics.mean(x >= EXPECTED for x in each.values()),
    'pairs': each,
  }


def main() -> None:
  """Trains once per seed and prints the purities."""
  parser = experiment.parser(__doc__)
  add, count = parser.add_argument, experiment.count
  add('--text', default='', help='config.data.path; "" = the embedded corpus')
  add('--words', type=int, default=0, help='of the text; 0 = all')
  add('--config', default='mixture')
  add('--pairs', type=count, default=50)
  add('--senses', type=count, default=2, help='of each merged word')
  add('--seeds', type=count, default=3)
  add('--occurrences', type=count, default=400, help='of a merged word')
  add('--window', type=int, default=0, help='0 = config.senses.query_window')
  add('--quick', action='store_true', help='a small text, few pairs')
  args = experiment.parse(parser)
  if args.quick:
    args.pairs, args.seeds = 8, 1
    args.override = ['--config.model.dim=16', *args.override]
  results = experiment.Results('pseudo-words', args)
  with tempfile.TemporaryDirectory() as cache:
    ids, words = _read(args, pathlib.Path(cache))
  for seed in range(1, args.seeds + 1):
    with tempfile.TemporaryDirectory() as folder:
      run = _run(args, ids, words, seed, pathlib.Path(folder))
    results.found[seed] = run
    results.save()
    print(
      f'seed {seed}: purity {run["purity"]:.3f} of {len(run["pairs"])} pairs, '
      f'{run["at_least_expected"]:.0%} of them {EXPECTED:g} or more; worst: '
      f'{planted_senses.worst(run["pairs"])}',
      flush=True,
    )
  mean = statistics.mean(x['purity'] for x in results.found.values())
  results.finish(f'purity {mean:.3f}, expected {EXPECTED:g}')


if __name__ == '__main__':
  experiment.main(main)
