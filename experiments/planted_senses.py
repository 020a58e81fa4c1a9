"""Planted words: does the mixture tell apart two known senses of a word?

  python experiments/planted_senses.py

Some words of the embedded corpus have two senses, and it is known which one a
sentence is about. The config `mixture` is trained on the corpus; new sentences
then ask for the sense of such a word. Each learned sense stands for the one
that most of half of the sentences with it are about; accuracy is measured on
the other half.
"""

import pathlib
import random
import re
import statistics
import tempfile

import experiment
import numpy as np

from jaxemb import embeddings, errors
from jaxemb.evaluation import multivectors
from jaxemb.text.toywiki import toywiki

EXPECTED = 0.95
_TOKEN = re.compile(r'[^\W_]+')


def accuracy(
  table: multivectors.MultiVectors, world: toywiki.World, sentences: int
) -> dict[str, float]:
  """By planted word, the fraction of new sentences with the right sense."""
  draw = random.Random(1).random
  families = [x for x in world.families if x.kind == 'sense']
  found = {}
  for both in zip(families[::2], families[1::2], strict=True):
    word = both[0].words['singular']
    if word not in table.index:
      found[word] = 0.0  # too rare for the vocabulary
      continue
    assigned = []  # (learned sense, planted sense)
    for number in range(2 * sentences):
      sense = number // 2 % 2
      text = toywiki.context(world, both[sense], draw)
      before, _, after = text.partition(f'<b> {word} </b>')
      before = _TOKEN.findall(before)
      tokens = [*before, word, *_TOKEN.findall(after)]
      context = table.context(tokens, len(before))
      posterior = table.posterior(table.index[word], context)
      assigned.append((int(posterior.argmax()), sense))
    found[word] = purity(assigned)
  return found


def purity(assigned: list[tuple[int, int]]) -> float:
  """Accuracy on the odd pairs of (learned, true) senses.

  The even pairs say which true sense a learned one stands for.
  """
  votes = np.zeros((1 + max(learned for learned, _ in assigned), 2))
  for learned, true in assigned[::2]:
    votes[learned, true] += 1
  odd = assigned[1::2]
  return float(np.mean([votes[i].argmax() == true for i, true in odd]))


def worst(by_word: dict[str, float]) -> str:
  """The five words of the lowest accuracy."""
  lowest = sorted(by_word.items(), key=lambda x: x[1])[:5]
  return ', '.join(f'{word} {x:.2f}' for word, x in lowest)


def main() -> None:
  """Trains once per seed and prints the accuracies."""
  parser = experiment.parser(__doc__)
  add, count = parser.add_argument, experiment.count
  add('--config', default='mixture')
  add('--seeds', type=count, default=3)
  add('--sentences', type=count, default=40, help='per word and half')
  args = experiment.parse(parser)
  results = experiment.Results('planted-senses', args)
  world = toywiki.build_world()
  for seed in range(1, args.seeds + 1):
    with tempfile.TemporaryDirectory() as folder:
      settings = {'seed': seed, 'eval.paths': 'none'}
      report = experiment.train(args, pathlib.Path(folder), settings)
      table = embeddings.load_vectors(folder).sense_table
    if table is None:
      raise errors.UserError(f'{args.config} trains one vector per word')
    each = accuracy(table, world, args.sentences)
    mean = statistics.mean(each.values())
    results.found[seed] = {
      'right': mean,
      'words': each,
      'words_per_sec': report['words_per_sec'],
    }
    results.save()
    print(
      f'seed {seed}: {mean:.3f} right, {len(each)} words; worst: {worst(each)}',
      flush=True,
    )
  mean = statistics.mean(x['right'] for x in results.found.values())
  results.finish(f'{mean:.3f} right, expected {EXPECTED:g}')


if __name__ == '__main__':
  experiment.main(main)
