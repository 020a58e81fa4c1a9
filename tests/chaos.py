"""Kills runs, damages their files, moves them; compares with runs left alone.

  python -m tests.chaos [--kills=200] [--moves=100] [--kinds=NAMES] [--seed=0]

Small runs of every source, strategy and store (`KINDS`), which give the same
bits every time. Each is trained once and left alone. Then

kill      one or two signals at a moment of the run (encoding, saving, after a
          checkpoint, merging, exporting, any time), to all of its processes or
          one; it is started again until it ends
move      it is killed, and resumed on another topology. The vectors are to be
          those of a copy that was resumed there and left alone, while this one
          is killed there once more
damage    flips a bit of each file of a finished run, or of the encoded text, or
          cuts it, and removes the export; the run is started again
counts    are of a model that counts what it reads (counting.py): it is stopped
          or killed and resumed on another topology, several times; in the end
          every node of the graph is to have been read once an epoch

A case is 'same' if the vectors are the same bits in the end (of asynchronous
workers, if all words were trained), 'noticed' if a start ended with exit code 2
and one line, 'late' if the run had ended before a signal came, and else what is
wrong.

Runs are forks of one process (forked.py).
"""

import argparse
import collections
import functools
import glob
import hashlib
import itertools
import json
import pathlib
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from multiprocessing import context as contexts
from typing import Any, NamedTuple

import numpy as np

from jaxemb.clicks import loader as click_loader
from jaxemb.data import blocks as blocks_lib
from jaxemb.graphs import edge_source
from jaxemb.interactions import sources as interaction_sources
from jaxemb.run import rundir
from tests import counting, forked

# What exists at each moment of a run, in its folder or in the cache.
MOMENTS = {
  'encoding': ('CACHE/corpora/.*.tmp-*', 'CACHE/.*.tmp-*'),
  'saving': ('run/checkpoints/*tmp*', 'run/parts/*/checkpoints/*tmp*'),
  'saved': ('run/checkpoints/*[0-9]', 'run/parts/*/checkpoints/*[0-9]'),
  'exporting': ('run/export/.*', 'run/.export*'),
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
_MAX_STARTS = 5
_WAIT_SECS = 300.0  # for a moment to come


class Place(NamedTuple):
  """Where a run is started."""

  settings: tuple[str, ...] = ()
  num_processes: int = 1


class Kind(NamedTuple):
  """Settings of a run, and where it may start; first at the first place."""

  config: str
  settings: tuple[str, ...] = ()
  places: tuple[Place, ...] = (Place(),)
  moments: tuple[str, ...] = tuple(MOMENTS)[:5]


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
_ROOMS = Place(('table.device_bytes=50%',)), Place(('table.device_bytes=35%',))
_WORKERS = tuple(Place((f'strategy.num_workers={x}',)) for x in (2, 3, 1))
_SYNC = 'strategy.name=sync'
_EDGES = 'data.path=../../edges.tsv', 'data.test='
_SETS = 'data.path=../../sets.txt', 'train.epochs=3'
_TEXT = (
  'data.path=../../text.txt', 'data.min_count=1', 'train.epochs=2',
  'train.threads=1', 'eval.paths=none',
)  # fmt: skip
_UNIQUE = (
  'data.path=../../unique.txt', 'data.min_count=1', 'train.epochs=1',
  'train.threads=1', 'eval.paths=none',
)  # fmt: skip
_PARTS = 'strategy.name=partition', 'strategy.num_parts=3'
_BASE = 'model.dim=8', 'train.checkpoint_every_secs=0'
_FEW = 'saving', 'saved', 'any time'  # of runs that take long to start
# Kinds with kernels have one thread: more change rows in an unknown order.
KINDS = {
  'kernel': Kind('wiki', _TEXT, (_ONE,)),
  'cbow, adagrad, bfloat16': Kind(
    'wiki',
    (*_TEXT, 'model.name=cbow', 'optimizer.name=adagrad',
     'table.dtype=bfloat16'),
    (_ONE,),
  ),
  'subwords': Kind('wiki', (*_TEXT, 'model.subwords=3-6'), (_ONE,)),
  'tree': Kind('wiki', (*_TEXT, 'model.loss=hierarchical_softmax'), (_ONE,)),
  'replicas': Kind('wiki', _TEXT, (_TWO, _ONE, _TWO_PROCESSES)),
  'average': Kind(
    'wiki', (*_TEXT, 'strategy.policy=average'), (_TWO, _TWO_PROCESSES)
  ),
  'sync': Kind('wiki', (*_TEXT, _SYNC, 'train.fused=false'), _MESHES),
  'row': Kind('wiki', (*_TEXT, _SYNC, 'table.layout=row'), _TABLES),
  'column, int8': Kind(
    'wiki',
    (*_TEXT, _SYNC, 'table.layout=column', 'table.dtype=int8'),
    _TABLES[:3],
  ),
  'memory': Kind('wiki', (*_UNIQUE, 'table.store=memory'), _ROOMS),
  'disk': Kind('wiki', (*_UNIQUE, 'table.store=disk'), _ROOMS),
  'remote': Kind('wiki', (*_UNIQUE, 'table.store=remote'), _ROOMS, _FEW),
  'workers': Kind(
    'wiki',
    (*_UNIQUE, 'data.sample=0', 'train.epochs=6', 'strategy.name=workers'),
    _WORKERS, _FEW,
  ),
  'mixture': Kind(
    'mixture', (*_TEXT, 'senses.top_ratio=.1', _SYNC), (_ONE, _TWO)
  ),
  'sub-models': Kind('wiki', (*_TEXT, *_PARTS), (_ONE, _TWO), tuple(MOMENTS)),
  'sub-models of senses': Kind(
    'mixture', (*_TEXT, *_PARTS, 'senses.top_ratio=.1'), (_ONE, _TWO),
    tuple(MOMENTS),
  ),
  'documents': Kind(
    'documents', (*_TEXT[:-1], _SYNC), (_ONE, _TWO)  # without eval.paths
  ),
  'clicks': Kind(
    'ctr:smoke', ('data.path=../../clicks.csv', 'data.valid=0.2'), _MESHES
  ),
  'walks': Kind(
    'graph', (*_EDGES, 'train.epochs=3', _SYNC), (_TWO, _ONE, _TWO_PROCESSES)
  ),
  'edges': Kind('graph:line', (*_EDGES, 'train.epochs=4'), _MESHES),
  'relations': Kind(
    'graph:relations',
    ('data.path=../../triples.tsv', 'data.test=', 'train.epochs=2',
     'data.partitions=3'),
    (_ONE, _TWO),
  ),
  # They cache nothing.
  'interactions': Kind('rec', _SETS, _MESHES, tuple(MOMENTS)[1:5]),
  'sets of items': Kind(
    'rec:item2vec', _SETS, (_ONE, _TWO), tuple(MOMENTS)[1:5]
  ),
  'nodes': Kind(
    'graphsage:walks',
    ('data.path=../../edges.tsv', 'train.epochs=2', 'model.inputs=rows',
     'model.hidden=8'),
    (_ONE, _TWO),
  ),
}  # fmt: skip
_EPOCHS = 5
_COUNTED = Kind(
  'graph:line',
  (*_EDGES, 'data.partitions=4', 'train.batch_examples=256',
   *counting.SETTINGS, 'model.name=tests.counting:make',
   f'train.epochs={_EPOCHS}', 'model.dim=1'),
  _MESHES,
)  # fmt: skip


def _flags(kind: Kind, place: Place) -> list[str]:
  """The arguments that train a kind somewhere."""
  settings = *_BASE, *kind.settings, *place.settings
  return [
    'train', f'--config={kind.config}', '--workdir=run',
    *(f'--config.{x}' for x in settings),
  ]  # fmt: skip


def _write_files(folder: pathlib.Path) -> None:
  """Writes texts, edges, sets of items and clicks."""
  rng = np.random.default_rng(0)
  words = rng.zipf(1.3, 60_000) % 500
  lines = np.split(words, range(20, len(words), 20))
  text = '\n'.join(' '.join(f'w{x}' for x in y) for y in lines)
  (folder / 'text.txt').write_text(text)
  words = (f'u{x}' for x in range(30_000))
  lines = iter(lambda: ' '.join(itertools.islice(words, 20)), '')
  (folder / 'unique.txt').write_text('\n'.join(lines))
  pairs = {tuple(sorted(x)) for x in rng.integers(0, 300, (4000, 2)).tolist()}
  pairs = sorted((a, b) for a, b in pairs if a != b)
  (folder / 'edges.tsv').write_text(''.join(f'n{a}\tn{b}\n' for a, b in pairs))
  triples = (f'n{a}\tr{(a + b) % 3}\tn{b}\n' for a, b in pairs)
  (folder / 'triples.tsv').write_text(''.join(triples))
  sets = (rng.choice(200, 8, replace=False) for _ in range(600))
  lines = (f'u{i} ' + ' '.join(f'i{x}' for x in y) for i, y in enumerate(sets))
  (folder / 'sets.txt').write_text('\n'.join(lines) + '\n')
  rows = (f'{rng.integers(2)},r{i},c{rng.integers(40)}' for i in range(6000))
  (folder / 'clicks.csv').write_text('\n'.join(['label,row,c', *rows]) + '\n')


def _use_small_dispatches() -> None:
  """Has forks read little at a time: small data has many positions then."""
  blocks_lib.group_blocks = lambda part_words: 4
  edge_source._DISPATCH = interaction_sources._DISPATCH = 512
  click_loader._STEPS = 4


class Tester:
  """Starts runs of a kind below a folder of its own."""

  def __init__(self, folder: pathlib.Path, name: str = 'kernel', seed: int = 0):
    """The files and the cache lie beside the folder."""
    self.folder, self.cache = folder, folder.parent / 'cache'
    self.kind = KINDS[name]
    self.rng = random.Random(f'{name} {seed}')
    self.secs = _WAIT_SECS  # of the quickest run so far

  def start(
    self,
    name: str,
    place: Place,
    cache: pathlib.Path | None = None,
    after: tuple[int, int] = (0, 0),
    kind: Kind | None = None,
  ) -> forked.Run:
    """Starts processes of a run in a folder of that name; see `forked.Run`."""
    args = self.folder / name, cache or self.cache, place.num_processes
    return forked.Run(_flags(kind or self.kind, place), *args, after=after)

  def train(self, name: str, place: Place) -> str:
    """Trains to the end; returns what a killed run is compared with."""
    codes, said = self.start(name, place).wait()
    result = _result(self.kind, self.folder / name)
    assert not any(codes) and result, f'{name}: {codes} {said[-2000:]}'
    return result

  @functools.cached_property
  def whole(self) -> str:
    """The result of a run that is left alone."""
    started = time.monotonic()
    result = self.train('alone', self.kind.places[0])
    self.secs = time.monotonic() - started
    return result

  def ended(
    self, name: str, place: Place, whole: str, cache: pathlib.Path | None = None
  ) -> str:
    """Starts until the run ends; returns what became of it."""
    for _ in range(_MAX_STARTS):
      started = time.monotonic()
      codes, said = self.start(name, place, cache).wait()
      self.secs = min(self.secs, time.monotonic() - started)
      if codes != [75] * len(codes):
        break
    if 'Traceback' in said or set(codes) - {0, 2}:
      return f'exit codes {codes}: {said[-1500:]}'
    if set(codes) == {2}:
      return 'noticed'
    result = _result(self.kind, self.folder / name)
    return 'same' if result == whole else f'{result}, not {whole}'

  def until(
    self, run: forked.Run, moment: str, cache: pathlib.Path | None = None
  ) -> None:
    """Waits for a moment of a run, or its end."""
    if moment == 'any time':
      time.sleep(self.secs * self.rng.random())
      return
    deadline = time.monotonic() + _WAIT_SECS
    patterns = [
      str(run.folder / x.replace('CACHE', str(cache or self.cache)))
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
  ) -> str:
    """Sends signals and waits; returns what is wrong, or ''."""
    for number in numbers:
      run.send(number, process)
      time.sleep(0.05)
    codes, said = run.wait()
    if set(codes) - {0, 75, *(-x for x in numbers)} or 'Traceback' in said:
      names = [signal.Signals(x).name for x in numbers]
      return f'exit codes {codes} after {names}: {said[-1500:]}'
    return ''

  def own_cache(self, ignore: Callable | None = None) -> pathlib.Path:
    """Returns a copy of the cache, with the same compiled programs."""
    shutil.rmtree(self.folder / 'own', ignore_errors=True)
    args = self.cache, self.folder / 'own', True  # links are copied as such
    return pathlib.Path(shutil.copytree(*args, ignore=ignore))

  def clear(self, *names: str) -> None:
    """Removes folders."""
    for name in names:
      shutil.rmtree(self.folder / name, ignore_errors=True)

  def killed(
    self, moment: str = 'encoding', numbers: Sequence[int] = (signal.SIGKILL,)
  ) -> str:
    """Sends signals at a moment of a run, then starts until it ends."""
    whole, place, cache = self.whole, self.kind.places[0], self.cache
    if moment == 'encoding':  # which is done anew
      of_data = shutil.ignore_patterns('corpora', 'clicks-*', 'graph-*')
      cache = self.own_cache(of_data)
    self.clear('killed')
    run = self.start('killed', place, cache)
    self.until(run, moment, cache)
    process = self.rng.randrange(-1, place.num_processes)
    is_late = not run.is_running()
    outcome = self.hit(run, numbers, process)
    outcome = outcome or self.ended('killed', place, whole, cache)
    left = [x for x in cache.rglob('*.tmp-*') if 'programs' not in x.parts]
    if outcome == 'same' and moment == 'encoding' and left:
      return f'left behind: {left}'
    return 'late' if is_late and outcome == 'same' else outcome

  def moved(self, place: Place, numbers: Sequence[int]) -> str:
    """Goes on elsewhere, is killed there, and goes on there once more."""
    self.clear('moved', 'copy')
    run = self.start('moved', self.kind.places[0])
    self.until(run, 'saved')
    is_late = not run.is_running()
    wrong = self.hit(run, numbers)
    if wrong or is_late:
      return wrong or 'late'
    shutil.copytree(self.folder / 'moved', self.folder / 'copy', symlinks=True)
    whole = self.train('copy', place)
    run = self.start('moved', place)
    self.until(run, 'saved')
    wrong = self.hit(run, (signal.SIGKILL,))
    return wrong or self.ended('moved', place, whole)

  def damaged(self, every: int) -> Iterator[tuple[str, str]]:
    """Damages files of a finished run, and of its cache, one in `every`."""
    whole, place = self.whole, self.kind.places[0]
    first, own, copy = (self.folder / x for x in ('first', 'own', 'damaged'))
    first.mkdir()  # of which only this run's text is in the cache
    _link_programs(first)
    self.start('encoded', place, first).wait()
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
        outcome = self.ended('damaged', place, whole, own)
        yield 'run' if top == run else 'cache', outcome

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
      codes, said = self.start('counted', place, kind=_COUNTED, **more).wait()
      allowed = {0} if is_last else {75, -number}
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


def _result(kind: Kind, folder: pathlib.Path) -> str:
  """What runs of a kind have in common: bits, or the number of words."""
  if 'strategy.name=workers' not in kind.settings:
    return _digest(folder)
  path = folder / 'run' / 'report.json'
  if not path.exists():
    return ''
  return f'{json.loads(path.read_text())["kept_words"]} words'


def _digest(folder: pathlib.Path) -> str:
  """Of the bits of all arrays that a run has exported, or ''."""
  paths = sorted((folder / 'run' / 'export').rglob('*.np[yz]'))
  made = hashlib.sha256()
  for path in paths:
    made.update(path.name.encode())
    if path.suffix == '.npz':  # whose bytes hold the time
      for key, value in sorted(np.load(path).items()):
        made.update(key.encode() + value.tobytes())
    else:
      made.update(path.read_bytes())
  return made.hexdigest() if paths else ''


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


def _cases(
  folder: pathlib.Path, names: Sequence[str], args: argparse.Namespace
) -> Iterator[tuple[str, str, str]]:
  """Yields kind, case and outcome of kills and moves, evenly over kinds."""
  for i, name in enumerate(names):
    kind = KINDS[name]
    num_kills, num_moves = (
      x // len(names) + (i < x % len(names)) for x in (args.kills, args.moves)
    )
    tester = Tester(folder / f'runs-{i}', name, args.seed)
    tester.folder.mkdir()
    cases = [
      (kind.moments[j % len(kind.moments)], SIGNALS[j % len(SIGNALS)])
      for j in range(args.seed, args.seed + num_kills)
    ]
    for moment, numbers in cases:
      what = f'{moment} {"+".join(signal.Signals(x).name for x in numbers)}'
      yield name, what, tester.killed(moment, numbers)
    others = kind.places[1:] or kind.places
    for j in range(args.seed, args.seed + num_moves):
      place, numbers = others[j % len(others)], SIGNALS[j % len(SIGNALS)]
      what = f'to {" ".join(place.settings)}, {place.num_processes} processes'
      yield name, what, tester.moved(place, numbers)
    shutil.rmtree(tester.folder)


def main() -> None:
  """Tries kills and moves, prints what became of each, and the sums."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  add = parser.add_argument
  add('--kills', type=int, default=200)
  add('--moves', type=int, default=100)
  add('--kinds', default='', help="separated by ';'; '' = all")
  add('--seed', type=int, default=0)
  args = parser.parse_args()
  names = args.kinds.split(';') if args.kinds else list(KINDS)
  counts: collections.Counter[tuple[str, str]] = collections.Counter()
  _use_small_dispatches()
  with tempfile.TemporaryDirectory() as top:
    folder = pathlib.Path(top)
    _write_files(folder)
    (folder / 'cache').mkdir()
    _link_programs(folder / 'cache')
    for name, what, outcome in _cases(folder, names, args):
      print(f'{name}: {what}: {outcome}', flush=True)
      is_wrong = outcome not in ('same', 'noticed', 'late')
      kind = 'move' if what.startswith('to ') else 'kill'
      counts[kind, 'wrong' if is_wrong else outcome] += 1
  for (kind, outcome), number in sorted(counts.items()):
    print(f'{kind}s {outcome}: {number}')


if __name__ == '__main__':
  main()
