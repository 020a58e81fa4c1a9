"""What partition_merge.py found, as tables and a plot, beside the paper's."""

import pathlib
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import partition_paper

# Benchmarks whose mean is told, and their short names.
FIVE = {
  'EN-MEN-TR-3k': 'MEN',
  'EN-WS-353-ALL': 'WS-353',
  'EN-SIMLEX-999': 'SimLex',
  'EN-RW-STANFORD': 'RW',
  'questions-words': 'Google',
}


def _scores(x: dict[str, Any]) -> dict[str, float]:
  """The scores that are shown."""
  kept = x['benchmarks']
  names = [name for name in FIVE if name in kept] or list(kept)
  return {name: kept[name]['score'] or 0.0 for name in names}


def _head(x: dict[str, Any]) -> str:
  names = [FIVE.get(name, name[:8]) for name in _scores(x)]
  return ''.join(f'{name:>9}' for name in [*names, 'mean', 'recall'])


def _recall(x: dict[str, Any]) -> float:
  return statistics.mean(x['benchmarks'][name]['recall'] for name in _scores(x))


def _line(label: str, runs: Sequence[dict[str, Any]]) -> str:
  """Means over seeds, recall, and the spread of the mean."""
  every = [[*_scores(x).values(), x['mean'], _recall(x)] for x in runs]
  cells = [f'{statistics.mean(x):9.4f}' for x in zip(*every, strict=True)]
  spread = max(x[-2] for x in every) - min(x[-2] for x in every)
  return f'{label:<44}{"".join(cells)}{spread:8.4f}'


def _published(
  found: dict[str, float] | None,
  like: dict[str, Any],
  recall: dict[str, float] | None = None,
) -> str:
  if not found or not found.keys() & _scores(like).keys():
    return ''
  cells = [
    f'{found[name]:9.3f}' if name in found else f'{"":9}'
    for name in _scores(like)
  ]
  if recall:
    cells.append(f'{"":9}{statistics.mean(recall.values()):9.3f}')
  return f'{"    published":<44}{"".join(cells)}'


def _sweep_table(found: dict[str, Any]) -> str:
  single = list(found['single'].values())
  lines = [
    f'{"way, sub-models, merge":<44}{_head(single[0])}{"spread":>8}'
    f'{"/single":>9}{"words":>9}{"merge s":>9}',
    f'{_line("single run", single)}{1:9.3f}{single[0]["words"]:9,}',
    _published(
      partition_paper.SCORES['single', 1, ''],
      single[0],
      partition_paper.RECALL['single'],
    ),
  ]
  alone = statistics.mean(x['mean'] for x in single)
  groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
  for cell in found['cells']:
    groups.setdefault((cell['divide'], cell['num_parts']), []).append(cell)
  for (divide, num), cells in groups.items():
    each = [part for cell in cells for part in cell['parts']]
    mean = statistics.mean(x['mean'] for x in each)
    lines.append(
      f'{_line(f"{divide}, {num}: mean sub-model", each)}{mean / alone:9.3f}'
      f'{statistics.mean(x["words"] for x in each):9,.0f}'
    )
    for name in cells[0]['merges']:
      runs = [cell['merges'][name] for cell in cells]
      mean = statistics.mean(x['mean'] for x in runs)
      secs = statistics.mean(x['merge_secs'] for x in runs)
      lines.append(
        f'{_line(f"{divide}, {num}: {name}", runs)}{mean / alone:9.3f}'
        f'{runs[0]["words"]:9,}{secs:9.2f}'
      )
      lines.append(
        _published(
          partition_paper.SCORES.get((divide, num, name)),
          runs[0],
          partition_paper.RECALL.get(f'{divide} at 1/{num}, {name.upper()}'),
        )
      )
  table = '\n'.join(line for line in lines if line)
  return '\n'.join([table, '', *_times(single, groups)])


def _times(
  single: Sequence[dict[str, Any]],
  groups: dict[tuple[str, int], list[dict[str, Any]]],
) -> list[str]:
  """Of training a sub-model against the single run, and of merging."""
  lines = [
    f'{"of the single run: words of a sub-model":<44}'
    f'{"words":>9}{"secs":>9}{"merging":>9}'
  ]
  secs = statistics.mean(x['train_secs'] for x in single)
  read = statistics.mean(x['words_read'] for x in single)
  for (divide, num), cells in groups.items():
    mine = statistics.mean(t for x in cells for t in x['train_secs'])
    mine_read = statistics.mean(n for x in cells for n in x['words_read'])
    merging = (
      statistics.mean(
        x['merges'][name]['merge_secs']
        for x in cells
        for name in x['merges']
        if name == 'alir'
      )
      if 'alir' in cells[0]['merges']
      else float('nan')
    )
    lines.append(
      f'{f"{divide}, {num}":<44}{mine_read / read:9.4f}{mine / secs:9.4f}'
      f'{merging / secs:9.4f}'
    )
  paper = partition_paper.TIMES
  share = paper['sub-models at 1/10'] / paper['single']
  lines.append(
    f'{"    published, shuffle, 10":<44}{"":9}{share:9.4f}'
    f'{paper["merge"] / paper["single"]:9.4f}'
  )
  return lines


def _kl_table(found: Sequence[dict[str, Any]]) -> str:
  lines = [
    f'{"words of a part from the whole, nats":<40}{"rate":>8}{"read":>8}'
    f'{"KL":>10}{"floor":>10}{"times":>8}{"published":>11}'
  ]
  for x in found:
    told = '' if x['published'] is None else f'{x["published"]:11.5f}'
    lines.append(
      f'{x["divide"]:<40}{x["rate"]:8.4f}{x["read"]:8.4f}'
      f'{x["divergence"]:10.5f}{x["floor"]:10.5f}{x["times_floor"]:8.2f}{told}'
    )
  return '\n'.join(lines)


class _Row(NamedTuple):
  """A line of a table, and what was published."""

  label: str
  scores: dict[str, Any]
  published: dict[str, float] | None = None


def _rows_table(title: str, rows: Sequence[_Row]) -> str:
  lines = [f'{title:<44}{_head(rows[0].scores)}']
  for row in rows:
    lines.append(_line(row.label, [row.scores])[:-8])
    lines.append(_published(row.published, row.scores))
  return '\n'.join(line for line in lines if line)


def _numbers_row(x: dict[str, Any]) -> _Row:
  # The paper's authors give them for sampling and PCA.
  told = {
    name: scores[x['taken']]
    for name, scores in partition_paper.OF_NUMBERS.items()
    if x['taken'] in scores and x['merge'] == 'pca'
  }
  return _Row(f'first {x["taken"]}, {x["merge"]}', x, told)


def _repaired_row(x: dict[str, Any]) -> _Row:
  told = partition_paper.REPAIRED.get(x['map'], {}).get(x['removed'])
  return _Row(f'{x["removed"]:.0%} of one, {x["map"]}', x, told)


def tables(result: dict[str, Any]) -> str:
  """All that was found, for people."""
  found = []
  if 'sweep' in result:
    found.append(_sweep_table(result['sweep']))
  if 'kl' in result:
    found.append(_kl_table(result['kl']))
  if 'numbers' in result:
    rows = list(map(_numbers_row, result['numbers']))
    found.append(_rows_table('some of the sub-models', rows))
  if 'removed' in result:
    rows = [
      _Row(f'{x["removed"]:.0%} removed, {x["merge"]}', x)
      for x in result['removed']
    ]
    found.append(_rows_table('words taken from every sub-model', rows))
  if 'repaired' in result:
    rows = list(map(_repaired_row, result['repaired']))
    found.append(_rows_table('words put back from another sub-model', rows))
  for x in result.get('sizes', ()):
    rows = [_Row('single run', x['single'])]
    rows += [_Row(name, scores) for name, scores in x['merges'].items()]
    title = f'{x["single"]["corpus_words"]:,} words of text'
    found.append(_rows_table(title, rows))
  return '\n\n'.join(found)


def plot(result: dict[str, Any], path: pathlib.Path) -> None:
  """Merged against the single run, by way and number of sub-models."""
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  sweep = result['sweep']
  alone = statistics.mean(x['mean'] for x in sweep['single'].values())
  figure, panel = pyplot.subplots(figsize=(6.5, 3), layout='constrained')
  colors = {'shuffle': '#1f5fa8', 'sampling': '#3d9970', 'equal': '#b5651d'}
  for way, color in colors.items():
    cells = [x for x in sweep['cells'] if x['divide'] == way]
    numbers = sorted({x['num_parts'] for x in cells})

    def means(read, cells=cells, numbers=numbers):
      return [
        statistics.mean(read(x) for x in cells if x['num_parts'] == n) / alone
        for n in numbers
      ]

    if not cells:
      continue
    for name, style in (('alir', '-'), ('concat, power .75', '--')):
      if name in cells[0]['merges']:
        values = means(lambda x, name=name: x['merges'][name]['mean'])
        label = f'{way}, {name}'
        panel.plot(numbers, values, style, color=color, marker='.', label=label)
    values = means(lambda x: x['mean_part'])
    panel.plot(numbers, values, ':', color=color, label=f'{way}, mean part')
  panel.axhline(1, color='#777777', lw=0.8)
  panel.set(xlabel='sub-models, each of one over their number of the text')
  panel.set(ylabel='mean of benchmarks / single run')
  panel.spines[['top', 'right']].set_visible(False)
  figure.legend(
    fontsize=7, frameon=False, loc='outside right center', handlelength=3
  )
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=200)
