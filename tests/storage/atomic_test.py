"""A file is there whole or not at all."""

import errno
import os
import subprocess
import sys
import tempfile
import threading
from concurrent import futures

import pytest

from jaxemb import errors
from jaxemb.storage import atomic


def test_appears_at_the_end(tmp_path):
  path = tmp_path / 'new' / 'x.bin'
  with atomic.write(path) as file:
    file.write(b'one')
    assert not path.exists()
  assert path.read_bytes() == b'one'
  assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
  ('raised', 'expected'),
  [
    (OSError(errno.ENOSPC, 'No space left on device'), errors.UserError),
    (KeyboardInterrupt(), KeyboardInterrupt),
  ],
)
def test_an_error_leaves_what_was_there(tmp_path, raised, expected):
  path = tmp_path / 'x.bin'
  path.write_bytes(b'old')
  with pytest.raises(expected) as caught:
    with atomic.write(path) as file:
      file.write(b'new')
      raise raised
  if expected is errors.UserError:
    assert 'x.bin: No space left' in str(caught.value)
  assert path.read_bytes() == b'old' and list(tmp_path.iterdir()) == [path]


def test_what_was_killed_while_it_wrote_leaves_nothing(tmp_path):
  node, path = atomic.machine(), tmp_path / 'x.bin'
  dead, running, elsewhere, old, other, foreign = left = [
    tmp_path / name
    for name in (
      f'.x.bin.tmp-{node}-99999999', f'.x.bin.tmp-{node}-1', '.x.bin.tmp-h-7',
      '.x.bin.tmp-h-o-8', f'.y.tmp-{node}-99999999', '.x.bin.tmp-of-others',
    )
  ]  # fmt: skip
  for file in left:
    file.write_bytes(b'half')
  for file in (old, foreign):
    os.utime(file, (1, 1))
  with atomic.write(path) as file:
    file.write(b'whole')
  kept = {path, running, elsewhere, foreign}
  assert {*tmp_path.iterdir()} == kept | {other}
  with atomic.folder(tmp_path / 'z'):
    pass
  assert {*tmp_path.iterdir()} == kept | {tmp_path / 'z'}


def test_containers_of_one_host_name_leave_each_other_alone(
  tmp_path, monkeypatch
):
  real = os.readlink
  other = {'/proc/self/ns/pid': 'pid:[1]'}
  with atomic.folder(tmp_path / 'x') as mine, monkeypatch.context() as patched:
    patched.setattr(os, 'readlink', lambda x: other.get(str(x)) or real(x))
    patched.setattr(os, 'getpid', lambda: 99999999)
    atomic.machine.cache_clear()
    atomic.remove_leftovers(tmp_path)  # as another container
    theirs = atomic.temporary_of(tmp_path / 'y')
    theirs.mkdir()
    patched.undo()
    atomic.machine.cache_clear()
    atomic.remove_leftovers(tmp_path)
    assert mine.exists() and theirs.exists()


_IN_A_CONTAINER = """
import os, pathlib, platform, sys, time
from jaxemb.storage import atomic
folder, mine, other = pathlib.Path(sys.argv[1]), *sys.argv[2:]
with atomic.folder(folder / 'x') as new:
  (new / 'first').write_text('whole')
  (folder / mine).touch()
  while not (folder / other).exists():
    time.sleep(0.01)
  atomic.remove_leftovers(folder)
  time.sleep(0.2)
  (new / 'last').write_text('whole')
print(os.getpid(), platform.node())
"""


@pytest.mark.slow
def test_processes_of_two_pid_namespaces_share_a_folder(tmp_path):
  enter = ['unshare', '--pid', '--fork', '--mount-proc', '--uts']
  try:
    subprocess.run([*enter, 'true'], check=True, capture_output=True)
  except (OSError, subprocess.CalledProcessError):
    pytest.skip('needs root and unshare')
  pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True}
  command = [*enter, sys.executable, '-c', _IN_A_CONTAINER, str(tmp_path)]
  both = [
    subprocess.Popen([*command, *names], **pipes)
    for names in (('a', 'b'), ('b', 'a'))
  ]
  said = [x.communicate(timeout=60)[0] for x in both]
  assert [x.returncode for x in both] == [0, 0], said
  assert said[0] == said[1]  # one process id and one host name
  assert {x.name for x in tmp_path.iterdir()} == {'a', 'b', 'x'}
  assert {x.name for x in (tmp_path / 'x').iterdir()} == {'first', 'last'}


@pytest.mark.parametrize('reserves', [True, False])
def test_unnamed_files_have_their_size_and_leave_nothing(
  reserves, monkeypatch, tmp_path
):
  if not reserves:  # as on macOS
    monkeypatch.delattr(os, 'posix_fallocate', raising=False)
  with atomic.unnamed(tmp_path / 'new', 5000, 'tests') as file:
    assert os.fstat(file.fileno()).st_size == 5000
    assert not list((tmp_path / 'new').iterdir())


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
  path = tmp_path / 'x'
  for _ in range(2):  # its own files are
    with atomic.folder(path, replaces=['mine']) as new:
      (new / 'mine').write_text('mine')
  (path / 'yours').write_text('yours')
  with pytest.raises(errors.UserError, match="x has 'yours', which would be l"):
    with atomic.folder(path, replaces=['mine']):
      pass
  assert {x.name for x in path.iterdir()} == {'mine', 'yours'}


def test_a_save_that_was_killed_does_not_refuse_later_ones(tmp_path):
  path = tmp_path / 'x'
  path.mkdir()
  dead = path / f'.replacement.tmp-{atomic.machine()}-99999999'
  running = path / f'.replacement.tmp-{atomic.machine()}-1'
  for left in (dead, running):
    left.mkdir()
  with atomic.folder(path, replaces=['mine']) as new:
    (new / 'mine').write_text('mine')
  assert {*path.iterdir()} == {path / 'mine', running}


@pytest.mark.parametrize(
  ('theirs', 'name', 'match'),
  [
    ('a/precious', 'a', 'x/a is a folder, where a file'),
    ('a', 'a/b/c', 'x/a is a file, where a folder'),
    ('b/precious', 'a', 'x/b is a folder, where a file'),
  ],
)
def test_what_is_of_another_kind_is_refused_before_anything_is_replaced(
  theirs, name, match, tmp_path
):
  path = tmp_path / 'x'
  (path / theirs).parent.mkdir(parents=True)
  (path / theirs).write_text('theirs')
  (path / '0').write_text('old')
  with pytest.raises(errors.UserError, match=match):
    _write(path, ['0', name], removed=['b'])
  assert _files(path) == sorted(['0', theirs])
  assert (path / '0').read_text() == 'old'


@pytest.mark.parametrize('removed', [[], ['b/c']])
def test_a_folder_that_cannot_be_written_is_refused_before(
  removed, tmp_path, monkeypatch
):
  path = tmp_path / 'x'
  _write(path, ['a', 'b/c'])
  monkeypatch.setattr(os, 'access', lambda place, mode: place.name != 'b')
  with pytest.raises(errors.UserError, match='x/b cannot be written'):
    _write(path, ['d', *({'b/c'} - {*removed})], removed=removed)
  assert _files(path) == ['a', 'b/c']


def test_what_is_removed_from_no_folder_is_not_there(tmp_path):
  path = tmp_path / 'x'
  path.mkdir()
  (path / 'words').write_text('theirs')
  _write(path, ['a'], removed=['words/b'])
  assert _files(path) == ['a', 'words']
  assert (path / 'words').read_text() == 'theirs'


@pytest.mark.skipif(not os.path.isdir('/dev/shm'), reason='not Linux')
def test_another_file_system_is_refused_before_anything_is_replaced(tmp_path):
  path = tmp_path / 'x'
  _write(path, ['0'])
  with tempfile.TemporaryDirectory(dir='/dev/shm') as other:
    if os.stat(other).st_dev == path.stat().st_dev:
      pytest.skip('one file system')
    (path / 'b').symlink_to(other)
    with pytest.raises(errors.UserError, match='x/b is on another file sys'):
      _write(path, ['a', 'b/c'])
    assert _files(path) == ['0']
    assert {x.name for x in path.iterdir()} == {'0', 'b'}


def test_a_file_is_not_taken_for_a_folder(tmp_path):
  path = tmp_path / 'x'
  path.write_text('yours')
  with pytest.raises(errors.UserError, match='cannot write'):
    with atomic.folder(path):
      pass
  assert path.read_text() == 'yours' and list(tmp_path.iterdir()) == [path]


def _write(path, names, removed=()):
  with atomic.together(path) as new:
    for name in names:
      with atomic.write(new / name) as file:
        file.write(name.encode())
    for name in removed:
      atomic.remove(new / name)


def _files(path):
  found = (x for x in path.rglob('*') if x.is_file())
  return sorted(x.relative_to(path).as_posix() for x in found)


def test_files_are_replaced_together(tmp_path):
  path = tmp_path / 'x'
  _write(path, ['a', 'b', 'c/d'], removed=['nothing'])
  (path / 'yours').touch()
  _write(path, ['a', 'e'], removed=['b', 'c/d', 'nothing'])
  assert _files(path) == ['a', 'e', 'yours'] and not (path / 'c').exists()
  assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize('moved', [0, 1, 2, 3])
def test_a_replacement_that_was_interrupted_is_completed(
  moved, tmp_path, monkeypatch
):
  path = tmp_path / 'x'
  _write(path, ['a', 'b', 'c/d'])
  move, calls = atomic._move, []

  def interrupted(*arguments):
    if len(calls) == moved:
      raise KeyboardInterrupt
    calls.append(arguments)
    move(*arguments)

  with monkeypatch.context() as patched:
    patched.setattr(atomic, '_move', interrupted)
    with pytest.raises(KeyboardInterrupt):
      _write(path, ['e', 'c/f', 'g'], removed=['a', 'b', 'c/d'])
  atomic.complete(path)
  assert _files(path) == ['c/f', 'e', 'g']
  assert list(tmp_path.iterdir()) == [path]


def test_a_replacement_that_cannot_be_completed_is_one_line(
  tmp_path, monkeypatch
):
  (tmp_path / '.replacement').mkdir()
  (tmp_path / '.replacement' / 'a').touch()

  def refuse(*unused):
    raise PermissionError(errno.EACCES, 'Permission denied')

  monkeypatch.setattr(atomic, '_move', refuse)
  monkeypatch.setattr(atomic, '_WAIT_SECS', 0)
  with pytest.raises(errors.UserError, match='replaced, which .* its owner'):
    atomic.complete(tmp_path)


def test_who_may_not_write_waits_for_who_may(tmp_path, monkeypatch):
  replacement = tmp_path / '.replacement'
  replacement.mkdir()
  (replacement / 'a').touch()
  writer = threading.Timer(0.1, lambda: replacement.rename(tmp_path / 'b'))

  def refuse(*unused):
    writer.start()
    raise PermissionError(errno.EACCES, 'Permission denied')

  monkeypatch.setattr(atomic, '_move', refuse)
  atomic.complete(tmp_path)
  assert [x.name for x in tmp_path.iterdir()] == ['b']
  writer.join()


def _meanwhile(monkeypatch, others):
  """Others complete a folder before this process moves its first file."""
  move = atomic._move

  def slow(*args):
    monkeypatch.undo()
    others()
    return move(*args)

  monkeypatch.setattr(atomic, '_move', slow)


def test_a_mark_of_earlier_writers_removes_nothing(tmp_path, monkeypatch):
  replacement = tmp_path / '.replacement'
  replacement.mkdir()
  (replacement / '.removed-a').touch()

  def others():
    atomic.complete(tmp_path)
    _write(tmp_path, ['a'])

  _meanwhile(monkeypatch, others)
  atomic.complete(tmp_path)
  assert _files(tmp_path) == ['a']


def test_what_a_faster_writer_replaces_is_completed_too(tmp_path, monkeypatch):
  replacement = tmp_path / '.replacement'
  replacement.mkdir()
  (replacement / 'a').touch()

  def others():
    atomic.complete(tmp_path)
    replacement.mkdir()
    (replacement / 'b').touch()

  _meanwhile(monkeypatch, others)
  atomic.complete(tmp_path)
  assert _files(tmp_path) == ['a', 'b']
  assert not replacement.exists()


def test_a_folder_that_another_process_makes_gets_the_files(tmp_path):
  path = tmp_path / 'x'
  with atomic.together(path) as new:
    with atomic.folder(new / 'inner') as inner:
      (inner / 'mine').touch()
    (new / 'a').write_text('mine')
    atomic.remove(new / 'b')
    atomic.remove(new / 'c' / 'd')
    for name in ('a', 'b', 'c/d', 'e', 'inner/theirs'):
      (path / name).parent.mkdir(parents=True, exist_ok=True)
      (path / name).write_text('theirs')
  assert _files(path) == ['a', 'e', 'inner/mine']
  assert (path / 'a').read_text() == 'mine'


def test_a_folder_may_be_written_that_cannot_be_read(tmp_path, monkeypatch):
  really = os.open

  def refuse(path, *args, **kwargs):
    if os.path.isdir(path):
      raise PermissionError(errno.EACCES, 'Permission denied')
    return really(path, *args, **kwargs)

  monkeypatch.setattr(os, 'open', refuse)
  with atomic.write(tmp_path / 'a') as file:
    file.write(b'a')
  assert _files(tmp_path) == ['a']


def test_a_folder_in_a_replacement_replaces_an_earlier_one(tmp_path):
  for names in (('a', 'b/c'), ('d',)):
    with atomic.together(tmp_path / 'x') as new:
      with atomic.folder(new / 'inner') as inner:
        for name in names:
          (inner / name).parent.mkdir(exist_ok=True)
          (inner / name).touch()
      _write(new, [f'of-{names[0]}'])
  assert _files(tmp_path / 'x') == ['inner/d', 'of-a', 'of-d']


def test_a_folder_that_exists_stays_where_a_rename_fails(tmp_path, monkeypatch):
  path = tmp_path / 'x'
  with atomic.folder(path) as new:
    (new / 'old').touch()

  def refuse(*unused):
    raise OSError(errno.EIO, 'Input/output error')

  with monkeypatch.context() as patched:
    patched.setattr(type(path), 'rename', refuse)
    with pytest.raises(errors.UserError, match='x: Input/output error'):
      with atomic.folder(path) as new:
        (new / 'new').touch()
  assert _files(path) == ['old'] and list(tmp_path.iterdir()) == [path]
  with atomic.folder(path) as new:
    (new / 'new').touch()
  assert _files(path) == ['new']


@pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='there are no pipes')
def test_a_pipe_is_written_to_and_stays(tmp_path):
  path = tmp_path / 'pipe'
  os.mkfifo(path)
  with futures.ThreadPoolExecutor(1) as pool:
    read = pool.submit(path.read_bytes)
    with atomic.write(path) as file:
      file.write(b'all')
    assert read.result() == b'all'
  assert path.is_fifo() and list(tmp_path.iterdir()) == [path]
