"""Kills runs, damages their files, moves them; compares with runs left alone.

  python -m tests.chaos [--kills=60] [--moves=20] [--every=1] [--jobs=2]

Small runs of every source, strategy and store (`KINDS`), which give the same
bits every time. Each is trained once and left alone. Then, again and again in
new folders:

  kill    one or two signals at a moment of the run (encoding, saving, after a
          checkpoint, merging, exporting, any time), to all of its processes or
          one; started again until it ends
  child   the same to a worker, or a shard of a table, on Ray: the run is to go
          on by itself, and to read all words
  moved   killed, and resumed on another topology: devices, processes. The
          vectors are to be those of a copy that was resumed there and left
          alone, while this one is killed there once more
  limit   files may not grow beyond some size (a full disk); then started again
  run     a bit of a file of a finished run is flipped, or the file is cut, and
          the export is removed; started again
  cache   the same with the files of the encoded text

A case is "same" if the vectors are the same bits in the end, "noticed" if a
start ended with exit code 2 and one line, "late" if the run had ended before
anything was tried, and else lost.

  count   a model that counts what it reads (counting.py) is stopped or killed
          and resumed on another topology, several times; in the end every
          word, item, category and node is to have been read once an epoch

Runs are forks of one process (forked.py), and `--jobs` kinds are tried at a
time. Compiled programs are those of the user's cache: from scratch they take
minutes.
"""

import argparse
import collections
import contextlib
import functools
import glob
import hashlib
import json
import pathlib
import random
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from multiprocessing import context as contexts
from typing import NamedTuple

import numpy as np
import psutil

from jaxemb.clicks import loader as click_loader
from jaxemb.data import blocks as blocks_lib
from jaxemb.graphs import edge_source
from jaxemb.interactions import sources as interactions
from jaxemb.run import rundir
from tests import counting, forked

# What is there at each moment of a run, in its folder or in the cache.
MOMENTS = {
  'encoding': ('CACHE/corpora/.*.tmp-*', 'CACHE/.*.tmp-*'),
  'saving': ('run/checkpoints/*tmp*', 'run/parts/*/checkpoints/*tmp*'),
  'saved': ('run/checkpoints/*[0-9]', 'run/parts/*/checkpoints/*[0-9]'),
  'exporting': ('run/export/.*',),
  'any time': (),
  # All three sub-models are there.
  'merging': ('run/parts/02/part.json',),
}
SIGNALS = (
  (signal.SIGKILL,),
  (signal.SIGTERM,),
  (signal.SIGHUP,),
  (signal.SIGTERM, signal.SIGTERM),
  (signal.SIGHUP, signal.SIGKILL),
)
_GOOD = 'same', 'noticed', 'late'
_MAX_STARTS = 5
_WAIT_SECS = 300.0  # for a moment to come


class Place(NamedTuple):
  """Where a run is started."""

  settings: tuple[str, ...] = ()
  num_processes: int = 1


class Kind(NamedTuple):
  """Settings of a run, and where it may be started, first at the first."""

  config: str
  settings: tuple[str, ...] = ()
  places: tuple[Place, ...] = (Place(),)
  moments: tuple[str, ...] = tuple(MOMENTS)[:5]
  children: tuple[str, ...] = ()  # names of processes that Ray starts


class Result(NamedTuple):
  """What became of a case."""

  kind: str
  what: str
  outcome: str  # 'same', 'noticed' or what is wrong


_ONE = Place(('mesh.data=1',))
_TWO = Place(('mesh.data=2',))
_FOUR = Place(('mesh.data=2', 'mesh.table=2'))
_TWO_PROCESSES = Place(('mesh.data=2',), 2)
_PROCESSES_OF_TWO = Place(('mesh.data=2', 'mesh.table=2'), 2)
_MESHES = _TWO, _ONE, _TWO_PROCESSES, _FOUR, _PROCESSES_OF_TWO
_TABLES = (
  Place(('mesh.data=2', 'mesh.table=1')),
  Place(('mesh.data=1', 'mesh.table=2')),
  Place(('mesh.data=2', 'mesh.table=2')),
  Place(('mesh.data=1', 'mesh.table=2'), 2),
)
_ROOMS = Place(('table.device_bytes=50%',)), Place(('table.device_bytes=30%',))
_WORKERS = tuple(Place((f'strategy.num_workers={x}',)) for x in (2, 3, 1))
_SYNC = 'strategy.name=sync'
_EDGES = 'data.path=../../edges.tsv', 'data.test='
_CLICKS = 'data.path=../../clicks.csv', 'data.valid=0.2'
_SETS = ('data.path=../../sets.txt', 'train.epochs=3')
_BASE = 'model.dim=8', 'train.checkpoint_every_secs=0'
_TEXT = (
  'data.path=../../text.txt', 'data.min_count=1', 'train.epochs=2',
  'train.threads=1',
)  # fmt: skip
_UNIQUE = (
  'data.path=../../unique.txt', 'data.min_count=1', 'train.epochs=1',
  'train.threads=1',
)  # fmt: skip
_PARTS = 'strategy.name=partition', 'strategy.num_parts=3'
_FEW = 'saving', 'saved', 'any time'  # of runs that take long to start
# The first of each is the topology on which it begins.
KINDS = {
  'kernel': Kind('wiki', _TEXT, (_ONE,)),
  'replicas': Kind('wiki', _TEXT, (_TWO, _ONE, _TWO_PROCESSES)),
  # Kernels of several threads change rows in an order that nobody knows.
  'sync': Kind('wiki', (*_TEXT[:3], _SYNC, 'train.fused=false'), _MESHES),
  'row': Kind('wiki', (*_TEXT[:3], _SYNC, 'table.layout=row'), _TABLES),
  'processes': Kind(
    'wiki',
    (*_TEXT[:3], _SYNC, 'train.fused=false'),
    _MESHES[2:] + _MESHES[:2],
  ),
  'memory': Kind(
    'wiki', (*_UNIQUE, 'table.store=memory'), _ROOMS
  ),
  'remote': Kind(
    'wiki', (*_UNIQUE, 'table.store=remote'), _ROOMS,
    _FEW, ('ray::Actor',),
  ),
  'workers': Kind(
    'wiki',
    (*_UNIQUE[:2], 'data.sample=0', 'train.epochs=6', 'strategy.name=workers'),
    _WORKERS, _FEW, ('ray::Worker', 'ray::Actor'),
  ),
  'mixture': Kind(
    'mixture', (*_TEXT[:3], 'senses.top_ratio=.1', _SYNC), (_ONE, _TWO)
  ),
  'sub-models': Kind('wiki', (*_TEXT, *_PARTS), (_ONE, _TWO), tuple(MOMENTS)),
  'clicks': Kind('ctr:smoke', _CLICKS, _MESHES),
  'walks': Kind(
    'graph', (*_EDGES, 'train.epochs=3', _SYNC), (_TWO, _ONE, _TWO_PROCESSES)
  ),
  'edges': Kind('graph:line', (*_EDGES, 'train.epochs=4'), _MESHES),
  'relations': Kind(
    'graph:relations',
    (*_EDGES, 'train.epochs=2', 'data.partitions=3',
     'data.columns=source,target'),
    (_ONE, _TWO),
  ),
  # Which keep nothing in the cache.
  'interactions': Kind('rec', _SETS, _MESHES, tuple(MOMENTS)[1:5]),
  'nodes': Kind(
    'graphsage:walks',
    ('data.path=../../edges.tsv', 'train.epochs=2', 'model.inputs=rows',
     'model.hidden=8'),
    (_ONE, _TWO),
  ),
}  # fmt: skip


def flags(kind: Kind, place: Place, more: Sequence[str] = ()) -> list[str]:
  """The arguments that train a kind somewhere."""
  settings = [*_BASE, *kind.settings, *place.settings, *more]
  if kind.config in ('wiki', 'mixture'):
    settings.append('eval.paths=none')
  return [
    'train', f'--config={kind.config}', '--workdir=run',
    *(f'--config.{x}' for x in settings),
  ]  # fmt: skip


def write_files(folder: pathlib.Path) -> None:
  """What is trained on: a text, edges, sets of items and clicks."""
  rng = np.random.default_rng(0)
  words = rng.zipf(1.3, 60_000) % 500
  lines = np.split(words, range(20, len(words), 20))
  text = '\n'.join(' '.join(f'w{x}' for x in y) for y in lines)
  (folder / 'text.txt').write_text(text)
  pairs = {tuple(sorted(x)) for x in rng.integers(0, 300, (4000, 2)).tolist()}
  pairs = sorted((a, b) for a, b in pairs if a != b)
  (folder / 'edges.tsv').write_text(''.join(f'n{a}\tn{b}\n' for a, b in pairs))
  sets = (rng.choice(200, 8, replace=False) for _ in range(600))
  lines = (f'u{i} ' + ' '.join(f'i{x}' for x in y) for i, y in enumerate(sets))
  (folder / 'sets.txt').write_text('\n'.join(lines) + '\n')
  rows = (f'{rng.integers(2)},r{i},c{rng.integers(40)}' for i in range(6000))
  (folder / 'clicks.csv').write_text('\n'.join(['label,row,c', *rows]) + '\n')


def use_small_dispatches() -> None:
  """Has forks read little at a time: small data has many positions then."""
  blocks_lib.group_blocks = lambda part_words: 4
  edge_source._DISPATCH = interactions._DISPATCH = 512
  click_loader._STEPS = 4


class Tester:
  """Starts runs of a kind below a folder of its own."""

  def __init__(self, folder: pathlib.Path, name: str, seed: int = 0):
    """The files and the cache that all kinds share lie above `folder`."""
    self.folder, self.cache = folder, folder.parent / 'cache'
    self.name, self.kind = name, KINDS.get(name)
    self.rng = random.Random(f'{name} {seed}')  # whatever else is tried
    self.secs = _WAIT_SECS  # of the quickest run so far

  def start(
    self,
    name: str,
    arguments: Sequence[str],
    num_processes: int = 1,
    cache: pathlib.Path | None = None,
    max_bytes: int = 0,
    after: tuple[int, int] = (0, 0),
  ) -> forked.Run:
    """Starts processes of a run in a folder of that name; see `forked.Run`."""
    args = self.folder / name, cache or self.cache, num_processes
    return forked.Run(arguments, *args, max_bytes, after)

  def train(self, name: str, place: Place) -> str:
    """Trains to the end; returns what is to be the same."""
    run = self.start(name, flags(self.kind, place), place.num_processes)
    codes, said = run.wait()
    if any(codes) or not (found := made_by(self.kind, self.folder / name)):
      raise AssertionError(f'{name} ended with {codes}: {said[-2000:]}')
    return found

  @functools.cached_property
  def whole(self) -> str:
    """What a run makes that is left alone."""
    started = time.monotonic()
    found = self.train('alone', self.kind.places[0])
    self.secs = time.monotonic() - started
    return found

  def until(
    self, run: forked.Run, moment: str, cache: pathlib.Path | None = None
  ) -> None:
    """Waits for a moment of a run, or its end."""
    if moment == 'any time':
      time.sleep(self.secs * self.rng.random())
      return
    deadline = time.monotonic() + _WAIT_SECS
    cache = cache or self.cache
    patterns = [
      str(run.folder / x.replace('CACHE', str(cache))) for x in MOMENTS[moment]
    ]

    def there():
      return {y for x in patterns for y in glob.iglob(x)}

    before = there() if moment == 'saved' else set()
    while run.is_running() and time.monotonic() < deadline:
      if there() - before:
        break
      time.sleep(0.004)
    time.sleep(0.05 * self.rng.random())

  def hit(
    self, run: forked.Run, numbers: Sequence[int], process: int = -1
  ) -> tuple[list[int], str]:
    """Sends signals; returns the exit codes, and what is wrong, or ''."""
    for number in numbers:
      run.send(number, process)
      time.sleep(0.05)
    codes, said = run.wait()
    # The others of a job that lost one; JAX aborts where that is process 0.
    allowed = {0, 75, *(-x for x in numbers)}
    if set(codes) - allowed or 'Traceback' in said:
      names = [signal.Signals(x).name for x in numbers]
      return codes, f'exit codes {codes} after {names}: {said[-1500:]}'
    return codes, ''

  def ended(
    self, name: str, place: Place, whole: str, cache: pathlib.Path | None = None
  ) -> str:
    """Starts until the run ends; what became of it."""
    for _ in range(_MAX_STARTS):
      args = flags(self.kind, place), place.num_processes, cache
      started = time.monotonic()
      codes, said = self.start(name, *args).wait()
      self.secs = min(self.secs, time.monotonic() - started)
      if codes != [75] * len(codes):
        break
    return outcome(self.kind, self.folder / name, whole, codes, said)

  def clear(self, *names: str) -> None:
    """Removes folders."""
    for name in names:
      shutil.rmtree(self.folder / name, ignore_errors=True)

  def own_cache(self, ignore: Callable | None = None) -> pathlib.Path:
    """A copy of the cache, with the same compiled programs."""
    self.clear('own')
    args = self.cache, self.folder / 'own', True  # links are copied as such
    return pathlib.Path(shutil.copytree(*args, ignore=ignore))

  def killed(self, moment: str, numbers: Sequence[int]) -> str:
    """Sends signals at a moment of a run, then starts until it ends."""
    whole, place, cache = self.whole, self.kind.places[0], self.cache
    if moment == 'encoding':  # which is to be done anew
      of_text = shutil.ignore_patterns('corpora', 'clicks-*', 'graph-*')
      cache = self.own_cache(of_text)
    self.clear('killed')
    args = flags(self.kind, place), place.num_processes, cache
    run = self.start('killed', *args)
    self.until(run, moment, cache)
    process = self.rng.randrange(-1, place.num_processes)
    is_late = not run.is_running()
    _, wrong = self.hit(run, numbers, process)
    found = wrong or self.ended('killed', place, whole, cache)
    if is_late and found == 'same':
      return 'late'
    left = [x for x in cache.rglob('*.tmp-*') if 'programs' not in x.parts]
    if found == 'same' and moment == 'encoding' and left:
      return f'left behind: {left}'
    return found

  def child_killed(self, name: str, moment: str, number: int) -> str:
    """Sends a signal to a process that the run has started, and waits."""
    whole, place = self.whole, self.kind.places[0]
    self.clear('killed')
    run = self.start('killed', flags(self.kind, place))
    self.until(run, moment)
    deadline, found = time.monotonic() + _WAIT_SECS, []
    while run.is_running() and not found and time.monotonic() < deadline:
      with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(run.processes[0].pid).children(recursive=True)
        found = [x for x in started if x.name().startswith(name)]
    is_late = not found
    with contextlib.suppress(psutil.NoSuchProcess):
      for process in found[:1]:
        process.send_signal(number)
    codes, said = run.wait()
    args = self.kind, self.folder / 'killed', whole, codes, said
    # A shard that is lost loses some updates, and says how many.
    is_told = 'came back from its last snapshot' in said
    became = outcome(*args)
    if became == 'other vectors' and is_told:
      return 'noticed'
    return 'late' if is_late and became == 'same' else became

  def moved(self, place: Place, numbers: Sequence[int]) -> str:
    """Goes on elsewhere, is killed there, and once more there."""
    self.clear('moved', 'copy')
    first = self.kind.places[0]
    run = self.start('moved', flags(self.kind, first), first.num_processes)
    self.until(run, 'saved')
    is_late = not run.is_running()
    _, wrong = self.hit(run, numbers)
    if wrong or is_late:
      return wrong or 'late'
    shutil.copytree(self.folder / 'moved', self.folder / 'copy', symlinks=True)
    whole = self.train('copy', place)
    run = self.start('moved', flags(self.kind, place), place.num_processes)
    self.until(run, 'saved')
    _, wrong = self.hit(run, (signal.SIGKILL,))
    return wrong or self.ended('moved', place, whole)

  def limited(self, max_bytes: int) -> str:
    """Trains where files cannot grow, then where they can."""
    whole, place = self.whole, self.kind.places[0]
    self.clear('limited')
    args = flags(self.kind, place), place.num_processes, None, max_bytes
    codes, said = self.start('limited', *args).wait()
    if set(codes) - {0, 2, 75} or 'Traceback' in said:
      return f'exit codes {codes} with {max_bytes} bytes: {said[-1500:]}'
    return self.ended('limited', place, whole)


def made_by(kind: Kind, folder: pathlib.Path) -> str:
  """What runs of a kind have in common: bits, or the number of words read."""
  if 'strategy.name=workers' not in kind.settings:
    return digest(folder)
  path = folder / 'run' / 'report.json'
  if not path.exists():
    return ''
  return f'{json.loads(path.read_text())["kept_words"]} words'


def digest(folder: pathlib.Path) -> str:
  """Of the bits of all arrays that a run has exported, or ''."""
  paths = sorted((folder / 'run' / 'export').glob('*.np[yz]'))
  made = hashlib.sha256()
  for path in paths:
    made.update(path.name.encode())
    if path.suffix == '.npz':  # whose bytes hold the time
      for key, value in sorted(np.load(path).items()):
        made.update(key.encode() + value.tobytes())
    else:
      made.update(path.read_bytes())
  return made.hexdigest() if paths else ''


def outcome(
  kind: Kind,
  folder: pathlib.Path,
  whole: str,
  codes: Sequence[int],
  said: str,
) -> str:
  """What the last start of a case says about it."""
  if 'Traceback' in said:
    return f'a traceback: {said[-1500:]}'
  if set(codes) == {2}:
    return 'noticed'
  if any(codes):
    return f'exit codes {codes}: {said[-1500:]}'
  found = made_by(kind, folder)
  if 'words' in whole and found != whole:
    return f'{found} were read, not {whole}'
  return 'same' if found == whole else 'other vectors'


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


def damages(tester: Tester, every: int = 1) -> Iterator[Result]:
  """Damages every file of a finished run, and of its cache, in copies.

  Or, of the files of each, only one in `every`.
  """
  whole, place, found = tester.whole, tester.kind.places[0], []
  tester.clear('first')  # of which only this run's text is in the cache
  args = flags(tester.kind, place), 1, tester.folder / 'first'
  (tester.folder / 'first').mkdir()
  link_programs(tester.folder / 'first')
  tester.start('encoded', *args).wait()
  run, cache = tester.folder / 'alone', tester.folder / 'first'
  for top, below in ((run, 'run'), (cache, '.')):
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
      is_run = top == run
      tester.clear('damaged', 'own')
      own = tester.folder / 'own'
      shutil.copytree(cache, own, True)
      if is_run:
        shutil.copytree(run, tester.folder / 'damaged')
        shutil.rmtree(tester.folder / 'damaged' / 'run' / 'export')
      damage((tester.folder / 'damaged' if is_run else own) / path, how,
             tester.rng)  # fmt: skip
      what = f'{tester.name}: {path} {how}'
      became = tester.ended('damaged', place, whole, own)
      yield Result('run' if is_run else 'cache', what, became)


# Counts.


class Counted(NamedTuple):
  """A kind that counts, how often each key is to be read, and where."""

  kind: Kind
  expected: Callable[[pathlib.Path], collections.Counter]
  places: tuple[Place, ...]


def _words(folder):
  return collections.Counter((folder / 'unique.txt').read_text().split())


def _ends(folder):
  lines = (folder / 'edges.tsv').read_text().split()
  return collections.Counter(lines)


def _categories(folder):
  lines = (folder / 'clicks.csv').read_text().splitlines()[1:]
  return collections.Counter(x for line in lines for x in line.split(',')[1:])


def _visits(folder):
  """Of walks, as the vocabulary has them, which another pass has counted."""
  lines = (folder / 'run/export/vocab.txt').read_text().splitlines()
  return collections.Counter({x.split()[0]: int(x.split()[1]) for x in lines})


_EPOCHS = 5
_READ = (
  'data.path=../../unique.txt', 'data.min_count=1', 'data.sample=0',
  *counting.SETTINGS,
)  # fmt: skip
_COUNTS = (
  'model.name=tests.counting:make',
  f'train.epochs={_EPOCHS}',
  'model.dim=1',
)
COUNTED = {
  'text': Counted(Kind('wiki', (*_READ, _SYNC)), _words, _MESHES),
  'text, replicas': Counted(
    Kind('wiki', (*_READ, 'strategy.policy=tests.counting:Sums')),
    _words,
    (_TWO, _TWO_PROCESSES, _ONE),
  ),
  # Which push a part of what they learned: the devices' own counts are taken.
  'text, workers': Counted(
    Kind('wiki', ('data.path=../../unique.txt', 'data.min_count=1',
                  'data.sample=0', 'strategy.name=workers')),
    _words, _WORKERS,
  ),
  'walks': Counted(
    Kind('graph', (*_EDGES, 'data.sample=0', 'data.walks=40',
                   'data.walk_length=40', *counting.SETTINGS, _SYNC)),
    _visits, _MESHES,
  ),
  'edges': Counted(
    Kind('graph:line', (*_EDGES, 'data.partitions=4',
                        'train.batch_examples=256', *counting.SETTINGS)),
    _ends, _MESHES,
  ),
  'clicks': Counted(
    Kind('ctr', ('data.path=../../clicks.csv', 'data.min_count=1',
                 'data.valid=', 'data.columns=category:row,category:c',
                 'train.batch_examples=64',
                 'train.patience=0', 'optimizer.plateau_factor=1',
                 'eval.every_epochs=0',
                 'optimizer.decay=0', *counting.OF_CLICKS,
                 'model.name=tests.counting:clicks')),
    _categories, _MESHES,
  ),
}  # fmt: skip


def write_unique(folder: pathlib.Path, num_words: int = 120_000) -> None:
  """A text most of whose words occur once, of several dispatches an epoch."""
  rng = np.random.default_rng(1)
  words = [f'w{i}' for i in range(num_words)]
  words += [f'f{i}' for i in range(100) for _ in range(num_words // 500)]
  rng.shuffle(words)
  lines = (' '.join(words[i : i + 20]) for i in range(0, len(words), 20))
  (folder / 'unique.txt').write_text('\n'.join(lines))


def counted(tester: Tester) -> tuple[int, int, str]:
  """Changes of topology, readings too many or too few, and what is wrong."""
  name, changes = tester.name, 0
  case = COUNTED[name]
  is_own, is_workers = name in ('clicks', 'text, workers'), 'workers' in name
  more = (_COUNTS[1:2] if is_own else _COUNTS) + ('model.dim=1',)
  tester.clear('counted')
  # Back to the first in the end.
  for i, place in enumerate([*case.places, case.places[0]]):
    args = 'counted', flags(case.kind, place, more), place.num_processes
    changes += i > 0
    if i == len(case.places):
      codes, said = tester.start(*args).wait()
      break
    number = (signal.SIGTERM, signal.SIGKILL)[i % 2]
    # A checkpoint is begun after each dispatch, and is whole two later.
    after = tester.rng.randrange(2, 5), number
    if is_workers:  # a dispatch of theirs is elsewhere
      run = tester.start(*args)
      tester.until(run, 'saved')
      run.send(number)
      codes, said = run.wait()
    else:
      codes, said = tester.start(*args, after=after).wait()
    if set(codes) - {75, -number, -signal.SIGABRT} or 0 in codes:
      return changes, -1, f'exit codes {codes}: {said[-1500:]}'
  if any(codes):
    return changes, -1, f'exit codes {codes}: {said[-1500:]}'
  folder, export = tester.folder, tester.folder / 'counted' / 'run' / 'export'
  given = folder / 'counted' if name == 'walks' else folder.parent
  expected = case.expected(given)
  if is_workers:
    report = json.loads((export.parent / 'report.json').read_text())
    return changes, report['kept_words'] - _EPOCHS * expected.total(), ''
  if 'clicks' in name:  # by size: names are those of fields
    found = np.load(export / 'weights.npy')[:, 0]
    counts = sorted([_EPOCHS * x for x in expected.values()] + [0, 0])
    return changes, int(np.abs(np.sort(found) - counts).sum()), ''
  names = [x.split()[0] for x in (export / 'vocab.txt').open()]
  found = dict(zip(names, np.load(export / 'vectors.npy')[:, 0], strict=True))
  keys = expected.keys() | found.keys()
  wrong = sum(abs(found.get(x, 0) - _EPOCHS * expected[x]) for x in keys)
  return changes, int(wrong), ''


# All of it.


class Share(NamedTuple):
  """What is tried with one kind, one after the other."""

  name: str
  kills: tuple[tuple[str, tuple[int, ...]], ...] = ()
  children: tuple[tuple[str, str, int], ...] = ()
  moves: tuple[tuple[Place, tuple[int, ...]], ...] = ()
  limits: tuple[int, ...] = ()
  every: int = 0  # file is damaged; 0 = none
  is_counted: bool = False


def shares(
  only: str, kills: int, moves: int, limits: int, every: int, counts: int
) -> list[Share]:
  """Divides as many cases among the kinds whose names have any of `only`."""
  wanted = only.split(',')
  names = [x for x in KINDS if any(y in x for y in wanted)]
  places = [(k, x) for k in names for x in KINDS[k].places[1:]]
  found = {x: collections.defaultdict(list) for x in names}
  for number in range(kills if names else 0):
    name, turn = names[number % len(names)], number // len(names)
    kind = KINDS[name]
    # Each kind begins with another moment.
    turn += names.index(name)
    moment = kind.moments[turn % len(kind.moments)]
    numbers = SIGNALS[turn // len(kind.moments) % len(SIGNALS)]
    if kind.children and turn % 2:
      child = kind.children[turn // 2 % len(kind.children)]
      found[name]['children'].append((child, moment, signal.SIGKILL))
    else:
      found[name]['kills'].append((moment, numbers))
  for number in range(moves if places else 0):
    name, place = places[number % len(places)]
    found[name]['moves'].append((place, SIGNALS[number % 2]))
  for number in range(limits if names else 0):
    max_bytes = (5_000, 50_000, 200_000)[number % 3]
    found[names[number % len(names)]]['limits'].append(max_bytes)
  made = [
    Share(name, **{k: tuple(x) for k, x in found[name].items()})
    for name in names
  ]
  # Files of a checkpoint differ little: all of one kind, some of others.
  per_kind = {'kernel': every, 'clicks': 5 * every, 'edges': 5 * every}
  made = [x._replace(every=per_kind.get(x.name, 0)) for x in made]
  counted = [x for x in COUNTED if counts and any(y in x for y in wanted)]
  return made + [Share(f'{x}, counted', is_counted=True) for x in counted]


def try_out(folder: pathlib.Path, share: Share, seed: int) -> list[Result]:
  """The cases of a kind, each printed when it is known."""
  name = share.name.removesuffix(', counted')
  place = folder / share.name.replace(', ', '-').replace(' ', '-')
  place.mkdir()
  tester, results = Tester(place, name, seed), []

  def known(what, text, found):
    results.append(Result(what, f'{name}: {text}', found))
    print(time.strftime('%H:%M:%S'), *results[-1], sep=': ', flush=True)

  try:
    for moment, numbers in share.kills:
      text = '+'.join(signal.Signals(x).name for x in numbers)
      known('kill', f'{moment} {text}', tester.killed(moment, numbers))
    for child, moment, number in share.children:
      found = tester.child_killed(child, moment, number)
      known('child', f'{child} {moment} SIGKILL', found)
    for to, numbers in share.moves:
      text = f'to {to.num_processes} x {",".join(to.settings)}'
      known('moved', text, tester.moved(to, numbers))
    for max_bytes in share.limits:
      known('limit', f'{max_bytes} bytes', tester.limited(max_bytes))
    for result in damages(tester, share.every) if share.every else ():
      known(result.kind, result.what, result.outcome)
    if share.is_counted:
      changes, wrong, why = counted(tester)
      found = why or ('same' if not wrong else f'{wrong} readings wrong')
      known('count', f'{changes} changes', found)
  except AssertionError as error:  # a run that was left alone
    known('alone', 'left alone', str(error))
  shutil.rmtree(place, ignore_errors=True)
  return results


def link_programs(cache: pathlib.Path) -> None:
  """Has a cache use the compiled programs of the user's."""
  programs = rundir.cache_folder() / 'programs'
  programs.mkdir(parents=True, exist_ok=True)
  (cache / 'programs').symlink_to(programs)


def cases(
  folder: pathlib.Path,
  seed: int,
  tried: Sequence[Share],
  jobs: int,
  context: contexts.BaseContext = forked.FORK,
) -> Iterator[Result]:
  """All cases, in new folders within one, some kinds at a time."""
  write_files(folder)
  write_unique(folder)
  (folder / 'cache').mkdir()
  link_programs(folder / 'cache')
  # Its processes fork, too: they have no threads.
  args = jobs, context, use_small_dispatches
  with futures.ProcessPoolExecutor(*args) as pool:
    waiting = [pool.submit(try_out, folder, x, seed) for x in tried]
    for one in futures.as_completed(waiting):
      yield from one.result()


def main() -> None:
  """Runs the cases; prints a table, and what was lost."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--kills', type=int, default=60)
  parser.add_argument('--moves', type=int, default=20)
  parser.add_argument('--limits', type=int, default=20)
  parser.add_argument('--every', type=int, default=1, help='file is damaged')
  parser.add_argument('--counts', type=int, default=1, help='0 = none')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--only', default='', help='parts of names of kinds')
  parser.add_argument('--jobs', type=int, default=2, help='kinds at a time')
  args = parser.parse_args()
  table: dict[str, collections.Counter] = {}
  lost: list[Result] = []
  started = time.monotonic()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    numbers = args.kills, args.moves, args.limits, args.every, args.counts
    tried = shares(args.only, *numbers)
    for result in cases(folder, args.seed, tried, args.jobs):
      is_good = result.outcome in _GOOD
      count = table.setdefault(result.kind, collections.Counter())
      count[result.outcome if is_good else 'lost'] += 1
      if not is_good:
        lost.append(result)
  secs = time.monotonic() - started
  columns = *_GOOD, 'lost'
  print(' ' * 8, *(f'{x:>8}' for x in columns))
  for kind, count in table.items():
    print(f'{kind:<8}', *(f'{count[x]:8}' for x in columns))
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  cpu_secs = used.ru_utime + used.ru_stime
  total = sum(x.total() for x in table.values())
  print(f'{total} cases in {secs:.0f} s, {cpu_secs:.0f} s of processors')
  for each in lost:
    print(*each, sep=': ')


if __name__ == '__main__':
  main()
