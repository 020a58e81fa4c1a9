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
  ids = corpus.ids[: args.words or None]
  names = corpus.vocabulary.words
  return Text(ids, names, np.bincount(ids[ids >= 0], minlength=len(names)))


def choose(text: Text, num: int, seed: int, ranks: range) -> list[Pair]:
  """Draws pairs of words of these ranks by frequency, no word twice."""
  rng = np.random.default_rng(seed)
  sentence = np.cumsum(text.ids == tokenize.END)
  num_sentences = int(sentence[-1]) + 1
  order = np.argsort(-text.counts, kind='stable')[ranks.start : ranks.stop]
  names = {int(i): text.words[i] for i in order}
  free = [i for i, x in names.items() if x.isalpha() and len(x) >= _MIN_LETTERS]

  def sentences(word):
    return np.unique(sentence[text.ids == word])

  pairs = []
  for first in rng.permutation(free).tolist():
    if len(pairs) == num:
      break
    if first not in free:
      continue
    ratios = {
      i: text.counts[i] / text.counts[first] for i in free if i != first
    }
    most, own = _FREQUENCY_RATIO, sentences(first)
    near = [i for i, ratio in ratios.items() if 1 / most <= ratio <= most]
    for second in rng.permutation(near).tolist()[:20]:
      other = sentences(second)
      together = len(np.intersect1d(own, other, assume_unique=True))
      if together <= len(own) * len(other) / num_sentences:
        name = f'{names[first]}_{names[second]}'
        pairs.append(Pair(name, (first, second)))
        free = [i for i in free if i not in (first, second)]
        break
  return pairs


def _purity(
  text: Text,
  names: np.ndarray,
  pair: Pair,
  table: senses.Senses,
  args: argparse.Namespace,
) -> float:
  """Of --occurrences of a pair, spread over the text whose words have `names`.

  A context is the sentence, or what is near in a long one.
  """
  word, reach = table.index[pair.name], 20 * table.window
  positions = np.flatnonzero(np.isin(text.ids, pair.words))
  step = max(1, len(positions) // args.occurrences)
  assigned = []
  for position in positions[::step][: args.occurrences].tolist():
    start = max(0, position - reach)
    near, at = text.ids[start : position + reach + 1], position - start
    ends = np.flatnonzero(near == tokenize.END)
    first = int(ends[ends < at].max(initial=-1)) + 1
    last = int(ends[ends > at].min(initial=len(near)))
    tokens = names[near[first:last]].tolist()
    context = table.context(tokens, at - first, args.window)
    is_second = int(text.ids[position] == pair.words[1])
    assigned.append((int(table.posterior(word, context).argmax()), is_second))
  return planted_senses.purity(assigned)


def _run(
  args: argparse.Namespace, text: Text, seed: int, folder: pathlib.Path
) -> dict[str, Any]:
  """Chooses pairs and trains."""
  ranks = range(args.first_rank, args.last_rank)
  pairs = choose(text, args.pairs, seed, ranks)
  names = np.array(text.words, object)
  for pair in pairs:
    names[list(pair.words)] = pair.name
  experiment.write_tokens(text.ids, names, folder / 'merged.txt')
  (folder / 'words.txt').write_text('\n'.join(x.name for x in pairs))
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
  table = embeddings.load(folder / 'merged').sense_table
  each = {x.name: _purity(text, names, x, table, args) for x in pairs}
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
  # Frequent words are next to everything, rare ones teach little.
  add('--first_rank', type=int, default=300)
  add('--last_rank', type=int, default=5000)
  add('--embedded_words', type=int, default=2_000_000)
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
