"""Kills runs, damages their files, moves them; compares with runs left alone.

  python experiments/chaos.py [--kills=60] [--moves=20] [--every=1] [--only=...]

Small runs of every source, strategy and store (`KINDS`), which give the same
bits every time. Then, again and again in new folders:

  kill    one or two signals at a moment of the run (encoding, saving, after a
          checkpoint, exporting, any time), to all of its processes or one;
          started again until it ends
  moved   killed, and resumed on another topology: devices, processes. The
          vectors are to be those of a copy that was resumed there and left
          alone, while this one is killed there once more
  limit   files may not grow beyond some size (a full disk); then started again
  links   a folder of the run or the cache is a link that leads nowhere
  run     a bit of a file of a finished run is flipped, or the file is cut, and
          the export is removed; started again
  cache   the same with the files of the encoded text

A case is "same" if the vectors are the same bits in the end, "noticed" if a
start ended with exit code 2 and one line, and else lost.

  count   a model that counts what it reads (counting.py) is stopped or killed
          and resumed on another topology, several times; in the end every
          word, item, category and node is to have been read once an epoch
"""

import collections
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
from multiprocessing import context as contexts
from typing import Any, NamedTuple

import counting
import experiment
import forked
import numpy as np

from jaxemb.clicks import loader as click_loader
from jaxemb.graphs import edges
from jaxemb.interactions import loader as interactions
from jaxemb.text import loader as text_loader

# What is there at each moment of a run, in its folder or in the cache.
MOMENTS = {
  'encoding': ('CACHE/corpora/*.tmp-*', 'CACHE/clicks/*.tmp-*'),
  'saving': ('run/checkpoints/*tmp*', 'run/parts/*/checkpoints/*tmp*'),
  'saved': ('run/checkpoints/*[0-9]', 'run/parts/*/checkpoints/*[0-9]'),
  'exporting': ('run/export/.*',),
  'any time': (),
}
SIGNALS = (
  (signal.SIGKILL,),
  (signal.SIGTERM,),
  (signal.SIGHUP,),
  (signal.SIGTERM, signal.SIGTERM),
  (signal.SIGHUP, signal.SIGKILL),
)
_MAX_STARTS = 5
_ANY_SECS = 3.0  # in which a run has come to most of its moments
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
_SYNC = 'strategy.name=sync'
_EDGES = 'data.path=../edges.tsv', 'data.test='
_CLICKS = 'data.path=../clicks.csv', 'data.valid=0.2'
_SETS = ('data.path=../sets.txt', 'train.epochs=3')
_BASE = 'model.dim=8', 'train.checkpoint_every_secs=0'
_TEXT = (
  'data.path=../text.txt', 'data.min_count=1', 'train.epochs=4',
  'train.threads=1',
)  # fmt: skip
_UNIQUE = (
  'data.path=../unique.txt', 'data.min_count=1', 'train.epochs=1',
  'train.threads=1',
)  # fmt: skip
# The first of each is the topology on which it begins.
KINDS = {
  'kernel': Kind('wiki', _TEXT, (_ONE,)),
  'cbow, adagrad, bfloat16': Kind(
    'wiki',
    (*_TEXT, 'model.name=cbow', 'optimizer.name=adagrad',
     'table.dtype=bfloat16'),
    (_ONE,),
  ),
  'tree': Kind('wiki', (*_TEXT, 'model.loss=hierarchical_softmax'), (_ONE,)),
  'replicas': Kind('wiki', _TEXT, (_TWO, _ONE, _TWO_PROCESSES)),
  'average': Kind(
    'wiki', (*_TEXT, 'strategy.policy=average'), (_TWO, _TWO_PROCESSES)
  ),
  'sync': Kind('wiki', (*_TEXT[:3], _SYNC), _MESHES),
  'row': Kind('wiki', (*_TEXT[:3], _SYNC, 'table.layout=row'), _TABLES),
  'column, int8': Kind(
    'wiki',
    (*_TEXT[:3], _SYNC, 'table.layout=column', 'table.dtype=int8'),
    _TABLES[:3],
  ),
  'processes': Kind('wiki', (*_TEXT[:3], _SYNC), _MESHES[2:] + _MESHES[:2]),
  'memory': Kind(
    'wiki', (*_UNIQUE, 'table.store=memory'), _ROOMS
  ),
  'disk': Kind(
    'wiki', (*_UNIQUE, 'table.store=disk'), _ROOMS
  ),
  'mixture': Kind(
    'mixture', (*_TEXT[:3], 'senses.top_ratio=.1', _SYNC), (_ONE,)
  ),
  'sub-models': Kind(
    'wiki',
    (*_TEXT, 'strategy.name=partition', 'strategy.num_parts=3',
     'train.epochs=4'),
    (_ONE, _TWO),
  ),
  'clicks': Kind('ctr:smoke', _CLICKS, _MESHES),
  'walks': Kind(
    'graph', (*_EDGES, 'train.epochs=3', _SYNC), (_TWO, _ONE, _TWO_PROCESSES)
  ),
  'edges': Kind('graph:line', (*_EDGES, 'train.epochs=4'), _MESHES),
  'relations': Kind(
    'graph:relations',
    (*_EDGES, 'train.epochs=4', 'data.partitions=3'),
    (_ONE, _TWO),
  ),
  'interactions': Kind('rec', _SETS, _MESHES),
  'sets of items': Kind('rec:item2vec', _SETS, (_ONE, _TWO)),
  'nodes': Kind(
    'graphsage:walks',
    ('data.path=../edges.tsv', 'train.epochs=2', 'model.inputs=rows',
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
  """Has a fork read little at a time: small data has many positions then."""
  text_loader.group_blocks = lambda part_words: 4
  edges._DISPATCH = interactions._DISPATCH = 512
  click_loader._STEPS = 4


class Tester:
  """Starts runs below a folder, whose files and cache they share."""

  def __init__(
    self,
    folder: pathlib.Path,
    seed: int = 0,
    context: contexts.BaseContext = forked.FORK,
  ):
    self.folder, self.rng = folder, random.Random(seed)
    self._context = context
    self._alone: dict[str, str] = {}

  def start(
    self,
    name: str,
    arguments: Sequence[str],
    num_processes: int = 1,
    cache: str = 'cache',
    max_bytes: int = 0,
    after: tuple[int, int] = (0, 0),
  ) -> forked.Run:
    """Starts processes of a run in a folder of that name; see `forked.Run`."""
    args = self.folder / name, self.folder / cache, num_processes
    how = {'before': use_small_dispatches, 'context': self._context}
    return forked.Run(arguments, *args, max_bytes, after, **how)

  def train(self, name: str, kind: Kind, place: Place) -> str:
    """Trains to the end; returns the digest of the vectors."""
    run = self.start(name, flags(kind, place), place.num_processes)
    codes, said = run.wait()
    if any(codes) or not (found := digest(self.folder / name)):
      raise AssertionError(f'{name} ended with {codes}: {said[-2000:]}')
    return found

  def alone(self, name: str) -> str:
    """The digest of a kind that was left alone."""
    if name not in self._alone:
      kind = KINDS[name]
      self._alone[name] = self.train(f'alone {name}', kind, kind.places[0])
    return self._alone[name]

  def until(self, run: forked.Run, moment: str, cache: str = 'cache') -> None:
    """Waits for a moment of a run, or its end."""
    if moment == 'any time':
      time.sleep(_ANY_SECS * self.rng.random())
      return
    deadline = time.monotonic() + _WAIT_SECS
    patterns = [
      str(run.folder / x.replace('CACHE', f'../{cache}'))
      for x in MOMENTS[moment]
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
    self, name: str, kind: Kind, place: Place, whole: str, cache: str = 'cache'
  ) -> str:
    """Starts until the run ends; what became of it."""
    for _ in range(_MAX_STARTS):
      args = name, flags(kind, place), place.num_processes, cache
      codes, said = self.start(*args).wait()
      if codes != [75] * len(codes):
        break
    return outcome(self.folder / name, whole, codes, said)

  def clear(self, *names: str) -> None:
    """Removes folders."""
    for name in names:
      shutil.rmtree(self.folder / name, ignore_errors=True)

  def killed(self, name: str, moment: str, numbers: Sequence[int]) -> str:
    """Sends signals at a moment of a run, then starts until it ends."""
    kind, cache = KINDS[name], 'cache'
    whole, place = self.alone(name), kind.places[0]
    if moment == 'encoding':  # which is to be done anew
      cache = 'own'
      self.clear(cache)
      of_text = shutil.ignore_patterns('corpora', 'clicks', 'graphs')
      shutil.copytree(self.folder / 'cache', self.folder / cache,
                      ignore=of_text)  # fmt: skip
    self.clear('killed')
    args = flags(kind, place), place.num_processes, cache
    run = self.start('killed', *args)
    self.until(run, moment, cache)
    process = self.rng.randrange(-1, place.num_processes)
    _, wrong = self.hit(run, numbers, process)
    return wrong or self.ended('killed', kind, place, whole, cache)

  def moved(self, name: str, place: Place, numbers: Sequence[int]) -> str:
    """Goes on elsewhere, is killed there, and once more there."""
    kind = KINDS[name]
    self.clear('moved', 'copy')
    first = kind.places[0]
    run = self.start('moved', flags(kind, first), first.num_processes)
    self.until(run, 'saved')
    _, wrong = self.hit(run, numbers)
    if wrong:
      return wrong
    shutil.copytree(self.folder / 'moved', self.folder / 'copy', symlinks=True)
    whole = self.train('copy', kind, place)
    run = self.start('moved', flags(kind, place), place.num_processes)
    self.until(run, 'saved')
    _, wrong = self.hit(run, (signal.SIGKILL,))
    return wrong or self.ended('moved', kind, place, whole)

  def limited(self, name: str, max_bytes: int) -> str:
    """Trains where files cannot grow, then where they can."""
    kind, whole = KINDS[name], self.alone(name)
    self.clear('limited')
    place = kind.places[0]
    args = flags(kind, place), place.num_processes, 'cache', max_bytes
    codes, said = self.start('limited', *args).wait()
    if set(codes) - {0, 2, 75} or 'Traceback' in said:
      return f'exit codes {codes} with {max_bytes} bytes: {said[-1500:]}'
    return self.ended('limited', kind, place, whole)

  def linked(self, name: str, where: str) -> str:
    """Has a folder of a new run be a link that leads nowhere, and mends it."""
    kind, whole = KINDS[name], self.alone(name)
    self.clear('linked', 'own', 'elsewhere')
    link = self.folder / where
    link.parent.mkdir(parents=True)
    link.symlink_to(self.folder / 'elsewhere')
    args = flags(kind, kind.places[0]), 1, 'own'
    codes, said = self.start('linked', *args).wait()
    found = outcome(self.folder / 'linked', whole, codes, said)
    if found == 'noticed':
      (self.folder / 'elsewhere').mkdir()
      args = 'linked', kind, kind.places[0], whole, 'own'
      found = self.ended(*args)
    return found


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
  folder: pathlib.Path, whole: str, codes: Sequence[int], said: str
) -> str:
  """What the last start of a case says about it."""
  if 'Traceback' in said:
    return f'a traceback: {said[-1500:]}'
  if set(codes) == {2}:
    return 'noticed'
  if any(codes):
    return f'exit codes {codes}: {said[-1500:]}'
  return 'same' if digest(folder) == whole else 'other vectors'


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


def damages(tester: Tester, name: str, every: int = 1) -> Iterator[Result]:
  """Damages every file of a finished run, and of its cache, in copies.

  Or, of the files of each, only one in `every`.
  """
  kind, whole = KINDS[name], tester.alone(name)
  place, found = kind.places[0], []
  run, cache = tester.folder / f'alone {name}', tester.folder / 'cache'
  for top, below in ((run, 'run'), (cache, 'corpora')):
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
      shutil.copytree(cache, tester.folder / 'own')
      if is_run:
        shutil.copytree(run, tester.folder / 'damaged')
        shutil.rmtree(tester.folder / 'damaged' / 'run' / 'export')
      copy = tester.folder / ('damaged' if is_run else 'own')
      damage(copy / path, how, tester.rng)
      args = 'damaged', kind, place, whole, 'own'
      what = f'{name}: {path} {how}'
      yield Result('run' if is_run else 'cache', what, tester.ended(*args))


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


def _items(folder):
  lines = (folder / 'sets.txt').read_text().splitlines()
  return collections.Counter(x for line in lines for x in line.split()[1:])


def _categories(folder):
  lines = (folder / 'clicks.csv').read_text().splitlines()[1:]
  return collections.Counter(x for line in lines for x in line.split(',')[1:])


def _visits(folder):
  """Of walks, as the vocabulary has them, which another pass has counted."""
  lines = (folder / 'run/export/vocab.txt').read_text().splitlines()
  return collections.Counter({x.split()[0]: int(x.split()[1]) for x in lines})


_EPOCHS = 5
_READ = (
  'data.path=../unique.txt', 'data.min_count=1', 'data.sample=0',
  *counting.SETTINGS,
)  # fmt: skip
_COUNTS = 'model.name=counting:make', f'train.epochs={_EPOCHS}', 'model.dim=1'
COUNTED = {
  'text': Counted(Kind('wiki', (*_READ, _SYNC)), _words, _MESHES),
  'text, rows split': Counted(
    Kind('wiki', (*_READ, _SYNC, 'table.layout=row')), _words, _TABLES
  ),
  'text, replicas': Counted(
    Kind('wiki', (*_READ, 'strategy.policy=counting:Sums')),
    _words,
    (_TWO, _TWO_PROCESSES, _ONE),
  ),
  'text, in memory': Counted(
    Kind('wiki', (*_READ, 'table.store=memory')), _words, _ROOMS
  ),
  # Which push a part of what they learned: the devices' own counts are taken.
  'text, workers': Counted(
    Kind('wiki', ('data.path=../unique.txt', 'data.min_count=1',
                  'data.sample=0', 'strategy.name=workers')),
    _words, tuple(Place((f'strategy.num_workers={x}',)) for x in (2, 3, 1)),
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
  'interactions': Counted(
    Kind('rec', (*_SETS, 'train.batch_examples=128', *counting.SETTINGS)),
    _items, _MESHES,
  ),
  'clicks': Counted(
    Kind('ctr', ('data.path=../clicks.csv', 'data.min_count=1', 'data.valid=',
                 'data.categorical=row,c', 'train.batch_examples=64',
                 'train.patience=0', 'optimizer.plateau_factor=1',
                 'eval.every_epochs=0',
                 'optimizer.decay=0', *counting.OF_CLICKS,
                 'model.name=counting:clicks')),
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


def counted(tester: Tester, name: str) -> tuple[int, int, str]:
  """Changes of topology, readings too many or too few, and what is wrong."""
  case, changes = COUNTED[name], 0
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
  expected = case.expected(folder / 'counted' if name == 'walks' else folder)
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


def cases(
  folder: pathlib.Path,
  seed: int,
  only: str,
  kills: int,
  moves: int,
  limits: int,
  every: int,
  counts: int,
  context: contexts.BaseContext = forked.FORK,
) -> Iterator[Result]:
  """All cases, in new folders within one."""
  tester = Tester(folder, seed, context)
  write_files(folder)
  write_unique(folder)
  names = [x for x in KINDS if only in x]
  for number in range(kills):
    name = names[number % len(names)]
    turn = number + number // len(names)
    moment = list(MOMENTS)[turn % len(MOMENTS)]
    numbers = SIGNALS[turn // len(MOMENTS) % len(SIGNALS)]
    signals = '+'.join(signal.Signals(x).name for x in numbers)
    found = tester.killed(name, moment, numbers)
    yield Result('kill', f'{name}: {moment} {signals}', found)
  places = [(k, x) for k in names for x in KINDS[k].places[1:]]
  for number in range(moves if places else 0):
    name, place = places[number % len(places)]
    numbers = SIGNALS[number % 2]
    found = tester.moved(name, place, numbers)
    what = f'{name} to {place.num_processes} x {",".join(place.settings)}'
    yield Result('moved', what, found)
  for number in range(limits):
    name = names[number % len(names)]
    max_bytes = (5_000, 50_000, 200_000)[number % 3]
    found = tester.limited(name, max_bytes)
    yield Result('limit', f'{name}: {max_bytes} bytes', found)
  for where in ('linked/run', 'own', 'own/corpora')[:limits]:
    found = tester.linked(names[0], where)
    yield Result('links', f'{names[0]}: {where}', found)
  for name in ('kernel', 'clicks') if every else ():
    if name in names:
      yield from damages(tester, name, every if name == 'kernel' else 5 * every)
  for name in COUNTED if counts else ():
    if only in name:
      changes, wrong, why = counted(tester, name)
      found = why or ('same' if not wrong else f'{wrong} readings wrong')
      yield Result('count', f'{name}: {changes} changes', found)


def main() -> None:
  """Runs the cases; prints a table, and what was lost."""
  parser = experiment.parser(__doc__)
  parser.add_argument('--kills', type=int, default=60)
  parser.add_argument('--moves', type=int, default=20)
  parser.add_argument('--limits', type=int, default=20)
  parser.add_argument('--every', type=int, default=1, help='file is damaged')
  parser.add_argument('--counts', type=int, default=1, help='0 = none')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--only', default='', help='part of the names of kinds')
  args = experiment.parse(parser)
  table: dict[str, collections.Counter] = {}
  lost: list[dict[str, Any]] = []
  started = time.monotonic()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    numbers = args.kills, args.moves, args.limits, args.every, args.counts
    found = cases(folder, args.seed, args.only, *numbers)
    for result in found:
      is_good = result.outcome in ('same', 'noticed')
      count = table.setdefault(result.kind, collections.Counter())
      count[result.outcome if is_good else 'lost'] += 1
      secs = time.monotonic() - started
      print(f'{secs:7.1f} s', *result, sep=': ', flush=True)
      if not is_good:
        lost.append(result._asdict())
  secs = round(time.monotonic() - started, 1)
  print(f'{"":<8}{"same":>8}{"noticed":>9}{"lost":>6}')
  for kind, count in table.items():
    numbers = f'{count["same"]:8}{count["noticed"]:9}{count["lost"]:6}'
    print(f'{kind:<8}{numbers}')
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  cpu_secs = round(used.ru_utime + used.ru_stime, 1)
  total = sum(x.total() for x in table.values())
  print(f'{total} cases in {secs} s, {cpu_secs} s of processors')
  if args.output:
    found = {'results': table, 'lost': lost, 'secs': secs, 'cpu_secs': cpu_secs}
    args.output.write_text(json.dumps(found, indent=1))


if __name__ == '__main__':
  experiment.main(main)
