"""Kills runs, damages their files, moves them; compares with runs left alone.

A kill    is of a run that encodes its text; it is started again until it ends
damage    flips a bit of each file of a finished run, or of the encoded text, or
          cuts it, and removes the export; the run is started again
counts    are of a model that counts what it reads (counting.py): it is stopped
          or killed and resumed on another topology, several times; in the end
          every node of the graph is to have been read once an epoch

A case is 'same' if the vectors are the same bits in the end, 'noticed' if a
start ended with exit code 2 and one line, and else what is wrong.

Runs are forks of one process (forked.py).
"""

import collections
import functools
import hashlib
import pathlib
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from multiprocessing import context as contexts
from typing import Any, NamedTuple

import numpy as np

from jaxemb.data import blocks as blocks_lib
from jaxemb.graphs import edge_source
from jaxemb.run import rundir
from tests import counting, forked

_MAX_STARTS = 5
_WAIT_SECS = 300.0  # until a text is being encoded


class Place(NamedTuple):
  """Where a run is started."""

  settings: tuple[str, ...] = ()
  num_processes: int = 1


_ONE = Place(('mesh.data=1',))
_TWO = Place(('mesh.data=2',))
_FOUR = Place(('mesh.data=2', 'mesh.table=2'))
_TWO_PROCESSES = Place(('mesh.data=2',), 2)
_PROCESSES_OF_TWO = Place(('mesh.data=2', 'mesh.table=2'), 2)
_MESHES = _TWO, _ONE, _TWO_PROCESSES, _FOUR, _PROCESSES_OF_TWO
_WORDS = (
  '--config=wiki', '--config.data.path=../../text.txt',
  '--config.data.min_count=1', '--config.train.epochs=2',
  '--config.train.threads=1', '--config.model.dim=8',
  '--config.eval.paths=none',
)  # fmt: skip
_EPOCHS = 5
_EDGES = (
  '--config=graph:line', '--config.data.path=../../edges.tsv',
  '--config.data.test=', '--config.data.partitions=4',
  '--config.train.batch_examples=256',
  *(f'--config.{x}' for x in counting.SETTINGS),
  '--config.model.name=tests.counting:make',
  f'--config.train.epochs={_EPOCHS}', '--config.model.dim=1',
)  # fmt: skip


def _flags(settings: Sequence[str], place: Place) -> list[str]:
  """The arguments that train somewhere."""
  return [
    'train', '--workdir=run', '--config.train.checkpoint_every_secs=0',
    *settings, *(f'--config.{x}' for x in place.settings),
  ]  # fmt: skip


def _write_files(folder: pathlib.Path) -> None:
  """What is trained on: a text, and edges."""
  rng = np.random.default_rng(0)
  words = rng.zipf(1.3, 60_000) % 500
  lines = np.split(words, range(20, len(words), 20))
  text = '\n'.join(' '.join(f'w{x}' for x in y) for y in lines)
  (folder / 'text.txt').write_text(text)
  pairs = {tuple(sorted(x)) for x in rng.integers(0, 300, (4000, 2)).tolist()}
  pairs = sorted((a, b) for a, b in pairs if a != b)
  (folder / 'edges.tsv').write_text(''.join(f'n{a}\tn{b}\n' for a, b in pairs))


def _use_small_dispatches() -> None:
  """Has forks read little at a time: small data has many positions then."""
  blocks_lib.group_blocks = lambda part_words: 4
  edge_source._DISPATCH = 512


class Tester:
  """Starts runs below a folder of its own, whose files lie above it."""

  def __init__(self, folder: pathlib.Path):
    """The cache lies beside the folder."""
    self.folder, self.cache = folder, folder.parent / 'cache'
    self.rng = random.Random(0)

  def start(
    self,
    name: str,
    settings: Sequence[str],
    place: Place = _ONE,
    cache: pathlib.Path | None = None,
    after: tuple[int, int] = (0, 0),
  ) -> forked.Run:
    """Starts processes of a run in a folder of that name; see `forked.Run`."""
    args = self.folder / name, cache or self.cache, place.num_processes
    return forked.Run(_flags(settings, place), *args, after=after)

  @functools.cached_property
  def whole(self) -> str:
    """What a run makes that is left alone."""
    codes, said = self.start('alone', _WORDS).wait()
    assert not any(codes), said[-2000:]
    return _digest(self.folder / 'alone')

  def ended(self, name: str, cache: pathlib.Path) -> str:
    """Starts until the run ends; what became of it."""
    for _ in range(_MAX_STARTS):
      codes, said = self.start(name, _WORDS, cache=cache).wait()
      if codes != [75] * len(codes):
        break
    if 'Traceback' in said or set(codes) - {0, 2}:
      return f'exit codes {codes}: {said[-1500:]}'
    if set(codes) == {2}:
      return 'noticed'
    is_same = _digest(self.folder / name) == self.whole
    return 'same' if is_same else 'other vectors'

  def killed(self) -> str:
    """Kills a run that encodes its text, then starts until it ends."""
    assert self.whole
    cache = self.folder / 'own'
    of_text = shutil.ignore_patterns('corpora')
    shutil.copytree(self.cache, cache, True, of_text)  # links as such
    run = self.start('killed', _WORDS, cache=cache)
    deadline = time.monotonic() + _WAIT_SECS
    while run.is_running() and time.monotonic() < deadline:
      if any(cache.glob('corpora/.*.tmp-*')):
        break
      time.sleep(0.004)
    run.send(signal.SIGKILL)
    codes, said = run.wait()
    if codes != [-signal.SIGKILL]:
      return f'exit codes {codes} after a kill: {said[-1500:]}'
    found = self.ended('killed', cache)
    left = [x for x in cache.rglob('*.tmp-*') if 'programs' not in x.parts]
    return f'left behind: {left}' if left else found

  def damaged(self, every: int) -> Iterator[tuple[str, str]]:
    """Damages files of a finished run, and of its cache, one in `every`."""
    assert self.whole
    first, own, copy = (self.folder / x for x in ('first', 'own', 'damaged'))
    first.mkdir()  # of which only this run's text is in the cache
    _link_programs(first)
    self.start('encoded', _WORDS, cache=first).wait()
    found, run = [], self.folder / 'alone'
    for top, below in ((run, 'run'), (first, '.')):
      of_kind = [
        x
        for x in sorted((top / below).rglob('*'))
        # The export is written again from the last checkpoint.
        if x.is_file() and x.stat().st_size and 'export' not in x.parts
      ]
      some = of_kind[min(every, len(of_kind)) // 2 :: every]
      found += [(top, x.relative_to(top)) for x in some]
    for top, path in found:
      for how in ('flipped', 'cut'):
        for old in (own, copy):
          shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(first, own, True)
        if top == run:
          shutil.copytree(run, copy)
          shutil.rmtree(copy / 'run' / 'export')
        _damage((copy if top == run else own) / path, how, self.rng)
        yield 'run' if top == run else 'cache', self.ended('damaged', own)

  def killed_and_damaged(self, every: int = 80) -> list[tuple[str, str]]:
    """Kinds of cases of a run on words, and what became of each."""
    return [('kill', self.killed()), *self.damaged(every)]

  def counted(self) -> str:
    """Resumes on each topology, and ends on the first; what is wrong."""
    places = [*_MESHES, _MESHES[0]]
    for i, place in enumerate(places):
      number = (signal.SIGTERM, signal.SIGKILL)[i % 2]
      # A checkpoint is begun after each dispatch, and is whole two later.
      after = self.rng.randrange(2, 5), number
      is_last = i + 1 == len(places)
      more = {} if is_last else {'after': after}
      codes, said = self.start('counted', _EDGES, place, **more).wait()
      allowed = {0} if is_last else {75, -number, -signal.SIGABRT}
      if set(codes) - allowed:
        return f'exit codes {codes}: {said[-1500:]}'
    export = self.folder / 'counted' / 'run' / 'export'
    lines = (self.folder.parent / 'edges.tsv').read_text().split()
    expected = collections.Counter(lines)
    names = [x.split()[0] for x in (export / 'vocab.txt').open()]
    found = np.load(export / 'vectors.npy')[:, 0]
    found = dict(zip(names, found, strict=True))
    keys = expected.keys() | found.keys()
    wrong = sum(abs(found.get(x, 0) - _EPOCHS * expected[x]) for x in keys)
    return f'{wrong} readings wrong' if wrong else 'same'


def _digest(folder: pathlib.Path) -> str:
  """Of the bits of all arrays that a run has exported."""
  made = hashlib.sha256()
  for path in sorted((folder / 'run' / 'export').glob('*.npy')):
    made.update(path.name.encode() + path.read_bytes())
  return made.hexdigest()


def _damage(path: pathlib.Path, how: str, rng: random.Random) -> None:
  """Flips a bit of a file, or cuts it, in a file of its own."""
  data = bytearray(path.read_bytes())
  place = rng.randrange(len(data))
  if how == 'cut':
    data = data[:place]
  else:
    data[place] ^= 1 << rng.randrange(8)
  path.unlink()  # others may have mapped it
  path.write_bytes(data)


def _link_programs(cache: pathlib.Path) -> None:
  """Has a cache use the compiled programs of the user's."""
  programs = rundir.cache_folder() / 'programs'
  programs.mkdir(parents=True, exist_ok=True)
  (cache / 'programs').symlink_to(programs)


def outcome(
  try_out: Callable[[Tester], Any],
  folder: pathlib.Path,
  context: contexts.BaseContext,
) -> Any:
  """What a method of a tester returns, in a process whose runs are forks."""
  _write_files(folder)
  for name in ('cache', 'runs'):
    (folder / name).mkdir()
  _link_programs(folder / 'cache')
  with futures.ProcessPoolExecutor(1, context, _use_small_dispatches) as pool:
    return pool.submit(try_out, Tester(folder / 'runs')).result()
