"""Rows that one process has for itself, between its device and its stores.

A record of a store (`stores.local`) is what the device has of a row, byte for
byte. Rows that come to the cache are read while earlier steps run, and evicted
ones are written when these have ended. Where the device's memory is that of the
store, rows are copied once, from one to the other.
"""

import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import jax
import numpy as np

from jaxemb.ops import sampling
from jaxemb.stores import cached, device_rows, fetching
from jaxemb.stores import local as stores
from jaxemb.tables import codecs
from jaxemb.tables import spec as spec_lib

_NUMBERS_AT_ONCE = 1 << 20  # drawn: there are several copies on the way


def key_bits(key: jax.Array) -> np.ndarray:
  """[2] uint32."""
  return np.asarray(jax.random.key_data(key)).reshape(-1)[:2]


def first_rows(
  spec: spec_lib.TableSpec, bits: np.ndarray, ids: np.ndarray
) -> np.ndarray:
  """[n, dim] float32, rows of ids [n] in a new table, of the key's bits.

  Without JAX, whose programs would wait for the steps.
  """
  if not spec.init_scale:
    return np.zeros((len(ids), spec.dim), np.float32)
  columns, rows = np.arange(spec.dim), np.empty((len(ids), spec.dim), '<f4')
  size = max(1, _NUMBERS_AT_ONCE // spec.dim)
  for i in range(0, len(ids), size):
    rows[i : i + size] = sampling.uniform_rows(
      bits, ids=ids[i : i + size], columns=columns, scale=spec.init_scale
    )
  return rows


class OwnedRows:
  """Implements `fetching.Rows`."""

  copy_bytes = 0
  COUNTS = (
    'rows_fetched',
    'rows_stored',
    'bytes_fetched',
    'bytes_stored',
  )

  def __init__(
    self,
    trainable: Any,
    make_store: Callable[..., stores.Store],
  ):
    """`make_store` makes the store of a table.

    Its arguments are its name, number of rows, bytes of a record and the
    function that makes the first records of ids.
    """
    self.tables: Mapping[str, cached.Cached] = trainable.tables
    self._make_store = make_store
    self.stores: dict[str, stores.Store] = {}
    self._copying = futures.ThreadPoolExecutor(len(self.tables), 'copy')
    self.is_beside = False
    state = jax.eval_shape(trainable.init, jax.random.key(0))
    self.records = {
      name: stores.record_of(table.arrays(state.tables[name]))
      for name, table in self.tables.items()
    }

  def init(self, keys: Mapping[str, jax.Array]) -> None:
    """See `fetching.Rows`."""
    for name, key in keys.items():
      self._new_store(name, key)
    self.is_beside = device_rows.are_in_memory() and all(
      getattr(x, 'swap', None) for x in self.stores.values()
    )

  def _new_store(self, name, key):
    if name in self.stores:
      self.stores[name].close()
    table, record = self.tables[name], self.records[name]
    spec, codec = table.spec, codecs.Codec(table.spec)

    @jax.jit
    def first(key, ids):
      opt_state = table.optimizer.init(len(ids), spec.dim)
      opt_state = [getattr(opt_state, k) for k in sorted(table.state_names)]
      return jax.tree.leaves(codec.init(key, ids)), opt_state

    rows, opt_state = jax.device_get(first(key, np.zeros(1, np.int32)))
    bits = key_bits(key)

    def make(ids):
      new = [np.repeat(x, len(ids), 0) for x in rows]
      if spec.init_scale and spec.dtype == 'int8':
        size = device_rows.bucket(len(ids))
        padded = device_rows.padded(ids.astype(np.int32), size)
        new = jax.device_get(first(key, padded))[0]
        new = [x[: len(ids)] for x in new]
      elif spec.init_scale:
        new = spec_lib.encode_rows(first_rows(spec, bits, ids), spec.dtype)
        new = spec_lib.to_stored(new)
      return record.pack(new + [np.repeat(x, len(ids), 0) for x in opt_state])

    self.stores[name] = self._make_store(
      name, spec.vocab, record.num_bytes, make
    )

  # Between stretches.

  def fetch(
    self, needed: fetching.Needed, counts: fetching.Counts
  ) -> dict[str, list[np.ndarray]]:
    """See `fetching.Rows`; by table, the arrays of rows that come."""
    arrays = {}
    for moves in needed.moves:
      for name, (_, new) in moves.into.items():
        if self.is_beside:
          new = np.concatenate([new, moves.into_beside[name][1]])
        else:
          rows = self.stores[name].read(new)
          arrays[name] = self.records[name].unpack(rows)
        num_bytes = self.records[name].num_bytes
        num_out = len(moves.out[name][0]) + len(moves.out_beside[name][0])
        counts.add(
          rows_fetched=len(new),
          rows_stored=num_out,
          bytes_fetched=num_bytes * len(new),
          bytes_stored=num_bytes * num_out,
        )
    if self.is_beside:
      needed.wait()
      for moves in needed.moves:
        for name, out in moves.out_beside.items():
          into = moves.into_beside[name]
          self.stores[name].swap(needed.views[name], out, into)
    return arrays

  def swap(
    self,
    tables: dict[str, Any],
    needed: fetching.Needed,
    fetched: dict[str, list[np.ndarray]],
    counts: fetching.Counts,
    later: Callable[[Callable[[], None]], None],
  ) -> tuple[dict[str, Any], int, float]:
    """See `fetching.Rows`."""
    if self.is_beside:
      self._swap_in_place(tables, needed, counts)
      return tables, needed.count, needed.examples
    out, tables = {}, dict(tables)
    for moves in needed.moves:
      for name, (cache_rows, ids) in moves.out.items():
        table = self.tables[name]
        if len(cache_rows):
          out[name] = ids, device_rows.get(table, tables[name], cache_rows)
        tables[name] = device_rows.put(
          table,
          state=tables[name],
          cache_rows=moves.into[name][0],
          arrays=fetched[name],
        )

    def store():
      arrays = {k: [np.asarray(x) for x in xs] for k, (_, xs) in out.items()}
      start = time.monotonic()
      for name, (ids, _) in out.items():
        records = [x[: len(ids)] for x in arrays[name]]
        self.stores[name].write(ids, self.records[name].pack(records))
      counts.add(fetch_secs=time.monotonic() - start)

    if out:
      later(store)
    return tables, needed.count, needed.examples

  def _swap_in_place(self, tables, needed, counts):
    start, swaps = time.monotonic(), []
    for moves in needed.moves:
      for name, out in moves.out.items():
        if len(out[0]) or len(moves.into[name][0]):
          arrays = self.tables[name].arrays(tables[name])
          views = [device_rows.view(x) for x in arrays]
          swaps.append(
            self._copying.submit(
              self.stores[name].swap, views, out, moves.into[name]
            )
          )
    for swap in swaps:
      swap.result()
    secs = time.monotonic() - start
    counts.add(fetch_secs=secs, fetch_waited_secs=secs)

  # All rows.

  def flush(
    self,
    tables: dict[str, Any],
    held: Callable[[str], tuple[np.ndarray, np.ndarray]],
    counts: fetching.Counts,
  ) -> dict[str, Any]:
    """See `fetching.Rows`."""
    for name, table in self.tables.items():
      cache_rows, ids = held(name)
      size = max(1, spec_lib.NUMBERS_AT_ONCE // table.spec.dim)
      for i in range(0, len(cache_rows), size):
        some = cache_rows[i : i + size]
        rows = device_rows.get(table, tables[name], some)
        records = [np.asarray(x)[: len(some)] for x in rows]
        records = self.records[name].pack(records)
        self.stores[name].write(ids[i : i + size], records)
    return tables

  def export_rows(self, name: str, ids: np.ndarray) -> spec_lib.RowBlock:
    """See `fetching.Rows`."""
    table, record = self.tables[name], self.records[name]
    kinds = zip(record.dtypes, record.shapes, strict=True)
    arrays = [np.empty((len(ids), *shape), dtype) for dtype, shape in kinds]
    size = max(1, spec_lib.NUMBERS_AT_ONCE // table.spec.dim)
    for i in range(0, len(ids), size):  # or there would be several copies
      some = record.unpack(self.stores[name].read(ids[i : i + size]))
      for whole, part in zip(arrays, some, strict=True):
        whole[i : i + size] = part
    return table.row_block(arrays)

  def import_rows(
    self,
    name: str,
    ids: np.ndarray,
    rows: np.ndarray,
    opt_state: Mapping[str, np.ndarray],
  ) -> None:
    """See `fetching.Rows`."""
    table, record = self.tables[name], self.records[name]
    arrays = record.unpack(self.stores[name].read(ids))
    encoded = spec_lib.encode_rows(rows, table.spec.dtype)
    new = spec_lib.to_stored(encoded)
    arrays[: len(new)] = new
    for i, k in enumerate(sorted(table.state_names)):
      if k in opt_state:
        arrays[len(new) + i] = np.asarray(opt_state[k], np.float32)
    self.stores[name].write(ids, record.pack(arrays))

  def close(self) -> None:
    """See `fetching.Rows`."""
    self._copying.shutdown()
