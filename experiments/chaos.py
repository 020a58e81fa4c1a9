"""Kills runs and damages their files; compares with a run that was left alone.

  python experiments/chaos.py [--kills=40] [--seed=0]

A small text is trained with one thread, which gives the same bits every time.
Then, again and again in new folders:

  kill    one or two signals at a moment of the run (encoding, saving, after a
          checkpoint, exporting, any time); started again until it ends
  limit   files may not grow beyond some size (a full disk); then started again
  run     a bit of a file of a finished run is flipped, or the file is cut, and
          the export is removed; started again
  cache   the same with the files of the encoded text

A case is "same" if the vectors are the same bits in the end, "noticed" if a
start ended with exit code 2 and one line, and else lost.
"""

import collections
import contextlib
import io
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import experiment
import numpy as np

from jaxemb import __main__ as jaxemb

# What is there at each moment of a run, below its folder or the cache.
_MOMENTS = {
  'encoding': 'cache/corpora/*.tmp-*',
  'saving': 'run/checkpoints/*tmp*',
  'saved': 'run/checkpoints/[0-9]*',
  'exporting': 'run/export/.*',
  'any time': '',
}
_SIGNALS = (
  (signal.SIGKILL,),
  (signal.SIGTERM,),
  (signal.SIGHUP,),
  (signal.SIGTERM, signal.SIGTERM),
  (signal.SIGHUP, signal.SIGKILL),
)
_MAX_STARTS = 4
_ANY_SECS = 3.0  # in which a run has come to most of its moments


class Result(NamedTuple):
  """What became of a case."""

  kind: str
  what: str
  outcome: str  # 'same', 'noticed' or what is wrong


def command(folder: pathlib.Path) -> list[str]:
  """The arguments that train in a folder."""
  return [
    'train', '--config=wiki', f'--workdir={folder}/run',
    f'--config.data.path={folder.parent}/text.txt',
    '--config.data.min_count=1', '--config.model.dim=16',
    '--config.train.epochs=40', '--config.train.threads=1',
    '--config.mesh.data=1', '--config.eval.paths=none',
    '--config.train.checkpoint_every_secs=0',
  ]  # fmt: skip


def write_text(path: pathlib.Path) -> None:
  """A text of 60,000 words."""
  rng = np.random.default_rng(0)
  words = rng.zipf(1.3, 60_000) % 500
  lines = np.split(words, range(20, len(words), 20))
  path.write_text('\n'.join(' '.join(f'w{x}' for x in y) for y in lines))


def start(folder: pathlib.Path, max_bytes: int = 0) -> subprocess.Popen:
  """Starts a run in a process, whose files grow to `max_bytes` at most."""
  folder.mkdir(exist_ok=True)
  path = os.pathsep.join([str(experiment.ROOT), *sys.path])
  environment = {'PYTHONPATH': path, 'JAX_PLATFORMS': 'cpu'}
  environment['JAXEMB_CACHE'] = str(folder / 'cache')

  def limit() -> None:
    if max_bytes:
      resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
      signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

  return subprocess.Popen(
    [sys.executable, '-m', 'jaxemb', *command(folder)],
    env=os.environ | environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    preexec_fn=limit,
  )


def here(folder: pathlib.Path) -> tuple[int, str]:
  """Runs in this process; returns the exit code and what it said."""
  before, said = os.environ.get('JAXEMB_CACHE'), io.StringIO()
  os.environ['JAXEMB_CACHE'] = str(folder / 'cache')
  try:
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
      code = jaxemb.main(command(folder))
  finally:
    os.environ.pop('JAXEMB_CACHE')
    if before is not None:
      os.environ['JAXEMB_CACHE'] = before
  return code, said.getvalue()


def vectors(folder: pathlib.Path) -> bytes:
  """The bits of the exported vectors, or nothing."""
  path = folder / 'run' / 'export' / 'vectors.npy'
  return path.read_bytes() if path.exists() else b''


def _wait(process: subprocess.Popen) -> tuple[int, str]:
  said = process.communicate(timeout=120)[0].decode(errors='replace')
  return process.returncode, said


def outcome(folder: pathlib.Path, whole: bytes, code: int, said: str) -> str:
  """What the last start of a case says about it."""
  if 'Traceback' in said:
    return f'a traceback: {said.splitlines()[-1]}'
  if code == 2:
    return 'noticed'
  if code:
    return f'exit code {code}'
  return 'same' if vectors(folder) == whole else 'other vectors'


def kill(
  folder: pathlib.Path, whole: bytes, moment: str, numbers: tuple, secs: float
) -> str:
  """Sends signals at a moment, then starts until the run ends."""
  process, deadline = start(folder), time.monotonic() + 60
  pattern = _MOMENTS[moment]
  while pattern and process.poll() is None and time.monotonic() < deadline:
    if next(folder.glob(pattern), None):
      break
    time.sleep(0.002)
  time.sleep(secs if pattern else _ANY_SECS * secs)
  for number in numbers:
    process.send_signal(number)
    time.sleep(0.05)
  code, said = _wait(process)
  allowed = {0, 75, *(-x for x in numbers)}
  if code not in allowed or 'Traceback' in said:
    return f'exit code {code} after {numbers}: {said[-200:]}'
  for _ in range(_MAX_STARTS):
    if code == 0:
      break
    code, said = _wait(start(folder))
  return outcome(folder, whole, code, said)


def limited(folder: pathlib.Path, whole: bytes, max_bytes: int) -> str:
  """Trains where files cannot grow, then where they can."""
  code, said = _wait(start(folder, max_bytes))
  if code not in (0, 2) or 'Traceback' in said:
    return f'exit code {code} with {max_bytes} bytes: {said[-200:]}'
  return outcome(folder, whole, *_wait(start(folder)))


def damage(path: pathlib.Path, how: str, rng: random.Random) -> None:
  """Flips a bit of a file, or cuts it, in a file of its own."""
  data = bytearray(path.read_bytes())
  place = rng.randrange(len(data))
  if how == 'cut':
    data = data[:place]
  else:
    data[place] ^= 1 << rng.randrange(8)
  path.unlink()  # others may have mapped it
  path.write_bytes(data)


def damages(
  folder: pathlib.Path,
  whole: bytes,
  scratch: pathlib.Path,
  seed: int,
  every: int = 1,
) -> Iterator[Result]:
  """Damages every file of a finished run, and of its cache, in copies.

  Or, of the files of each, only one in `every`.
  """
  rng, found = random.Random(seed), []
  for kind in ('run', 'cache/corpora'):
    of_kind = [
      x
      for x in sorted((folder / kind).rglob('*'))
      # The export is written again from the last checkpoint.
      if x.is_file() and x.stat().st_size and 'export' not in x.parts
    ]
    found += of_kind[::every]
  for path in found:
    for how in ('flipped', 'cut'):
      copy, name = scratch / 'damaged', path.relative_to(folder)
      shutil.rmtree(copy, ignore_errors=True)
      shutil.copytree(folder, copy)
      shutil.rmtree(copy / 'run' / 'export')
      damage(copy / name, how, rng)
      kind = name.parts[0]
      if kind == 'cache':  # which only a new run reads from its beginning
        shutil.rmtree(copy / 'run')
      yield Result(kind, f'{name} {how}', _again(copy, whole))


def _again(folder: pathlib.Path, whole: bytes) -> str:
  try:
    return outcome(folder, whole, *here(folder))
  except Exception as error:
    return f'a traceback: {error!r}'[:200]


def cases(folder: pathlib.Path, kills: int, seed: int) -> Iterator[Result]:
  """All cases, in new folders within one."""
  rng, number = random.Random(seed), 0
  write_text(folder / 'text.txt')
  code, said = _wait(start(folder / 'alone'))
  whole = vectors(folder / 'alone')
  if code or not whole:
    raise AssertionError(said)
  for number in range(kills):
    moment = list(_MOMENTS)[number % len(_MOMENTS)]
    numbers = _SIGNALS[number // len(_MOMENTS) % len(_SIGNALS)]
    secs = rng.random() * (1 if moment == 'any time' else 0.2)
    names = '+'.join(x.name for x in numbers)
    found = kill(folder / 'killed', whole, moment, numbers, secs)
    yield Result('kill', f'{moment} {names}', found)
    shutil.rmtree(folder / 'killed')
  for max_bytes in (5_000, 50_000, 200_000)[: max(kills, 1)]:
    found = limited(folder / 'limited', whole, max_bytes)
    yield Result('limit', f'{max_bytes} bytes', found)
    shutil.rmtree(folder / 'limited')
  yield from damages(folder / 'alone', whole, folder, seed)


def main() -> None:
  """Runs the cases; prints a table, and what was lost."""
  parser = experiment.parser(__doc__)
  parser.add_argument('--kills', type=int, default=40)
  parser.add_argument('--seed', type=int, default=0)
  args = experiment.parse(parser)
  table: dict[str, collections.Counter] = {}
  lost: list[dict[str, Any]] = []
  started = time.monotonic()
  with tempfile.TemporaryDirectory() as name:
    for result in cases(pathlib.Path(name), args.kills, args.seed):
      is_good = result.outcome in ('same', 'noticed')
      count = table.setdefault(result.kind, collections.Counter())
      count[result.outcome if is_good else 'lost'] += 1
      if not is_good:
        lost.append(result._asdict())
        print(*result, sep=': ', flush=True)
  secs = round(time.monotonic() - started, 1)
  print(f'{"":<8}{"same":>8}{"noticed":>9}{"lost":>6}')
  for kind, count in table.items():
    numbers = f'{count["same"]:8}{count["noticed"]:9}{count["lost"]:6}'
    print(f'{kind:<8}{numbers}')
  print(f'{sum(x.total() for x in table.values())} cases in {secs} s')
  if args.output:
    args.output.write_text(
      json.dumps({'results': table, 'lost': lost, 'secs': secs}, indent=1)
    )


if __name__ == '__main__':
  experiment.main(main)
