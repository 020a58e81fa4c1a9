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
import functools
import glob
import itertools
import json
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import experiment
import numpy as np
import partition_runs

from jaxemb import config
from jaxemb.data import partition_sampling
from jaxemb.evaluation import geometry
from jaxemb.merging import align, parts
from jaxemb.text import encode
from jaxemb.text.toywiki import toywiki

_PAPER = json.loads(
  (pathlib.Path(__file__).parent / 'anand_2019.json').read_text()
)


# Stages.


def _finest(args: argparse.Namespace) -> partition_runs.Cell:
  """The most sub-models."""
  return partition_runs.Cell('shuffle', max(args.numbers), args.seeds[0])


def _sweep(runs: partition_runs.Runs) -> dict[str, Any]:
  args = runs.args
  singles = {x: partition_runs.Cell('single', 1, x) for x in args.seeds}
  cells = [
    partition_runs.Cell(divide, num, seed)
    for seed in args.seeds
    for num in args.numbers
    for divide in args.divide
  ]
  return {
    'single': {str(x): runs.single(cell) for x, cell in singles.items()},
    'cells': [x._asdict() | runs.divided(x, args.merges) for x in cells],
  }


def _divergences(runs: partition_runs.Runs) -> list[dict[str, Any]]:
  """Of the words of parts from those of the whole text, in nats."""
  args = runs.args
  settings = encode.Settings('words', True, args.min_count, 1_000_000, '')
  cache = args.work / 'cache'
  corpus = encode.encode(args.text, settings, cache, lambda *_: None)
  counts = corpus.counts
  whole = counts / counts.sum()
  found = []
  for divide, num in itertools.product(args.divide, (3, 5, 10, 100, 1000)):
    each = []
    for part in range(0, num, max(1, num // 10)):
      sampling = partition_sampling.Sampling(
        divide, num, 1 / num, part, args.seeds[0]
      )
      seen = partition_sampling.count(corpus, sampling, 1).seen
      own = seen[seen > 0] / seen.sum()
      divergence = float(np.sum(own * np.log(own / whole[seen > 0])))
      # That of a random sample of as many words.
      floor = (len(counts) - 1) / 2 / int(seen.sum())
      each.append((divergence, floor, int(seen.sum()) / corpus.num_words))
    divergence, floor, read = map(statistics.mean, zip(*each, strict=True))
    found.append(
      {
        'divide': divide,
        'rate': 1 / num,
        'divergence': divergence,
        'floor': floor,
        'times_floor': divergence / floor,
        'read': read,
        'published': _PAPER['divergences'].get(divide, {}).get(f'{1 / num:g}'),
      }
    )
  return found


def _numbers(runs: partition_runs.Runs) -> list[dict[str, Any]]:
  """Some of the sub-models of the finest division."""
  cell, found = _finest(runs.args), []

  def scores(taken: int, merge: str) -> dict[str, Any]:
    if taken == cell.num_parts:
      return runs.whole(cell, merge)
    if taken == 1:
      return runs.part_scores(cell)[0]
    return runs.saved(
      f'{cell.name}-first{taken}-{merge}',
      lambda: runs.merged(cell, runs.open_parts(cell, taken), merge),
    )

  for taken in runs.args.taken:
    for merge in ('pca', 'alir') if taken <= cell.num_parts else ():
      found.append({'taken': taken, 'merge': merge, **scores(taken, merge)})
  return found


def _without(part: parts.Part, removed: set[str]) -> parts.Part:
  """A sub-model that lacks some words."""
  keep = np.array([word not in removed for word in part.words])
  return part._replace(
    words=[part.words[i] for i in np.flatnonzero(keep)],
    vectors=part.vectors[keep],
    counts=part.counts[keep],
  )


def _some_words(runs: partition_runs.Runs, ratio: float, seed: int) -> set[str]:
  """A random fraction of the benchmarks' words."""
  every = sorted(set().union(*runs.words_asked().values()))
  rng = np.random.default_rng(seed)
  return set(rng.choice(every, round(ratio * len(every)), replace=False))


def _removed(runs: partition_runs.Runs) -> list[dict[str, Any]]:
  """Merges of sub-models each of which lacks other words."""
  cell, found = _finest(runs.args), []

  def scores(ratio: float, merge: str) -> dict[str, Any]:
    opened = [
      _without(part, _some_words(runs, ratio, i))
      for i, part in enumerate(runs.open_parts(cell))
    ]
    return runs.merged(cell, opened, merge)

  for merge in runs.args.merges:
    found.append({'removed': 0.0, 'merge': merge, **runs.whole(cell, merge)})
    for ratio in runs.args.removed:
      make = functools.partial(scores, ratio, merge)
      made = runs.saved(f'{cell.name}-without{ratio}-{merge}', make)
      found.append({'removed': ratio, 'merge': merge, **made})
  return found


def _repaired(runs: partition_runs.Runs) -> list[dict[str, Any]]:
  """Words of one sub-model from another, mapped into its space."""
  source, target = (
    dict(zip(part.words, geometry.unit(part.vectors), strict=True))
    for part in runs.open_parts(_finest(runs.args), 2)
  )
  names = [word for word in target if word in source]
  a, b = (np.stack([x[word] for word in names]) for x in (source, target))
  found = [{'removed': 0.0, 'map': 'source', **runs.evaluate(names, a)}]
  for ratio in (0.5, 1.0):
    lacks = np.isin(names, list(_some_words(runs, ratio, 0)))
    x, y = a[~lacks], b[~lacks]
    maps = {
      'procrustes': align.procrustes((x.T @ y).astype(np.float64)),
      'least squares': np.linalg.lstsq(x, y, rcond=None)[0],
    }
    if not lacks.all():
      maps['zeros'] = np.zeros((a.shape[1], b.shape[1]))  # not restored
    for name, turn in maps.items():
      rows = np.where(lacks[:, None], a @ turn.astype(np.float32), b)
      scores = runs.evaluate(names, rows)
      found.append({'removed': ratio, 'map': name, **scores})
  return found


def _sizes(runs: partition_runs.Runs) -> list[dict[str, Any]]:
  """The finest division of the first files of the text, and of all."""
  num_files, found = len(glob.glob(runs.args.text)), []
  for n in range(1, num_files + 1):
    cell = _finest(runs.args)._replace(num_files=n % num_files)
    single = runs.single(cell._replace(divide='single', num_parts=1))
    divided = runs.divided(cell, ['alir', 'concat'])
    found.append({'files': n, 'single': single, **divided})
  return found


STAGES: dict[str, Callable[[partition_runs.Runs], Any]] = {
  'sweep': _sweep,
  'kl': _divergences,
  'numbers': _numbers,
  'removed': _removed,
  'repaired': _repaired,
  'sizes': _sizes,
}


# Tables.


def _mean(runs: Sequence[dict], key: str = 'mean') -> float:
  return statistics.mean(x[key] for x in runs)


def _line(label: str, runs: Sequence[dict[str, Any]]) -> list[Any]:
  """Means over seeds, recall, and the spread of the mean."""
  every = []
  for x in runs:
    each = [x['benchmarks'][y] for y in partition_runs.shown(x['benchmarks'])]
    scores = [y['score'] or 0.0 for y in each]
    every.append([*scores, x['mean'], _mean(each, 'recall')])
  means = [f'{statistics.mean(x):.4f}' for x in zip(*every, strict=True)]
  spread = max(x[-2] for x in every) - min(x[-2] for x in every)
  return [label, *means, f'{spread:.4f}' if len(runs) > 1 else None]


def _published(scores: dict[str, float] | None, like: dict) -> list[list[Any]]:
  """A line, if the paper has any of the scores."""
  names = partition_runs.shown(like['benchmarks'])
  cells = [(scores or {}).get(name) for name in names]
  return [['    published', *cells]] if any(cells) else []


def _table(
  title: str, like: dict, rows: Sequence[Sequence[Any]], *more: str
) -> str:
  names = partition_runs.shown(like['benchmarks'])
  short = [partition_runs.FIVE.get(x, x[:8]) for x in names]
  head = [title, *short, 'mean', 'recall', 'spread', *more]
  return experiment.table(head, rows)


def _sweep_table(found: dict[str, Any]) -> str:
  """Scores; words read and seconds of a sub-model, over the single run's."""
  single, paper = list(found['single'].values()), _PAPER['scores']
  rows = [_line('single run', single) + [1.0, single[0]['words']]]
  rows += _published(paper['single/1/'], single[0])
  groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
  for cell in found['cells']:
    groups.setdefault((cell['divide'], cell['num_parts']), []).append(cell)
  for (divide, num), cells in groups.items():
    name = f'{divide}, {num}'
    each = [part for cell in cells for part in cell['parts']]
    ratio, size = _mean(each) / _mean(single), round(_mean(each, 'words'))
    work = (
      statistics.mean(y for x in cells for y in x[key]) / _mean(single, key)
      for key in ('words_read', 'train_secs')
    )
    line = _line(f'{name}: mean sub-model', each)
    rows.append([*line, ratio, size, None, *work])
    for merge in cells[0]['merges']:
      runs = [cell['merges'][merge] for cell in cells]
      ratio, merge_secs = _mean(runs) / _mean(single), _mean(runs, 'merge_secs')
      line = _line(f'{name}: {merge}', runs)
      rows.append([*line, ratio, runs[0]['words'], merge_secs])
      rows += _published(paper.get(f'{divide}/{num}/{merge}'), runs[0])
  more = ('/single', 'words', 'merge s', 'read', 'secs')
  return _table('division, sub-models, merge', single[0], rows, *more)


def _stage_row(stage: str, x: dict[str, Any]) -> list[list[Any]]:
  """A merge or a map of one of the later stages, and what was published."""
  paper = {}
  if stage == 'numbers':
    label = f'first {x["taken"]}, {x["merge"]}'
    if x['merge'] == 'pca':
      for name, scores in _PAPER['of_numbers'].items():
        paper[name] = scores.get(str(x['taken']))
  elif stage == 'repaired':
    label = f'{x["removed"]:.0%} of one, {x["map"]}'
    paper = _PAPER['repaired'].get(x['map'], {}).get(str(x['removed']))
  else:
    label = f'{x["removed"]:.0%} removed, {x["merge"]}'
  return [_line(label, [x]), *_published(paper, x)]


def tables(found: dict[str, Any]) -> list[str]:
  """A table for each stage."""
  made = []
  if 'sweep' in found:
    made.append(_sweep_table(found['sweep']))
  if 'kl' in found:
    head = ('words of a part from the whole, nats', *list(found['kl'][0])[1:])
    rows = [list(x.values()) for x in found['kl']]
    made.append(experiment.table(head, rows))
  for stage, title in (
    ('numbers', 'some of the sub-models'),
    ('removed', 'words removed from every sub-model'),
    ('repaired', 'words restored from another sub-model'),
  ):
    if stage in found:
      rows = [row for x in found[stage] for row in _stage_row(stage, x)]
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
  alone = _mean(list(found['single'].values()))
  divisions = sorted({x['divide'] for x in found['cells']})
  styles = {
    'alir': ('-', 'ALiR'), 'concat, power .75': (':', 'Concat'),
    'mean part': ('--', 'not merged'),
  }  # fmt: skip
  for divide, (name, style) in itertools.product(divisions, styles.items()):
    line, merge = style
    by_number: dict[int, list[float]] = {}
    for x in found['cells']:
      means = {k: y['mean'] for k, y in x['merges'].items()}
      means['mean part'] = x['mean_part']
      if x['divide'] == divide and name in means:
        of_number = by_number.setdefault(x['num_parts'], [])
        of_number.append(means[name] / alone)
    numbers = sorted(by_number)
    means = [statistics.mean(by_number[num]) for num in numbers]
    color = f'C{divisions.index(divide)}'
    if numbers:
      label = f'{divide}, {merge}'
      panel.plot(numbers, means, line, color=color, label=label)
  panel.axhline(1, color='#777777', lw=0.8)
  panel.set(xlabel='number of sub-models', ylabel='score / single run')
  figure.legend(fontsize=7, frameon=False, loc='outside right center')
  figure.savefig(path)


def main() -> None:
  """Trains and scores what is not there yet, and prints the tables."""
  parser = experiment.parser(__doc__)
  experiment.add_run_flags(parser, restrict_vocab=30_000)
  add, numbers = parser.add_argument, experiment.numbers
  add('--analogies', default='', help='analogy files, separated by commas')
  add('--work', type=pathlib.Path, help='folder for what is trained')
  experiment.add_names(parser, '--stages', STAGES)
  experiment.add_names(
    parser, '--divide', config.find('strategy.divide').values
  )
  experiment.add_names(parser, '--merges', partition_runs.MERGES, ':')
  add('--numbers', type=numbers, default=[10, 5, 3], help='of sub-models')
  add('--seeds', type=numbers, default=[1, 2, 3])
  add('--taken', type=numbers, default=[1, 2, 4, 6, 8, 10], help='in numbers')
  add('--removed', type=numbers, default=[0.1, 0.5], help='fractions')
  add('--dim', type=int, default=100)
  add('--min_count', type=int, default=5)
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
  results = experiment.Results('partition-merge', args, partition_runs.FLAGS)
  runs = partition_runs.Runs(args)
  for stage in args.stages:
    found = STAGES[stage](runs)
    results.found[stage] = json.loads(json.dumps(found))  # as it is read again
    results.save()
  if args.plot and 'sweep' in results.found:
    _plot(results.found['sweep'], args.plot)
  results.finish(*tables(results.found))


if __name__ == '__main__':
  experiment.main(main)
