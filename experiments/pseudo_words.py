"""Pseudo-words: does the mixture tell apart two words that were made one?

  python experiments/pseudo_words.py --text=PATH
  python experiments/pseudo_words.py --quick          the embedded corpus

Pairs of unrelated words of similar frequency are merged in the text, so that
the sense of every occurrence is known (Gale, Church and Yarowsky 1992; Schuetze
1992). The config `mixture` is trained on that text, with several senses for the
merged words. The exported model then assigns occurrences to senses by their
context, and each learned sense stands for the word that most of its occurrences
are:

  purity = occurrences whose word is that of their sense / all

Half of the occurrences say which word a sense stands for, the other half is
counted, so that chance is the fraction of the more frequent word. Words are
unrelated if they share sentences no more often than by chance.
"""

import argparse
import pathlib
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import experiment
import numpy as np
import planted_senses

from jaxemb import embeddings
from jaxemb.senses import table as senses
from jaxemb.text import encode, tokenize
from jaxemb.toywiki import toywiki

EXPECTED = 0.90  # purity of 50 pairs, two senses each
_MIN_LETTERS = 4
_FREQUENCY_RATIO = 1.25  # of the words of a pair, at most


class Pair(NamedTuple):
  """Two words that are made one."""

  name: str
  words: tuple[int, int]  # ids in the vocabulary of the text


class Text(NamedTuple):
  """The encoded text."""

  ids: np.ndarray  # [n] int32, `tokenize.END` after each sentence
  words: list[str]
  counts: np.ndarray  # [vocab] int64


def _read(args: argparse.Namespace, cache: pathlib.Path) -> Text:
  path = args.text
  if not path:
    path = str(toywiki.write(cache / 'toywiki', 0, args.embedded_words).xml)
  settings = encode.Settings('words', True, 5, 0, '')
  corpus = encode.encode(path, settings, cache, lambda *_: None)
  ids = np.concatenate(corpus.shards)[: args.words or None]
  names = corpus.vocabulary.words
  return Text(ids, names, np.bincount(ids[ids >= 0], minlength=len(names)))


def choose(text: Text, num: int, seed: int, ranks: range) -> list[Pair]:
  """Draws pairs of words, no word twice.

  Args:
    text: in which they are merged.
    num: of pairs.
    seed: of the draw.
    ranks: of the words, by frequency.
  """
  rng = np.random.default_rng(seed)
  sentence = np.cumsum(text.ids == tokenize.END)
  num_sentences = int(sentence[-1]) + 1
  order = np.argsort(-text.counts, kind='stable')[ranks.start : ranks.stop]
  candidates = [
    int(i)
    for i in order
    if text.words[i].isalpha() and len(text.words[i]) >= _MIN_LETTERS
  ]

  def sentences(word):
    return np.unique(sentence[text.ids == word])

  pairs, free = [], candidates
  for first in rng.permutation(candidates).tolist():
    if len(pairs) == num:
      break
    if first not in free:
      continue
    low = text.counts[first] / _FREQUENCY_RATIO
    high = text.counts[first] * _FREQUENCY_RATIO
    near = [i for i in free if i != first and low <= text.counts[i] <= high]
    own = sentences(first)
    for second in rng.permutation(near).tolist()[:20]:
      other = sentences(second)
      together = len(np.intersect1d(own, other, assume_unique=True))
      if together <= len(own) * len(other) / num_sentences:
        name = f'{text.words[first]}_{text.words[second]}'
        pairs.append(Pair(name, (first, second)))
        free = [i for i in free if i not in (first, second)]
        break
  return pairs


def write_merged(text: Text, pairs: Sequence[Pair], path: pathlib.Path) -> None:
  """Writes the text with each pair as one word, a sentence per line."""
  words = np.array([*text.words, '\n'], object)  # the last one is `END`
  for pair in pairs:
    words[list(pair.words)] = pair.name
  with open(path, 'w', encoding='utf-8') as file:
    for piece in np.array_split(text.ids, 1 + len(text.ids) // 1_000_000):
      file.write(' '.join(words[piece]) + ' ')


def _contexts(
  text: Text, names: Sequence[str], table: senses.Senses, pair: Pair, most: int,
  window: int,
) -> Iterator[tuple[list[int], int]]:  # fmt: skip
  """(context, 0 or 1 for the word) of occurrences spread over the text."""
  reach = 20 * table.window
  positions = np.flatnonzero(np.isin(text.ids, pair.words))
  step = max(1, len(positions) // most)
  for position in positions[::step][:most].tolist():
    start = max(0, position - reach)
    near, at = text.ids[start : position + reach + 1], position - start
    ends = np.flatnonzero(near == tokenize.END)
    first = int(ends[ends < at].max(initial=-1)) + 1
    last = int(ends[ends > at].min(initial=len(near)))
    tokens = [names[i] for i in near[first:last]]
    is_second = int(text.ids[position] == pair.words[1])
    yield table.context(tokens, at - first, window), is_second


def purity(
  text: Text, pairs: Sequence[Pair], table: senses.Senses, most: int,
  window: int = 0,
) -> dict[str, float]:  # fmt: skip
  """By pair, of `most` occurrences; window 0 = that of the vectors."""
  names = list(text.words)
  for pair in pairs:
    for word in pair.words:
      names[word] = pair.name
  found = {}
  for pair in pairs:
    word = table.index[pair.name]
    contexts = _contexts(text, names, table, pair, most, window)
    found[pair.name] = planted_senses.purity(
      [(int(table.posterior(word, x).argmax()), true) for x, true in contexts]
    )
  return found


def ceiling(
  text: Text, pairs: Sequence[Pair], table: senses.Senses, most: int,
  window: int = 0,
) -> dict[str, float]:  # fmt: skip
  """The accuracy of the words' own vectors, by pair.

  `table` is trained on the text without merged words, one sense each.
  """
  found = {}
  for pair in pairs:
    both = [table.index[text.words[i]] for i in pair.words]
    right = []
    for x, true in _contexts(text, text.words, table, pair, most, window):
      logs = [table.log_likelihoods(i, x).sum() for i in both]
      right.append((logs[1] > logs[0]) == true)
    found[pair.name] = float(np.mean(right))
  return found


def _train(
  args: argparse.Namespace, seed: int, folder: pathlib.Path, name: str,
  settings: dict[str, Any],
) -> senses.Senses:  # fmt: skip
  common = {
    'data.path': folder / f'{name}.txt',
    'data.tokens': 'whitespace',
    'eval.paths': 'none',
    'seed': seed,
    'senses.top_ratio': 0.0,
  }
  workdir = folder / name
  experiment.train(
    args.config, workdir, common | settings, args.override, folder / 'cache'
  )
  return embeddings.load(workdir).sense_table


def _run(
  args: argparse.Namespace, text: Text, seed: int, folder: pathlib.Path
) -> dict[str, Any]:
  """Chooses pairs and trains."""
  ranks = range(args.first_rank, args.last_rank)
  pairs = choose(text, args.pairs, seed, ranks)
  write_merged(text, pairs, folder / 'merged.txt')
  words = folder / 'words.txt'
  words.write_text('\n'.join(x.name for x in pairs))
  settings = {'senses.words': words, 'senses.number': args.senses}
  table = _train(args, seed, folder, 'merged', settings)
  each = purity(text, pairs, table, args.occurrences, args.window)
  found = {
    'purity': statistics.mean(each.values()),
    'at_least_expected': statistics.mean(x >= EXPECTED for x in each.values()),
    'pairs': each,
  }
  if args.ceiling:
    write_merged(text, [], folder / 'whole.txt')
    table = _train(args, seed, folder, 'whole', {'senses.number': 1})
    each = ceiling(text, pairs, table, args.occurrences, args.window)
    found |= {'ceiling': statistics.mean(each.values()), 'ceilings': each}
  return found


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
  # Frequent words are next to everything, rare ones teach little.
  add('--first_rank', type=int, default=300)
  add('--last_rank', type=int, default=5000)
  add('--embedded_words', type=int, default=2_000_000)
  add('--ceiling', action='store_true', help="also by the words' own vectors")
  add('--quick', action='store_true', help='a small text, few pairs')
  args = experiment.parse(parser)
  if args.quick:
    args.embedded_words, args.pairs, args.seeds = 200_000, 8, 1
    args.last_rank = 1500  # rarer ones are read a few times only
    args.override = ['--config.model.dim=16', *args.override]
  results = experiment.Results('pseudo-words', args)
  with tempfile.TemporaryDirectory() as cache:
    text = _read(args, pathlib.Path(cache))
    for seed in range(1, args.seeds + 1):
      with tempfile.TemporaryDirectory() as folder:
        run = _run(args, text, seed, pathlib.Path(folder))
      results.found[seed] = run
      results.save()
      ceiling = f', ceiling {run["ceiling"]:.3f}' if args.ceiling else ''
      print(
        f'seed {seed}: purity {run["purity"]:.3f}{ceiling}, of '
        f'{len(run["pairs"])} pairs, {run["at_least_expected"]:.0%} of them '
        f'{EXPECTED:g} or more; worst: {planted_senses.worst(run["pairs"])}',
        flush=True,
      )
  mean = statistics.mean(x['purity'] for x in results.found.values())
  results.finish(f'purity {mean:.3f}, expected {EXPECTED:g}')


if __name__ == '__main__':
  experiment.main(main)
