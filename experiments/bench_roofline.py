"""How near a training step comes to what the device can do.

  python experiments/bench_roofline.py
  python experiments/bench_roofline.py --vocab=1000000 --dim=300

For chunks of c centers, windows of W, N shared negatives and dim d, a center
(a word that subsampling kept) needs of the tables and of the products

  rows    r = 1 + (c + 2 W + N) / c, each read by a gather, then read and
          written by a scatter-add: 3 r d floats to and from the tables
  flops   6 (c + 2 W + N) d: the scores, the centers' and the windows' gradients

These are set against what the same devices reach in programs that do one thing,
see ceilings.py: what one reaches while all are at work, and alone (when a CPU's
device may use the threads of the others).

Predicted are a step's times of (a) the tables' bytes at the rate of the copy,
(b) the flops at the rate of the large product and (c) gather, products and
scatter as each is measured; what is left beside them are window masks, draws,
the sigmoid, the optimizer and the exchange of replicas. `reached` is the
predicted time over the measured one. It is no hard limit: rows of a small table
stay in a cache, where a step's scatter finds what its gather brought.
"""

import argparse
import json
import pathlib
import sys
import tempfile
from typing import Any

import ceilings
import jax
import jobs
import machine
import ml_collections
import numpy as np

from jaxemb import config as config_lib
from jaxemb.models import base as model_base
from jaxemb.models import skipgram
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.text import encode, loader

_RESULTS = pathlib.Path(__file__).resolve().parent / 'results'
_SETTINGS = ('dim', 'window', 'negatives', 'shared_negatives')

_FULL = (
  jobs.Effort(4_000_000, 7, 3.0),
  ceilings.Effort(1 << 29, 1024, 0.01, 0.3, 5),
)
_QUICK = (
  jobs.Effort(50_000, 2, 0.0),
  ceilings.Effort(1 << 22, 256, 0.0, 0.01, 2),
)


def work(spec: model_base.WindowSpec) -> dict[str, float]:
  """What a center needs.

  Intermediates are counted as operations that are not fused read and write
  them: looked-up rows 3 times, their gradients 4 times, and 8 times a number
  for each pair of a center and a row of its chunk.
  """
  width = spec.chunk + 2 * spec.window + spec.shared_negatives
  rows = 1 + width / spec.chunk
  return {
    'rows': rows,
    'table_bytes': 4 * 3 * rows * spec.dim,
    'intermediate_bytes': 4 * (7 * rows * spec.dim + 8 * width),
    'flops': 6 * width * spec.dim,
  }


# The step: what it looks up, and how long it takes.


def _step_ids(job: jobs.Job, corpus: encode.Encoded) -> list[np.ndarray]:
  """The ids of a dispatch's steps: [steps, L / c, c] and [..., c + 2 W + N]."""
  position = loader.Position(0, 0)
  division = encode.divide(corpus, job.tuning.parts)
  batch = next(
    loader.batches(corpus, division, job.loader_spec, position, 0)
  ).batch
  length, halo = job.loader_spec.part_words, 2 * job.loader_spec.window
  num_steps = max(1, int(batch.kept_words[0]) // length)
  firsts = range(0, num_steps * length, length)
  num_chunks = length // job.tuning.chunk
  chunks = np.arange(num_steps * num_chunks, dtype=np.uint32)
  steps = model_base.StepBatch(
    np.stack([batch.ids[:1, i : i + length + halo] for i in firsts]),
    np.stack([batch.left[:1, i : i + length] for i in firsts]),
    np.stack([batch.right[:1, i : i + length] for i in firsts]),
    chunks.reshape(num_steps, -1),
    np.arange(num_steps, dtype=np.float32) / num_steps,
  )
  ids = jax.jit(jax.vmap(job.model.ids, (None, 0, None)))(
    job.model.constants(),
    steps,
    np.array([job.config.seed, 1], np.uint32),
  )
  return [np.asarray(ids[name]) for name in (skipgram.INPUT, skipgram.OUTPUT)]


def measure(
  config: ml_collections.ConfigDict,
  num_rows: int,
  job_effort: jobs.Effort,
  effort: ceilings.Effort,
) -> dict[str, Any]:
  """Ceilings, predictions and the measured step of one setting.

  Raises:
    SystemExit: if the tables do not fit the memory.
  """
  job = jobs.make(config, num_rows)
  reason = jobs.too_large(job)
  if reason:
    sys.exit(f'{num_rows:,} rows of dim {config.model.dim}: {reason}')
  load = machine.Load()
  with tempfile.TemporaryDirectory() as folder:
    corpus = jobs.write_corpus(
      job.counts, job_effort.ready_words, pathlib.Path(folder) / 'ids'
    )
    ids = _step_ids(job, corpus)
    step = jobs.time_dispatches(job, corpus, job_effort, *jobs.start(job))
  spec = job.model.spec
  each = ceilings.measure(job.mesh, spec, ids, effort)
  alone = each
  if job.mesh.size > 1:
    alone = ceilings.measure(
      mesh_lib.make(mesh_lib.Shape(1, 1)), spec, ids, effort
    )
  need = work(spec)
  predicted = _predicted(need, each, job.loader_spec.part_words)
  return {
    'settings': {
      'vocab': num_rows,
      'batch_words': job.loader_spec.part_words,
      **{name: job.config.model[name] for name in _SETTINGS},
      'strategy': config.strategy.name,
      'devices': job.mesh.size,
      'device': mesh_lib.name(job.mesh.devices.flatten()[0]),
    },
    'per_center': need,
    'ceilings': each,
    'ceilings_alone': alone,
    'step': step,
    'predicted_secs': predicted,
    'reached': {k: x / step['step_secs'] for k, x in predicted.items()},
    'others_cores': load.others_cores(),
  }


def _predicted(
  need: dict[str, float], each: dict[str, float], words: int
) -> dict[str, float]:
  """Seconds of a step of so many centers."""
  copy = each['copy_bytes_per_sec']
  all_bytes = need['table_bytes'] + need['intermediate_bytes']
  parts = ('gather_secs', 'products_secs', 'scatter_secs')
  return {
    'tables_at_copy_rate': words * need['table_bytes'] / copy,
    'all_bytes_at_copy_rate': words * all_bytes / copy,
    'flops_at_product_rate': (
      words * need['flops'] / each['product_flops_per_sec']
    ),
    'gather_products_scatter': sum(each[part] for part in parts),
  }


def _table(run: dict[str, Any]) -> str:
  s, need, step = run['settings'], run['per_center'], run['step']
  devices = s['devices']
  lines = [
    ', '.join(f'{k} {v}' for k, v in s.items()),
    '',
    f'a center: {need["rows"]:.2f} rows; {need["table_bytes"]:,.0f} bytes to '
    f'and from tables, {need["intermediate_bytes"]:,.0f} of intermediates; '
    f'{need["flops"]:,.0f} flops',
    '',
    f'{"a device":32}{"alone":>12}{f"of {devices} at once":>16}{"all":>12}',
  ]
  shown = {
    'copy_bytes_per_sec': ('copy, GB/s', 1e9),
    'product_flops_per_sec': ('large product, GFLOP/s', 1e9),
    'products_flops_per_sec': ("a step's products, GFLOP/s", 1e9),
    'gather_rows_per_sec': ('gather, M rows/s', 1e6),
    'scatter_rows_per_sec': ('scatter-add, M rows/s', 1e6),
  }
  for key, (name, unit) in shown.items():
    alone = run['ceilings_alone'][key] / unit
    each = run['ceilings'][key] / unit
    lines.append(f'{name:32}{alone:12,.1f}{each:16,.1f}{devices * each:12,.1f}')
  lines += ['', f'{"a step":42}{"us":>12}{"centers/s":>14}{"reached":>10}']
  names = {
    'tables_at_copy_rate': '(a) tables at the rate of the copy',
    'all_bytes_at_copy_rate': '    with intermediates',
    'flops_at_product_rate': '(b) flops at the rate of the large product',
    'gather_products_scatter': '(c) gather + products + scatter',
  }
  centers = devices * s['batch_words']
  for key, name in names.items():
    secs = run['predicted_secs'][key]
    lines.append(
      f'{name:42}{1e6 * secs:12,.1f}{centers / secs:14,.0f}'
      f'{run["reached"][key]:10.0%}'
    )
  for part in ('gather', 'products', 'scatter'):
    secs = run['ceilings'][f'{part}_secs']
    lines.append(f'{"      " + part:42}{1e6 * secs:12,.1f}')
  lines.append(
    f'{"measured":42}{1e6 * step["step_secs"]:12,.1f}'
    f'{step["centers_per_sec"]:14,.0f}'
  )
  return '\n'.join(lines)


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  config = config_lib.default()
  parser.add_argument('--vocab', type=int, default=72_000, help='rows')
  parser.add_argument(
    '--batch_words', type=int, default=0, help='0 = what suits the device'
  )
  for name in _SETTINGS:
    parser.add_argument(f'--{name}', type=int, default=config.model[name])
  parser.add_argument(
    '--strategy', choices=('replicas', 'sync'), default=config.strategy.name
  )
  parser.add_argument(
    '--output', type=pathlib.Path, help='default: results/roofline-DATE.json'
  )
  parser.add_argument('--quick', action='store_true', help='tiny, for tests')
  return parser.parse_args()


def main() -> None:
  """Measures, prints the tables and writes the file."""
  args = _arguments()
  config = config_lib.default()
  for name in _SETTINGS:
    config.model[name] = getattr(args, name)
  config.train.batch_words = args.batch_words
  config.train.epochs = 10**6  # until it took long enough
  config.strategy.name = args.strategy
  if args.quick:
    args.vocab, config.model.dim, config.train.batch_words = 1000, 8, 64
  config_lib.check(config)
  efforts = _QUICK if args.quick else _FULL
  run = measure(config, args.vocab, *efforts)
  facts = machine.describe()
  print(_table(run) + '\n')
  print(f'other processes took {run["others_cores"]:.2f} cores meanwhile')
  print(machine.line(facts))
  output = args.output or _RESULTS / f'roofline-{machine.today()}.json'
  # Other settings measured on that day stay in the file.
  runs = json.loads(output.read_text())['runs'] if output.exists() else []
  runs = [x for x in runs if x['settings'] != run['settings']]
  runs.append(run | {'commit': facts['commit'], 'date': facts['date']})
  output.parent.mkdir(parents=True, exist_ok=True)
  output.write_text(
    json.dumps({'machine': facts, 'runs': runs}, indent=1) + '\n'
  )


if __name__ == '__main__':
  machine.run(main)
