"""Files of graphs as others publish them: their names tell what they have."""

import logging
import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from jaxemb import errors

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
_NEITHER, _NODE_NAMES = map(_TABLE['others'].get, ('known', 'names'))


def is_named(path: pathlib.Path | str, names: str) -> bool:
  """Whether a regular expression is that of a file's name, or packed."""
  name = pathlib.Path(path).name.lower()
  return bool(re.fullmatch(rf'({names})(\.(gz|bz2|xz|zst))?', name))


def find_files(settings: Mapping[str, Any]) -> dict[str, Any]:
  """Return settings that name a folder's files of edges, labels and features.

  They are as given if the path is no folder, or all its files have the same
  role. Logs what was found, or, for a file, which file beside it looks like its
  labels.
  """
  settings = dict(settings)
  folder = pathlib.Path(settings['path']).expanduser()
  if not folder.is_dir():
    _suggest_labels(folder, settings)
    return settings
  files = _files(folder)
  labels = [x for x in files if is_named(x, _LABELS)]
  features = [x for x in files if is_named(x, _FEATURES)]
  rest = [x for x in files if x not in (*labels, *features)]
  edges = [x for x in rest if is_named(x, _EDGES)] or [
    x for x in rest if not is_named(x, f'{_NEITHER}|{_NODE_NAMES}')
  ]
  for path in edges:
    refuse(path)
  if not edges:
    _refuse_folders(folder)
    return settings
  has_matrix = any(x.suffix in ('.npz', '.mat') for x in edges)
  if len(edges) > 1 and (has_matrix or len(labels) > 1):
    if not settings['labels']:
      raise errors.UserError(
        f'{folder} seems to have several graphs, '
        f'{", ".join(x.name for x in edges)[:200]}; give the file of one as '
        'config.data.path, and its labels as config.data.labels'
      )
  if len(edges) > 1 and {*edges} == {*folder.iterdir()}:
    _LOG.info('%s: %d lists of edges are one graph', folder, len(edges))
    return settings
  settings['path'] = ','.join(map(str, edges))
  for name, paths in (('labels', labels), ('features', features)):
    if len(paths) > 1 and not settings[name]:
      _LOG.info(
        '%s has several files of %s; give one by --config.data.%s: %s',
        *(folder, name, name, ', '.join(x.name for x in paths)),
      )
    elif paths and not settings[name]:
      settings[name] = str(paths[0])
  unused = [
    x.name for x in rest if x not in edges and not is_named(x, _NEITHER)
  ]
  used = ((k, settings[k]) for k in ('path', 'labels', 'features'))
  roles = [f'{k} {x}' for k, x in used if x]
  if unused:
    roles.append(f'not used: {", ".join(unused)[:200]}')
  _LOG.info('of the folder %s: %s', folder, ', '.join(roles))
  return settings


def _files(folder):
  """Its files; of a folder with a single folder and no data, that one's."""
  visible = [x for x in sorted(folder.iterdir()) if x.name[0] not in '._']
  files = [x for x in visible if x.is_file()]
  folders = [x for x in visible if x.is_dir()]
  if len(folders) == 1 and all(is_named(x, _NEITHER) for x in files):
    return _files(folders[0])
  return files


def _refuse_folders(folder):
  folders = [x.name for x in sorted(folder.iterdir()) if x.is_dir()]
  if folders:
    raise errors.UserError(
      f'{folder} has no list of edges, but the folders '
      f'{", ".join(folders)[:200]}; give one of them'
    )


def _suggest_labels(path, settings):
  if settings['labels'] or not path.is_file():
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


def refuse(path: pathlib.Path) -> None:
  """Raises a `UserError` for a form that is not read, and says what to do."""
  paths = [*path.glob('ind.*.graph')] if path.is_dir() else [path]
  for form in _TABLE['refused']:
    if any(is_named(x, form['names']) for x in paths):
      raise errors.UserError(f'{path} {form["message"]}')
