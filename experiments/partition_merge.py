"""Independent sub-models, merged: the tables of Anand et al. 2019, here.

  python experiments/partition_merge.py --text='enwiki*.bz2' \
    --eval=MEN,WS353,... --analogies=questions-words.txt --work=FOLDER

The text is divided in three ways among 10, 5 and 3 sub-models, which sample it
at a rate of one over their number; they are trained by `jaxemb.main`, merged in
several ways, and compared with a single run of the same epochs and optimizer.
Stages, all of them unless named:

  sweep     the table: divisions, rates and merges
  kl        how far the words of a part are from those of the whole
  numbers   merging some of ten sub-models
  removed   10 % and 50 % of the benchmarks' words removed from every sub-model
  repaired  removed from one sub-model, and restored from another
  sizes     ten sub-models of less text

What was trained or scored stays in --work, so that a sweep that was stopped is
resumed, and parts of it can be run alone (--divide, --numbers, --seeds,
--stages). Starved sub-models need Adagrad; the single run has it too.

Scores are of the words that a model has, as in the paper; `recall` is the
fraction of the benchmarks' words that it has, the mean of the benchmarks shown.
"""

import argparse
import glob
import json
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import experiment
import numpy as np
import partition_runs

from jaxemb.evaluation import geometry
from jaxemb.merging import align, parts
from jaxemb.text import encode, partition_sampling
from jaxemb.toywiki import toywiki

_PAPER = json.loads(
  (pathlib.Path(__file__).parent / 'anand_2019.json').read_text()
)
# Flags that may differ between calls that add to one file.
_MAY_CHANGE = (
  'divide', 'numbers', 'merges', 'seeds', 'taken', 'removed', 'stages', 'plot',
  'quick',
)  # fmt: skip


# Stages.


def _finest(args: argparse.Namespace) -> partition_runs.Cell:
  """The most sub-models."""
  return partition_runs.Cell('shuffle', max(args.numbers), args.seeds[0])


def _sweep(args: argparse.Namespace) -> dict[str, Any]:
  cells = [
    partition_runs.Cell(divide, num, seed)
    for seed in args.seeds
    for num in args.numbers
    for divide in args.divide
  ]
  return {
    'single': {
      str(seed): partition_runs.single(
        args, partition_runs.Cell('single', 1, seed)
      )
      for seed in args.seeds
    },
    'cells': [
      cell._asdict() | partition_runs.divided(args, cell, args.merges)
      for cell in cells
    ],
  }


def _divergences(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Of the words of parts from those of the whole text, in nats."""
  corpus = encode.encode(
    args.text,
    encode.Settings('words', True, args.min_count, 1_000_000, ''),
    args.work / 'cache',
    lambda *_: None,
  )
  text, counts = partition_sampling.index(corpus), corpus.vocabulary.counts
  whole = counts / counts.sum()
  found = []
  for divide in args.divide:
    for rate in (1 / 3, 1 / 5, 1 / 10, 1 / 100, 1 / 1000):
      num = round(1 / rate)
      each = []
      for part in range(0, num, max(1, num // 10)):
        sampling = partition_sampling.Sampling(
          divide, num, rate, part, args.seeds[0]
        )
        seen = partition_sampling.count(text, sampling, 1).seen
        own = seen[seen > 0] / seen.sum()
        divergence = float(np.sum(own * np.log(own / whole[seen > 0])))
        # That of a random sample of as many words.
        floor = (len(counts) - 1) / 2 / int(seen.sum())
        each.append((divergence, floor, int(seen.sum()) / corpus.num_words))
      divergence, floor, read = (
        statistics.mean(x) for x in zip(*each, strict=True)
      )
      found.append(
        {
          'divide': divide,
          'rate': rate,
          'divergence': divergence,
          'floor': floor,
          'times_floor': divergence / floor,
          'read': read,
          'published': _PAPER['divergences'].get(divide, {}).get(f'{rate:g}'),
        }
      )
  return found


def _numbers(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Some of the sub-models of the finest division."""
  cell, found = _finest(args), []
  workdir = partition_runs.train(args, cell)
  for taken in [x for x in args.taken if x <= cell.num_parts]:
    for name in ('pca', 'alir'):
      if taken == cell.num_parts:
        scores = partition_runs.whole(args, cell, name)
      elif taken == 1:
        scores = partition_runs.part_scores(args, cell)[0]
      else:
        opened = partition_runs.parts_of(workdir, taken)
        scores = partition_runs.saved(
          args,
          f'{cell.name}-first{taken}-{name}',
          lambda opened=opened, name=name: partition_runs.merged(
            args, workdir, opened, name
          ),
        )
      found.append({'taken': taken, 'merge': name, **scores})
  return found


def _without(part: parts.Part, removed: set[str]) -> parts.Part:
  """A sub-model that lacks some words."""
  keep = np.array([word not in removed for word in part.words])
  return part._replace(
    words=[part.words[i] for i in np.flatnonzero(keep)],
    vectors=parts.Rows(part.vectors.open()[keep]),
    counts=part.counts[keep],
  )


def _some_words(args: argparse.Namespace, ratio: float, seed: int) -> set[str]:
  """A random fraction of the benchmarks' words."""
  every = sorted(set().union(*partition_runs.benchmark_words(args).values()))
  rng = np.random.default_rng(seed)
  return set(rng.choice(every, round(ratio * len(every)), replace=False))


def _removed(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Merges of sub-models each of which lacks other words."""
  cell = _finest(args)
  workdir = partition_runs.train(args, cell)

  def make(ratio: float, name: str) -> dict[str, Any]:
    opened = [
      _without(part, _some_words(args, ratio, i))
      for i, part in enumerate(partition_runs.parts_of(workdir))
    ]
    return partition_runs.merged(args, workdir, opened, name)

  found = []
  for name in args.merges:
    whole = partition_runs.whole(args, cell, name)
    found.append({'removed': 0.0, 'merge': name, **whole})
    for ratio in args.removed:
      scores = partition_runs.saved(
        args,
        f'{cell.name}-without{ratio}-{name.replace(",", "")}',
        lambda ratio=ratio, name=name: make(ratio, name),
      )
      found.append({'removed': ratio, 'merge': name, **scores})
  return found


def _repaired(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Words of one sub-model from another, mapped into its space."""
  workdir = partition_runs.train(args, _finest(args))
  source, target = (
    dict(zip(part.words, geometry.unit(part.vectors.open()), strict=True))
    for part in partition_runs.parts_of(workdir, 2)
  )
  names = [word for word in target if word in source]
  a, b = (np.stack([x[word] for word in names]) for x in (source, target))
  found = []
  for ratio in (0.0, 0.5, 1.0):
    lacks = np.isin(names, list(_some_words(args, ratio, 0)))
    x, y = a[~lacks], b[~lacks]
    maps = {'source': None}
    if ratio:
      maps = {
        'procrustes': align.procrustes((x.T @ y).astype(np.float64)),
        'least squares': np.linalg.lstsq(x, y, rcond=None)[0],
      }
      if not lacks.all():
        maps['zeros'] = np.zeros((a.shape[1], b.shape[1]))  # not restored
    for name, turn in maps.items():
      rows = a
      if turn is not None:
        rows = np.where(lacks[:, None], a @ turn.astype(np.float32), b)
      scores = partition_runs.evaluate(args, names, rows)
      found.append({'removed': ratio, 'map': name, **scores})
  return found


def _sizes(args: argparse.Namespace) -> list[dict[str, Any]]:
  """The finest division of the first files of the text, and of all."""
  num_files, found = len(glob.glob(args.text)), []
  for n in range(1, num_files + 1):
    cell = _finest(args)._replace(num_files=n % num_files)
    single = cell._replace(divide='single', num_parts=1)
    found.append(
      {
        'files': n,
        'single': partition_runs.single(args, single),
        **partition_runs.divided(args, cell, ['alir', 'concat']),
      }
    )
  return found


STAGES: dict[str, Callable[[argparse.Namespace], Any]] = {
  'sweep': _sweep,
  'kl': _divergences,
  'numbers': _numbers,
  'removed': _removed,
  'repaired': _repaired,
  'sizes': _sizes,
}


# Tables.


def _shown(x: dict[str, Any]) -> list[str]:
  """Benchmarks whose mean is shown."""
  names = x['benchmarks']
  return [name for name in partition_runs.FIVE if name in names] or list(names)


def _line(label: str, runs: Sequence[dict[str, Any]]) -> list[Any]:
  """Means over seeds, recall, and the spread of the mean."""
  every = [
    [
      *(x['benchmarks'][name]['score'] or 0.0 for name in _shown(x)),
      x['mean'],
      statistics.mean(x['benchmarks'][name]['recall'] for name in _shown(x)),
    ]
    for x in runs
  ]
  means = [f'{statistics.mean(x):.4f}' for x in zip(*every, strict=True)]
  spread = max(x[-2] for x in every) - min(x[-2] for x in every)
  return [label, *means, f'{spread:.4f}' if len(runs) > 1 else None]


def _published(scores: dict[str, float] | None, like: dict) -> list[list[Any]]:
  """A line, if the paper has any of the scores."""
  cells = [(scores or {}).get(name) for name in _shown(like)]
  return [['    published', *cells]] if any(cells) else []


def _table(
  title: str, like: dict, rows: Sequence[Sequence[Any]], *more: str
) -> str:
  names = [partition_runs.FIVE.get(x, x[:8]) for x in _shown(like)]
  head = [title, *names, 'mean', 'recall', 'spread', *more]
  return experiment.table(head, rows)


def _sweep_tables(found: dict[str, Any]) -> str:
  """Scores, and times relative to the single run."""
  single = list(found['single'].values())

  def mean(runs: Sequence[dict], key: str = 'mean') -> float:
    return statistics.mean(x[key] for x in runs)

  alone, secs = mean(single), mean(single, 'train_secs')
  words_read = mean(single, 'words_read')
  rows = [_line('single run', single) + ['1', single[0]['words']]]
  rows += _published(_PAPER['scores']['single/1/'], single[0])
  times = []
  groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
  for cell in found['cells']:
    groups.setdefault((cell['divide'], cell['num_parts']), []).append(cell)
  for (divide, num), cells in groups.items():
    name = f'{divide}, {num}'
    each = [part for cell in cells for part in cell['parts']]
    ratio, size = f'{mean(each) / alone:.3f}', round(mean(each, 'words'))
    rows.append(_line(f'{name}: mean sub-model', each) + [ratio, size])
    merge_secs = None
    for merge in cells[0]['merges']:
      runs = [cell['merges'][merge] for cell in cells]
      ratio = f'{mean(runs) / alone:.3f}'
      took = mean(runs, 'merge_secs')
      merge_secs = took / secs if merge == 'alir' else merge_secs
      rows.append(
        _line(f'{name}: {merge}', runs) + [ratio, runs[0]['words'], took]
      )
      paper = _PAPER['scores'].get(f'{divide}/{num}/{merge}')
      rows += _published(paper, runs[0])
    read, took = (
      statistics.mean(y for x in cells for y in x[key])
      for key in ('words_read', 'train_secs')
    )
    times.append((name, read / words_read, took / secs, merge_secs))
  minutes = _PAPER['minutes']
  part, merge = minutes['sub-models at 1/10'], minutes['merge']
  whole = minutes['single']
  times.append(
    ('    published, shuffle, 10', None, part / whole, merge / whole)
  )
  head = ('of the single run', 'words of a sub-model', 'secs', 'merging')
  more = ('/single', 'words', 'merge s')
  scores = _table('division, sub-models, merge', single[0], rows, *more)
  return f'{scores}\n\n{experiment.table(head, times)}'


def _numbers_rows(x: dict[str, Any]) -> list[list[Any]]:
  paper = {
    name: scores.get(str(x['taken']))
    for name, scores in _PAPER['of_numbers'].items()
    if x['merge'] == 'pca'
  }
  row = _line(f'first {x["taken"]}, {x["merge"]}', [x])
  return [row, *_published(paper, x)]


def _repaired_rows(x: dict[str, Any]) -> list[list[Any]]:
  paper = _PAPER['repaired'].get(x['map'], {}).get(str(x['removed']))
  row = _line(f'{x["removed"]:.0%} of one, {x["map"]}', [x])
  return [row, *_published(paper, x)]


def _removed_rows(x: dict[str, Any]) -> list[list[Any]]:
  return [_line(f'{x["removed"]:.0%} removed, {x["merge"]}', [x])]


def tables(found: dict[str, Any]) -> list[str]:
  """A table for each stage."""
  made = []
  if 'sweep' in found:
    made.append(_sweep_tables(found['sweep']))
  if 'kl' in found:
    head = ('words of a part from the whole, nats', *list(found['kl'][0])[1:])
    rows = [list(x.values()) for x in found['kl']]
    made.append(experiment.table(head, rows))
  for stage, title, rows_of in (
    ('numbers', 'some of the sub-models', _numbers_rows),
    ('removed', 'words removed from every sub-model', _removed_rows),
    ('repaired', 'words restored from another sub-model', _repaired_rows),
  ):
    if stage in found:
      rows = [row for x in found[stage] for row in rows_of(x)]
      made.append(_table(title, found[stage][0], rows))
  for x in found.get('sizes', ()):
    rows = [_line('single run', [x['single']])]
    rows += [_line(name, [scores]) for name, scores in x['merges'].items()]
    title = f'{x["single"]["corpus_words"]:,} words of text'
    made.append(_table(title, x['single'], rows))
  return [text + '\n' for text in made]


def _plot(found: dict[str, Any], path: pathlib.Path) -> None:
  """Quality relative to the single run, by division and number."""
  figure, (panel,) = experiment.start_plot(1, (6.4, 3.2))
  alone = statistics.mean(x['mean'] for x in found['single'].values())
  divisions = sorted({x['divide'] for x in found['cells']})
  for i, divide in enumerate(divisions):
    lines: dict[str, dict[int, list[float]]] = {}
    for x in (x for x in found['cells'] if x['divide'] == divide):
      means = {k: x['merges'][k]['mean'] for k in x['merges']}
      means['mean part'] = x['mean_part']
      for name in ('alir', 'concat, power .75', 'mean part'):
        if name in means:
          by_number = lines.setdefault(name, {})
          by_number.setdefault(x['num_parts'], []).append(means[name] / alone)
    for (name, by_number), style in zip(lines.items(), '-:-', strict=False):
      xs = sorted(by_number)
      ys = [statistics.mean(by_number[num]) for num in xs]
      panel.plot(xs, ys, style, color=f'C{i}', label=f'{divide}, {name}')
  panel.axhline(1, color='#777777', lw=0.8)
  panel.set(xlabel='sub-models', ylabel='mean of benchmarks / single run')
  figure.legend(fontsize=7, frameon=False, loc='outside right center')
  figure.savefig(path)


def _arguments() -> argparse.Namespace:
  parser = experiment.parser(__doc__)
  experiment.add_run_flags(parser, restrict_vocab=30_000)
  add, numbers = parser.add_argument, experiment.numbers
  add('--analogies', default='', help='analogy files, separated by commas')
  add('--work', type=pathlib.Path, help='folder for what is trained')
  add('--stages', type=experiment.choices('stage', STAGES), default=[*STAGES])
  methods = partition_sampling.METHODS
  add(
    '--divide',
    type=experiment.choices('division', methods),
    default=[*methods[::-1]],
  )
  add('--numbers', type=numbers, default=[10, 5, 3], help='of sub-models')
  merges = experiment.choices('merge', partition_runs.MERGES, ':')
  default = [*partition_runs.MERGES]
  add('--merges', type=merges, default=default, help='separated by colons')
  add('--seeds', type=numbers, default=[1, 2, 3])
  add('--taken', type=numbers, default=[1, 2, 4, 6, 8, 10], help='in numbers')
  add(
    '--removed',
    type=lambda text: [float(x) for x in text.split(',')],
    default=[0.1, 0.5],
  )
  add('--dim', type=int, default=100)
  add('--min_count', type=int, default=5)
  add('--optimizer', default='adagrad')
  add('--learning_rate', type=float, default=0.2)
  add('--plot', type=pathlib.Path, help='file .svg or .png')
  add('--quick', action='store_true', help='tiny, for tests; needs --work')
  args = experiment.parse(parser)
  if args.quick and args.work:
    made = toywiki.write(args.work / 'toywiki', corpus_words=60_000)
    args.text, args.eval = str(made.xml), ','.join(map(str, made.eval_paths))
    args.epochs, args.dim, args.numbers, args.seeds = 2, 8, [3], [1]
    args.divide, args.merges, args.taken = ['shuffle'], ['concat', 'alir'], [1]
    args.removed, args.restrict_vocab = [0.5], 0
  if not (args.text and args.eval and args.work):
    parser.error('give --text, --eval and --work')
  args.work = args.work.absolute()
  return args


def main() -> None:
  """Trains and scores what is not there yet, and prints the tables."""
  args = _arguments()
  results = experiment.Results('partition-merge', args, _MAY_CHANGE)
  for stage in args.stages:
    found = STAGES[stage](args)
    results.found[stage] = json.loads(json.dumps(found))  # as it is read again
    results.save()
  if args.plot and 'sweep' in results.found:
    _plot(results.found['sweep'], args.plot)
  results.finish(*tables(results.found))


if __name__ == '__main__':
  experiment.main(main)
