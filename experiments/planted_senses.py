"""Planted words: does the mixture tell two known senses of a word apart?

  python experiments/planted_senses.py

Some words of the embedded corpus have two senses, and it is known which one a
sentence is about. `configs/mixture.py` trains on the corpus; new sentences then
ask for the sense of such a word. Each recovered sense stands for the one that
most of half of the sentences with it are about; of the other half it is counted
how many are.
"""

import argparse
import json
import pathlib
import random
import re
import statistics
import sys
import tempfile

import machine
import numpy as np
import scored

from jaxemb import embeddings
from jaxemb.senses import table as senses
from jaxemb.toywiki import toywiki

EXPECTED = 0.95
_TOKEN = re.compile(r'[^\W_]+')


def right(
  table: senses.Senses, world: toywiki.World, sentences: int
) -> dict[str, float]:
  """By planted word, the share of sentences whose sense is told."""
  draw = random.Random(1).random
  families = [x for x in world.families if x.kind == 'sense']
  found = {}
  for both in zip(families[::2], families[1::2], strict=True):
    word = both[0].words['singular']
    if word not in table.index:
      found[word] = 0.0  # too rare to be told
      continue
    told = np.zeros((len(table.priors), 2))
    counted = []
    for number in range(2 * sentences):
      sense = number // 2 % 2
      text = toywiki.context(world, both[sense], draw)
      before, _, behind = text.partition(f'<b> {word} </b>')
      before = _TOKEN.findall(before)
      tokens = [*before, word, *_TOKEN.findall(behind)]
      context = table.context(tokens, len(before))
      row = int(table.posterior(table.index[word], context).argmax())
      if number % 2:
        counted.append((row, sense))
      else:
        told[row, sense] += 1
    found[word] = float(
      np.mean([told[row].argmax() == sense for row, sense in counted])
    )
  return found


def main() -> None:
  """Trains once per seed and prints the shares."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  add = parser.add_argument
  add('--config', default='configs/mixture.py')
  add('--seeds', type=machine.count, default=3)
  add(
    '--sentences',
    type=machine.count,
    default=40,
    help='of a word, in either half',
  )
  add('--output', default='', help='JSON file; "" = in experiments/results')
  args = machine.parse(parser)
  results = pathlib.Path(__file__).parent / 'results'
  output = args.output or results / f'planted-senses-{machine.today()}.json'
  found = {}
  for seed in range(1, args.seeds + 1):
    with tempfile.TemporaryDirectory() as folder:
      command = [
        sys.executable, '-m', 'jaxemb.main',
        f'--config={machine.config(args.config)}',
        f'--workdir={folder}', f'--config.seed={seed}',
        '--config.eval.paths=none', *args.override,
      ]  # fmt: skip
      scored.finished(command)
      table = embeddings.load(folder).sense_table
      speed = json.loads((pathlib.Path(folder) / 'report.json').read_text())
    if table is None:
      parser.error(f'{args.config} trains one vector for a word')
    each = right(table, toywiki.build_world(0), args.sentences)
    found[seed] = {
      'right': statistics.mean(each.values()),
      'words': each,
      'words_per_sec': speed['words_per_sec'],
    }
    worst = sorted(each.items(), key=lambda x: x[1])[:5]
    print(
      f'seed {seed}: {found[seed]["right"]:.3f} right, {len(each)} words; '
      'worst: ' + ', '.join(f'{k} {v:.2f}' for k, v in worst),
      flush=True,
    )
  facts = machine.describe()
  machine.write(output, facts, args, found)
  print(machine.line(facts))
  mean = statistics.mean(x['right'] for x in found.values())
  print(f'{mean:.3f} right, wanted {EXPECTED:g}; all figures in {output}')


if __name__ == '__main__':
  machine.run(main)
