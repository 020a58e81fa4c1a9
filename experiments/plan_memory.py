"""What `jaxemb plan` says beforehand against what compilers make of it.

  python experiments/plan_memory.py
  python experiments/plan_memory.py --cases=row

For each case: memory by formula, and its ratio to the peak of the compiled
program; this peak over the bytes of tables and slots; copies of tables in the
program, bytes that its collectives send, milliseconds of a core or of a GPU's
kernels in a step, and the number of these.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import experiment

_SYNC = 'strategy.name=sync'
# Name, topology, words, settings.
_CASES = [
  ('sgd', 'v5e:1x1', 1e6, [_SYNC, 'model.dim=128']),
  ('dim 100', 'v5e:1x1', 1e6, [_SYNC]),
  ('dim 300', 'v5e:1x1', 1e6, [_SYNC, 'model.dim=300']),
  ('adagrad', 'v5e:1x1', 1e6,
   [_SYNC, 'model.dim=128', 'optimizer.name=adagrad']),
  ('adam', 'v5e:1x1', 1e6, [_SYNC, 'model.dim=128', 'optimizer.name=adam']),
  ('bfloat16', 'v5e:1x1', 1e6,
   [_SYNC, 'model.dim=128', 'table.dtype=bfloat16']),
  ('int8', 'v5e:1x1', 1e6, [_SYNC, 'model.dim=128', 'table.dtype=int8']),
  ('cbow', 'v5e:1x1', 1e6, [_SYNC, 'model.dim=128', 'model.name=cbow']),
  ('100,000 words', 'v5e:1x1', 1e5, [_SYNC, 'model.dim=128']),
  ('without kernels', 'v5e:1x1', 1e6,
   [_SYNC, 'model.dim=128', 'train.fused=false']),
  ('row', 'v5e:2x4', 1e6, [_SYNC, 'model.dim=128', 'table.layout=row']),
  ('row 100,000 words', 'v5e:2x2', 1e5,
   [_SYNC, 'model.dim=128', 'table.layout=row']),
  ('row adagrad', 'v5e:2x4', 1e6,
   [_SYNC, 'model.dim=128', 'table.layout=row', 'optimizer.name=adagrad']),
  ('row bfloat16', 'v5e:2x4', 1e6,
   [_SYNC, 'model.dim=128', 'table.layout=row', 'table.dtype=bfloat16']),
  ('column', 'v5e:2x2', 1e6, [_SYNC, 'model.dim=512', 'table.layout=column']),
  ('replicated', 'v5e:2x2', 1e6,
   [_SYNC, 'model.dim=128', 'mesh.data=4']),
  ('v4', 'v4:1x1x1', 1e6, [_SYNC, 'model.dim=128']),
  ('v5p', 'v5p:2x2x1', 1e6, [_SYNC, 'model.dim=128', 'table.layout=row']),
  ('v6e', 'v6e:1x1', 1e6, [_SYNC, 'model.dim=128']),
  ('tpu7x', 'tpu7x:2x2x1', 1e6, [_SYNC, 'model.dim=128', 'table.layout=row']),
  ('gpu', 'cuda:h100x1', 1e6, [_SYNC, 'model.dim=128']),
  ('gpu 65,536', 'cuda:h100x1', 1e6,
   [_SYNC, 'model.dim=128', 'train.batch_words=65536']),
  ('gpu h200 65,536', 'cuda:h200x1', 1e6,
   [_SYNC, 'model.dim=128', 'train.batch_words=65536']),
  ('gpu row', 'cuda:h200x8', 1e6,
   [_SYNC, 'model.dim=128', 'table.layout=row']),
  ('gpu row 65,536', 'cuda:h200x8', 1e6,
   [_SYNC, 'model.dim=128', 'table.layout=row', 'train.batch_words=65536']),
  ('gpu dim 100', 'cuda:h100x1', 1e6, [_SYNC]),
  ('gpu dim 300', 'cuda:h100x1', 1e6, [_SYNC, 'model.dim=300']),
  ('gpu adagrad', 'cuda:h100x1', 1e6,
   [_SYNC, 'model.dim=128', 'optimizer.name=adagrad']),
  ('gpu adam', 'cuda:h100x1', 1e6,
   [_SYNC, 'model.dim=128', 'optimizer.name=adam']),
  ('gpu bfloat16', 'cuda:h100x1', 1e6,
   [_SYNC, 'model.dim=128', 'table.dtype=bfloat16']),
  ('gpu int8', 'cuda:h100x1', 1e6,
   [_SYNC, 'model.dim=128', 'table.dtype=int8']),
  ('gpu column', 'cuda:h200x8', 1e6,
   [_SYNC, 'model.dim=128', 'table.layout=column']),
]  # fmt: skip


def measure(case: tuple[str, str, float, list[str]]) -> dict[str, Any]:
  """The plan of a case, or why there is none."""
  name, topology, words, settings = case
  found = {'name': name, 'topology': topology, 'words': words}
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'plan.json')
    command = [sys.executable, '-m', 'jaxemb', 'plan', f'--json={path}']
    command += [f'--topology={topology}', f'--vocab={words:.0f}']
    command += [f'--config.{x}' for x in settings]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
      lines = done.stderr.strip().splitlines()
      return found | {'obstacle': lines[-1] if lines else 'killed'}
    return found | json.loads(path.read_text())


def _row(x: dict[str, Any]) -> list[Any]:
  memory = x['memory']
  ratio = memory['planned_bytes'] / memory['peak_bytes']
  copies = sum(x['table_copies_by_loop_depth'].values())
  needed = memory['tables_bytes'] + memory['slots_bytes']
  return [
    x['name'],
    x['topology'],
    memory['planned_bytes'] / 1e6,
    memory['peak_bytes'] / 1e6,
    ratio,
    memory['peak_bytes'] / needed,
    copies,
    x['sent_bytes_per_word'],
    max(x['secs_per_step'].get(k, 0) for k in ('core', 'kernels')) * 1e3,
    (x['kernels'] or {}).get('per_step', 0),
    min(x['words_per_sec'].values()) / 1e6,
  ]


def main() -> None:
  """Plans all cases and prints a table."""
  parser = experiment.parser(__doc__)
  parser.add_argument('--cases', default='', help='with this in their name')
  args = parser.parse_args()
  results = experiment.Results('plan_memory', args)
  results.found = []
  for case in _CASES:
    if args.cases in case[0]:
      results.found.append(measure(case))
      results.save()
  head = {
    '': '', 'devices': '', 'planned MB': ',.0f', 'peak MB': ',.0f',
    'ratio': '.3f', 'of tables': '.2f', 'copies': 'd', 'bytes/word': ',.0f',
    'ms': '.2f', 'kernels': '.0f', 'M words/s': ',.1f',
  }  # fmt: skip
  found = [x for x in results.found if 'obstacle' not in x]
  others = [x for x in results.found if 'obstacle' in x]
  results.finish(
    experiment.table(head, map(_row, found)),
    *(f'{x["name"]}: {x["obstacle"]}' for x in others),
  )


if __name__ == '__main__':
  experiment.main(main)
