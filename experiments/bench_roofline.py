"""How near a training step comes to what the device can do.

  python experiments/bench_roofline.py
  python experiments/bench_roofline.py --vocab=1000000 --dim=300

For chunks of c centers, windows of W, N shared negatives and dim d, a center
(a word that subsampling kept) needs

  rows    r = 1 + (c + 2 W + N) / c, each read by a gather, then read and
          written by a scatter-add: 3 r d floats to and from the tables
  flops   6 (c + 2 W + N) d: the scores, the centers' and the windows' gradients

These are compared with what each of the same devices reaches, while all are at
work, in programs that do one thing (ceilings.py).

Predicted are a step's times of (a) the tables' bytes at the rate of the copy,
(b) the flops at the rate of the large product and (c) gather, products and
scatter as each is measured; left out are masks, draws, the sigmoid, the
optimizer and the exchange of replicas. `reached` is the predicted time over the
measured one; small tables stay in a cache, so that it is no hard limit.
"""

from collections.abc import Mapping
from typing import Any

import ceilings
import experiment
import jax
import numpy as np
import zipf

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.models import skipgram
from jaxemb.text import encode

_SIZES = ('dim', 'window', 'negatives', 'chunk', 'shared_negatives')
_PARTS = ('gather_secs', 'products_secs', 'scatter_secs')
_FULL = (
  zipf.Effort(4_000_000, 7, 3.0),
  ceilings.Effort(1 << 29, 1024, 0.01, 0.3, 5),
)
_QUICK = (
  zipf.Effort(50_000, 2, 0.0),
  ceilings.Effort(1 << 22, 256, 0.0, 0.01, 2),
)


def needs(spec: skipgram.WindowSpec) -> dict[str, float]:
  """What a center needs."""
  width = spec.chunk + 2 * spec.window + spec.shared_negatives
  halo = 0 if spec.tokens_once else 2 * spec.window
  rows = 1 + (spec.chunk + halo + spec.shared_negatives) / spec.chunk
  return {
    'rows': rows,
    'table_bytes': 4 * 3 * rows * spec.dim,
    'flops': 6 * width * spec.dim,
  }


def _step_ids(job: zipf.Job, corpus: encode.Encoded) -> list[np.ndarray]:
  """The ids of a dispatch's steps: [steps, L / c, c] and [..., c + 2 W + N]."""
  batch = jax.device_put(next(job.source(corpus).items(None, 0)).batch)
  model = jax.device_put(job.trainer.trainable.model)
  key = np.array([job.config.seed, 1], np.uint32)

  def ids(i):
    step = job.steps.step(batch, i, data_base.Share(0, 0, 1, 0, 1), 1.0)
    return model.ids(step, key)

  # The last step is not full.
  num_steps = max(1, int(batch.kept_words[0]) // job.steps.part_words)
  found = jax.jit(jax.vmap(ids))(np.arange(num_steps))
  return [np.asarray(found[name]) for name in (skipgram.INPUT, skipgram.OUTPUT)]


def measure(
  settings: Mapping[str, Any],
  num_rows: int,
  chunk: int,
  job_effort: zipf.Effort,
  effort: ceilings.Effort,
) -> dict[str, Any]:
  """Ceilings, predictions and the measured step."""
  job = zipf.make(settings, num_rows, **({'chunk': chunk} if chunk else {}))
  if obstacle := zipf.obstacle(job):
    raise errors.UserError(f'a table of {num_rows:,} rows {obstacle}')
  others_cores = experiment.load()
  corpus = zipf.corpus(job.counts, job_effort.ready_words)
  ids = _step_ids(job, corpus)
  step = zipf.time_dispatches(job, corpus, job_effort)
  spec = job.trainer.trainable.model.spec
  each = ceilings.measure(job.mesh, spec, ids, effort)
  need, words = needs(spec), job.steps.part_words
  flops_per_sec = each['product_flops_per_sec']
  predicted = {
    'tables_at_copy_rate': (
      words * need['table_bytes'] / each['copy_bytes_per_sec']
    ),
    'flops_at_product_rate': words * need['flops'] / flops_per_sec,
    'gather_products_scatter': sum(each[part] for part in _PARTS),
  }
  return {
    'settings': {
      'vocab': num_rows,
      'batch_words': words,
      **{name: getattr(spec, name) for name in _SIZES},
      'strategy': job.config.strategy.name,
      'devices': job.mesh.size,
      'device': job.mesh.devices.flat[0].device_kind,
    },
    'per_center': need,
    'ceilings': each,
    'step': step,
    'predicted_secs': predicted,
    'reached': {k: x / step['step_secs'] for k, x in predicted.items()},
    'others_cores': others_cores(),
  }


def table(run: dict[str, Any]) -> str:
  """The ceilings, and the step's predicted and measured times."""
  s, need, step = run['settings'], run['per_center'], run['step']
  rates = {
    'copy, GB/s': ('copy_bytes_per_sec', 1e9),
    'large product, GFLOP/s': ('product_flops_per_sec', 1e9),
    "a step's products, GFLOP/s": ('products_flops_per_sec', 1e9),
    'gather, M rows/s': ('gather_rows_per_sec', 1e6),
    'scatter-add, M rows/s': ('scatter_rows_per_sec', 1e6),
  }
  speeds = []
  for name, (key, unit) in rates.items():
    each = run['ceilings'][key] / unit
    speeds.append([name, each, s['devices'] * each])
  columns = (f'each of {s["devices"]}', 'all')
  names = {
    'tables_at_copy_rate': '(a) tables at the rate of the copy',
    'flops_at_product_rate': '(b) flops at the rate of the large product',
    'gather_products_scatter': '(c) gather + products + scatter',
  }
  centers, times = s['devices'] * s['batch_words'], []
  for key, name in names.items():
    secs = run['predicted_secs'][key]
    times.append([name, 1e6 * secs, centers / secs, run['reached'][key]])
  times += [[f'      {x}', 1e6 * run['ceilings'][x]] for x in _PARTS]
  times.append(['measured', 1e6 * step['step_secs'], step['centers_per_sec']])
  head = {'': '', 'us': ',.1f', 'centers/s': ',.0f', 'reached': '.0%'}
  return '\n'.join(
    [
      ', '.join(f'{k} {v}' for k, v in s.items()),
      f'a center: {need["rows"]:.2f} rows; {need["table_bytes"]:,.0f} bytes to '
      f'and from tables; {need["flops"]:,.0f} flops',
      experiment.table({'': '', **dict.fromkeys(columns, ',.1f')}, speeds),
      experiment.table(head, times),
    ]
  )


def main() -> None:
  """Measures and prints the tables; other settings stay in the file."""
  parser = experiment.parser(__doc__)
  config = config_lib.default()
  add = parser.add_argument
  add('--vocab', type=int, default=72_000, help='rows')
  add('--batch_words', type=int, default=0, help='0 = what suits the device')
  for name in _SIZES:
    default = config.model.get(name, 0)
    add(f'--{name}', type=int, default=default, help='0 = as usual')
  add('--strategy', choices=('replicas', 'sync'), default='replicas')
  add('--quick', action='store_true', help='tiny, for tests')
  args = parser.parse_args()
  if args.quick:
    args.vocab, args.dim, args.batch_words = 1000, 8, 64
  settings = {f'model.{x}': getattr(args, x) for x in _SIZES if x != 'chunk'}
  settings['train.batch_words'] = args.batch_words
  settings['strategy.name'] = args.strategy
  efforts = _QUICK if args.quick else _FULL
  run = measure(settings, args.vocab, args.chunk, *efforts)
  results = experiment.Results('roofline', args, same=())
  others = [x for x in results.found or () if x['settings'] != run['settings']]
  results.found = [*others, run]
  results.finish(
    table(run),
    f'other processes used {run["others_cores"]:.2f} cores meanwhile',
  )


if __name__ == '__main__':
  experiment.main(main)
