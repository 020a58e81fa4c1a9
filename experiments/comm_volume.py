"""What the network carries: bytes per word for each table layout and mesh.

  python experiments/comm_volume.py              compiled, nothing is run
  python experiments/comm_volume.py --measure    two processes over loopback

The training step of skip-gram (vocabulary 100,000 of Zipf counts, 8192 centers
a step of all devices together, SGD, float32) is compiled for meshes of 1 to 64
devices that are simulated on this CPU, and the collectives of the program are
read: jaxemb/hlo.py says how their bytes are counted. Bytes are those that all
devices together send per word, a word being one of the corpus, before
frequent-word subsampling (`kept_share` of them are centers).

  compiled   of the collectives inside the loop over steps. The row layout sends
             rows in buffers of a fixed size, of which a part is empty; a step
             that needs a second round, about one in ten thousand, sends twice
  formula    the same from the sizes alone (`closed_form`); a test compares them
  published  parameter servers after Ordentlich et al. 2016: rows that travel,
             (2 + w n) d 4, and for `column` products that do, w (n + 1) S 4; w
             contexts and n negatives of a center, S devices

With --measure, two processes of one CPU device each train on a small text. The
bytes that the kernel counted on the loopback interface in training, of whatever
program, are set against those of the compiled program.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jobs
import machine
import numpy as np

from jaxemb import config as config_lib
from jaxemb.runtime import hlo
from jaxemb.tables import replicated, row_sharded
from jaxemb.text import loader

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / 'experiments' / 'results'
_FLOAT_BYTES = 4
# The text is wanted, not the speed: LLVM, which comes behind it, may be quick.
_COMPILER_OPTIONS = {
  'xla_backend_optimization_level': 0,
  'xla_llvm_disable_expensive_passes': True,
}


class Point(NamedTuple):
  """One program."""

  layout: str
  data: int  # devices along the axes of the mesh
  table: int
  dim: int


# Where columns are to send a third of what rows do, or less.
_WANTED = Point('row', 1, 8, 512)
# How often an optimizer reads a number of each row of a step.
_NUMBERS_READ = {'sgd': 1, 'adagrad': 1, 'adam': 4}


class Plan(NamedTuple):
  """Which programs, and their sizes."""

  points: list[Point]
  vocab: int
  batch_words: int  # centers of a step
  text_words: int  # of the text that two processes train on


class Traffic(NamedTuple):
  """What one device sends in a step, in bytes, and how it was found."""

  by_kind: dict[str, float]
  total: float
  # Arrays that travel and have an axis as long as the vocabulary, or as a
  # device's share of it.
  of_vocabulary: list[tuple[int, ...]]


def _plan() -> Plan:
  points = []
  for layout in ('replicated', 'row', 'column'):
    shapes = [
      (n, 1) if layout == 'replicated' else (1, n) for n in (1, 2, 4, 8, 16, 64)
    ]
    for shape in [*shapes, (2, 4)]:
      points += [Point(layout, *shape, dim) for dim in (128, 512)]
  return Plan(points, 100_000, 8192, 1_000_000)


def _quick_plan() -> Plan:
  points = [
    Point('replicated', 4, 1, 8),
    Point('row', 1, 4, 8),
    Point('row', 2, 2, 8),
    Point('column', 1, 1, 8),
    Point('column', 1, 4, 8),
    Point('column', 1, 4, 24),
    Point('column', 2, 2, 8),
  ]
  return Plan(points, 3001, 256, 60_000)


def make(
  point: Point, vocab: int, batch_words: int, optimizer: str = 'sgd'
) -> jobs.Job:
  """The parts of a point; JAX needs as many devices."""
  config = config_lib.default()
  config.strategy.name, config.optimizer.name = 'sync', optimizer
  config.table.layout, config.model.dim = point.layout, point.dim
  config.mesh.data, config.mesh.table = point.data, point.table
  config.train.batch_words = batch_words
  config_lib.check(config)
  # The loss of every step, as on accelerators: without a program of its own.
  return jobs.make(config, vocab, loss_every_steps=1)


def compiled_text(job: jobs.Job) -> str:
  """The program of a dispatch, compiled from shapes alone."""
  lowered = job.strategy.step.lower(*jobs.shapes(job))
  return lowered.compile(compiler_options=_COMPILER_OPTIONS).as_text()


def traffic(job: jobs.Job, text: str) -> Traffic:
  """What the compiled program sends in a step."""
  found = hlo.collectives(text)
  by_kind = dict.fromkeys(hlo.KINDS, 0.0)
  for each in found:
    runs = each.runs_per_step(job.strategy.loop)
    by_kind[each.kind] += runs * each.sent_bytes
  lengths = _vocabulary_lengths(job)
  return Traffic(
    {kind: sent for kind, sent in by_kind.items() if sent},
    sum(by_kind.values()),
    [dims for x in found for dims in x.shapes if lengths & set(dims)],
  )


def _vocabulary_lengths(job: jobs.Job) -> set[int]:
  """Lengths of an axis that has all rows or a device's share of them."""
  vocab, num_table = len(job.counts), job.config.mesh.table
  if job.config.table.layout != 'row':
    # Optimizers may have a row for padding, and fill up what is dealt.
    filled = replicated.num_scalars(vocab)
    return {vocab, vocab + 1, filled, filled // num_table}
  groups = -(-vocab // row_sharded.NUM_CLASSES)
  rows = groups * row_sharded.NUM_CLASSES
  return {vocab, groups, rows, rows // num_table}


def closed_form(job: jobs.Job) -> float:
  """Bytes that one device sends in a step, from the sizes alone.

  With L centers a step in chunks of c, that look up L rows of one table and
  r L, r = (c + 2 W + N) / c, of the other; D x T devices; rings.
  """
  c, m = job.config, job.config.model
  d, t = c.mesh.data, c.mesh.table
  centers = job.step_words
  chunk = job.tuning.chunk
  width = chunk + 2 * m.window + m.shared_negatives
  lookups = (centers, centers * width // chunk)
  # Optimizers that scale by it are also told the mean square of a gradient.
  squares = int(c.optimizer.name != 'sgd')
  if c.table.layout == 'replicated':
    # The ids and gradients of a device's look-ups go to all others.
    own = sum(lookups) / (d * t)
    return _FLOAT_BYTES * (d * t - 1) * own * _sent(m.dim, 0)
  if c.table.layout == 'column':
    columns = -(-m.dim // t)
    own = sum(lookups) / d
    summed = centers / d * width + squares * own
    # What a row has one number of lies on one of the devices.
    summed += _NUMBERS_READ[c.optimizer.name] * sum(lookups)
    gathered = (d - 1) * own * _sent(columns, squares)
    return _FLOAT_BYTES * (2 * (t - 1) / t * summed + gathered)
  if d * t == 1:
    return 0.0
  total = 0.0
  for rows in capacities(job).values():
    # Ids and rows on the way there; ids, look-ups, gradients on the way back,
    # which other devices that hold the row want as well.
    back = _sent(m.dim, 1 + squares)
    total += (t - 1) * rows * (_sent(m.dim, 0) + back)
    total += (d - 1) * t * rows * back
    # Where a round ends, both times, is agreed on by all.
    total += 2 * 2 * (d * t - 1) / (d * t)
  return _FLOAT_BYTES * total


def _sent(dim: int, figures: int) -> int:
  """Numbers that are sent of a row: its id, figures, the row."""
  return 1 + figures + dim


def capacities(job: jobs.Job) -> dict[str, int]:
  """By table, rows of a buffer of the row layout, of which each holder has one.

  What is expected of the fullest and four standard deviations, in eights.
  """
  found = {}
  for name, expected in wanted_rows(job).items():
    largest = expected.max()
    rows = 8 * int(np.ceil((largest + 4 * largest**0.5) / 8))
    found[name] = min(rows, _lookups(job)[name])
  return found


def wanted_rows(job: jobs.Job) -> dict[str, np.ndarray]:
  """By table, [T], different rows that a device wants of each holder."""
  num_table, sample = job.config.mesh.table, job.loader_spec.sample
  centers = job.step_words / job.mesh.size
  chances = (
    loader.center_probabilities(job.counts, sample),
    job.counts**0.75 / np.sum(job.counts**0.75),
  )
  found = {}
  for name, rates in job.model.lookup_rates(*chances).items():
    wanted = -np.expm1(-rates * centers)
    holders = row_sharded.holders(len(rates), num_table)
    found[name] = np.bincount(holders, wanted, num_table)
  return found


def _lookups(job: jobs.Job) -> dict[str, int]:
  """Of each table, by one device in a step."""
  m = job.config.model
  centers = job.step_words // job.mesh.size
  chunk = job.tuning.chunk
  width = chunk + 2 * m.window + m.shared_negatives
  return {'input': centers, 'output': centers * width // chunk}


def published(job: jobs.Job) -> float:
  """Bytes per center of parameter servers, of Ordentlich et al. 2016."""
  m = job.config.model
  contexts = m.window + 1  # a window of 1..W on both sides, within sentences
  if job.config.table.layout == 'column':
    servers = job.config.mesh.table
    return contexts * (m.negatives + 1) * servers * _FLOAT_BYTES
  return (2 + contexts * m.negatives) * m.dim * _FLOAT_BYTES


def _examine(point: Point, plan: Plan) -> dict[str, Any]:
  job = make(point, plan.vocab, plan.batch_words)
  start_secs = time.perf_counter()
  found = traffic(job, compiled_text(job))
  per_word = job.mesh.size * job.kept_share / job.step_words
  facts = {
    'devices': job.mesh.size,
    'bytes_per_step_per_device': found.by_kind | {'total': found.total},
    'bytes_per_word': found.total * per_word,
    'formula_bytes_per_word': closed_form(job) * per_word,
    'published_bytes_per_word': published(job) * job.kept_share,
    'travels_with_vocabulary_axis': found.of_vocabulary,
    'compile_secs': time.perf_counter() - start_secs,
    'kept_share': job.kept_share,
  }
  if point.layout == 'row' and job.mesh.size > 1:
    rows = capacities(job)
    facts['buffer_rows'] = rows
    wanted = sum(x.sum() for x in wanted_rows(job).values())
    facts['buffer_fill'] = wanted / (point.table * sum(rows.values()))
  return point._asdict() | facts


def _table(points: Sequence[dict[str, Any]]) -> str:
  lines = [
    'bytes per word, all devices together',
    f'{"layout":>11}{"data x table":>14}{"dim":>6}{"compiled":>12}'
    f'{"formula":>12}{"published":>12}  the largest part',
  ]
  for p in points:
    sent = dict(p['bytes_per_step_per_device'])
    total = sent.pop('total')
    part = max(sent, key=sent.get, default='none')
    share = f' {sent[part] / total:.1%}' if sent else ''
    if 'buffer_fill' in p:
      share += f', of buffers that are {p["buffer_fill"]:.0%} full'
    mesh = f'{p["data"]} x {p["table"]}'
    lines.append(
      f'{p["layout"]:>11}{mesh:>14}{p["dim"]:>6}'
      f'{p["bytes_per_word"]:12,.0f}{p["formula_bytes_per_word"]:12,.0f}'
      f'{p["published_bytes_per_word"]:12,.0f}  {part}{share}'
    )
  return '\n'.join(lines)


def _findings(points: Sequence[dict[str, Any]]) -> list[str]:
  """What the table is for, in lines."""
  found = {Point(**{k: p[k] for k in Point._fields}): p for p in points}
  lines = []
  for row, p in found.items():
    column = found.get(row._replace(layout='column'))
    if row.layout != 'row' or p['devices'] == 1 or not column:
      continue
    ratio = column['bytes_per_word'] / p['bytes_per_word']
    wanted = ' (wanted: at most 0.333)' if row == _WANTED else ''
    mesh = f'{row.data} x {row.table}'
    lines.append(f'column / row on {mesh}, dim {row.dim}: {ratio:.3f}{wanted}')
  lines.append('')
  for layout in ('replicated', 'row', 'column'):
    mine = [p for p in points if p['layout'] == layout]
    bad = sum(len(p['travels_with_vocabulary_axis']) for p in mine)
    lines.append(
      f'{layout}: {bad or "no"} collective moves an array with the vocabulary, '
      'or a share of it, as an axis'
    )
  alike = all(
    p['bytes_per_word'] == q['bytes_per_word']
    for p in points
    for q in points
    if p['layout'] == q['layout'] == 'column'
    and p['data'] == q['data'] == 1
    and p['table'] == q['table']
  )
  lines.append(
    f'column, all devices on the table axis: {"" if alike else "NOT "}'
    'independent of dim'
  )
  return lines


# Measured.


def _settings(plan: Plan) -> dict[str, list[str]]:
  """Flags of what two processes train."""
  sizes = [
    f'--config.train.batch_words={plan.batch_words}',
    f'--config.data.path=toywiki:{plan.text_words}',
    '--config.train.epochs=2',
    f'--config.model.dim={plan.points[0].dim}',
    '--config.eval.paths=none',
  ]
  sync = '--config.strategy.name=sync'
  over_data = ['--config.mesh.data=2', '--config.mesh.table=1']
  over_table = ['--config.mesh.data=1', '--config.mesh.table=2']
  return {
    'replicated': [*sizes, sync, *over_data],
    'row': [*sizes, sync, *over_table, '--config.table.layout=row'],
    'column': [*sizes, sync, *over_table, '--config.table.layout=column'],
    'replicated, replicas': [*sizes, *over_data],
  }


def _measure(flags: list[str], folder: pathlib.Path) -> dict[str, Any]:
  """Two processes that train over loopback."""
  workdir = folder / f'run{len(list(folder.glob("run*")))}'
  command = [
    sys.executable, _ROOT / 'experiments' / 'launch_local.py', '-n', '2',
    '--devices', '1', '--', '--config=configs/wiki.py', f'--workdir={workdir}',
    *flags,
  ]  # fmt: skip
  done = subprocess.run(
    command,
    cwd=_ROOT,
    env=os.environ | {'JAXEMB_CACHE': str(folder / 'cache')},
    capture_output=True,
    text=True,
  )
  if done.returncode:
    raise RuntimeError(f'{flags} failed:\n{done.stderr[-4000:]}')
  report = json.loads((workdir / 'report.json').read_text())
  with open(workdir / 'metrics.jsonl') as file:
    rows = [json.loads(line) for line in file]
  # Both processes see the same interface.
  sent = sum(
    row['hosts'][0]['loopback_sent_bytes_per_sec'] * row['hosts'][0]['secs']
    for row in rows
  )
  words = rows[-1]['words']
  compiled = report['collectives']['bytes_per_word']['total']
  return {
    'dim': report['dim'],
    'words': words,
    'steps': rows[-1]['step'],
    'compiled_bytes_per_word': compiled,
    'loopback_bytes_per_word': sent / words,
    'ratio': sent / words / compiled,
    'words_per_sec': report['words_per_sec'],
  }


def _measured(plan: Plan, is_quick: bool) -> dict[str, dict[str, Any]]:
  found = {}
  with tempfile.TemporaryDirectory() as folder:
    for name, flags in _settings(plan).items():
      if is_quick and name != 'column':
        continue
      print(f'  measuring {name}', file=sys.stderr, flush=True)
      found[name] = _measure(flags, pathlib.Path(folder))
  return found


def _measured_table(found: dict[str, dict[str, Any]]) -> str:
  lines = [
    'two processes of one device, bytes per word of both together',
    f'{"layout":>21}{"dim":>6}{"compiled":>12}{"loopback":>12}{"ratio":>8}',
  ]
  for name, x in found.items():
    lines.append(
      f'{name:>21}{x["dim"]:>6}{x["compiled_bytes_per_word"]:12,.0f}'
      f'{x["loopback_bytes_per_word"]:12,.0f}{x["ratio"]:8.3f}'
    )
  return '\n'.join(lines)


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--measure', action='store_true', help='bytes on loopback instead'
  )
  parser.add_argument(
    '--output',
    type=pathlib.Path,
    help='default: results/comm-volume-DATE.json; the table is put beside it',
  )
  parser.add_argument('--quick', action='store_true', help='tiny, for tests')
  return parser.parse_args()


def main() -> None:
  """Compiles or measures, prints the table, writes it and the figures."""
  args = _arguments()
  plan = _quick_plan() if args.quick else _plan()
  output = args.output or _RESULTS / f'comm-volume-{machine.today()}.json'
  result = json.loads(output.read_text()) if output.exists() else {}
  if args.measure:
    result['measured'] = _measured(plan, args.quick)
  jax.config.update('jax_platforms', 'cpu')
  most = max(p.data * p.table for p in plan.points)
  jax.config.update('jax_num_cpu_devices', most)
  facts = machine.describe()
  if not args.measure:
    result['points'] = []
    for point in plan.points:
      print(f'  compiling {point}', file=sys.stderr, flush=True)
      result['points'].append(_examine(point, plan))
    result |= plan._asdict() | {'points': result['points']}
  result['machine'] = facts
  parts = []
  if 'points' in result:
    findings = '\n'.join(_findings(result['points']))
    parts += [_table(result['points']), findings]
  if 'measured' in result:
    parts.append(_measured_table(result['measured']))
  text = '\n\n'.join([*parts, machine.line(facts)])
  print(text)
  output.parent.mkdir(parents=True, exist_ok=True)
  output.write_text(json.dumps(result, indent=1) + '\n')
  output.with_suffix('.txt').write_text(text + '\n')


if __name__ == '__main__':
  machine.run(main)
