"""Which files of a folder are the input, and which are held out.

Files are one input only if they are parts of one, such as `part-0.csv` and
`part-1.csv`, or are named one by one. Those called train, valid and test are
splits. Nothing else is put together by guess.
"""

import glob
import logging
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxemb import errors

_LOG = logging.getLogger('jaxemb')

_SPLITS = {
  'train': {'train', 'training', 'trainset'},
  'valid': {'valid', 'validation', 'validset', 'val', 'dev'},
  'test': {'test', 'testing', 'testset'},
}
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')
# Names of parts, with * for numbers.
_PARTS = re.compile(
  r'(.*[\W_])?(part|shard|chunk|day|block)[\W_]?([rm]-)?\*.*|\*|.*\*-of-\*'
)
# What stands beside data and has none.
_ABOUT = re.compile(
  r'([._].*|(readme|license|licence|citation|changelog|copying|md5sums?)\b.*'
  r'|.*\.(md|rst|html?|pdf|py|sh|png|jpe?g|ipynb|md5|sha256|crc))',
  re.IGNORECASE,
)
_MOST_NAMES = 12


class Files(NamedTuple):
  """The files of an input, by what they are for."""

  train: list[pathlib.Path]
  splits: dict[str, list[pathlib.Path]]  # 'valid' and 'test', if there
  unused: list[pathlib.Path]


def find(
  path: str,
  what: str = 'file of rows',
  is_other: Callable[[pathlib.Path], bool] = lambda path: False,
) -> Files:
  """Returns the files of a path, folder, glob, or of several, with commas.

  `is_other` tells files that a kind knows to be something else, such as names
  of nodes. Raises a `UserError`, which asks for `what`, if there is no file, or
  if files of a folder do not belong together.
  """
  all_files = Files([], {}, [])
  # Several names with commas may be longer than a name can be.
  is_whole = os.path.exists(os.path.expanduser(path))
  names = [path] if is_whole else map(str.strip, path.split(','))
  for name in filter(None, names):
    expanded = pathlib.Path(os.path.expanduser(name))
    if os.path.isfile(expanded):
      all_files.train.append(expanded)
      continue
    if is_folder := os.path.isdir(expanded):
      paths = _visible(expanded)
    elif os.path.exists(expanded):
      raise errors.UserError(f'{name} is not a regular file; give a {what}')
    else:
      paths = map(pathlib.Path, glob.glob(str(expanded), recursive=True))
      paths = sorted(filter(pathlib.Path.is_file, paths), key=_order)
    files = _divided(name, paths, is_other=is_other, is_folder=is_folder)
    if not (files.train or files.splits):
      raise errors.UserError(f'there is no file {name}; give a {what}')
    all_files.train.extend(files.train)
    all_files.unused.extend(files.unused)
    for split, held in files.splits.items():
      all_files.splits.setdefault(split, []).extend(held)
  return all_files


def together(
  path: str,
  what: str = 'file of rows',
  is_other: Callable[[pathlib.Path], bool] = lambda path: False,
) -> list[pathlib.Path]:
  """Returns the files of a path that holds nothing out.

  Raises a `UserError` as `find` does, or if names of files tell of splits.
  """
  files = find(path, what, is_other=is_other)
  if files.splits:
    held = [x for split in files.splits.values() for x in split]
    raise errors.UserError(
      f'{path} has several splits, with {_listed(held)} among them; give the '
      'files that are meant'
    )
  return files.train


def resolve(
  settings: Mapping[str, Any],
  what: str = 'file of rows',
  is_other: Callable[[pathlib.Path], bool] = lambda path: False,
) -> dict[str, Any]:
  """Returns settings of `config.data` whose path has files to train on alone.

  What a folder holds out becomes `valid` and `test` where these are not given;
  the log says so. Raises a `UserError` as `find` does.
  """
  settings = dict(settings)
  files = find(settings['path'], what, is_other=is_other)
  used, unused = {'path': files.train}, list(files.unused)
  for split, held in files.splits.items():
    if settings[split]:
      unused += held
    else:
      used[split] = held
  if len(used) > 1 or unused:
    lines = [f'config.data.{k}={_listed(x)}' for k, x in used.items()]
    lines += [f'not used: {_listed(unused)}'] * bool(unused)
    _LOG.info('%s: %s', settings['path'], '; '.join(lines))
  settings |= {k: ','.join(map(str, x)) for k, x in used.items()}
  return settings


def split_of(name: str) -> str:
  """Returns the split that the name of a file or folder tells, or ''."""
  words = {*re.split(r'[^a-z]+', name.lower())}
  splits = [split for split, names in _SPLITS.items() if words & names]
  return splits[0] if len(splits) == 1 else ''


def without_split(name: str) -> str:
  """Returns a name with * for its split and for numbers."""
  words = '|'.join(sorted(set().union(*_SPLITS.values())))
  return re.sub(rf'\d+|(?<![a-z])({words})(?![a-z])', '*', name.lower())


def are_parts(files: Sequence[pathlib.Path]) -> bool:
  """Whether names are those of the parts of one input."""
  keys = {
    re.sub(r'\d+', '*', _UUID.sub('*', x.name.lower()).split('.')[0])
    for x in files
  }
  suffixes = {tuple(x.suffixes[-2:]) for x in files if '.' in x.name}
  if len(keys) > 1 or len(suffixes) > 1:
    return False
  return any(map(_PARTS.fullmatch, keys))


def _visible(folder):
  """What a folder has; of one with nothing but a folder, what that has."""
  paths = [x for x in folder.iterdir() if not _ABOUT.fullmatch(x.name)]
  if len(paths) == 1 and paths[0].is_dir():
    return _visible(paths[0])
  return sorted(paths, key=_order)


def _order(path):
  """By names, numbers in them by their size."""
  pieces = re.split(r'(\d+)', str(path))
  return [int(x) if i % 2 else x for i, x in enumerate(pieces)], str(path)


def _divided(name, paths, is_other, is_folder):
  """The `Files` of what a folder or a glob has."""
  unused = [x for x in paths if is_other(x)]
  paths = [x for x in paths if x not in unused]
  by_split = {}
  for path in paths:
    by_split.setdefault(split_of(path.name), []).append(path)
  rest = by_split.pop('', [])
  if len(paths) > 1 and by_split and (rest or 'train' not in by_split):
    _refuse(name, paths)
  if not by_split or len(paths) == 1:  # alone, whatever it is called
    by_split = {'train': paths}
  by_split = {
    k: _files_of(name, x, is_folder=is_folder, others=paths)
    for k, x in by_split.items()
  }
  return Files(by_split.pop('train', []), by_split, unused)


def _files_of(name, paths, is_folder, others):
  """The files of one split: a file, parts, or those of a folder."""
  if is_folder and len(paths) == 1 and paths[0].is_dir():
    paths = _visible(paths[0])
  is_one = len(paths) < 2 or not is_folder or are_parts(paths)
  if not is_one or any(x.is_dir() for x in paths):
    _refuse(name, others if len(others) > 1 else paths)
  return paths


def _refuse(name, paths):
  raise errors.UserError(
    f'{name} has files that are neither parts of one input nor train, valid '
    f'and test: {_listed(paths)}; give one as --config.data.path, or several '
    'with commas'
  )


def _listed(paths):
  names = [x.name + '/' * x.is_dir() for x in paths]
  more = f' and {len(names) - _MOST_NAMES} more' * (len(names) > _MOST_NAMES)
  return ', '.join(names[:_MOST_NAMES]) + more
