"""Sub-models that never meet, merged: the tables of Anand et al. 2019 here.

  python experiments/partition_merge.py --text='enwiki*.bz2' \
    --eval=MEN,WS353,... --analogies=questions-words.txt --work=FOLDER

Text is divided in three ways among 10, 5 and 3 sub-models, each of which gets a
share of one over their number; each is trained by `jaxemb.main` and merged in
several ways, and set beside a single run of the same epochs and optimizer.
Stages, all of them unless named:

  sweep     the table: ways of dividing, rates and merges
  kl        how far the words of a part are from those of the whole
  numbers   merging some of ten sub-models
  removed   10 % and 50 % of the benchmarks' words taken from every sub-model
  repaired  taken from one sub-model, and put back from another
  sizes     ten sub-models of less text

What was trained or scored stays in --work, so that a sweep that was stopped
goes on, and parts of it can be run alone (--divide, --numbers, --seeds,
--stages). Starved sub-models want Adagrad; the single run has it too.

Scores are of the words that a model has, as in the paper; `recall` is the share
of the benchmarks' words that it has, in the mean of the benchmarks shown.
"""

import argparse
import glob
import json
import pathlib
import statistics
import sys
from typing import Any

import machine
import numpy as np
import partition_paper
import partition_runs
import partition_tables

from jaxemb.merging import align, parts
from jaxemb.text import encode, partition_sampling
from jaxemb.toywiki import toywiki

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / 'experiments' / 'results'

EXPECTED = partition_paper.SCORES
# What stages may do apart.
_CHOSEN = ('divide', 'numbers', 'merges', 'seeds', 'taken', 'removed')
STAGES = ('sweep', 'kl', 'numbers', 'removed', 'repaired', 'sizes')


# Stages.


def _sweep(args: argparse.Namespace) -> dict[str, Any]:
  return {
    'single': {
      seed: partition_runs.alone(args, partition_runs.Cell('single', 1, seed))
      for seed in args.seeds
    },
    'cells': [
      {
        'divide': divide,
        'num_parts': num,
        'seed': seed,
        **partition_runs.divided(
          args, partition_runs.Cell(divide, num, seed), args.merges
        ),
      }
      for seed in args.seeds
      for num in args.numbers
      for divide in args.divide
    ],
  }


def _divergences(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Of the words of parts from those of the whole text, nats."""
  corpus = encode.encode(
    args.text,
    encode.Settings('words', True, args.min_count, 1_000_000, ''),
    args.work / 'cache',
    lambda *_: None,
  )
  text, counts = partition_sampling.index(corpus), corpus.vocabulary.counts
  whole = counts / counts.sum()
  found = []
  for way in args.divide:
    for rate in (1 / 3, 1 / 5, 1 / 10, 1 / 100, 1 / 1000):
      num = round(1 / rate)
      each = []
      for part in range(0, num, max(1, num // 10)):
        share = partition_sampling.Sampling(way, num, rate, part, args.seeds[0])
        seen = partition_sampling.count(text, share, 1).seen
        mine = seen[seen > 0] / seen.sum()
        each.append(
          (
            float(np.sum(mine * np.log(mine / whole[seen > 0]))),
            (len(counts) - 1) / 2 / int(seen.sum()),
            int(seen.sum()) / corpus.num_words,
          )
        )
      divergence, floor, read = (
        statistics.mean(x) for x in zip(*each, strict=True)
      )
      found.append(
        {
          'divide': way, 'rate': rate, 'divergence': divergence,
          'floor': floor, 'times_floor': divergence / floor, 'read': read,
          'published': partition_paper.DIVERGENCES.get(way, {}).get(rate),
        }
      )  # fmt: skip
  return found


def _numbers(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Some of the sub-models of the finest division."""
  num, found = max(args.numbers), []
  cell = partition_runs.Cell('shuffle', num, args.seeds[0])
  workdir = partition_runs.train(args, cell)
  for taken in [x for x in args.taken if x <= num]:
    for name in ('pca', 'alir'):
      if taken == num:
        scores = partition_runs.whole(args, cell, workdir, name)
      elif taken == 1:
        opened = partition_runs.parts_of(workdir, 1)[0]
        scores = partition_runs.kept(
          args,
          f'{cell.name}-part{pathlib.Path(opened.name).name}',
          lambda x=opened: partition_runs.evaluate(
            args, x.words, x.vectors.open()
          ),
        )
      else:
        scores = partition_runs.kept(
          args,
          f'{cell.name}-first{taken}-{name}',
          lambda taken=taken, name=name: partition_runs.merged(
            args,
            workdir,
            partition_runs.parts_of(workdir, taken),
            partition_runs.MERGES[name],
          ),
          repr(partition_runs.MERGES[name]),
        )
      found.append({'taken': taken, 'merge': name, **scores})
  return found


def _without(part: parts.Part, gone: set[str]) -> parts.Part:
  """A sub-model that lacks some words."""
  keep = np.array([word not in gone for word in part.words])
  return part._replace(
    words=[part.words[i] for i in np.flatnonzero(keep)],
    vectors=parts.Rows(part.vectors.open()[keep]),
    counts=part.counts[keep],
  )


def _some(args: argparse.Namespace, share: float, seed: int) -> set[str]:
  """So many of the benchmarks' words, at random."""
  every = sorted(set().union(*args.benchmark_words.values()))
  rng = np.random.default_rng(seed)
  return set(rng.choice(every, round(share * len(every)), replace=False))


def _removed(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Merges of sub-models each of which lacks other words."""
  num, found = max(args.numbers), []
  cell = partition_runs.Cell('shuffle', num, args.seeds[0])
  workdir = partition_runs.train(args, cell)
  for share in (0.0, *args.removed):
    for name in args.merges:

      def make(share=share, name=name) -> dict[str, Any]:
        opened = [
          _without(part, _some(args, share, i))
          for i, part in enumerate(partition_runs.parts_of(workdir))
        ]
        return partition_runs.merged(
          args, workdir, opened, partition_runs.MERGES[name]
        )

      if share:
        scores = partition_runs.kept(
          args,
          f'{cell.name}-without{share}-{name}',
          make,
          repr(partition_runs.MERGES[name]),
        )
      else:
        scores = partition_runs.whole(args, cell, workdir, name)
      found.append({'removed': share, 'merge': name, **scores})
  return found


def _repaired(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Words of one sub-model from another, turned into its space."""
  cell = partition_runs.Cell('shuffle', max(args.numbers), args.seeds[0])
  source, target = (
    (part.words, _units(part.vectors.open()))
    for part in partition_runs.parts_of(partition_runs.train(args, cell), 2)
  )
  places = {word: i for i, word in enumerate(source[0])}
  common = [i for i, word in enumerate(target[0]) if word in places]
  theirs = np.array([places[target[0][i]] for i in common])
  names = [target[0][i] for i in common]
  a, b = source[1][theirs], target[1][common]
  found = []
  for share in (0.0, 0.5, 1.0):
    gone = np.isin(names, list(_some(args, share, 0)))
    maps = {'source': None}
    if share:
      product = a[~gone].T @ b[~gone]
      maps = {
        'procrustes': align.procrustes(product.astype(np.float64)),
        'least squares': np.linalg.lstsq(a[~gone], b[~gone], rcond=None)[0],
      }
      if not gone.all():
        maps['zeros'] = np.zeros_like(product)  # they stay away
    for name, turn in maps.items():
      repaired = a
      if turn is not None:
        repaired = np.where(gone[:, None], a @ turn.astype(np.float32), b)
      scores = partition_runs.evaluate(args, names, repaired)
      found.append({'removed': share, 'map': name, **scores})
  return found


def _units(vectors: np.ndarray) -> np.ndarray:
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _sizes(args: argparse.Namespace) -> list[dict[str, Any]]:
  """The finest division of the first files of the text, and of all."""
  num_files, found = len(glob.glob(args.text)), []
  num, seed = max(args.numbers), args.seeds[0]
  for n in range(1, num_files + 1):
    files = 0 if n == num_files else n
    single = partition_runs.alone(
      args, partition_runs.Cell('single', 1, seed, files)
    )
    mine = partition_runs.divided(
      args, partition_runs.Cell('shuffle', num, seed, files), ['alir', 'concat']
    )
    found.append({'files': n, 'single': single, **mine})
  return found


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--text', help='file, folder or quoted glob')
  add('--eval', help='similarity and category files, with commas')
  add('--analogies', default='', help='analogy files, with commas')
  add('--work', type=pathlib.Path, help='folder that keeps what was trained')
  add('--stages', default=','.join(STAGES))
  add('--divide', default=','.join(partition_sampling.METHODS[::-1]))
  add('--numbers', default='10,5,3', help='of sub-models')
  add(
    '--merges',
    default=':'.join(partition_runs.MERGES),
    help='with colons between',
  )
  add('--seeds', default='1,2,3')
  add('--taken', default='1,2,4,6,8,10', help='of the stage numbers')
  add('--removed', default='0.1,0.5', help='of the stage removed')
  add('--epochs', type=machine.count, default=5)
  add('--dim', type=int, default=100)
  add('--sample', type=float, default=1e-4)
  add('--min_count', type=int, default=5)
  add('--optimizer', default='adagrad')
  add('--learning_rate', type=float, default=0.2)
  add('--restrict_vocab', type=int, default=30_000, help='of analogies')
  add('--config', default='configs/wiki.py')
  add('--output', type=pathlib.Path, help='results/partition-merge-DATE.json')
  add('--plot', type=pathlib.Path, help='file .svg or .png')
  add('--quick', action='store_true', help='tiny, for tests; needs --work')
  args = machine.parse(parser)
  args.override.append(f'--config.data.min_count={args.min_count}')
  if args.quick:
    _make_quick(args)
    args.output = args.output or args.work / 'found.json'
  if not (args.text and args.eval and args.work):
    parser.error('give --text, --eval and --work')
  args.stages = args.stages.split(',')
  args.divide = args.divide.split(',')
  args.merges = args.merges.split(':')
  for name in ('numbers', 'seeds', 'taken'):
    setattr(args, name, [int(x) for x in getattr(args, name).split(',')])
  args.removed = [float(x) for x in args.removed.split(',')]
  args.work = args.work.absolute()
  return args


def _make_quick(args: argparse.Namespace) -> None:
  made = toywiki.write(args.work / 'toywiki', corpus_words=60_000)
  paths = {path.name: str(path) for path in map(pathlib.Path, made.eval_paths)}
  args.text, args.eval = str(made.xml), ','.join(paths.values())
  args.epochs, args.dim, args.numbers, args.seeds = 2, 8, '3', '1'
  args.divide, args.merges, args.taken = 'shuffle', 'concat:alir', '1'
  args.removed, args.restrict_vocab = '0.5', 0


def main() -> None:
  """Trains and scores what is not there yet, prints tables, writes figures."""
  args = _arguments()
  args.benchmark_words = partition_runs.benchmark_words(args)
  partition_runs.claim(args)
  output = args.output or _RESULTS / f'partition-merge-{machine.today()}.json'
  result = json.loads(output.read_text()) if output.exists() else {}
  common = argparse.Namespace(**partition_runs.settings(args))
  common = json.loads(json.dumps(machine.arguments(common)))
  if result.setdefault('settings', common) != common:
    sys.exit(f'{output} has figures of other settings; give another --output')
  stages = {
    'sweep': _sweep,
    'kl': _divergences,
    'numbers': _numbers,
    'removed': _removed,
    'repaired': _repaired,
    'sizes': _sizes,
  }
  for stage in args.stages:
    found = stages[stage](args)
    # As it will be read again.
    result[stage] = json.loads(json.dumps(found))
    chosen = {name: getattr(args, name) for name in _CHOSEN}
    result.setdefault('arguments', {})[stage] = chosen
  result['machine'] = machine.describe()
  text = partition_tables.tables(result)
  print(text, machine.line(result['machine']), sep='\n\n')
  output.parent.mkdir(parents=True, exist_ok=True)
  output.write_text(json.dumps(result) + '\n')
  output.with_suffix('.txt').write_text(text + '\n')
  if args.plot and 'sweep' in result:
    partition_tables.plot(result, args.plot)


if __name__ == '__main__':
  machine.run(main)
