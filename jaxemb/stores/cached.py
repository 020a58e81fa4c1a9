"""Tables of which the device has some rows, and how rows come and go.

Steps look up cache rows (`stores.cache`) in place of ids: rows of a smaller
table, which may be any that one device has whole. Its codec, optimizer and
order of updates are those of a table that has all rows, up to the random bits
of stochastic rounding. Its last row is never used: XLA may compile a scatter
that drops an update into one that writes the last row back as it was, which
would undo what another thread writes there meanwhile.

The other rows are in stores, whose records (`stores.local`) are what the device
has of a row, byte for byte. Rows that come to the cache are read while earlier
steps run, and evicted ones are written when these have ended. Where the
device's memory is that of the process, rows are copied once, where they lie;
elsewhere by programs, of which there is one for each power of two.
"""

import collections
import ctypes
import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import sampling
from jaxemb.storage import export
from jaxemb.stores import local as stores
from jaxemb.tables import codecs
from jaxemb.tables import spec as spec_lib

# Moved at once; for each power of two from here on a program is compiled.
_LEAST_ROWS = 256
_NUMBERS_AT_ONCE = 1 << 20  # drawn: there are several copies on the way

Tables = Mapping[str, Any]  # states of tables by name
# Name of a table -> cache rows that have rows of it, and their ids
Held = Callable[[str], tuple[np.ndarray, np.ndarray]]


def are_in_memory() -> bool:
  """Whether the device's memory is that of the process."""
  return jax.default_backend() == 'cpu'


def _padded(x, value=0):
  """Returns an array of as many rows as a program is compiled for."""
  size = max(_LEAST_ROWS, 1 << (len(x) - 1).bit_length())
  widths = [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1)
  return np.pad(x, widths, constant_values=value)


def _view(array):
  buffer = (ctypes.c_uint8 * array.nbytes).from_address(
    array.unsafe_buffer_pointer()
  )
  return np.frombuffer(buffer, np.uint8).reshape(len(array), -1)


@functools.partial(jax.jit, donate_argnums=0)
def _put(arrays, cache_rows, new):
  """Writes rows; those beyond the last are dropped."""
  return [
    x.at[cache_rows].set(y, mode='drop')
    for x, y in zip(arrays, new, strict=True)
  ]


@jax.jit
def _get(arrays, cache_rows):
  return [x.at[cache_rows].get(mode='clip') for x in arrays]


@dataclasses.dataclass(frozen=True, eq=False)
class Cached(spec_lib.Table):
  """Looks up cache rows; from `num_rows` on they are padding."""

  spec: spec_lib.TableSpec  # of all rows
  cache: spec_lib.Table  # of as many rows as the device has, and one more

  @property
  def num_rows(self) -> int:
    """Rows of the smaller table."""
    return self.cache.spec.vocab

  @property
  def optimizer(self):
    return self.cache.optimizer

  @property
  def metrics(self):
    return self.cache.metrics

  @property
  def partition(self):
    return self.cache.partition

  def init(self, key):
    """Returns a cache without rows."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.form)

  def lookup(self, state, ids):
    return self.cache.lookup(state, ids)

  def update(self, state, ids, row_grads, rows, step):
    return self.cache.update(state, ids, row_grads, rows=rows, step=step)

  # Other rows are in stores: no program sees all of a table.

  def positions(self, ids):
    raise NotImplementedError

  def read_range(self, state, start, num):
    raise NotImplementedError

  def write_range(self, state, start, rows, encoding, key, opt_state):
    raise NotImplementedError

  @functools.cached_property
  def form(self) -> spec_lib.TableState:
    """The shapes of a state."""
    return jax.eval_shape(self.cache.init, sampling.key_shape())

  def arrays(self, state: spec_lib.TableState) -> list[jax.Array]:
    """[num_rows, ...], all that belongs to rows: vectors, optimizer state."""
    names = sorted(self.state_names)
    opt_state = [getattr(state.opt_state, k) for k in names]
    return jax.tree.leaves(state.vectors) + opt_state

  @functools.cached_property
  def record(self) -> stores.Record:
    """What the device has of a row, byte for byte."""
    arrays = self.arrays(self.form)
    dtypes = tuple(np.dtype(x.dtype) for x in arrays)
    return stores.Record(dtypes, tuple(tuple(x.shape[1:]) for x in arrays))

  def views(self, state: spec_lib.TableState) -> list[np.ndarray]:
    """[num_rows, bytes] uint8, `arrays` of a CPU in memory, to be changed.

    Nothing that was computed with them is under way, and nobody else has them.
    """
    return list(map(_view, self.arrays(state)))

  def get(
    self, state: spec_lib.TableState, cache_rows: np.ndarray
  ) -> list[jax.Array]:
    """Returns `arrays` of cache rows [n], n > 0, then padding."""
    return _get(self.arrays(state), _padded(cache_rows.astype(np.int32)))

  def take(
    self, state: spec_lib.TableState, cache_rows: np.ndarray
  ) -> list[np.ndarray]:
    """Returns `arrays` of cache rows [n], when their steps have ended."""
    if not are_in_memory():
      arrays = self.get(state, cache_rows)
      return [np.asarray(x)[: len(cache_rows)] for x in arrays]
    pairs = zip(self.views(state), self.arrays(state), strict=True)
    return [
      x[cache_rows].view(y.dtype).reshape(len(cache_rows), *y.shape[1:])
      for x, y in pairs
    ]

  def put(
    self,
    state: spec_lib.TableState,
    cache_rows: np.ndarray,
    arrays: Sequence[np.ndarray],
  ) -> spec_lib.TableState:
    """Writes `arrays` into cache rows [n]; the state is donated."""
    if not len(cache_rows):
      return state
    indices = _padded(cache_rows.astype(np.int32), self.num_rows)
    arrays = _put(self.arrays(state), indices, list(map(_padded, arrays)))
    vectors, opt_state = self._split(state, arrays)
    state = state._replace(vectors=vectors)
    if not opt_state:
      return state
    return state._replace(opt_state=state.opt_state._replace(**opt_state))

  def row_block(self, arrays: list[Any]) -> spec_lib.RowBlock:
    """Returns the rows of `arrays` [n, ...]."""
    stored, opt_state = self._split(self.form, arrays)
    encoded = spec_lib.from_stored(stored, self.spec.dtype)
    return spec_lib.RowBlock(encoded, opt_state)

  def arrays_of(self, block: spec_lib.RowBlock) -> list[np.ndarray]:
    """Returns the `arrays` [n, ...] of rows."""
    opt_state = [block.opt_state[k] for k in sorted(self.state_names)]
    return spec_lib.to_stored(block.encoded) + opt_state

  # As a layout of records.

  @property
  def dtype(self) -> str:
    """Of vectors in records."""
    return self.spec.dtype

  @property
  def num_bytes(self) -> int:
    """Of a record."""
    return self.record.num_bytes

  def encode(self, block: spec_lib.RowBlock) -> np.ndarray:
    """[n, num_bytes] uint8, the records of rows."""
    return self.record.pack(self.arrays_of(block))

  def decode(self, records: np.ndarray) -> spec_lib.RowBlock:
    """Returns the rows of records."""
    return self.row_block(self.record.unpack(records))

  def _split(self, state, arrays):
    """Splits `arrays` into vectors and optimizer state by name."""
    tree, names = jax.tree.structure(state.vectors), sorted(self.state_names)
    vectors = jax.tree.unflatten(tree, arrays[: tree.num_leaves])
    return vectors, dict(zip(names, arrays[tree.num_leaves :], strict=True))


def _first_rows(
  spec: spec_lib.TableSpec, key: jax.Array, dtype: str
) -> Callable[[np.ndarray], export.Encoded]:
  """Returns what makes the rows of ids [n] in a new table."""
  bits = np.asarray(jax.random.key_data(key)).reshape(-1)[:2]
  init, columns = jax.jit(codecs.Codec(spec).init), np.arange(spec.dim)

  def make(ids):
    if dtype == 'int8':
      stored = jax.device_get(init(key, _padded(ids.astype(np.int32))))
      stored = jax.tree.map(lambda x: x[: len(ids)], stored)
      return spec_lib.from_stored(stored, dtype)
    # Without JAX, whose programs would wait for the steps.
    rows = np.zeros((len(ids), spec.dim), np.float32)
    size = max(1, _NUMBERS_AT_ONCE // spec.dim)
    for i in range(0, len(ids) if spec.init_scale else 0, size):
      rows[i : i + size] = sampling.uniform_rows(
        bits, ids=ids[i : i + size], columns=columns, scale=spec.init_scale
      )
    return spec_lib.encode_rows(rows, dtype)

  if spec.init_scale:
    return make
  zeros = make(np.zeros(1, np.int32))
  return lambda ids: jax.tree.map(lambda x: np.repeat(x, len(ids), 0), zeros)


class Counts:
  """Numbers that threads add to."""

  def __init__(self):
    """Starts without any."""
    self._numbers: collections.Counter = collections.Counter()
    self._lock = threading.Lock()

  def add(self, **numbers: float) -> None:
    """Adds numbers by name."""
    with self._lock:
      self._numbers.update(numbers)

  def take(self) -> dict[str, float]:
    """Returns the sums since the last call."""
    with self._lock:
      numbers, self._numbers = self._numbers, collections.Counter()
    return dict(numbers)


class Rows:
  """Where rows are that are not in the cache, and how they come and go."""

  COUNTS: tuple[str, ...] = ()  # names of what it counts
  # Whether `fetch` has rows go and come that may do so beside steps.
  is_beside = False

  @property
  def copy_bytes(self) -> int:
    """Of copies in this process of rows that others change, too."""
    return 0

  def __init__(
    self,
    tables: Mapping[str, Cached],
    make_store: Callable[..., stores.Store],
    layouts: Mapping[str, Any],
  ):
    """`make_store` makes the store of a table.

    Its arguments are its name, number of rows, bytes of a record and the
    function that makes the first records of ids. `layouts` say what a record
    is, as `Cached` does.
    """
    self.tables, self._make_store = tables, make_store
    self.layouts = layouts
    self.stores: dict[str, Any] = {}  # by table, once there is a state
    self.counts = Counts()

  def init(self, keys: Mapping[str, jax.Array]) -> None:
    """Begins with new tables, each of its key."""
    for name, key in keys.items():
      if name in self.stores:
        self.stores[name].close()
      self.stores[name] = self._new_store(name, key)

  def _new_store(self, name, key):
    table, layout = self.tables[name], self.layouts[name]
    spec, empty = table.spec, table.optimizer.init(1, table.spec.dim)
    opt_state = {k: np.asarray(getattr(empty, k)) for k in table.state_names}
    first_rows = _first_rows(spec, key, layout.dtype)

    def make(ids):
      new = {k: np.repeat(x, len(ids), 0) for k, x in opt_state.items()}
      return layout.encode(spec_lib.RowBlock(first_rows(ids), new))

    return self._make_store(name, spec.vocab, layout.num_bytes, make)

  def stretch_limit(self, num_steps: int) -> float:
    """Returns the most steps of a stretch that begins after so many."""
    return math.inf

  def fetch(self, stretch: Any) -> Any:
    """Reads rows of a `fetching.Stretch`, while earlier steps change others."""
    raise NotImplementedError

  def swap(
    self, tables: Tables, stretch: Any, fetched: Any
  ) -> tuple[Tables, int, float]:
    """Writes evicted rows and puts fetched ones into the states of tables.

    Returns the states, the steps of the dispatch over which the learning rate
    falls, and the examples of the stretch, of all who share it.
    """
    raise NotImplementedError

  def flush(self, tables: Tables, held: Held) -> Tables:
    """Writes what the device has; returns the states of the tables."""
    raise NotImplementedError

  def export_rows(self, name: str, ids: np.ndarray) -> spec_lib.RowBlock:
    """Rows of ids [n] of a table, none of which is changed on the device."""
    store, layout = self.stores[name], self.layouts[name]
    block = layout.decode(store.read(ids[:1]))
    arrays, tree = jax.tree.flatten(block)
    arrays = [np.empty((len(ids), *x.shape[1:]), x.dtype) for x in arrays]
    size = max(1, spec_lib.NUMBERS_AT_ONCE // self.tables[name].spec.dim)
    for i in range(0, len(ids), size):  # or there would be several copies
      block = layout.decode(store.read(ids[i : i + size]))
      for whole, some in zip(arrays, jax.tree.leaves(block), strict=True):
        whole[i : i + size] = some
    return jax.tree.unflatten(tree, arrays)

  def import_rows(
    self,
    name: str,
    ids: np.ndarray,
    rows: np.ndarray,
    opt_state: Mapping[str, np.ndarray],
  ) -> None:
    """Replaces rows [n, dim] float32 of ids [n] that no device has."""
    store, layout = self.stores[name], self.layouts[name]
    old = layout.decode(store.read(ids)).opt_state
    new = {k: np.asarray(opt_state.get(k, x), x.dtype) for k, x in old.items()}
    encoded = spec_lib.encode_rows(rows, layout.dtype)
    store.write(ids, layout.encode(spec_lib.RowBlock(encoded, new)))

  def close(self) -> None:
    """Ends what it has begun, and the stores."""
    for store in self.stores.values():
      store.close()


class OwnedRows(Rows):
  """Rows in stores that one process has for itself."""

  COUNTS = 'rows_fetched', 'rows_stored', 'bytes_fetched', 'bytes_stored'

  def __init__(self, trainable: Any, make_store: Callable[..., stores.Store]):
    super().__init__(trainable.tables, make_store, trainable.tables)
    self._copying = futures.ThreadPoolExecutor(len(self.tables), 'copy')
    # Tables, ids and rows that have left the device, to be written.
    self._evicted: list[tuple[str, np.ndarray, list[jax.Array]]] = []

  def init(self, keys: Mapping[str, jax.Array]) -> None:
    """See the base."""
    self._evicted.clear()
    super().init(keys)
    self.is_beside = are_in_memory() and all(
      getattr(x, 'swap', None) for x in self.stores.values()
    )

  def fetch(self, stretch: Any) -> dict[str, list[np.ndarray]]:
    """See the base; by table, the arrays of rows that come."""
    self._write_evicted()
    arrays = {}
    for moves in stretch.moves:
      for name, (_, new) in moves.into.items():
        record = self.tables[name].record
        if not self.is_beside:
          arrays[name] = record.unpack(self.stores[name].read(new))
        num_new = len(new) + len(moves.into_beside[name][1])
        num_out = len(moves.out[name][0]) + len(moves.out_beside[name][0])
        self.counts.add(
          rows_fetched=num_new,
          rows_stored=num_out,
          bytes_fetched=record.num_bytes * num_new,
          bytes_stored=record.num_bytes * num_out,
        )
    if self.is_beside:
      stretch.wait()
      for moves in stretch.moves:
        for name, out in moves.out_beside.items():
          into = moves.into_beside[name]
          self.stores[name].swap(stretch.views[name], out, into)
    return arrays

  def swap(
    self, tables: Tables, stretch: Any, fetched: Any
  ) -> tuple[Tables, int, float]:
    """See the base."""
    if self.is_beside:
      self._swap_in_place(tables, stretch)
      return tables, stretch.block.count, stretch.examples
    tables = dict(tables)
    for moves in stretch.moves:
      for name, (cache_rows, ids) in moves.out.items():
        table = self.tables[name]
        if len(cache_rows):
          arrays = table.get(tables[name], cache_rows)
          self._evicted.append((name, ids, arrays))
        cache_rows, _ = moves.into[name]
        tables[name] = table.put(tables[name], cache_rows, fetched[name])
    return tables, stretch.block.count, stretch.examples

  def _write_evicted(self):
    for name, ids, arrays in self._evicted:
      self._write(name, ids, [np.asarray(x)[: len(ids)] for x in arrays])
    self._evicted.clear()

  def _write(self, name, ids, arrays):
    self.stores[name].write(ids, self.tables[name].record.pack(arrays))

  def _swap_in_place(self, tables, stretch):
    start, swaps = time.monotonic(), []
    for moves in stretch.moves:
      for name, out in moves.out.items():
        into, swap = moves.into[name], self.stores[name].swap
        if len(out[0]) or len(into[0]):
          views = self.tables[name].views(tables[name])
          swaps.append(self._copying.submit(swap, views, out, into))
    for swap in swaps:
      swap.result()
    secs = time.monotonic() - start
    self.counts.add(fetch_secs=secs, fetch_waited_secs=secs)

  def flush(self, tables: Tables, held: Held) -> Tables:
    """See the base."""
    self._write_evicted()
    for name, table in self.tables.items():
      cache_rows, ids = held(name)
      size = max(1, spec_lib.NUMBERS_AT_ONCE // table.spec.dim)
      for i in range(0, len(cache_rows), size):
        arrays = table.take(tables[name], cache_rows[i : i + size])
        self._write(name, ids[i : i + size], arrays)
    return tables

  def close(self) -> None:
    """See the base."""
    self._copying.shutdown()
    super().close()
