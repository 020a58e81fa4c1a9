"""Passes over the parts of a merge, in blocks of words.

Memory holds two blocks of the parts side by side, on the host and on the
devices, and the Gram matrix. What the parts have to say is read twice, see
`ops.align`, and once more for directions of the whole table; the result goes to
a file if one is given, else it is in memory.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxemb import errors
from jaxemb.merging import align, gram
from jaxemb.merging import parts as parts_lib

Progress = Callable[[str, int, int], None]  # (what, words done, all words)

_BLOCK_BYTES = 1 << 26  # of the parts side by side; larger ones are no faster


class Sink:
  """An .npy file, or an array, that is written block by block."""

  def __init__(self, shape: tuple[int, ...], path: pathlib.Path | None):
    self._path, self._place = path, 0
    self._array = None if path else np.empty(shape, np.float32)
    if path:
      header = {'descr': '<f4', 'fortran_order': False, 'shape': shape}
      with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open('wb')
        np.lib.format.write_array_header_1_0(self._file, header)

  def write(self, rows: np.ndarray) -> None:
    """Appends rows."""
    if self._array is None:
      with _writing(self._path):
        self._file.write(np.ascontiguousarray(rows, '<f4').data)
    else:
      self._array[self._place : self._place + len(rows)] = rows
      self._place += len(rows)

  def close(self) -> np.ndarray:
    """The whole array; mapped, if it went to a file."""
    if self._array is not None:
      return self._array
    with _writing(self._path):
      self._file.close()
    return np.load(self._path, mmap_mode='r')


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except OSError as error:
    raise errors.UserError(
      f'cannot write {path}: {error.strerror or error}; free space or choose '
      'another --output'
    ) from error


class Block(NamedTuple):
  """Some words, with the rows of all parts."""

  rows: np.ndarray  # [b, sum D_i] float32, of the parts side by side
  # [n, b] int32, row in each part; -1 = none. The last block is filled up.
  places: np.ndarray
  first: int
  size: int  # words in it


class Compared(NamedTuple):
  """What the parts have to say about each other, see `ops.align`."""

  gram: np.ndarray  # [columns, columns] float64, Q
  moments: list[np.ndarray]  # [D_i, D_i] float64, P_i; none unless asked for


@dataclasses.dataclass(frozen=True)
class Passes:
  """What the passes over the parts have in common."""

  parts: Sequence[parts_lib.Part]
  places: np.ndarray  # [n, words] int32, of the words of the result
  mesh: jax.sharding.Mesh
  is_alir: bool  # else all parts have all words, and none has a weight
  by_counts: bool  # weights, see `parts.weights`
  normalize: bool  # whether vectors are brought to length 1
  block_rows: int  # words at a time; 0 = what suits memory
  progress: Progress

  @property
  def dims(self) -> tuple[int, ...]:
    """D_i."""
    return tuple(part.dim for part in self.parts)

  def blocks(
    self,
    rows: Sequence[parts_lib.Rows],
    what: str,
    chosen: np.ndarray | None = None,
  ) -> Iterator[Block]:
    """Words in blocks of one size that the devices divide.

    Args:
      rows: of each part, [words of the part, D_i].
      what: this is for, for progress.
      chosen: [words] int, which ones; None = all.
    """
    all_places = self.places if chosen is None else self.places[:, chosen]
    num_words = all_places.shape[1]
    dims = [r.shape[1] for r in rows]
    wanted = self.block_rows or max(_BLOCK_BYTES // (4 * sum(dims)), 256)
    each = -(-min(wanted, num_words) // self.mesh.size) * self.mesh.size
    for first in range(0, num_words, each):
      self.progress(what, first, num_words)
      places = all_places[:, first : first + each]
      size = places.shape[1]
      places = np.pad(places, ((0, 0), (0, each - size)), constant_values=-1)
      # A new one each time: a device may share the memory of the last one.
      block = np.empty((each, sum(dims)), np.float32)
      for part, source, mine in zip(
        gram.slices(dims), rows, places, strict=True
      ):
        source.read(mine, block[:, part])
        if self.normalize:
          norms = np.linalg.norm(block[:, part], axis=1, keepdims=True)
          block[:, part] /= np.where(norms > 0, norms, 1)
      yield Block(block, places, first, size)
    self.progress(what, num_words, num_words)

  def weights(self, places: np.ndarray) -> np.ndarray:
    """[b, n] float32, see `parts.weights`."""
    return parts_lib.weights(self.parts, places, self.by_counts)

  def compare(
    self,
    chosen: np.ndarray | None = None,
    has_moments: bool = False,
    random_dim: int = 0,
    seed: int = 0,
  ) -> Compared:
    """The Gram matrix of the vectors, and moments of each part.

    Args:
      chosen: [words] int, of which words; None = all.
      has_moments: whether to find P_i, too.
      random_dim: columns that a random start adds; 0 = none.
      seed: of that start.
    """
    dims = self.dims + (random_dim,) * bool(random_dim)
    sums = gram.zeros(self.mesh, sum(dims))
    own = tuple(gram.zeros(self.mesh, d) for d in self.dims if has_moments)
    vectors = [part.vectors for part in self.parts]
    for block in self.blocks(vectors, 'comparing', chosen):
      weights = self.weights(block.places)
      scale = gram.scale(weights) if self.is_alir else np.ones_like(weights)
      rows = block.rows
      if random_dim:
        start = align.random_rows(
          seed,
          block.first + np.arange(len(rows)),
          random_dim,
          np.sqrt(weights.sum(1)),
        )
        rows = np.concatenate([rows, start], 1)
        scale = np.pad(scale, ((0, 0), (0, 1)), constant_values=1)
      # The next block was read meanwhile; no more than two are in memory.
      jax.block_until_ready((sums, own))
      rows = gram.put(self.mesh, rows)
      sums = gram.add(
        sums, rows, gram.put(self.mesh, scale), mesh=self.mesh, dims=dims
      )
      if has_moments:
        roots = gram.put(self.mesh, np.sqrt(weights))
        own = gram.add_each(own, rows, roots, mesh=self.mesh, dims=self.dims)
    return Compared(gram.result(sums), [gram.result(one) for one in own])

  def squares(self) -> list[np.ndarray]:
    """[D_i, D_i] float64, the Gram matrix of each part alone."""
    own = tuple(gram.zeros(self.mesh, dim) for dim in self.dims)
    for block in self.blocks(
      [part.vectors for part in self.parts], 'comparing'
    ):
      scale = np.ones((len(block.rows), len(self.parts)), np.float32)
      jax.block_until_ready(own)
      rows, scale = gram.put(self.mesh, block.rows), gram.put(self.mesh, scale)
      own = gram.add_each(own, rows, scale, mesh=self.mesh, dims=self.dims)
    return [gram.result(one) for one in own]

  def turn(
    self,
    rows: Sequence[parts_lib.Rows],
    rotations: np.ndarray,
    outer: np.ndarray,
    sink: Sink,
    what: str,
  ) -> align.Measured:
    """Writes the parts turned and averaged; figures summed over all words.

    Args:
      rows: of each part, [words of the part, D_i].
      rotations: [sum D_i, dim].
      outer: [dim, dim], what the averages are multiplied by.
      sink: where the result goes.
      what: this is, for progress.
    """
    on_devices = jax.device_put(
      (rotations.astype(np.float32), outer.astype(np.float32)),
      jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec()),
    )
    dims = tuple(r.shape[1] for r in rows)
    sums = np.zeros((len(align.Measured._fields), len(rows)))
    waiting = None

    def finish(size, merged, found):
      sink.write(np.asarray(merged)[:size])
      sums[:] += np.asarray(found, np.float64)

    for block in self.blocks(rows, what):
      shares = np.ones((len(block.rows), len(rows)), np.float32)
      if self.is_alir:
        shares = self.weights(block.places)
        total = shares.sum(1, keepdims=True)
        shares = (shares / np.where(total > 0, total, 1)).astype(np.float32)
      if waiting:
        finish(*waiting)
      merged, found = align.merge(
        gram.put(self.mesh, block.rows),
        gram.put(self.mesh, shares),
        *on_devices,
        mesh=self.mesh,
        dims=dims,
      )
      waiting = block.size, merged, found
    finish(*waiting)
    return align.Measured(*sums)
