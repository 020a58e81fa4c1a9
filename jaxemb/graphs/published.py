"""Files of graphs as others publish them: their names tell what they have."""

import logging
import os
import pathlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxemb import errors
from jaxemb.io import inputs

_LOG = logging.getLogger('jaxemb')

_TABLE = tomllib.loads(
  pathlib.Path(__file__).with_suffix('.toml').read_text('utf-8')
)
# Regular expressions for names of files by what they have.
_EDGES, _LABELS, _FEATURES = (
  '|'.join(x[role] for x in _TABLE['layouts'].values() if role in x)
  for role in ('edges', 'labels', 'features')
)
CONTENT, COMMUNITIES = map(_TABLE['forms'].get, ('content', 'communities'))
_NEITHER, _NODE_NAMES = (
  '|'.join(_TABLE['others']['known']),
  _TABLE['others']['names'],
)
_SPLITS = _TABLE['others']['splits']
# Names of columns and arrays by what they have.
NAMES = {k: tuple(x.split()) for k, x in _TABLE['names'].items()}
ARRAYS = {k: tuple(x.split()) for k, x in _TABLE['arrays'].items()}
KONECT = _TABLE['layouts']['KONECT']['edges']


READER = (
  'is for NetworkX; in Python, write a folder by jaxemb.graphs: '
  "graph.save(files.from_networkx({}(PATH), label='ATTRIBUTE'), FOLDER), and "
  'give that'
)


def is_named(path: pathlib.Path | str, names: str) -> bool:
  """Whether a regular expression is that of a file's name, or packed."""
  name = pathlib.Path(path).name.lower()
  return bool(re.fullmatch(rf'({names})(\.(gz|bz2|xz|zst|zip))?', name))


def find_files(settings: Mapping[str, Any]) -> dict[str, Any]:
  """Return settings that name the files of a folder, or of a glob, by role.

  Names of files tell which have edges, `valid` and `test` edges, labels and
  features; several files of edges must be parts of one. Logs the roles, or, for
  a file, which one beside it looks like its labels. Raises a `UserError` for
  files that may be several graphs.
  """
  settings = dict(settings)
  folder = pathlib.Path(os.path.expanduser(settings['path']))
  if os.path.isfile(folder):
    _suggest_labels(folder, settings)
    return settings
  files = _files(folder) if os.path.isdir(folder) else []
  labels = [x for x in files if is_named(x, _LABELS)]
  features = [x for x in files if is_named(x, _FEATURES)]
  names = _NEITHER
  if any(is_named(x, _EDGES) for x in files):
    names = rf'(?!{_EDGES}$|{_SPLITS}$).*|{names}'
  elif not all(is_named(x, rf'{_NEITHER}|{_NODE_NAMES}') for x in files):
    names = rf'{names}|{_NODE_NAMES}'
  known = (*labels, *features)
  of_splits = inputs.find(
    settings['path'],
    'list of edges',
    is_other=lambda x: x in known or (x.is_file() and is_named(x, names)),
  )
  for path in of_splits.train:
    refuse(path)
  if not of_splits.train:
    raise errors.UserError(
      f'{folder} has no list of edges, but {_listed(files)}; give one of them'
    )
  by_role = {'path': of_splits.train, **of_splits.splits}
  by_role |= {'labels': labels, 'features': features}
  used, shown = [], []
  for role, paths in by_role.items():
    if role == 'path' or (paths and not settings.get(role)):
      if len(paths) > 1 and role in ('labels', 'features'):
        _LOG.info(
          '%s has several files of %s; give one by --config.data.%s: %s',
          *(folder, role, role, _listed(paths)),
        )
        continue
      settings[role] = ','.join(map(str, paths))
      used += paths
      shown.append(f'{role} {_listed(paths)}')
  if unused := [x for x in files if x not in used]:
    shown.append(f'not used: {_listed(unused)}')
  if os.path.isdir(folder) or of_splits.splits:
    _LOG.info('of the folder %s: %s', folder, ', '.join(shown))
  return settings


def _listed(paths):
  return ', '.join(x.name for x in paths)[:200]


def _files(folder):
  """Its files; of a folder with a single folder and no data, that one's."""
  visible = [x for x in sorted(folder.iterdir()) if x.name[0] not in '._']
  files = [x for x in visible if x.is_file()]
  folders = [x for x in visible if x.is_dir()]
  if len(folders) == 1 and all(is_named(x, _NEITHER) for x in files):
    return _files(folders[0])
  return files


def _suggest_labels(path, settings):
  if settings['labels'] or not os.path.isfile(path):
    return
  stem = re.split(r'[._-]', path.name)[0]
  beside = [x for x in _files(path.parent) if is_named(x, _LABELS)]
  alike = [x for x in beside if x.name.startswith(stem)] or beside
  if len(alike) == 1 and path != alike[0]:
    _LOG.info(
      'labels may be in %s: give the folder %s instead of the file, or '
      '--config.data.labels=%s',
      *(alike[0].name, path.parent, alike[0]),
    )


def refuse(path: pathlib.Path, lines: Sequence[str] = ()) -> None:
  """Raises a `UserError` for a form that is not read, and says what to do.

  It is told by its first `lines`, or, without these, by its name.
  """
  paths = [*path.glob('ind.*.graph')] if os.path.isdir(path) else [path]
  text = '\n'.join(lines).lstrip()
  for form in _TABLE['refused']:
    names, begins = (form.get(x, '(?!)') for x in ('names', 'begins'))
    if any(is_named(x, names) for x in paths if not lines) or re.match(
      begins, text, re.IGNORECASE
    ):
      message = form.get('message') or READER.format(form.get('reader'))
      raise errors.UserError(f'{path} {message}')
