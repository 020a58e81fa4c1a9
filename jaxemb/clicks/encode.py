"""From a log of clicks to ids and numbers, once; memory-mapped afterwards.

The log is read once: each field's categories are numbered as they come, and the
rows written so. Then it is known which rows are for training; of these the
categories are counted and ordered, the most frequent first, behind the id of
those that are unknown, and the rows are written again. A missing category is
one as any other; a missing number is 0 after its transformation.

Numbers are transformed as `config.data.numbers` says:

  log       log(1 + x), 0 below 0; as usual with Criteo's counts
  standard  (x - mean) / deviation of the training rows
  minmax    from 0 to 1 over the training rows
  none      as they are
  buckets   categories: floor(log(x)^2) of x > 2, else floor(x) (the winners of
            Criteo's contest, and the benchmark's Criteo_x4)
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import zlib
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.clicks import columns
from jaxemb.clicks import schema as schema_lib
from jaxemb.data import base as data_base
from jaxemb.data import examples
from jaxemb.io import cache as cache_lib
from jaxemb.io import keys
from jaxemb.io import tables as formats
from jaxemb.io import text_files as sources
from jaxemb.ops import hashing
from jaxemb.runtime import resources
from jaxemb.storage import atomic, checksums

_FORMAT = 4  # of what is cached
_ROWS = 1 << 16  # that a thread holds at once
SPLITS = 'train', 'valid', 'test'

Progress = Callable[[str, int, int], None]


class Rows(NamedTuple):
  """Encoded rows, perhaps memory-mapped."""

  ids: np.ndarray  # [n, columns] int32
  numbers: np.ndarray  # [n, numbers] float32
  labels: np.ndarray  # [n] uint8

  def __len__(self) -> int:
    return len(self.labels)


@dataclasses.dataclass(frozen=True)
class Encoder:
  """What makes ids and numbers of columns; needs no training data."""

  schema: schema_lib.Schema
  settings: Mapping[str, Any]  # of `config.data`
  fields: examples.Fields
  # Of each field of categories, [num_ids - 1] uint64 in order of ids from 1 on;
  # empty if ids are hashes.
  hashes: tuple[np.ndarray, ...]
  # [numbers, 2] float64, what is taken off and what then divides.
  scales: np.ndarray

  def encode(self, table: Any, has_labels: bool) -> tuple[Rows, dict[str, int]]:
    """Rows of a table, Arrow's too; and by field, categories that are unknown.

    Raises a `UserError` for a column that is missing, or a wrong label.
    """
    table = formats.Table.of(table)
    raw = columns.read(table, self.schema, self.settings, has_labels=has_labels)
    ids = np.full((table.num_rows, self.fields.num_columns), examples.PADDING)
    unknown = {}
    for field, known, (found, places) in zip(
      self.fields.ids, self._keys, raw.hashes, strict=True
    ):
      if self.settings['hash_size']:
        local = _bucket(found, field.num_ids)
      else:
        local = known.find(found, -1) + 1
      num = 0 if self.settings['hash_size'] else int(np.sum(local == 0))
      if num:
        unknown[field.name] = num
      _place(ids, field, values=local + field.first_id, places=places)
    numbers = _scaled(raw.numbers, self.settings['numbers'], self.scales)
    return Rows(ids, numbers, raw.labels), unknown

  @functools.cached_property
  def _keys(self):
    return [keys.Keys(x) for x in self.hashes]

  def save(self, folder: pathlib.Path) -> None:
    """Writes the folder's encoder.json and encoder.npz."""
    record = {
      'schema': dataclasses.asdict(self.schema),
      'settings': dict(self.settings),
      'fields': [[*x] for x in self.fields.ids],
      'numbers': self.fields.numbers,
    }
    with atomic.write(folder / 'encoder.json') as file:
      file.write(json.dumps(record, indent=1).encode())
    arrays = {f'hashes_{i}': x for i, x in enumerate(self.hashes)}
    with atomic.write(folder / 'encoder.npz') as file:
      np.savez(file, scales=self.scales, **arrays)


def load_encoder(folder: pathlib.Path) -> Encoder:
  """What `Encoder.save` has written."""
  record = json.loads((folder / 'encoder.json').read_text())
  arrays = np.load(folder / 'encoder.npz')
  schema = {
    k: tuple(x) if isinstance(x, list) else x
    for k, x in record['schema'].items()
  }
  fields = [examples.IdField(*x) for x in record['fields']]
  return Encoder(
    schema=schema_lib.Schema(**schema),
    settings=record['settings'],
    fields=examples.Fields(tuple(fields), tuple(record['numbers'])),
    hashes=tuple(arrays[f'hashes_{i}'] for i in range(len(fields))),
    scales=arrays['scales'],
  )


class Encoded(NamedTuple):
  """An encoded log."""

  encoder: Encoder
  splits: dict[str, Rows]  # of `SPLITS`, those that there are
  counts: np.ndarray  # [vocab] int64, of the training rows
  folder: pathlib.Path  # with keys.arrow: a name for each id
  manifest: dict[str, Any]


def _bucket(found, num_ids):
  """Local ids of hashes, of a field with a fixed number."""
  # The lowest bit is always 1.
  return ((found >> np.uint64(1)) % np.uint64(num_ids)).astype(np.int32)


def _place(ids, field, values, places):
  if places is None:
    ids[:, field.first_column] = values
  else:
    ids[places[0], field.first_column + places[1]] = values


def _scaled(numbers, kind, scales):
  """[n, numbers] float32."""
  if kind == 'log':
    numbers = np.log(1 + np.maximum(numbers, 0).astype(np.float64))
  else:
    numbers = (numbers - scales[:, 0]) / scales[:, 1]
  return np.where(np.isnan(numbers), 0, numbers).astype(np.float32)


@numba.njit(nogil=True, cache=True)
def _take_off(ids, split, starts, counts):
  """Takes rows that are not for training off the counts of all.

  Those of a column begin at its start.
  """
  for i in range(len(ids)):
    if split[i] != 0:
      for j in range(ids.shape[1]):
        if ids[i, j] >= 0:
          counts[starts[j] + ids[i, j]] -= 1


@numba.njit(nogil=True, cache=True)
def _add_up(places, numbers, sums):
  for i in range(len(places)):
    sums[places[i]] += numbers[i]


@numba.njit(nogil=True, cache=True)
def _translate(ids, split, starts, final, firsts, out, unknown):
  """Ids of numbers; counts those that are unknown, by split."""
  for i in range(len(ids)):
    for j in range(ids.shape[1]):
      out[i, j] = examples.PADDING
      if ids[i, j] >= 0:
        out[i, j] = final[starts[j] + ids[i, j]]
        unknown[split[i]] += out[i, j] == firsts[j]


def _ordered(table, seen, settings):
  """A field's counts of ids, the order of its numbers and hashes of its ids.

  And how many of its categories are too rare. `seen` has counts of its keys.
  With `hash_size` the order is the ids of numbers, and there are no hashes.
  """
  hashes = table.hashes()
  if size := settings['hash_size']:
    local, counts = _bucket(hashes, size), np.zeros(size, np.int64)
    _add_up(local, seen, counts)
    return counts, local, np.zeros(0, np.uint64), 0
  order = np.flatnonzero(seen >= max(1, settings['min_count']))
  order = order[np.argsort(-seen[order], kind='stable')]
  known = seen[order]
  counts = np.concatenate([[seen.sum() - known.sum()], known])
  num_rare = int(np.count_nonzero(seen)) - len(order)
  return counts, order, hashes[order], num_rare


def encode(
  path: str, settings: Mapping[str, Any], seed: int, cache: pathlib.Path,
  progress: Progress,
) -> Encoded:  # fmt: skip
  """Encodes a log, or opens what was encoded before from the same files.

  `settings` are those of `config.data`. Raises a `UserError` for input that
  cannot be used.
  """
  settings = {k: settings[k] for k in _USED} | {'path': path}
  readers = {'train': schema_lib.reader(path, settings['format'])}
  for name in SPLITS[1:]:
    text = settings[name]
    if text and _ratio(text) is None:
      readers[name] = schema_lib.reader(text, readers['train'].form)
  files = {k: cache_lib.identity_of(x.files) for k, x in readers.items()}
  identity = [_FORMAT, files, settings, seed]
  folder = cache_lib.folder_of(cache, 'clicks-', identity)

  def write(new: pathlib.Path) -> None:
    _Writer(folder=new, settings=settings, seed=seed, progress=progress).write(
      readers
    )

  return cache_lib.opened(folder, load=open_folder, make=write)


_USED = (
  'format',
  'label',
  'positive',
  'numeric',
  'categorical',
  'multi',
  'separator',
  'multi_values',
  'pooling',
  'hash_size',
  'numbers',
  'valid',
  'test',
  'min_count',
)


def open_folder(folder: pathlib.Path) -> Encoded:
  """What `encode` has written."""
  manifest = checksums.opened(folder)
  encoder, splits = load_encoder(folder), {}
  for name, num in manifest['rows'].items():
    shapes = (
      (num, encoder.fields.num_columns),
      (num, len(encoder.fields.numbers)),
    )
    arrays = [
      _mapped(folder / f'{name}.{x}', kind, shape)
      for x, kind, shape in zip(
        ('ids', 'numbers', 'labels'),
        (np.int32, np.float32, np.uint8),
        (*shapes, (num,)),
        strict=True,
      )
    ]
    splits[name] = Rows(*arrays)
  counts = np.load(folder / 'counts.npy')
  return Encoded(
    encoder=encoder,
    splits=splits,
    counts=counts,
    folder=folder,
    manifest=manifest,
  )


def _mapped(path, dtype, shape, mode='r'):
  if not np.prod(shape):
    return np.zeros(shape, dtype)
  return np.memmap(path, dtype, mode, shape=shape)


def _ratio(text: str) -> tuple[float, bool] | None:
  """Share of rows, and whether they are the last ones; None = a path."""
  return data_base.held_out(
    text,
    f'{text} is no share of rows; give one between 0 and 1, such as 0.1 or '
    'last:0.1, or a file',
  )


def _split_of(
  rows: np.ndarray,
  num: int,
  shares: Mapping[str, tuple[float, bool]],
  seed: int,
) -> np.ndarray:
  """[n] int8, which of `SPLITS` each of rows [n] of `num` is in."""
  found = np.zeros(len(rows), np.int8)
  key = np.uint64(hashing.hashed(np.uint64(seed)))
  chance = hashing.hashed_all(key ^ rows.astype(np.uint64)) / 2.0**64
  place, low, high = rows / num, 0.0, 1.0
  for name in reversed(SPLITS[1:]):
    if name not in shares:
      continue
    share, is_last = shares[name]
    if is_last:
      chosen, high = place >= high - share, high - share
    else:
      chosen, low = (chance >= low) & (chance < low + share), low + share
    found[chosen & (found == 0)] = SPLITS.index(name)
  return found


class _Writer:
  """Writes the files of an encoded log."""

  def __init__(self, folder, settings, seed, progress):
    self.folder, self.settings, self.seed = folder, settings, seed
    self.progress = progress
    self.schema, self.features = None, ()
    self.keys: list[keys.Keys] = []
    self.seen: list[np.ndarray] = []  # counts of keys in the file for training
    self.new: list[list[Any]] = []  # of each field, strings in order of coming
    self.lines: list[str] = []
    self.num_cut = self.num_rare = 0

  def write(self, readers):
    """All files; the manifest last."""
    raw = {}
    for name, reader in readers.items():
      raw[name] = self._read(name, reader)
      if name == 'train':
        self.seen = [x.counts() for x in self.keys]
    shares = {
      k: _ratio(self.settings[k])
      for k in SPLITS[1:]
      if self.settings[k] and k not in readers
    }
    if sum(x for x, _ in shares.values()) >= 1:
      raise errors.UserError(
        'config.data.valid and config.data.test leave no row for training'
      )
    counts, orders, hashes = self._count(raw, shares)
    scales, num_missing = self._scales(raw, shares)
    num_ids = [len(x) + 1 for x in orders]
    if size := self.settings['hash_size']:
      num_ids = [size] * len(orders)
    fields = self._fields(num_ids)
    form = readers['train'].form
    settings = self.settings | {'format': form, 'features': self.features}
    encoder = Encoder(
      schema=self.schema,
      settings=settings,
      fields=fields,
      hashes=hashes,
      scales=scales,
    )
    encoder.save(self.folder)
    rows, positives, unknown, content = self._rewrite(
      raw, shares, encoder, orders=orders
    )
    # Of what is trained on, wherever it was read.
    content = hashlib.sha256(f'{content} {fields}'.encode()).hexdigest()
    for name in ('train', *shares, *(x for x in readers if x != 'train')):
      if not rows.get(name):
        raise errors.UserError(
          f'no row of {self.settings["path"]} is left for '
          f'{"training" if name == "train" else f"config.data.{name}"}; give '
          'more rows, or another share'
        )
    if (positive := self.settings['positive']) and not positives['train']:
      raise errors.UserError(
        f'no row for training has the label config.data.positive={positive} in '
        f'column {self.schema.label}; give one that is there'
      )
    np.save(self.folder / 'counts.npy', counts)
    self._write_names(orders)
    dropped = {
      'bad_rows': sum(x.num_bad for x in readers.values()),
      'invalid_utf8_bytes': sum(x.num_invalid_bytes for x in readers.values()),
      'missing_numbers': num_missing,
      'list_values_cut': self.num_cut,
      'rare_categories': self.num_rare,
      'unknown_categories_in_validation': unknown.get('valid', 0),
      'unknown_categories_in_test': unknown.get('test', 0),
      'unknown_categories_in_training': unknown.get('train', 0),
    }
    if size:
      used = [int(np.sum(x > 0)) for x in np.split(counts, len(num_ids))]
      distinct = sum(x.num for x in self.keys)
      dropped['hash_collisions'] = distinct - sum(used)
    problems = [
      f'rows that cannot be read, the first is {x.first_bad}'
      for x in readers.values()
      if x.num_bad
    ]
    manifest = {
      'fingerprint': content,
      'rows': rows,
      'positives': positives,
      'size_bytes': sum(x.size_bytes for x in readers.values()),
      'form': readers['train'].form,
      'dropped': dropped | {'problems': problems},
      'lines': self.lines,
    }
    checksums.seal(self.folder, manifest)

  def _read(self, name, reader):
    """Writes the rows of a reader with categories as numbered; their number."""
    num, stage = 0, 'reading clicks'
    if self.schema is None:
      self._choose(reader)
    reader.features = self.features
    # In threads: what takes most of the time.
    found = reader.tables(
      lambda *x: self.progress(stage, *x),
      lambda table: columns.read(
        table, self.schema, self.settings, has_labels=True
      ),
    )
    with (
      futures.ThreadPoolExecutor(resources.reading_threads()) as pool,
      open(self.folder / f'{name}.raw_ids', 'wb') as ids_file,
      open(self.folder / f'{name}.raw_numbers', 'wb') as numbers_file,
      open(self.folder / f'{name}.raw_labels', 'wb') as labels_file,
    ):
      for raw in found:
        self.num_cut += raw.num_cut
        self._numbered(raw, pool).tofile(ids_file)
        raw.numbers.tofile(numbers_file)
        raw.labels.tofile(labels_file)
        num += len(raw.labels)
    if not num:
      raise errors.UserError(f'{reader.path} has no rows')
    return num

  def _choose(self, reader):
    """The schema, by the first rows."""
    look = schema_lib.reader(reader.path, reader.form, max_bad=1.0)
    with contextlib.closing(look.tables(lambda *_: None)) as tables:
      head = next(tables, None)
    if head is None:
      return
    self.features = look.features
    self.schema, lines = schema_lib.make(self.settings, reader.form, head)
    self.lines += lines
    num_fields = len(self._names())
    if not num_fields:
      raise errors.UserError(
        f'{reader.path} has no column of categories, whose tables are what is '
        'trained; name one in --config.data.categorical, or give '
        '--config.data.numbers=buckets'
      )
    self.keys = [keys.Keys() for _ in range(num_fields)]
    self.new = [[] for _ in range(num_fields)]

  def _names(self):
    is_buckets = self.settings['numbers'] == 'buckets'
    numbers = self.schema.numbers if is_buckets else ()
    return (*numbers, *self.schema.categories, *self.schema.lists)

  def _fields(self, num_ids):
    fields, first_id, column = [], 0, 0
    for name, num in zip(self._names(), num_ids, strict=True):
      is_list = name in self.schema.lists
      width = self.settings['multi_values'] if is_list else 1
      pooling = self.settings['pooling'] if is_list else ''
      fields.append(
        examples.IdField(
          name=name,
          first_id=first_id,
          num_ids=num,
          first_column=column,
          num_columns=width,
          pooling=pooling,
        )
      )
      first_id, column = first_id + num, column + width
    is_buckets = self.settings['numbers'] == 'buckets'
    numbers = () if is_buckets else self.schema.numbers
    if first_id >= examples.PADDING:
      raise errors.UserError(
        f'{first_id:,} categories are too many; raise --config.data.min_count, '
        'or give --config.data.hash_size'
      )
    return examples.Fields(tuple(fields), tuple(numbers))

  def _numbered(self, raw, pool):
    """[n, columns] int32, numbers of categories by their coming, -1 = none."""
    fields = self._raw_fields.ids
    shape = len(raw.labels), sum(x.num_columns for x in fields)
    ids = np.empty(shape, np.int32)

    def number(field, known, new, text, hashed):
      found, places = hashed
      local, first = known.add(found)
      if places is not None:
        ids[:, field.first_column :][:, : field.num_columns] = -1
      _place(ids, field, values=local, places=places)
      if len(first) and not self.settings['hash_size']:
        new.append(text.strings(first))

    work = list(
      zip(fields, self.keys, self.new, raw.texts, raw.hashes, strict=True)
    )  # a field has a table of its own
    num_threads = resources.reading_threads()

    def number_some(first):
      for args in work[first::num_threads]:
        number(*args)

    list(pool.map(number_some, range(num_threads)))
    return ids

  @property
  def _raw_fields(self):
    """Fields with their columns, before it is known how many ids they have."""
    return self._fields([1] * len(self.keys))

  def _flat(self):
    """[fields + 1], where numbers of a field begin if all are in a row."""
    return np.cumsum([0, *(x.num for x in self.keys)])

  def _starts(self):
    """[columns], the same of each column."""
    fields = self._raw_fields.ids
    return np.repeat(self._flat()[:-1], [x.num_columns for x in fields])

  def _raw(self, raw, name):
    num = raw[name]
    fields = self._raw_fields
    shapes = (num, fields.num_columns), (num, len(fields.numbers)), (num,)
    ends = 'raw_ids', 'raw_numbers', 'raw_labels'
    kinds = np.int32, np.float32, np.uint8
    return Rows(*(
      _mapped(self.folder / f'{name}.{x}', kind, shape)
      for x, kind, shape in zip(ends, kinds, shapes, strict=True)
    ))  # fmt: skip

  def _blocks(self, raw, name, shares):
    """Pieces of the rows of a file, with the split of each row."""
    rows = self._raw(raw, name)
    for start in range(0, len(rows), _ROWS):
      some = Rows(*(np.asarray(x[start : start + _ROWS]) for x in rows))
      if name == 'train' and shares:
        yield (
          some,
          _split_of(
            np.arange(start, start + len(some)),
            num=len(rows),
            shares=shares,
            seed=self.seed,
          ),
        )
      else:
        yield some, np.full(len(some), SPLITS.index(name), np.int8)

  def _count(self, raw, shares):
    """Of each field `_ordered`'s values, for rows that are for training."""
    flat = self._flat()
    seen = np.zeros(flat[-1], np.int64)
    for start, found in zip(flat, self.seen, strict=False):
      seen[start : start + len(found)] = found
    if shares:
      for some, split in self._blocks(raw, 'train', shares):
        _take_off(some.ids, split, starts=self._starts(), counts=seen)
    seen = np.split(seen, flat[1:-1])
    with futures.ThreadPoolExecutor(resources.reading_threads()) as pool:
      make = functools.partial(_ordered, settings=self.settings)
      counts, orders, hashes, rare = zip(
        *pool.map(make, self.keys, seen), strict=True
      )
    self.num_rare += sum(rare)
    return np.concatenate(counts), orders, hashes

  def _scales(self, raw, shares):
    """[numbers, 2], and how many numbers of training rows are missing."""
    kind, missing, sums = self.settings['numbers'], 0, []
    for some, split in self._blocks(raw, 'train', shares):
      found = some.numbers[split == 0].astype(np.float64)
      missing += int(np.isnan(found).sum())
      if kind in ('standard', 'minmax') and found.size:
        sums.append([
          np.sum(~np.isnan(found), 0),
          np.nansum(found, 0),
          np.nansum(np.square(found), 0),
          np.nanmin(np.where(np.isnan(found), np.inf, found), 0),
          np.nanmax(np.where(np.isnan(found), -np.inf, found), 0),
        ])  # fmt: skip
    num = self._raw(raw, 'train').numbers.shape[1]
    scales = np.tile([0.0, 1.0], (num, 1))
    if sums:
      sums = np.array(sums)
      count, total, squares = sums[:, :3].sum(0)
      low, high = sums[:, 3].min(0), sums[:, 4].max(0)
      count = np.maximum(count, 1)
      mean = total / count
      deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
      if kind == 'minmax':
        mean, deviation = low, high - low
      is_usable = np.isfinite(mean) & np.isfinite(deviation) & (deviation > 0)
      scales[:, 0] = np.where(np.isfinite(mean), mean, 0)
      scales[:, 1] = np.where(is_usable, deviation, 1)
    return scales, missing

  def _rewrite(self, raw, shares, encoder, orders):
    """Writes the splits; returns their rows, labels of 1, unknown values.

    And a hash of all that is written.
    """
    num_rows, positives, unknown = {}, {}, {}
    kind, size = self.settings['numbers'], self.settings['hash_size']
    maps = []
    for field, table, order in zip(
      encoder.fields.ids, self.keys, orders, strict=True
    ):
      final = np.full(table.num, field.first_id, np.int32)
      if size:
        final[:] = field.first_id + order
      else:
        final[order] = field.first_id + 1 + np.arange(len(order))
      maps.append(final)
    final = np.concatenate(maps)
    # Of each column, the id of what is unknown.
    firsts = np.concatenate(
      [
        np.full(x.num_columns, -1 if size else x.first_id)
        for x in encoder.fields.ids
      ]
    )
    outs: dict[str, list[Any]] = {}
    starts, total, done = self._starts(), sum(raw.values()), 0
    digest = hashlib.sha256()

    def rewritten(some, split):
      num_unknown = np.zeros(len(SPLITS), np.int64)
      ids = np.empty_like(some.ids)
      _translate(
        some.ids,
        split,
        starts,
        final=final,
        firsts=firsts,
        out=ids,
        unknown=num_unknown,
      )
      numbers = _scaled(some.numbers, kind, encoder.scales)
      found = {}
      for number in np.unique(split):
        mask = split == number
        arrays = Rows(ids, numbers, some.labels)
        if not mask.all():
          arrays = Rows(*(x[mask] for x in arrays))
        found[SPLITS[number]] = arrays, int(num_unknown[number])
      checks = [zlib.crc32(x) for y, _ in found.values() for x in y]
      return found, len(some), json.dumps([[*found], checks])

    try:
      blocks = itertools.chain(*(self._blocks(raw, x, shares) for x in raw))
      with futures.ThreadPoolExecutor(resources.reading_threads()) as pool:
        for found, num, text in sources.map_ahead(
          pool,
          function=rewritten,
          items=blocks,
          depth=resources.reading_threads() + 1,
        ):
          digest.update(text.encode())
          for key, (arrays, num_unknown) in found.items():
            if key not in outs:
              outs[key] = [
                open(self.folder / f'{key}.{x}', 'wb')  # noqa: SIM115
                for x in ('ids', 'numbers', 'labels')
              ]
            for array, file in zip(arrays, outs[key], strict=True):
              array.tofile(file)
            num_rows[key] = num_rows.get(key, 0) + len(arrays)
            ones = int(arrays.labels.sum())
            positives[key] = positives.get(key, 0) + ones
            unknown[key] = unknown.get(key, 0) + num_unknown
          done += num
          self.progress('encoding clicks', done, total)
    finally:
      for some in outs.values():
        for file in some:
          file.close()
    for path in self.folder.glob('*.raw_*'):
      path.unlink()
    return num_rows, positives, unknown, digest.hexdigest()

  def _write_names(self, orders):
    """keys.arrow: of each field, its categories in order of ids."""
    import pyarrow as pa

    if self.settings['hash_size']:
      return
    names = self._names()
    arrays = []
    for new, order in zip(self.new, orders, strict=True):
      strings = pa.concat_arrays(new) if new else pa.array([], 'large_string')
      arrays.append(strings.take(pa.array(order)))
    numbers = np.repeat(np.arange(len(names)), [len(x) for x in arrays])
    strings = pa.concat_arrays(arrays) if arrays else []
    table = pa.table({'field': numbers, 'key': strings})
    with pa.OSFile(str(self.folder / 'keys.arrow'), 'wb') as file:
      with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
