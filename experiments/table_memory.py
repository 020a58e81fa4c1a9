"""What a device holds of tables that are split: compiled, not run.

  python experiments/table_memory.py --rows=16000000 --dim=128 --devices=8

The program of a dispatch is compiled for so many simulated devices, and XLA is
asked what it needs on each: arguments, which are the tables, the optimizer's
state and a batch, and what it makes on the way. The tables themselves are never
made, so that any size can be asked for.
"""

import argparse
import json
import math
import os
import pathlib

import machine

LAYOUTS = ('replicated', 'row', 'column')


def measure(layout: str, rows: int, dim: int, optimizer: str) -> dict:
  """Bytes on one of all devices; starts JAX."""
  import jax
  import jobs

  from jaxemb import config as config_lib

  config = config_lib.default()
  config.model.dim, config.optimizer.name = dim, optimizer
  config.strategy.name, config.table.layout = 'sync', layout
  num = len(jax.devices())
  config.mesh.data, config.mesh.table = (
    (num, 1) if layout == 'replicated' else (1, num)
  )
  config.train.batch_words = 8192
  job = jobs.make(config, rows)
  args = jobs.shapes(job)
  compiled = job.strategy.step.lower(*args).compile()
  memory = compiled.memory_analysis()
  whole = sum(
    math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(args[0])
  )
  held = jobs.state_bytes(job) // num
  return {
    'layout': layout,
    'devices': num,
    'tables_bytes': whole,
    'tables_per_device_bytes': held,
    'share_of_an_even_split': held * num / whole,
    'arguments_bytes': memory.argument_size_in_bytes,
    'temporary_bytes': memory.temp_size_in_bytes,
  }


def main() -> None:
  """Measures each layout and prints a table."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rows', type=int, default=16_000_000)
  parser.add_argument('--dim', type=int, default=128)
  parser.add_argument('--devices', type=int, default=8)
  parser.add_argument('--optimizer', default='adagrad')
  parser.add_argument('--layouts', default=','.join(LAYOUTS))
  parser.add_argument('--output', default='', help='JSON file; "" = none')
  args = parser.parse_args()
  os.environ['JAX_PLATFORMS'] = 'cpu'
  os.environ['XLA_FLAGS'] = (
    f'--xla_force_host_platform_device_count={args.devices}'
  )
  results = [
    measure(layout, args.rows, args.dim, args.optimizer)
    for layout in args.layouts.split(',')
  ]
  print(
    f'two tables of {args.rows:,} x {args.dim} with {args.optimizer} state, '
    f'{args.devices} devices; GB on each device'
  )
  print(f'{"layout":>10} {"tables":>8} {"x even":>7} {"batch":>8} {"made":>8}')
  for x in results:
    batch = x['arguments_bytes'] - x['tables_per_device_bytes']
    print(
      f'{x["layout"]:>10} {x["tables_per_device_bytes"] / 1e9:8.3f} '
      f'{x["share_of_an_even_split"]:7.3f} {batch / 1e9:8.3f} '
      f'{x["temporary_bytes"] / 1e9:8.3f}'
    )
  if args.output:
    pathlib.Path(args.output).write_text(json.dumps(results, indent=1))


if __name__ == '__main__':
  machine.run(main)
