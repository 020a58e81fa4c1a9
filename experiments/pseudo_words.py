"""Pseudo-words: does the mixture tell two words apart that were made one?

  python experiments/pseudo_words.py --text=PATH
  python experiments/pseudo_words.py --quick          the embedded corpus

Pairs of unrelated words of similar frequency are merged in the text, so that it
is known which sense every occurrence has (Gale, Church and Yarowsky 1992;
Schuetze 1992). `configs/mixture.py` trains on that text with the merged words
as those of several senses. The exported model then assigns occurrences to
senses by what is around them, and each recovered sense stands for the word that
most of its occurrences are:

  purity = occurrences whose word is that of their sense / all

Half of the occurrences say which word a sense stands for, the other half is
counted, so that chance is the share of the more frequent word. Words are
unrelated if they are in one sentence no more often than by chance.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import machine
import numpy as np
import scored

from jaxemb import embeddings
from jaxemb.senses import table as senses
from jaxemb.text import encode, tokenize
from jaxemb.toywiki import toywiki

EXPECTED = 0.90  # purity of 50 pairs, two senses each
# Frequent words are next to everything; of rare ones there is little to learn.
_FIRST_RANK, _LAST_RANK, _LEAST_LETTERS = 300, 5000, 4
_FREQUENCY_RATIO = 1.25  # of the words of a pair, at most


class Pair(NamedTuple):
  """Two words that are made one."""

  name: str
  words: tuple[int, int]  # in the vocabulary of the text


class Text(NamedTuple):
  """What is read once."""

  ids: np.ndarray  # [n] int32, `tokenize.END` after each sentence
  words: list[str]
  counts: np.ndarray  # [vocab] int64


def _read(args: argparse.Namespace, cache: pathlib.Path) -> Text:
  path = args.text
  if not path:
    path = str(toywiki.write(cache / 'toywiki', 0, args.embedded_words).xml)
  settings = encode.Settings('words', True, 5, 0, '')
  found = encode.encode(path, settings, cache, lambda *_: None)
  ids = np.concatenate(found.shards)[: args.words or None]
  counts = np.bincount(ids[ids >= 0], minlength=len(found.vocabulary.words))
  return Text(ids, found.vocabulary.words, counts)


def choose(text: Text, num: int, seed: int, ranks: range) -> list[Pair]:
  """Pairs of words, no word twice.

  Args:
    text: that they are merged in.
    num: of pairs.
    seed: of the choice.
    ranks: of the words, by frequency.
  """
  rng = np.random.default_rng(seed)
  sentence = np.cumsum(text.ids == tokenize.END)
  num_sentences = int(sentence[-1]) + 1
  order = np.argsort(-text.counts, kind='stable')[ranks.start : ranks.stop]
  good = [
    int(i)
    for i in order
    if text.words[i].isalpha() and len(text.words[i]) >= _LEAST_LETTERS
  ]

  def sentences(word):
    return np.unique(sentence[text.ids == word])

  pairs, free = [], good
  for first in rng.permutation(good).tolist():
    if len(pairs) == num:
      break
    if first not in free:
      continue
    limits = text.counts[first] * np.array([1, _FREQUENCY_RATIO**2])
    limits = limits / _FREQUENCY_RATIO
    near = [
      i for i in free if i != first and limits[0] <= text.counts[i] <= limits[1]
    ]
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


def _occurrences(
  text: Text, pair: Pair, most: int, halo: int
) -> Iterator[tuple[np.ndarray, int, bool]]:
  """(ids of the sentence, place in it, whether it is the second word)."""
  places = np.flatnonzero(np.isin(text.ids, pair.words))
  step = max(1, len(places) // most)
  for place in places[::step][:most].tolist():
    start = max(0, place - halo)
    near, at = text.ids[start : place + halo + 1], place - start
    ends = np.flatnonzero(near == tokenize.END)
    first = int(ends[ends < at].max(initial=-1)) + 1
    last = int(ends[ends > at].min(initial=len(near)))
    yield near[first:last], at - first, text.ids[place] == pair.words[1]


def purity(
  text: Text,
  pairs: Sequence[Pair],
  table: senses.Senses,
  most: int,
  window: int = 0,
) -> dict[str, float]:
  """By pair, of at most so many occurrences spread over the text."""
  names = list(text.words)
  for pair in pairs:
    for word in pair.words:
      names[word] = pair.name
  found, halo = {}, 20 * table.window
  for pair in pairs:
    counted = []
    for ids, place, is_second in _occurrences(text, pair, most, halo):
      context = table.context([names[i] for i in ids], place, window)
      posterior = table.posterior(table.index[pair.name], context)
      counted.append((int(posterior.argmax()), int(is_second)))
    told = np.zeros((len(table.priors), 2))
    for sense, word in counted[::2]:
      told[sense, word] += 1
    right = [told[sense].argmax() == word for sense, word in counted[1::2]]
    found[pair.name] = float(np.mean(right))
  return found


def ceiling(
  text: Text,
  pairs: Sequence[Pair],
  table: senses.Senses,
  most: int,
  window: int = 0,
) -> dict[str, float]:
  """By pair, how often the vectors of both words themselves tell which it is.

  Args:
    text: that the words stand in, unmerged.
    pairs: of words.
    table: trained on that text, one sense for every word.
    most: occurrences of a pair.
    window: of a context; 0 = as exported.
  """
  found, halo = {}, 20 * table.window
  for pair in pairs:
    both = [table.index[text.words[i]] for i in pair.words]
    right = []
    for ids, place, is_second in _occurrences(text, pair, most, halo):
      context = table.context([text.words[i] for i in ids], place, window)
      logs = [table.log_likelihoods(i, context).sum() for i in both]
      right.append((logs[1] > logs[0]) == is_second)
    found[pair.name] = float(np.mean(right))
  return found


def _train(
  args: argparse.Namespace,
  seed: int,
  folder: pathlib.Path,
  text: pathlib.Path,
  *flags: str,
) -> senses.Senses:
  workdir = folder / f'run-{text.stem}'
  command = [
    sys.executable, '-m', 'jaxemb.main',
    f'--config={machine.config(args.config)}',
    f'--workdir={workdir}', f'--config.data.path={text}',
    '--config.data.tokens=whitespace',
    f'--config.seed={seed}', '--config.eval.paths=none',
    '--config.senses.top_ratio=0.0', *args.override, *flags,
  ]  # fmt: skip
  scored.finished(command)
  return embeddings.load(workdir).sense_table


def _run(
  args: argparse.Namespace, text: Text, seed: int, folder: pathlib.Path
) -> dict[str, Any]:
  """One seed: of the pairs and of the training."""
  ranks = range(args.first_rank, args.last_rank)
  pairs = choose(text, args.pairs, seed, ranks)
  write_merged(text, pairs, folder / 'merged.txt')
  words = folder / 'words.txt'
  words.write_text('\n'.join(x.name for x in pairs))
  table = _train(
    args, seed, folder, folder / 'merged.txt',
    f'--config.senses.words={words}', f'--config.senses.number={args.senses}',
  )  # fmt: skip
  each = purity(text, pairs, table, args.occurrences, args.window)
  found = {
    'purity': statistics.mean(each.values()),
    'at_least_expected': statistics.mean(x >= EXPECTED for x in each.values()),
    'pairs': each,
  }
  if args.ceiling:
    write_merged(text, [], folder / 'whole.txt')
    table = _train(
      args, seed, folder, folder / 'whole.txt', '--config.senses.number=1'
    )
    each = ceiling(text, pairs, table, args.occurrences, args.window)
    found |= {'ceiling': statistics.mean(each.values()), 'ceilings': each}
  return found


def main() -> None:
  """Trains once per seed and prints the purities."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  add = parser.add_argument
  add('--text', default='', help='as config.data.path; "" = embedded corpus')
  add('--words', type=int, default=0, help='of the text; 0 = all')
  add('--config', default='configs/mixture.py')
  add('--pairs', type=machine.count, default=50)
  add('--senses', type=machine.count, default=2, help='of each merged word')
  add('--seeds', type=machine.count, default=3)
  add('--occurrences', type=machine.count, default=400, help='of a merged word')
  add(
    '--window',
    type=int,
    default=0,
    help='known words of a context on each side; 0 = as exported, see '
    'config.senses.query_window',
  )
  add('--first_rank', type=int, default=_FIRST_RANK)
  add('--last_rank', type=int, default=_LAST_RANK)
  add('--embedded_words', type=int, default=2_000_000)
  add('--ceiling', action='store_true', help='what can be told at all')
  add('--quick', action='store_true', help='a small text, few pairs')
  add('--output', default='', help='JSON file; "" = in experiments/results')
  args = machine.parse(parser)
  if args.quick:
    args.embedded_words, args.pairs, args.seeds = 200_000, 8, 1
    args.last_rank = 1500  # rarer ones are read a few times only
    args.override = ['--config.model.dim=16', *args.override]
  output = args.output or (
    pathlib.Path(__file__).parent
    / 'results'
    / f'pseudo-words-{machine.today()}.json'
  )
  found = {}
  with tempfile.TemporaryDirectory() as cache:
    text = _read(args, pathlib.Path(cache))
    for seed in range(1, args.seeds + 1):
      with tempfile.TemporaryDirectory() as folder:
        found[seed] = run = _run(args, text, seed, pathlib.Path(folder))
      worst = sorted(run['pairs'].items(), key=lambda x: x[1])[:5]
      told = f', ceiling {run["ceiling"]:.3f}' if args.ceiling else ''
      print(
        f'seed {seed}: purity {run["purity"]:.3f}{told}, of '
        f'{len(run["pairs"])} pairs, {run["at_least_expected"]:.0%} of them '
        f'{EXPECTED:g} or more; worst: '
        + ', '.join(f'{k} {v:.2f}' for k, v in worst),
        flush=True,
      )
  facts = machine.describe()
  machine.write(output, facts, args, found)
  print(machine.line(facts))
  mean = statistics.mean(x['purity'] for x in found.values())
  print(f'purity {mean:.3f}, wanted {EXPECTED:g}; all figures in {output}')


if __name__ == '__main__':
  machine.run(main)
