"""What checksums cost: processor seconds of runs with and without, in turns.

  python experiments/checksum_cost.py --text=FILE [--rounds=5] [--epochs=1]

Each run is a process of its own, which opens the encoded text, trains, saves
and exports. Without, neither the text nor checkpoints have checksums.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

import experiment

# What a run without checksums does in place of what `storage` does.
_WITHOUT = """
import json, sys
from jaxemb.storage import checkpoint, checksums
def opened(folder):
  manifest = json.loads((folder / 'manifest.json').read_text())
  return {k: x for k, x in manifest.items() if 'checksum' not in k}
checksums.opened = opened
checkpoint._checksums = lambda state: []
"""
_RUN = """
import sys
from jaxemb import __main__ as jaxemb
sys.exit(jaxemb.main(sys.argv[1:]))
"""


def _secs(code: str, arguments: list[str]) -> float:
  """User and system time of a process and its children."""
  with tempfile.TemporaryDirectory() as workdir:
    command = [sys.executable, '-c', code, *arguments, f'--workdir={workdir}']
    process = subprocess.Popen(
      command,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
      env=os.environ | {'PYTHONPATH': str(experiment.ROOT)},
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
  if status:
    raise SystemExit(f'a run ended with {process.returncode}')
  return used.ru_utime + used.ru_stime


def main() -> None:
  """Runs both in turns, after one that is not counted; prints medians."""
  parser = experiment.parser(__doc__)
  parser.add_argument('--text', required=True, help='config.data.path')
  parser.add_argument('--rounds', type=experiment.count, default=5)
  parser.add_argument('--epochs', type=experiment.count, default=1)
  args = experiment.parse(parser)
  arguments = [
    'train', '--config=wiki', f'--config.data.path={args.text}',
    f'--config.train.epochs={args.epochs}', '--config.eval.paths=none',
    *args.override,
  ]  # fmt: skip
  sides = {
    'with': lambda _: _secs(_RUN, arguments),
    'without': lambda _: _secs(_WITHOUT + _RUN, arguments),
  }
  sides['with'](0)
  found = experiment.in_turn(sides, args.rounds)
  cost = [a / b - 1 for a, b in zip(*found.values(), strict=True)]
  for name, secs in found.items():
    print(f'{name:<8}', *(f'{x:7.2f}' for x in secs), 's of processors')
  print(f'cost: {statistics.median(cost):.2%} in the median of {len(cost)}')
  if args.output:
    args.output.write_text(json.dumps(found | {'cost': cost}, indent=1))


if __name__ == '__main__':
  experiment.main(main)
