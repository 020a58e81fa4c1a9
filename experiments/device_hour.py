"""What to measure first on a TPU or GPU, in order of worth, in ten minutes.

  python experiments/device_hour.py --trace=FOLDER

1. Agreement: the same steps from the same rows, on the device and on the CPU of
   its host; the largest difference is given in parts of what the steps changed.
2. Rates of training on random ids, by size of the step, dim, dtype, optimizer
   and with the kernels of `kernels.tpu` (TPU), or of `kernels.gpu.row_sums`
   (GPU), or without, each with its part of the memory's rate: the bytes of
   rows that a step reads and writes, in its time, over what the makers say.
3. A trace of a dispatch for TensorBoard or Perfetto.

Each result is written as it comes. What fails is told, and the rest goes on;
what there was no time for is named. On a CPU, `--quick` goes through all of it
at tiny sizes.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import experiment
import jax
import numpy as np
import zipf

from jaxemb import errors
from jaxemb.models import base

_EFFORT = zipf.Effort(4_000_000, 5, 2.0)
_QUICK = zipf.Effort(50_000, 2, 0.0)
# GB/s of the memory, as makers state them, by the beginning of `device_kind`.
_MEMORY_GBPS = {
  'TPU v5 lite': 819, 'TPU v5e': 819, 'TPU v6 lite': 1640, 'TPU v6e': 1640,
  'TPU v5p': 2765, 'TPU v5': 2765, 'TPU v4': 614, 'TPU7x': 3690,
  'TPU v3': 450, 'TPU v2': 350, 'NVIDIA H100': 3350, 'NVIDIA H200': 4800,
}  # fmt: skip
_XLA = {'train.fused': False}
# (settings, rows), the most telling first.
_CASES = [
  ({'train.batch_words': 8192, 'model.dim': 128}, 1_000_000),
  ({'train.batch_words': 65_536, 'model.dim': 128}, 1_000_000),
  ({'train.batch_words': 8192, 'model.dim': 128} | _XLA, 1_000_000),
  ({'train.batch_words': 65_536, 'model.dim': 128} | _XLA, 1_000_000),
  ({'train.batch_words': 8192, 'model.dim': 128}, 100_000),
  ({'optimizer.name': 'adagrad', 'model.dim': 128}, 1_000_000),
  ({'table.dtype': 'bfloat16', 'model.dim': 128}, 1_000_000),
  ({'model.dim': 100}, 1_000_000),
  ({'model.dim': 300}, 1_000_000),
  ({'optimizer.name': 'adam', 'model.dim': 128}, 1_000_000),
  ({'table.layout': 'row', 'model.dim': 128}, 1_000_000),
]


def _memory_gbps(device: jax.Device) -> float | None:
  """Returns GB/s of a device's memory, if they are known."""
  kinds = sorted(_MEMORY_GBPS, key=len, reverse=True)
  name = next((x for x in kinds if device.device_kind.startswith(x)), None)
  return _MEMORY_GBPS.get(name)


def _row_bytes(spec: base.WindowSpec) -> float:
  """Of the rows that a center reads, reads again and writes."""
  halo = 0 if spec.tokens_once else 2 * spec.window
  rows = 1 + (spec.chunk + halo + spec.shared_negatives) / spec.chunk
  return 4 * 3 * rows * spec.dim


def _copies_rows(settings: Mapping[str, Any], device: jax.Device) -> bool:
  """Whether to use a TPU's kernels, which are off by default."""
  return device.platform == 'tpu' and settings.get('train.fused', True)


def agreement(
  settings: Mapping[str, Any], num_rows: int, num_words: int
) -> dict[str, Any]:
  """The largest difference of rows after a dispatch, and the largest change."""
  found = {}
  here, cpu = jax.devices()[:1], jax.devices('cpu')[:1]
  # The same steps; a step of the CPU's own kernel is another.
  fixed = {'chunk': 16, 'parts': 1, 'deduplicates': True}
  fixed |= {'loss_every_steps': 1, 'steps_per_loop': 1}
  # How often a row counts for `optimizer.max_duplicates`.
  fixed['tokens_once'] = here[0].platform == 'tpu'
  for name, devices in ('device', here), ('cpu', cpu):
    fused = name == 'device' and here[0].platform != 'cpu'
    given = {**settings, 'train.fused': fused}
    fixed['row_copies'] = _copies_rows(given, devices[0])
    job = zipf.make(given, num_rows, devices=devices, **fixed)
    corpus = zipf.corpus(job.counts, num_words)
    state, constants = zipf.start(job)
    tables = [('input', 'before'), ('output', 'before')]
    rows = {x: job.strategy.export_rows(state, x[0]).rows for x in tables}
    batch = next(zipf.full_batches(job, corpus))
    schedule = zipf.schedule(job, 0)
    rate = np.float32(0.03)
    schedule = schedule._replace(
      first_learning_rate=rate, last_learning_rate=rate
    )
    state, _ = job.strategy.step(state, constants, batch, schedule)
    for table in 'input', 'output':
      after = job.strategy.export_rows(state, table).rows
      rows[table, 'after'] = after
    found[name] = rows
  result = {}
  for table in 'input', 'output':
    here, there = (x[table, 'after'] for x in found.values())
    change = np.abs(there - found['cpu'][table, 'before']).max()
    result[table] = {
      'largest_change': float(change),
      'largest_difference': float(np.abs(here - there).max()),
    }
  return result


def rate(
  settings: Mapping[str, Any], num_rows: int, effort: zipf.Effort
) -> dict[str, Any]:
  """Speed, and the part of the memory's rate."""
  row_copies = _copies_rows(settings, jax.devices()[0])
  settings = {'strategy.name': 'sync', **settings}
  job = zipf.make(settings, num_rows, row_copies=row_copies)
  if obstacle := zipf.obstacle(job):
    return {'obstacle': obstacle}
  found = zipf.time_dispatches(
    job, zipf.corpus(job.counts, effort.ready_words), effort
  )
  gbps, share = _memory_gbps(job.mesh.devices.flat[0]), None
  if gbps:
    row_bytes = _row_bytes(job.trainer.trainable.model.spec)
    moved = row_bytes * found['centers_per_sec'] / job.mesh.size
    share = moved / (gbps * 1e9)
  return found | {'memory_share': share}


def attempt(
  measure: Callable[..., dict[str, Any]], *args: Any
) -> dict[str, Any]:
  """What is measured, or the obstacle: a device is lent once."""
  try:
    return measure(*args)
  except Exception as error:  # of any kind: it must not end the rest
    return {'obstacle': f'{type(error).__name__}: {errors.one_line(error)}'}


def trace(
  settings: Mapping[str, Any], num_rows: int, ready_words: int, folder: str
) -> dict[str, Any]:
  """A trace of two dispatches in a folder."""
  with jax.profiler.trace(folder):
    return rate(settings, num_rows, zipf.Effort(ready_words, 1, 0.0))


def _rows(found: list[dict[str, Any]]) -> Iterator[list[Any]]:
  for x in found:
    name = ' '.join(f'{k.split(".")[-1]}={v}' for k, v in x['settings'].items())
    rates = [x.get(k) for k in ('words_per_sec', 'step_secs', 'memory_share')]
    yield [f'{x["rows"]:,} {name}', rates[0], rates[1], rates[2]]


def main() -> None:
  """Measures in order of worth until the time is over."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--secs', type=float, default=540.0, help='begin nothing after that')
  add('--trace', default='', help="folder for a trace; '' = none")
  add('--quick', action='store_true', help='tiny, for tests')
  args = parser.parse_args()
  effort = _QUICK if args.quick else _EFFORT
  cases, small = _CASES, {'train.batch_words': 64, 'model.dim': 8}
  if args.quick:
    cases = [({**x, **small}, 1000) for x, _ in cases[:2]]
  end = time.monotonic() + args.secs
  results = experiment.Results('device_hour', args)
  device = jax.devices()[0]
  found = results.found = {
    'device': device.device_kind, 'num_devices': len(jax.devices()),
    'agreement': {}, 'rates': [], 'left_out': [], 'trace': {},
  }  # fmt: skip
  start = {'strategy.name': 'sync', 'train.batch_words': 1024, 'model.dim': 128}
  start |= small if args.quick else {}
  num_rows = 1000 if args.quick else 20_000
  found['agreement'] = attempt(agreement, start, num_rows, effort.ready_words)
  results.save()
  for settings, num_rows in cases:
    x = {'settings': settings, 'rows': num_rows}
    if time.monotonic() > end:
      found['left_out'].append(x)
      continue
    found['rates'].append(x | attempt(rate, settings, num_rows, effort))
    results.save()
  if args.trace:
    given = *cases[0], effort.ready_words, args.trace
    found['trace'] = attempt(trace, *given)
  head = {'': '', 'words/s': ',.0f', 's/step': '.3g', 'of memory': '.0%'}
  lines = [
    f'{k}: steps changed rows by up to {x["largest_change"]:.3g}; device and '
    f'CPU differ by up to {x["largest_difference"]:.3g}'
    for k, x in found['agreement'].items()
    if k != 'obstacle'
  ]
  parts = found['agreement'], *found['rates'], found['trace']
  obstacles = [x['obstacle'] for x in parts if 'obstacle' in x]
  num_left = len(found['left_out'])
  lines += [f'not measured: {x}' for x in obstacles]
  lines += [f'no time for {num_left} of {len(cases)} cases'] * bool(num_left)
  results.finish(experiment.table(head, _rows(found['rates'])), *lines)


if __name__ == '__main__':
  experiment.main(main)
