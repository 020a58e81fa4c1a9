"""A graph as sorted lists of neighbors, in memory or mapped from a folder.

Lists of all nodes lie behind each other (CSR): those of node i are
`neighbors[offsets[i] : offsets[i + 1]]`. An undirected edge is in the lists of
both its nodes. Self loops are left out, unless edges are directed and have
relations; edges that are listed several times are one edge, whose weight is
their sum.

They are made range by range of nodes, from edges that lie on disk: memory is
bounded, but for some numbers for each node. A folder holds an .npy file for
each array, and

  manifest.json   the digest, counters and names that are short
"""

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.graphs import features as features_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.storage import checksums, damage, export, formats

_RANGE_EDGES = 1 << 25  # sorted at once, where edges lie on disk
_COLUMNS = 'neighbors', 'weights', 'relations'  # in order of lists
FORMAT = formats.Format(
  'a graph', number=1, remedy='remove it, and save the graph again'
)


class Names(Sequence):
  """Strings in one array of bytes, which may be mapped from a file."""

  def __init__(self, offsets: np.ndarray, data: np.ndarray):
    """String i is uint8 `data[offsets[i] : offsets[i + 1]]` in UTF-8."""
    self.offsets, self.data = offsets, data

  @classmethod
  def of(cls, strings: Iterable[str]) -> 'Names':
    """Encode strings."""
    coded = [x.encode() for x in strings]
    offsets = np.cumsum([0, *map(len, coded)], dtype=np.int64)
    return cls(offsets, np.frombuffer(b''.join(coded), np.uint8))

  def __len__(self) -> int:
    return len(self.offsets) - 1

  def __getitem__(self, index):
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(len(self)))]
    if not -len(self) <= index < len(self):
      raise IndexError(index)
    start, stop = self.offsets[index % len(self) :][:2]
    return self.data[start:stop].tobytes().decode(errors='replace')


class Chosen(Sequence):
  """Names of some nodes, which are made when they are asked for."""

  def __init__(self, names: Sequence[str] | None, nodes: np.ndarray):
    """Of int nodes [n]; without names, nodes are called by their numbers."""
    self._names, self._nodes = names, nodes

  def __len__(self) -> int:
    return len(self._nodes)

  def __getitem__(self, index):
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(len(self)))]
    node = self._nodes[index]
    return str(node) if self._names is None else self._names[node]


class Graph(NamedTuple):
  """Nodes, edges, and what is known of nodes."""

  offsets: np.ndarray  # [nodes + 1] int64, into `neighbors`
  neighbors: np.ndarray  # [edges] int32, rising within a node
  weights: np.ndarray | None = None  # [edges] float32; None = all the same
  relations: np.ndarray | None = None  # [edges] int32
  names: Sequence[str] | None = None  # of nodes; None = 0, 1, ...
  features: Any = None  # [nodes, d] numbers, an array or a CSR matrix
  labels: labels_lib.Labels | None = None
  directed: bool = False  # edges are in the list of the first node alone
  relation_names: Sequence[str] | None = None
  # Nodes [n] int64 of 'train', 'valid' and 'test', where the data have them.
  splits: Mapping[str, np.ndarray] = MappingProxyType({})
  counted: Mapping[str, int] = MappingProxyType({})  # what was left out
  digest: str = ''  # of a graph in a folder
  inputs: Sequence[Any] = ()  # `io.roles.Input`s, of files read now

  @property
  def num_nodes(self) -> int:
    """With isolated ones."""
    return len(self.offsets) - 1

  @property
  def num_edges(self) -> int:
    """An undirected edge counts once."""
    return len(self.neighbors) // (1 if self.directed else 2)

  def keys(self) -> Sequence[str]:
    """The names of all nodes."""
    if self.names is None:
      return [str(i) for i in range(self.num_nodes)]
    return self.names

  def with_nodes(self, names: Sequence[str]) -> 'Graph':
    """The graph with isolated nodes behind its own, without features."""
    num = len(names)
    offsets = np.pad(self.offsets, (0, num), 'edge')
    labels = self.labels and self.labels.with_nodes(num)
    return self._replace(
      offsets=offsets,
      names=[*self.keys(), *names],
      labels=labels,
      features=None,
      digest='',
    )


class Edges(NamedTuple):
  """Some edges; those that have weights or relations all have them."""

  sources: np.ndarray  # [n] int
  targets: np.ndarray  # [n] int
  weights: np.ndarray | None = None  # [n] float
  relations: np.ndarray | None = None  # [n] int


def from_edges(
  sources: np.ndarray,
  targets: np.ndarray,
  num_nodes: int | None = None,
  weights: np.ndarray | None = None,
  relations: np.ndarray | None = None,
  directed: bool = False,
  **known: Any,
) -> Graph:
  """The graph of int edges [n], with what is `known` of its nodes.

  Without `num_nodes` the largest number is the last node. Raises a `UserError`
  for numbers of nodes that do not exist, for weights that are not above 0, and
  without any edge.
  """
  sources, targets = np.asarray(sources), np.asarray(targets)
  if num_nodes is None:
    num_nodes = 1 + int(max(sources.max(initial=0), targets.max(initial=0)))
  if weights is not None:
    weights = np.asarray(weights, np.float32)
    is_wrong = ~(np.isfinite(weights) & (weights > 0))
    if is_wrong.any():
      raise errors.UserError(
        f'an edge has the weight {weights[is_wrong][0]}; give weights above 0'
      )
  edges = Edges(sources, targets, weights=weights, relations=relations)
  counted: dict[str, int] = {}
  ((degrees, *columns),) = _ranges(
    lambda: [edges],
    max(1, num_nodes),
    directed,
    counted=counted,
    range_edges=2 * len(sources),
  )
  graph = _graph(degrees, columns, directed, counted=counted)
  return graph._replace(**known)


def build(
  chunks: Callable[[], Iterable[Edges]],
  num_nodes: int,
  directed: bool,
  folder: pathlib.Path,
) -> Graph:
  """Return the graph of chunks of edges, whose arrays are files of a folder.

  `chunks` is called several times, and gives the same ones. What is known of
  nodes is added by `save`. Raises a `UserError` as `from_edges` does.
  """
  folder.mkdir(parents=True, exist_ok=True)
  files, sizes = {}, []
  counted: dict[str, int] = {}
  for degrees, *arrays in _ranges(
    chunks, num_nodes, directed, counted=counted, range_edges=_RANGE_EDGES
  ):
    sizes.append(degrees)
    for name, x in zip(_COLUMNS, arrays, strict=True):
      if x is not None and name not in files:
        files[name] = (folder / f'{name}.npy').open('wb'), x.dtype
        export.put_header(*files[name], (0,))
      if x is not None:
        files[name][0].write(x)
  degrees = np.concatenate(sizes)
  columns = dict.fromkeys(_COLUMNS)
  for name, (file, kind) in files.items():
    file.seek(0)  # now the length is known
    export.put_header(file, kind, (int(degrees.sum()),))
    file.close()
    columns[name] = np.load(folder / f'{name}.npy', mmap_mode='r')
  return _graph(degrees, columns.values(), directed, counted=counted)


def _graph(degrees, columns, directed, counted):
  """The graph of degrees [nodes], and neighbors, weights and relations."""
  neighbors, weights, relations = columns
  if not len(neighbors):
    raise errors.UserError(
      'a graph without edges has nothing to learn from; give edges between '
      'different nodes'
    )
  if weights is not None and weights.min() == weights.max():
    weights = None
  offsets = np.append(0, np.cumsum(degrees))
  return Graph(
    offsets,
    neighbors,
    weights=weights,
    relations=relations,
    directed=directed,
    counted=counted,
  )


# Edges are placed in the lists of their nodes, which are then sorted. The
# edges are gone through once for each range of nodes.


def _ranges(
  chunks: Callable[[], Iterable[Edges]],
  num_nodes: int,
  directed: bool,
  counted: dict[str, int],
  range_edges: int,
) -> Iterator[tuple[np.ndarray, ...]]:
  """By range of nodes: degrees, neighbors, weights or None, relations or None.

  A range has at most `range_edges`, unless it is one node. Fills `counted` in
  the end.
  """
  degrees = np.zeros(num_nodes, np.int64)
  loops = num_edges = 0
  for x in chunks():
    for ends in x.sources, x.targets:
      if len(ends) and not 0 <= ends.min() <= ends.max() < num_nodes:
        wrong = ends.min() if ends.min() < 0 else ends.max()
        raise errors.UserError(
          f'an edge names node {wrong}, and there are {num_nodes:,} from 0 on; '
          'give the right number of nodes, or remove the edge'
        )
    num_edges += len(x.sources)
    keeps_loops = _keeps_loops(x, directed)
    loops += _count(x.sources, x.targets, degrees, directed, keeps_loops)
  sums = np.cumsum(degrees)
  first = listed = 0
  has_edges = np.zeros(num_nodes, bool)
  while first < num_nodes:
    before = sums[first - 1] if first else 0
    stop = np.searchsorted(sums, before + range_edges, 'right')
    stop = min(max(int(stop), first + 1), num_nodes)
    sizes, neighbors, *columns = _lists(
      chunks, degrees[first:stop], first, directed=directed
    )
    has_edges[first:stop] |= sizes > 0
    if directed:
      has_edges[neighbors] = True
    listed += len(neighbors)
    yield sizes, neighbors, *columns
    first = stop
  counted |= {
    'duplicate_edges': num_edges - loops - listed // (1 if directed else 2),
    'self_loops': loops,
    'isolated_nodes': num_nodes - int(has_edges.sum()),
  }


def _lists(chunks, degrees, first, directed):
  """The same arrays, of nodes `first` and those after it with `degrees`."""
  starts = np.append(0, np.cumsum(degrees))
  stop, ends, num = first + len(degrees), starts[:-1].copy(), starts[-1]
  no_weights, no_relations = np.zeros(0, np.float32), np.zeros(0, np.int32)
  weights, relations = no_weights, no_relations
  neighbors = np.empty(num, np.int32)
  for x in chunks():
    if x.weights is not None and not len(weights):
      weights = np.empty(num, np.float32)
    if x.relations is not None and not len(relations):
      relations = np.empty(num, np.int32)
    _place(
      x.sources,
      x.targets,
      no_weights if x.weights is None else np.asarray(x.weights),
      no_relations if x.relations is None else np.asarray(x.relations),
      first,
      stop,
      directed,
      _keeps_loops(x, directed),
      ends,
      neighbors,
      weights,
      relations,
    )
  num = _merge(starts, neighbors, weights, relations)
  rest = (x[:num] if len(x) else None for x in (weights, relations))
  return np.diff(starts), neighbors[:num], *rest


def _keeps_loops(edges, directed):
  """Whether self loops count: x may be its own relative, not its neighbor."""
  return directed and edges.relations is not None


@numba.njit(nogil=True, cache=True)
def _count(sources, targets, degrees, directed, keeps_loops):
  """Adds to degrees; returns how many self loops were left out."""
  loops = 0
  for i in range(len(sources)):
    if sources[i] == targets[i] and not keeps_loops:
      loops += 1
      continue
    degrees[sources[i]] += 1
    if not directed:
      degrees[targets[i]] += 1
  return loops


@numba.njit(nogil=True, cache=True)
def _place(
  sources, targets, weights, relations, first, stop, directed, keeps_loops,
  ends, out, out_weights, out_relations,
):  # fmt: skip
  """Appends to the lists of nodes first..stop-1, whose `ends` move on."""
  for i in range(len(sources)):
    a, b = np.int64(sources[i]), np.int64(targets[i])
    if a == b and not keeps_loops:
      continue
    for _ in range(1 if directed else 2):
      if first <= a < stop:
        position = ends[a - first]
        ends[a - first] += 1
        out[position] = b
        if len(weights):
          out_weights[position] = weights[i]
        if len(relations):
          out_relations[position] = relations[i]
      a, b = b, a


@numba.njit(nogil=True, cache=True)
def _merge(starts, neighbors, weights, relations):
  """Sorts each list and sums edges of the same nodes and relation, in place.

  `starts` become those of what is left; returns how many are.
  """
  num = 0
  first = starts[0]
  for node in range(len(starts) - 1):
    stop = starts[node + 1]
    keys = neighbors[first:stop].astype(np.int64) << 32
    if len(relations):
      keys |= relations[first:stop]
    starts[node] = num
    if len(weights):
      order = np.argsort(keys, kind='mergesort')
      unsorted = weights[first:stop].copy()
    else:
      keys.sort()
      order = keys
      unsorted = weights
    last = np.int64(-1)
    for i in range(len(keys)):
      key = keys[order[i]] if len(weights) else keys[i]
      if key == last:
        if len(weights):
          weights[num - 1] += unsorted[order[i]]
        continue
      neighbors[num] = key >> 32
      if len(relations):
        relations[num] = key & 0xFFFFFFFF
      if len(weights):
        weights[num] = unsorted[order[i]]
      last = key
      num += 1
    first = stop
  starts[-1] = num
  return num


def fingerprint(graph: Graph) -> str:
  """SHA-256, in hexadecimal, of all that training depends on."""
  if graph.digest:
    return graph.digest
  digest = hashlib.sha256(b'directed' if graph.directed else b'')
  for name, x in _arrays(graph).items():
    digest.update(name.encode())
    digest.update(np.ascontiguousarray(x))
  return digest.hexdigest()


def _arrays(graph: Graph) -> dict[str, np.ndarray]:
  """By the name of its file, each array of a graph."""
  arrays, names = {k: getattr(graph, k) for k in _PLAIN}, graph.names
  if graph.labels is not None:
    arrays['labels'] = graph.labels.classes
    arrays['label_offsets'] = graph.labels.offsets
  if names is not None:
    names = names if isinstance(names, Names) else Names.of(names)
    arrays |= {'names': names.data, 'name_offsets': names.offsets}
  if features_lib.is_sparse(graph.features):
    del arrays['features']
    arrays |= zip(_SPARSE, _parts(graph.features), strict=True)
  arrays |= {f'split_{k}': x for k, x in graph.splits.items()}
  return {k: x for k, x in arrays.items() if x is not None}


def _parts(matrix):
  shape = np.array(matrix.shape, np.int64)
  return matrix.data, matrix.indices, matrix.indptr, shape


_PLAIN = 'offsets', 'neighbors', 'weights', 'relations', 'features'
# Of a sparse matrix of features.
_SPARSE = tuple(
  f'features_{x}' for x in ('values', 'columns', 'offsets', 'shape')
)


def save(graph: Graph, folder: pathlib.Path | str) -> Graph:
  """Writes a graph into a folder; returns it as it is mapped from there."""
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'manifest.json').unlink(missing_ok=True)
  for name, x in _arrays(graph).items():
    path = folder / f'{name}.npy'
    file = x.filename if isinstance(x, np.memmap) else None
    if file is None or pathlib.Path(file) != path:
      np.save(path, x)
  label_names = graph.labels and graph.labels.names
  manifest = FORMAT.stamp() | {
    'directed': graph.directed,
    'digest': fingerprint(graph),
    'arrays': sorted(_arrays(graph)),
    'splits': sorted(graph.splits),
    'counted': dict(graph.counted),
    'label_names': label_names and list(label_names),
    'relation_names': graph.relation_names and list(graph.relation_names),
  }
  checksums.seal(folder, manifest)
  return load(folder)


def is_saved(folder: pathlib.Path | str) -> bool:
  """Whether `load` finds a graph there."""
  try:
    text = (pathlib.Path(folder) / 'manifest.json').read_text('utf-8')
    return {'format', 'arrays'} <= json.loads(text).keys()
  except (OSError, AttributeError, *damage.ERRORS):
    return False


def load(folder: pathlib.Path | str) -> Graph:
  """The graph of a folder, mapped into memory.

  Raises a `UserError` if it is damaged.
  """
  folder = pathlib.Path(folder)
  try:
    manifest = checksums.opened(folder)
    FORMAT.check(folder, manifest)
    arrays = {
      k: np.load(folder / f'{k}.npy', mmap_mode='r') for k in manifest['arrays']
    }
    fields = {k: arrays[k] for k in _PLAIN if k in arrays}
    if _SPARSE[0] in arrays:
      from scipy import sparse

      *parts, shape = (arrays[x] for x in _SPARSE)
      fields['features'] = sparse.csr_matrix(tuple(parts), tuple(shape))
    if 'labels' in arrays:
      fields['labels'] = labels_lib.Labels(
        arrays['labels'], arrays.get('label_offsets'), manifest['label_names']
      )
    if 'names' in arrays:
      fields['names'] = Names(arrays['name_offsets'], arrays['names'])
    return Graph(
      **fields,
      splits={k: arrays[f'split_{k}'] for k in manifest['splits']},
      **{
        k: manifest[k]
        for k in ('directed', 'digest', 'counted', 'relation_names')
      },
    )
  except (OSError, TypeError, AttributeError, *damage.ERRORS) as error:
    raise errors.UserError(
      f'{folder} holds no whole graph ({errors.one_line(error)}); remove it, '
      'and it is made again'
    ) from error
