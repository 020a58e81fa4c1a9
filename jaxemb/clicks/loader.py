"""Makes batches of encoded clicks: rows in a new order in every epoch.

The order is a keyed permutation of the rows, whose next ones make a step,
whoever reads them: steps are the same on any mesh. Of many rows blocks are
permuted, and then the rows of each group of blocks, so that a mapped file is
read in long pieces.
"""

import bisect
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numba
import numpy as np

from jaxemb import errors
from jaxemb.clicks import encode, toyclicks
from jaxemb.data import base, examples
from jaxemb.io import roles
from jaxemb.ops import hashing

_STEPS = 32  # of a dispatch
_MAX_ROWS = 1 << 23  # that are permuted one by one
_BLOCK_ROWS, _GROUP_BLOCKS = 1 << 10, 1 << 10
_EMBEDDED = 'toyclicks:'


@numba.njit(nogil=True, cache=True)
def _order(first, stop, num, key, block, group):
  """Returns [stop - first] int64, the rows at positions of an epoch's order."""
  out = np.empty(stop - first, np.int64)
  num_blocks = num // block
  whole = num_blocks * block
  for i in range(first, stop):
    if i >= whole:  # the last, short block
      out[i - first] = i
      continue
    start = i // (block * group) * (block * group)
    size = min(block * group, whole - start)
    inner = key ^ np.uint64(hashing.hashed(np.uint64(start + 1)))
    position = start + hashing.permuted(i - start, size, inner)
    outer = hashing.permuted(position // block, num_blocks, key)
    out[i - first] = outer * block + position % block
  return out


class Names(Sequence):
  """Names of ids, such as 'C1=68fd1e64', made on demand."""

  def __init__(self, encoded: encode.Encoded):
    self._fields = encoded.encoder.fields.ids
    self._firsts = [x.first_id for x in self._fields]
    self._path = encoded.folder / 'keys.arrow'

  @functools.cached_property
  def _keys(self):
    """Categories of all fields in a row, without the unknown ones."""
    import pyarrow as pa

    if not self._path.exists():  # ids are hashes
      return None
    source = pa.memory_map(str(self._path))
    return pa.ipc.open_file(source).read_all()['key']

  def __len__(self) -> int:
    return sum(x.num_ids for x in self._fields)

  def __getitem__(self, index: Any) -> Any:
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(len(self)))]
    if not 0 <= index < len(self):
      raise IndexError(index)
    number = bisect.bisect(self._firsts, index) - 1
    field = self._fields[number]
    if self._keys is None:
      return f'{field.name}#{index - field.first_id}'
    if index == field.first_id:
      return f'{field.name}?'
    return f'{field.name}={self._keys[index - number - 1].as_py()}'


class ClickSource:
  """An encoded log as a `data.base.Source`; progress is in its examples."""

  unit = 'examples'

  def __init__(self, encoded: encode.Encoded, spec: base.SourceSpec):
    self.encoded, self.spec = encoded, spec
    self.encoder, self.fields = encoded.encoder, encoded.encoder.fields
    self.train = encoded.splits['train']
    self.valid, self.test = map(encoded.splits.get, ('valid', 'test'))
    self.steps = examples.Steps(spec.part_words, spec.num_parts)
    self.num_parts, self.epochs = spec.num_parts, spec.epochs
    self.units_per_epoch = len(self.train)
    self.keys, self.counts = Names(encoded), encoded.counts
    self.frequencies = self.counts / max(1, len(self.train))
    self.fingerprint = encoded.manifest['fingerprint']
    self.dropped = encoded.manifest['dropped']
    self.inputs = [roles.Input(**x) for x in encoded.manifest['inputs']]

  def eval_paths(self) -> list[str]:
    """Returns []: a log has its own splits."""
    return []

  def describe(self) -> list[str]:
    """Returns lines for the log: what was read."""
    manifest = self.encoded.manifest
    rows = ', '.join(
      f'{num:,} {name} ({manifest["positives"][name] / num:.2%} clicks)'
      for name, num in manifest['rows'].items()
    )
    return [
      *manifest['lines'],
      f'clicks: {rows}; {len(self.fields.ids)} fields of '
      f'{self.fields.vocab:,} categories, {len(self.fields.numbers)} numbers, '
      f'read as {manifest["form"]}, in {self.encoded.folder}',
    ]

  def items(
    self, position: Sequence[int] | None, done: int
  ) -> Iterator[base.Item]:
    """Yields batches from a position, [epoch, next row], to the end."""
    yield from examples.items(
      self.spec,
      num=len(self.train),
      most_steps=_STEPS,
      widths=(self.train.ids.shape[1], self.train.numbers.shape[1]),
      fill=self._fill,
      position=position,
      done=done,
    )

  def _fill(self, epoch, positions, ids, numbers, labels):
    """Copies the rows at some positions of an epoch's order."""
    train, key = self.train, hashing.part_key(self.spec.seed, epoch, 0)
    is_long = len(train) > _MAX_ROWS
    sizes = (_BLOCK_ROWS, _GROUP_BLOCKS) if is_long else (1, 1)
    rows = _order(positions.start, positions.stop, len(train), key, *sizes)
    # Without `clip`, which no row needs, it makes a copy first.
    np.take(train.ids, rows, 0, ids, 'clip')
    np.take(train.numbers, rows, 0, numbers, 'clip')
    labels[:] = train.labels[rows]


def make(spec: base.SourceSpec) -> ClickSource:
  """Encodes the log that the settings name, or the embedded one.

  Raises a `UserError` for input that cannot be used.
  """
  path, settings = spec.path, dict(spec.settings)
  if not path or path.startswith(_EMBEDDED):
    for key, value in toyclicks.SETTINGS.items():
      if settings[key] not in ('', value):
        raise errors.UserError(
          f'config.data.{key}={settings[key]} is not used with the embedded '
          'log, which has its own; remove it, or name a log of yours by '
          '--config.data.path'
        )
    size = path.removeprefix(_EMBEDDED)
    spec.progress('writing the embedded clicks', 0, 1)
    folder = toyclicks.write(spec.cache, int(size or toyclicks.DEFAULT_ROWS))
    path = str(folder / 'train.csv')
    settings |= toyclicks.SETTINGS
    settings |= {k: str(folder / f'{k}.csv') for k in ('valid', 'test')}
    if settings['numbers'] == 'log':  # the default
      settings['numbers'] = 'standard'
  encoded = encode.encode(
    path,
    settings,
    spec.seed,
    cache=spec.cache,
    progress=spec.progress,
    known=spec.known,
  )
  return ClickSource(encoded, spec)
