"""What is known of nodes: labels, features and splits, from files and arrays.

Files have a line for each node, with its name first, or, as .npy, a row for
each in the order of their numbers.
"""

import logging
import pathlib
import re
from collections.abc import (
  Callable,
  Iterator,
  Mapping,
  Sequence,
)
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.graphs import line_format, published
from jaxemb.io import tables as formats

_LOG = logging.getLogger('jaxemb')


def with_files(
  graph: graph_lib.Graph, settings: Mapping[str, Any]
) -> graph_lib.Graph:
  """The graph with labels and features of files that settings name.

  Raises a `UserError` if one cannot be used.
  """
  known: dict[str, Any] = {}
  counted, column = dict(graph.counted), settings['label_column']
  if settings['labels'] or settings['features']:
    number = numbers(graph)
  path, listed = settings['labels'], None
  if path and not path.endswith('.npy'):
    listed = published.labels_of(path)
    if listed is None:
      listed, column = _labels(path, column, number), ''
  if column:
    raise errors.UserError(
      f'config.data.label_column={column} is for labels in columns, and '
      f'{path or "config.data.labels"} has none; remove it, or give a '
      'file of such labels'
    )
  if path.endswith('.npy'):
    known['labels'] = classes(_rows_of(path, graph), path, graph.num_nodes)
  elif listed is not None:
    labels: list[list[str]] = [[] for _ in range(graph.num_nodes)]
    unknown = 0
    for name, found in listed:
      node = number(name)
      if node is None:
        unknown += 1
      else:
        labels[node] += [
          y
          for x in found
          for y in (re.split('[,;]', x) if _LISTED.fullmatch(x) else [x])
        ]
    if not any(labels):
      raise errors.UserError(
        f'{path} has labels of {unknown:,} nodes, none of which the graph has; '
        'give lines `node label ...` with the names that edges have'
      )
    known['labels'] = labels_lib.Labels.of(labels)
    counted['labels_of_unknown_nodes'] = unknown
  if path := settings['features']:
    if path.endswith('.npy'):
      features = _rows_of(path, graph)
      if features.dtype.kind not in 'biuf':
        raise errors.UserError(f'{path} has no numbers; give numbers')
      if features.ndim != 2 or len(features) != graph.num_nodes:
        raise errors.UserError(
          f'{path} has the shape {features.shape}, and the graph has '
          f'{graph.num_nodes:,} nodes; give a row for each'
        )
    else:
      features, unknown = None, 0
      rows = published.features_of(path)
      lines = _lines(path, 2) if rows is None else enumerate(rows.items())
      for line, (name, *cells) in lines:
        if rows is not None:
          (cells,) = cells
        if features is None:
          features = np.zeros((graph.num_nodes, len(cells)), np.float32)
          has_row = np.zeros(graph.num_nodes, bool)
        if len(cells) != features.shape[1]:
          raise errors.UserError(
            f'{path} line {line} has {len(cells)} features, and others have '
            f'{features.shape[1]}; give as many for each node'
          )
        node = number(name)
        if node is None:
          unknown += 1
          continue
        try:
          features[node], has_row[node] = cells, True
          if not np.isfinite(features[node]).all():
            raise ValueError('not all are finite')
        except ValueError as error:
          raise errors.UserError(
            f'{path} line {line}: {errors.one_line(error)}; give numbers'
          ) from error
      if not has_row.any():
        raise errors.UserError(
          f'{path} has features of {unknown:,} nodes, none of which the graph '
          'has; give lines `node number ...` with the names that edges have'
        )
      counted['features_of_unknown_nodes'] = unknown
      counted['nodes_without_features'] = int((~has_row).sum())
    known['features'] = features
  # Of files that were read now: the digest is another.
  digest = '' if known else graph.digest
  return graph._replace(**known, counted=counted, digest=digest)


# What columns are called in headers: of nodes, and of their labels.
_NODES = {'node', 'id', 'name', 'node_id', 'nodeid', 'vertex', 'key', 'new_id'}
_LABELS = {'label', 'labels', 'class', 'group', 'category', 'community', 'y'}
_LABELS |= {'target', 'ml_target', 'page_type', 'mature'}  # Rozemberczki's
_LISTED = re.compile(r'\d+([,;]\d+)+')  # several labels, in one cell


def _rows_of(path, graph):
  """The array of an .npy file."""
  if graph.names is not None:
    first = ', '.join(graph.names[:3])
    _LOG.info('%s: rows are read as of the nodes %s, ..', path, first)
  try:
    return np.load(pathlib.Path(path).expanduser(), mmap_mode='r')
  except (OSError, ValueError, EOFError) as error:
    raise errors.UserError(
      f'cannot read {path}: {errors.one_line(error)}; give an array by '
      'numpy.save'
    ) from error


def numbers(graph: graph_lib.Graph) -> Callable[[str], int | None]:
  """A function from the name of a node to its number."""
  if graph.names is None:

    def number(name):
      is_node = name.isdecimal() and int(name) < graph.num_nodes
      return int(name) if is_node else None

    return number
  return {x: i for i, x in enumerate(graph.names)}.get


def _rank(column):
  """The lower, the more a column looks as if it names nodes as edges do."""
  if column in _NODES:
    return column != 'new_id'
  return 2 if column.endswith('id') else 3


def _labels(path, column, number):
  """Names and labels of nodes."""
  for _, (name, *found) in _lines(
    path, least=2, column=column.lower(), number_of=number
  ):
    yield name, found


def _lines(
  path: str,
  least: int,
  column: str = '',
  number_of: Callable[[str], int | None] | None = None,
) -> Iterator[tuple[int, list[str]]]:
  """Numbers and cells of lines, but for a header and comments.

  With `number_of` nodes these are labels: of columns below a header, the node
  and the `column`, or the one that is called as labels usually are.
  """
  place, *more = formats.find(path, 'file with a line for each node')
  if more:
    raise errors.UserError(
      f'{path} has {1 + len(more)} files; give one, with a line for each node'
    )
  delimiter = line_format.delimiter(place, line_format.head(place, 1, 'a node'))
  number, chosen, is_first = 0, None, True
  for text, *_ in formats.blocks(place):
    for line in bytes(text).splitlines():
      number += 1
      line = line.decode('utf-8-sig', 'replace')
      if not line.strip() or line_format.is_comment(line):
        continue
      cells = line_format.cells(line, delimiter)
      if is_first:
        is_first = False
        chosen = _header(
          path, cells, column, number_of=number_of, is_spaces=delimiter == ' '
        )
        if chosen is not None:
          continue
      if chosen:
        cells = [cells[i] for i in chosen if i < len(cells)]
      if number_of and cells[1:] == [''] and cells[0]:
        continue  # a node that has none
      cells = [x for x in cells if x]
      if len(cells) < least:
        raise errors.UserError(
          f'{path} line {number} has {len(cells)} field(s); give a node and '
          'what is known of it'
        )
      yield number, cells


def _header(path, cells, column, number_of, is_spaces):
  """Places of the node and its label, () = all; None if this is no header."""
  lowered = [x.lower() for x in cells]
  called = {column} if column else _LABELS if number_of else ()
  places = [i for i, x in enumerate(lowered) if x in called]
  is_header = bool(column) or lowered[0] in _NODES
  is_header |= bool(places) and bool({*_NODES, ''} & {*lowered})
  if number_of and len(cells) > 2 and not is_spaces:
    # Nor is it a line of a node with several labels.
    is_text = not any(map(line_format.is_number, cells))
    is_header |= is_text and number_of(cells[0]) is None
  if not is_header:
    return None
  if not called or not (column or len(cells) > 2 or places == [0]):
    return ()
  if len(places) != 1:
    raise errors.UserError(
      f'{path} has the columns {", ".join(cells)[:80]}; say which one has the '
      'labels by --config.data.label_column'
    )
  others = [i for i in range(len(cells)) if i not in places]
  others.sort(key=lambda i: _rank(lowered[i]))
  return *others[:1], *places


def splits_of(
  found: Mapping[str, np.ndarray], num_nodes: int
) -> dict[str, Any]:
  """The `splits` that arrays have as masks or numbers, of many the first.

  Several masks are rows or, as those of PyTorch Geometric, columns. Raises a
  `ValueError` for masks of another number of nodes.
  """
  splits = {}
  for name, keys_ in (
    ('train', ('train_mask', 'train_masks', 'idx_train')),
    ('valid', ('val_mask', 'val_masks', 'idx_val')),
    ('test', ('test_mask', 'test_masks', 'idx_test')),
  ):
    for key in keys_:
      if key in found:
        given = np.atleast_1d(np.squeeze(found[key]))
        is_mask = given.dtype == bool or 'mask' in key
        if given.ndim == 2:
          is_turned = is_mask and num_nodes == len(given) != given.shape[1]
          given = given[:, 0] if is_turned else given[0]
        if is_mask and given.shape != (num_nodes,):
          raise ValueError(
            f'{key} is of {len(given):,} nodes, and there are {num_nodes:,}'
          )
        splits[name] = np.flatnonzero(given) if is_mask else given
  if not splits:
    return {}
  return {'splits': {k: x.astype(np.int64) for k, x in splits.items()}}


def classes(
  given: Any,
  path: pathlib.Path | str,
  num_nodes: int,
  names: Sequence[str] | None = None,
) -> labels_lib.Labels:
  """Read labels from an array with a label, or a row, for each node.

  A row has a number above 0 for each label of the node. Labels below 0 and NaN
  are unknown. With `names` labels are places in them, if there are as many.
  """
  from scipy import sparse

  is_matrix = given.ndim == 2 and min(given.shape) > 1
  if not is_matrix:
    given = given.toarray() if sparse.issparse(given) else given
    given = np.asarray(given).reshape(-1)
  if given.shape[0] != num_nodes:
    raise errors.UserError(
      f'{path} has labels of {given.shape[0]:,} nodes, and a graph of '
      f'{num_nodes:,}; give as many'
    )
  if is_matrix and given.dtype.kind not in 'biuf':
    raise errors.UserError(
      f'{path} has a matrix of labels that are no numbers; give numbers'
    )
  if is_matrix:
    rows, columns = (sparse.csr_matrix(given) > 0).nonzero()
    labels: list[list[int]] = [[] for _ in range(num_nodes)]
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
      labels[row].append(column)
  else:
    if given.dtype.kind == 'f':
      given = np.where(np.isfinite(given), given, -1)
      if (given == np.round(given)).all():
        given = given.astype(np.int64)
    is_text = given.dtype.kind in 'USO'
    labels = [[x] if is_text or x >= 0 else [] for x in given.tolist()]
  found = labels_lib.Labels.of([[*map(str, x)] for x in labels])
  indices = found.names
  if names and all(x.isdecimal() and int(x) < len(names) for x in indices):
    found = found._replace(names=[names[int(x)] for x in indices])
  return found
