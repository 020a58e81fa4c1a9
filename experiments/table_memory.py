"""Memory of split tables on each device: compiled, not run.

  python experiments/table_memory.py --rows=16000000 --dim=128 --devices=8

The program of a dispatch is compiled for simulated devices, and XLA is asked
what it needs on each: arguments, which are the tables, optimizer slots and a
batch, and temporary arrays. The tables are never made, so any size will do.
"""

import math

import experiment
import jax
import zipf

LAYOUTS = ('replicated', 'row', 'column')
_SHOWN = ('tables_per_device_bytes', 'arguments_bytes', 'temporary_bytes')


def measure(layout: str, rows: int, dim: int, optimizer: str) -> dict:
  """Bytes on one of all devices."""
  num = len(jax.devices())
  data, table = (num, 1) if layout == 'replicated' else (1, num)
  job = zipf.make(
    {
      'model.dim': dim, 'optimizer.name': optimizer, 'strategy.name': 'sync',
      'table.layout': layout, 'mesh.data': data, 'mesh.table': table,
      'train.batch_words': 8192,
    },
    rows,
  )  # fmt: skip
  memory = zipf.lower(job).compile().memory_analysis()
  form = job.strategy.init.eval_shape(jax.random.key(0))
  whole_bytes = sum(
    math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(form)
  )
  held_bytes = zipf.state_bytes(job)
  return {
    'layout': layout,
    'devices': num,
    'tables_bytes': whole_bytes,
    'tables_per_device_bytes': held_bytes,
    'ratio_to_even_split': held_bytes * num / whole_bytes,
    'arguments_bytes': memory.argument_size_in_bytes,
    'temporary_bytes': memory.temp_size_in_bytes,
  }


def main() -> None:
  """Measures each layout and prints a table."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--rows', type=int, default=16_000_000)
  add('--dim', type=int, default=128)
  add('--devices', type=int, default=8)
  add('--optimizer', default='adagrad')
  args = parser.parse_args()
  experiment.simulate_devices(args.devices)
  results = experiment.Results('table-memory', args)
  sizes = args.rows, args.dim, args.optimizer
  results.found = [measure(layout, *sizes) for layout in LAYOUTS]
  names = ('tables', 'with a batch', 'temporary', 'tables x even split')
  rows = [
    (x['layout'], *(x[key] / 1e9 for key in _SHOWN), x['ratio_to_even_split'])
    for x in results.found
  ]
  results.finish(
    f'two tables of {args.rows:,} x {args.dim} with {args.optimizer} slots, '
    f'{args.devices} devices; GB on each device',
    experiment.table({'layout': '', **dict.fromkeys(names, '.3f')}, rows),
  )


if __name__ == '__main__':
  experiment.main(main)
