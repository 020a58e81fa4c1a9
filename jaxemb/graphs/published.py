"""Files of graphs as others publish them: which of a folder has what.

Names of files tell it. Labels and features are read here where they are no
lines of one node and what it has.
"""

import json
import logging
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.graphs import line_format
from jaxemb.io import tables

_LOG = logging.getLogger('jaxemb')


class _Layout(NamedTuple):
  """Regular expressions for names of files by what they have."""

  edges: str
  labels: str = ''
  features: str = ''


_CONTENT, _DESCRIPTION = r'.*\.content', r'.*_node_feature_label\.txt'
_COMMUNITIES = r'.*\.cmty\.txt|.*\.circles|.*-categories\.txt'
_LAYOUTS = {
  'Tang and Liu': _Layout(r'edges\.csv', r'group-edges\.csv'),
  'LINQS': _Layout(r'.*\.cites', _CONTENT, _CONTENT),
  'Rozemberczki': _Layout(
    r'.*_edges\.csv',
    r'(.*_)?targets?\.csv|.*_genres\.json',
    r'.*_features\.(json|csv)|musae_[a-z]+\.json',
  ),
  'Geom-GCN': _Layout(r'.*_graph_edges\.txt', _DESCRIPTION, _DESCRIPTION),
  'SNAP': _Layout(r'.*\.ungraph\.txt', _COMMUNITIES, r'.*\.feat'),
  'DeepWalk, struc2vec': _Layout(
    r'.*\.(edge|adj)list|.*[_.-]?(edge|adj)list\.txt', r'labels?[_-].*\.txt'
  ),
  'OpenNE': _Layout(
    r'.*_edgelist\.txt', r'.*[_-]category\.txt', r'.*\.features'
  ),
  'Network Repository': _Layout(r'.*\.(edges|mtx)', r'.*\.node_labels'),
  'KONECT': _Layout(r'out\..*'),
  'GraphSAINT': _Layout(r'adj_full\.npz', r'class_map\.json', r'feats\.npy'),
  'Wiki-CS': _Layout(r'data\.json'),
  'others': _Layout(
    r'(.*[_.-])?edges\.(csv|tsv|txt|parquet)',
    r'(.*[_-])?(labels?|class_map)\.(txt|csv|tsv|json)',
    r'(.*[_.-])?(features?|feats)\.(json|csv|txt|tsv|npy)',
  ),
}
_EDGES, _LABELS, _FEATURES = (
  '|'.join(filter(None, names))
  for names in zip(*_LAYOUTS.values(), strict=True)
)
_BOTH = f'{_CONTENT}|{_DESCRIPTION}'  # labels and features
_NEITHER = (
  r'(readme|licen[cs]e|citing|meta\.|bibtex).*|.*\.(md|html?|pdf|bib)|'
  r'role\.json'  # `splits_of` reads it
)
_NAMES = r'(.*[_.-])?(nodes?|groups?|names)\.(csv|tsv|txt)|.*\.nodes'
_NETWORKX = {  # by suffix, what reads it
  'gml': 'read_gml',
  'graphml': 'read_graphml',
  'gexf': 'read_gexf',
  'net': 'read_pajek',
}
_REFUSED = {  # what a file has, and what to do
  r'ind\..+\.\w+|.*\.(pkl|pickle|pt|pth)': (
    'has pickles, which can run any code when they are read; write the graph '
    'as .npz with the arrays edges [n, 2], node_features, node_labels, '
    'train_mask, val_mask and test_mask'
  ),
  **{
    rf'.*\.{suffix}': (
      'is for NetworkX; in Python, write a folder by jaxemb.graphs: '
      f'graph.save(files.from_networkx(networkx.{reader}(PATH), '
      "label='ATTRIBUTE'), FOLDER), and give that"
    )
    for suffix, reader in _NETWORKX.items()
  },
  _BOTH: (
    'has what nodes have, and no edges; give its folder, or the file of edges'
  ),
  r'.*\.(graph|metis)': (
    'seems to be of METIS, a list of neighbors a line; write edges instead, '
    "such as by awk '!/^%/ && n++ {for (i = 1; i <= NF; i++) print n - 1, $i}'"
    ', or rename it to .edges if each line is an edge'
  ),
  r'.*\.(directed|node)\..*\.tab': (
    'is of a form of its own; write lines `citing cited`, and others '
    '`paper label` for --config.data.labels, or give the pubmed.npz of '
    'gnn-benchmark'
  ),
}


def _is(path: pathlib.Path | str, names: str) -> bool:
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
  labels = [x for x in files if _is(x, _LABELS)]
  features = [x for x in files if _is(x, _FEATURES)]
  rest = [x for x in files if x not in labels and x not in features]
  edges = [x for x in rest if _is(x, _EDGES)]
  edges = edges or [x for x in rest if not _is(x, f'{_NEITHER}|{_NAMES}')]
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
  unused = [x.name for x in rest if x not in edges and not _is(x, _NEITHER)]
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
  if len(folders) == 1 and all(_is(x, _NEITHER) for x in files):
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
  beside = [x for x in _files(path.parent) if _is(x, _LABELS)]
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
  for names, message in _REFUSED.items():
    if any(_is(x, names) for x in paths):
      raise errors.UserError(f'{path} {message}')


# Labels and features.


def labels_of(path: str) -> Iterator[tuple[str, list[str]]] | None:
  """Nodes with labels, of a file of another form than lines of nodes."""
  if _is(path, _COMMUNITIES):
    return _members(path)
  if _is(path, _BOTH):
    return ((name, [label]) for name, _, label in _described(path))
  if path.endswith('.json'):
    return _json_labels(path)
  return None


def features_of(path: str) -> dict[str, np.ndarray] | None:
  """By node float32 [d], of a file of another form than lines of numbers."""
  if _is(path, _BOTH):
    cells_by_name: dict[str, Sequence[Any]] = {}
    for name, cells, _ in _described(path):
      cells_by_name[name] = cells[0].split(',') if len(cells) == 1 else cells
    try:
      cells_by_name = {
        k: [float(y) for y in x if y] for k, x in cells_by_name.items()
      }
    except ValueError as error:
      raise errors.UserError(
        f'{path}: {errors.one_line(error)}; give lines `node numbers label`'
      ) from error
    # Actor has the numbers of words instead of a row of zeros and ones.
    is_dense = len({len(x) for x in cells_by_name.values()}) == 1
    return _rows(path, cells_by_name, is_dense)
  if path.endswith('.json'):
    return _rows(path, _json(path))
  return None


def _rows(path, given, is_dense=None):
  """Of lists by node: numbers, or places of ones."""
  try:
    if is_dense is None:
      numbers = {y for x in given.values() for y in x}
      sizes = {len(x) for x in given.values()}
      # Places differ from each other.
      are_flags = numbers <= {0, 1} and len(sizes) == 1 and max(sizes) > 2
      is_dense = are_flags or any(isinstance(x, float) for x in numbers)
    if is_dense:
      rows = {k: np.array(x, np.float32) for k, x in given.items()}
    else:
      lists = {k: np.array(x, np.int64) for k, x in given.items()}
      size = 1 + max(int(x.max(initial=-1)) for x in lists.values())
      if any(x.min(initial=0) < 0 for x in lists.values()):
        raise ValueError('there is a number below 0')
      rows = {k: np.zeros(size, np.float32) for k in lists}
      for k, x in lists.items():
        rows[k][x] = 1
    sizes = {x.shape for x in rows.values()}
    if len(sizes) != 1 or len(*sizes) != 1:
      raise ValueError('nodes have rows of several lengths')
  except (ValueError, TypeError) as error:
    raise errors.UserError(
      f'cannot read features of {path}: {errors.one_line(error)}; give an '
      'object {"node": [numbers of what it has], ..}'
    ) from error
  return rows


def _text_lines(path):
  (file,) = tables.find(path, 'file of nodes')[:1]
  return (line.strip() for _, line in line_format.lines(file))


def _members(path):
  """A line is a community: maybe a name, and its nodes."""
  for number, line in enumerate(_text_lines(path)):
    name, sep, rest = line.rpartition(';')
    nodes = rest.split()
    if not sep:
      name = str(number)
      if _is(path, r'.*\.circles'):
        name, *nodes = nodes
    for node in nodes:
      yield node, [name]


def _described(path):
  """Nodes with features [str] and a label, of lines `node .. label`."""
  for line in _text_lines(path):
    name, *cells = line.split('\t') if '\t' in line else line.split()
    if name == 'node_id':
      continue
    if len(cells) < 2:
      raise errors.UserError(
        f'{path} has a line of {len(cells) + 1} field(s), {line[:60]!r}; give '
        'lines `node features label`'
      )
    yield name, cells[:-1], cells[-1]


def _json(path):
  file = pathlib.Path(path).expanduser()
  try:
    fields = json.loads(file.read_text('utf-8'))
    if not isinstance(fields, dict) or not fields:
      raise ValueError('it is no object of nodes')
  except (OSError, ValueError) as error:
    raise errors.UserError(
      f'cannot read {path}: {errors.one_line(error)}; give an object of nodes'
    ) from error
  return fields


def _json_labels(path):
  """A label of each node, or several, or zeros and ones for all labels."""
  labels = {
    k: x if isinstance(x, list) else [] if x is None else [x]
    for k, x in _json(path).items()
  }
  sizes = {len(x) for x in labels.values()}
  are_flags = len(sizes) == 1 and sizes.pop() > 1
  are_flags &= all(y in (0, 1) for x in labels.values() for y in x)
  for name, x in labels.items():
    yield (
      name,
      [
        str(i if are_flags else y)
        for i, y in enumerate(x)
        if y or not are_flags
      ],
    )


def splits_of(folder: pathlib.Path, num_nodes: int) -> dict[str, Any]:
  """The `splits` of a graph that a folder's role.json has, if there is one."""
  path = folder / 'role.json'
  if not path.is_file():
    return {}
  nodes_by_role, keys = (
    _json(path),
    {'train': 'tr', 'valid': 'va', 'test': 'te'},
  )
  splits = {
    k: np.array(nodes_by_role.get(x, ()), np.int64) for k, x in keys.items()
  }
  for x in splits.values():
    if len(x) and not 0 <= x.min() <= x.max() < num_nodes:
      raise errors.UserError(
        f'{path} has nodes that are not among the {num_nodes:,} of the graph; '
        'give numbers from 0 on'
      )
  return {'splits': {k: x for k, x in splits.items() if len(x)}}
