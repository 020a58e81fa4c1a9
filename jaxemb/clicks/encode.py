"""From a log of clicks to ids and numbers, once; memory-mapped afterwards.

`raw_log` reads the log and numbers each field's categories as they come. Then
the rows for training are known; their categories are counted and ordered, the
most frequent first, behind the id of unknown ones, and the rows are written
again. A missing category is one as any other; a missing number is 0 after its
transformation. `encoder` does the same for new data.
"""

import collections
import functools
import hashlib
import itertools
import json
import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.clicks import encoder as encoder_lib
from jaxemb.clicks import kind, raw_log
from jaxemb.clicks import schema as schema_lib
from jaxemb.data import base as data_base
from jaxemb.data import examples
from jaxemb.io import cache as cache_lib
from jaxemb.io import inputs, keys, tables, text_files
from jaxemb.ops import hashing
from jaxemb.runtime import resources
from jaxemb.storage import checksums, export, formats

FORMAT = formats.Format(
  'an encoded log of clicks', number=8, remedy=cache_lib.REMEDY
)
_SPLITS = 'train', 'valid', 'test'
# The settings of `config.data` that matter.
_USED = (
  'valid',
  'test',
  'min_count',
  'columns',
  'decimal',
  *(
    x.name.removeprefix('data.')
    for x in kind.Clicks.settings
    if x.name.startswith('data.')
  ),
)

Progress = Callable[[str, int, int], None]


class Encoded(NamedTuple):
  """An encoded log."""

  encoder: encoder_lib.Encoder
  splits: dict[str, encoder_lib.Rows]  # 'train', and maybe 'valid' and 'test'
  counts: np.ndarray  # [vocab] int64, of the training rows
  folder: pathlib.Path  # with keys.arrow: a name for each id
  manifest: dict[str, Any]


def encode(
  path: str,
  settings: Mapping[str, Any],
  seed: int,
  cache: pathlib.Path,
  progress: Progress,
  known: data_base.Known | None = None,
) -> Encoded:
  """Encodes a log, or opens what was encoded before from the same files.

  `settings` are those of `config.data`. Columns, scales of numbers and
  categories of a run that is `known` stay. Raises a `UserError` for input that
  cannot be used.
  """
  run = _Run.of(known) if known else None
  settings = {k: settings[k] for k in _USED} | {'path': path}
  settings = inputs.resolve(settings, 'log of clicks')
  declared = settings['columns']
  readers = {
    'train': schema_lib.reader(
      settings['path'], settings['format'], declared=declared
    )
  }
  fractions = {}
  for name in _SPLITS[1:]:
    text = settings[name]
    fraction = data_base.held_out(
      text,
      f'{text} is no share of rows; give one between 0 and 1, such as 0.1 or '
      'last:0.1, or a file',
    )
    if fraction:
      fractions[name] = fraction
    elif text:
      form = schema_lib.form_of_others(readers['train'].form)
      readers[name] = schema_lib.reader(text, form, declared=declared)
  if sum(x for x, _ in fractions.values()) >= 1:
    raise errors.UserError(
      'config.data.valid and config.data.test leave no row for training'
    )
  files = {k: cache_lib.identity_of(x.files) for k, x in readers.items()}

  def make(folder: pathlib.Path) -> None:
    raw = raw_log.RawLog(
      folder, settings, progress, known=run.encoder if run else None
    )
    if run:
      run.check(settings)
    for name, reader in readers.items():
      raw.read(name, reader)
    _Writer(raw, fractions, seed, run=run).write(readers)
    for name, reader in readers.items():
      cache_lib.check_unchanged(reader.files, files[name])

  identity = [_numbers(), files, settings, seed]
  identity += [known.fingerprint] if known else []
  folder = cache_lib.folder_of(cache, 'clicks-', identity)
  return cache_lib.opened(folder, load=_opened, make=make)


def _numbers():
  """Returns the numbers of formats that a cached log depends on."""
  of_encoder = encoder_lib.FORMAT.number
  if of_encoder == 1:  # as it was before encoders had a number
    return FORMAT.number
  return FORMAT.number, of_encoder


def _opened(folder):
  """Opens what `encode` has written; raises an error if it is damaged."""
  manifest = checksums.opened(folder)
  # The folder's name has the number, too, as it had before manifests did.
  FORMAT.check(folder, {'format': FORMAT.number} | manifest)
  encoder = encoder_lib.load(folder)
  splits = {
    name: raw_log.mapped(folder, name, num, fields=encoder.fields)
    for name, num in manifest['rows'].items()
  }
  return Encoded(
    encoder=encoder,
    splits=splits,
    counts=np.load(folder / 'counts.npy'),
    folder=folder,
    manifest=manifest,
  )


class _Run(NamedTuple):
  """What a run that is continued has of its log."""

  path: str
  folder: pathlib.Path  # its export
  encoder: encoder_lib.Encoder

  @classmethod
  def of(cls, known: data_base.Known) -> '_Run':
    """Opens the export of a run; raises a `UserError` if it is damaged."""
    folder = known.folder
    with export.reading(folder / 'encoder.json'):
      return cls(known.path, folder, encoder_lib.load(folder))

  def check(self, settings: Mapping[str, Any]) -> None:
    """Raises a `UserError` for settings by which ids would mean others."""
    for name in ('numbers', 'hash_size'):
      if self.encoder.settings[name] != settings[name]:
        raise errors.UserError(
          f'--from={self.path} has config.data.{name}='
          f'{self.encoder.settings[name]}, and this run {settings[name]}; give '
          'the same'
        )

  def strings(self) -> list[Any]:
    """Returns names of the categories of each field, from id 1 on."""
    import pyarrow as pa

    with export.reading(self.folder / 'keys.arrow') as path:
      with pa.ipc.open_file(pa.OSFile(str(path))) as file:
        names = file.read_all()['key'].combine_chunks()
    ends = np.cumsum([0, *map(len, self.encoder.hashes)])
    return [names[i:j] for i, j in itertools.pairwise(ends.tolist())]


class _Vocabulary(NamedTuple):
  """The ids of one field."""

  counts: np.ndarray  # [ids] int64, of the training rows
  local_ids: np.ndarray  # [categories] int, from 0, in order of their numbers
  hashes: np.ndarray  # [ids - 1] uint64 of ids from 1 on; [] if ids are hashes
  order: np.ndarray  # numbers of the categories with ids from 1 on
  num_rare: int = 0  # categories that share the id 0
  # Categories of a run that the log lacks, by their numbers there, behind all.
  absent: np.ndarray | None = None


class _Writer:
  """Writes the files of an encoded log.

  `fractions` are of a split its fraction of the rows, and whether they are the
  last ones.
  """

  def __init__(
    self,
    raw: raw_log.RawLog,
    fractions: Mapping[str, tuple[float, bool]],
    seed: int,
    run: _Run | None = None,
  ):
    self.raw, self.fractions, self.seed = raw, fractions, seed
    self.run = run  # that is continued
    self.folder, self.settings = raw.folder, raw.settings

  def write(self, readers: Mapping[str, tables.Reader]) -> None:
    """Writes all files, the manifest last."""
    raw = self.raw
    counts, scales, num_missing = self._statistics()
    assert raw.schema is not None
    before: Sequence[np.ndarray | None] = [None] * len(counts)
    if self.run:
      scales, before = self.run.encoder.scales, self.run.encoder.hashes
    with futures.ThreadPoolExecutor(resources.reading_threads()) as pool:
      make = functools.partial(_vocabulary, settings=self.settings)
      vocabularies = list(pool.map(make, raw.keys, counts, before))
    form = readers['train'].form
    encoder = encoder_lib.Encoder(
      schema=raw.schema,
      settings={**self.settings, 'format': form, 'features': raw.features},
      fields=raw.fields([len(x.counts) for x in vocabularies]),
      hashes=tuple(x.hashes for x in vocabularies),
      scales=scales,
    )
    encoder.save(self.folder)
    totals, content = self._rewrite(encoder, vocabularies)
    raw.remove()
    self._check(totals, names=('train', *self.fractions, *readers))
    np.save(
      self.folder / 'counts.npy',
      np.concatenate([x.counts for x in vocabularies]),
    )
    self._write_names(vocabularies)
    dropped = self._dropped(readers.values(), vocabularies, totals['unknown'])
    checksums.seal(
      self.folder,
      FORMAT.stamp()
      | {
        # Of what is trained on, wherever it was read.
        'fingerprint': hashlib.sha256(
          f'{content} {encoder.fields}'.encode()
        ).hexdigest(),
        'rows': totals['rows'],
        'positives': totals['positives'],
        'size_bytes': sum(x.size_bytes for x in readers.values()),
        'form': form,
        'dropped': dropped | {'missing_numbers': num_missing},
        'lines': raw.lines,
        'inputs': [x._asdict() for x in raw.inputs],
      },
    )

  def _check(self, totals, names):
    """Refuses splits without rows, and a training split without clicks."""
    for name in names:
      if not totals['rows'][name]:
        raise errors.UserError(
          f'no row of {self.settings["path"]} is left for '
          f'{"training" if name == "train" else f"config.data.{name}"}; give '
          'more rows, or another share'
        )
    positive = self.settings['positive']
    if positive and not totals['positives']['train']:
      raise errors.UserError(
        f'no row for training has the label config.data.positive={positive} in '
        f'column {self.raw.schema.label}; give a label that occurs'
      )

  def _dropped(self, readers, vocabularies, unknown):
    """Counts what was left out, for the report."""
    dropped = {
      'bad_rows': sum(x.num_bad for x in readers),
      'invalid_utf8_bytes': sum(x.num_invalid_bytes for x in readers),
      'list_values_cut': self.raw.num_cut,
      'missing_labels': self.raw.num_unlabelled,
      'rare_categories': sum(x.num_rare for x in vocabularies),
      'unknown_categories_in_validation': unknown['valid'],
      'unknown_categories_in_test': unknown['test'],
      'unknown_categories_in_training': unknown['train'],
      'problems': [
        f'rows that cannot be read, the first is {x.first_bad}'
        for x in readers
        if x.num_bad
      ],
    }
    if self.settings['hash_size']:
      num_used = sum(int(np.sum(x.counts > 0)) for x in vocabularies)
      num_distinct = sum(x.num for x in self.raw.keys)
      dropped['hash_collisions'] = num_distinct - num_used
    return dropped

  def _blocks(self, name) -> Iterator[tuple[encoder_lib.Rows, np.ndarray]]:
    """Yields blocks of rows of a file, and the split [n] int8 of each row."""
    for start, rows in self.raw.blocks(name):
      split = np.full(len(rows), _SPLITS.index(name), np.int8)
      if name == 'train' and self.fractions:
        split = self._split_of(start + np.arange(len(rows)))
      yield rows, split

  def _split_of(self, rows):
    """Returns [n] int8, which of `_SPLITS` each of rows [n] is in."""
    split = np.zeros(len(rows), np.int8)
    key = np.uint64(hashing.hashed(np.uint64(self.seed)))
    draws = hashing.hashed_all(key ^ rows.astype(np.uint64)) / 2.0**64
    position, low, high = rows / self.raw.num_rows['train'], 0.0, 1.0
    for name in reversed(_SPLITS[1:]):
      fraction, is_last = self.fractions.get(name, (0.0, False))
      if is_last:
        chosen, high = position >= high - fraction, high - fraction
      else:
        chosen, low = (draws >= low) & (draws < low + fraction), low + fraction
      split[chosen & (split == 0)] = _SPLITS.index(name)
    return split

  def _statistics(self):
    """Returns of the training rows what an encoder is made of.

    The counts of each field's categories, `Encoder.scales`, and the number of
    missing numbers.
    """
    raw, kind = self.raw, self.settings['numbers']
    counts, moments = np.zeros(raw.offsets()[-1], np.int64), []
    num_missing = 0
    for rows, split in self._blocks('train'):
      _count(rows.ids, split, raw.starts(), counts=counts)
      numbers = rows.numbers[split == 0]
      num_missing += int(np.isnan(numbers).sum())
      if kind in ('standard', 'minmax') and numbers.size:
        moments.append(_moments(numbers))
    scales = np.tile([0.0, 1.0], (len(raw.layout.numbers), 1))
    if moments:
      count, mean, squares, low, high = np.stack(moments, 1)
      total = np.maximum(count.sum(0), 1)
      middle = (count * mean).sum(0) / total
      # Chan et al. 1979: without the difference of large sums of squares.
      squares = squares.sum(0) + (count * np.square(mean - middle)).sum(0)
      first, size = middle, np.sqrt(squares / total)
      if kind == 'minmax':
        first, size = low.min(0), high.max(0) - low.min(0)
      is_usable = np.isfinite(first) & np.isfinite(size) & (size > 0)
      scales[:, 0] = np.where(np.isfinite(first), first, 0)
      scales[:, 1] = np.where(is_usable, size, 1)
    return np.split(counts, raw.offsets()[1:-1]), scales, num_missing

  def _rewrite(
    self, encoder: encoder_lib.Encoder, vocabularies: list[_Vocabulary]
  ) -> tuple[dict[str, collections.Counter], str]:
    """Writes the splits with their ids.

    Returns rows, positives and unknown categories by split, and a hash of all.
    """
    totals: dict[str, collections.Counter[str]] = {
      k: collections.Counter() for k in ('rows', 'positives', 'unknown')
    }
    digest, num_all = hashlib.sha256(), sum(self.raw.num_rows.values())
    fields = zip(encoder.fields.ids, vocabularies, strict=True)
    final_ids = np.concatenate(
      [field.first_id + x.local_ids for field, x in fields]
    ).astype(np.int32)
    threads = resources.reading_threads()
    with futures.ThreadPoolExecutor(threads) as pool:
      for by_split, checks in text_files.map_ahead(
        pool,
        function=functools.partial(self._translated, encoder, final_ids),
        items=itertools.chain(*map(self._blocks, self.raw.num_rows)),
        depth=threads + 1,
      ):
        digest.update(checks.encode())
        for name, (rows, num_unknown) in by_split.items():
          raw_log.append(self.folder, name, rows)
          totals['rows'][name] += len(rows)
          totals['positives'][name] += int(rows.labels.sum())
          totals['unknown'][name] += num_unknown
        self.raw.progress('encoding clicks', totals['rows'].total(), num_all)
    return totals, digest.hexdigest()

  def _translated(self, encoder, final_ids, raw_rows, split):
    """Returns by split encoded rows and unknown categories; and checksums.

    `final_ids` are those of categories, the fields' in a row.
    """
    has_unknown = not self.settings['hash_size']
    unknown_ids = np.concatenate([
      np.full(x.num_columns, x.first_id if has_unknown else -1)
      for x in encoder.fields.ids
    ])  # fmt: skip
    num_unknown = np.zeros(len(_SPLITS), np.int64)
    ids = np.empty_like(raw_rows.ids)
    _translate(
      raw_rows.ids,
      split,
      starts=self.raw.starts(),
      final_ids=final_ids,
      unknown_ids=unknown_ids,
      out=ids,
      num_unknown=num_unknown,
    )
    numbers = encoder_lib.scaled(
      raw_rows.numbers, self.settings['numbers'], encoder.scales
    )
    rows, by_split = encoder_lib.Rows(ids, numbers, raw_rows.labels), {}
    for number in np.unique(split):
      mask = split == number
      some = rows if mask.all() else encoder_lib.Rows(*(x[mask] for x in rows))
      by_split[_SPLITS[number]] = some, int(num_unknown[number])
    checks = [zlib.crc32(x) for some, _ in by_split.values() for x in some]
    return by_split, json.dumps([[*by_split], checks])

  def _write_names(self, vocabularies):
    """Writes keys.arrow: of each field, its categories in order of ids."""
    import pyarrow as pa

    if self.settings['hash_size']:
      return
    arrays = []
    before = self.run.strings() if self.run else [None] * len(vocabularies)
    for new, vocabulary, old in zip(
      self.raw.strings, vocabularies, before, strict=True
    ):
      strings = pa.concat_arrays(new) if new else pa.array([], 'large_string')
      names = [strings.take(pa.array(vocabulary.order))]
      if old is not None:
        names.append(old.take(pa.array(vocabulary.absent)))
      arrays.append(pa.concat_arrays(names))
    fields = np.repeat(np.arange(len(arrays)), [len(x) for x in arrays])
    table = pa.table({'field': fields, 'key': pa.concat_arrays(arrays)})
    with pa.OSFile(str(self.folder / 'keys.arrow'), 'wb') as file:
      with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _vocabulary(
  known: keys.Keys,
  counts: np.ndarray,
  before: np.ndarray | None,
  settings: Mapping[str, Any],
) -> _Vocabulary:
  """Gives ids to a field's categories, by their counts [categories].

  Those `before`, hashes of a run that is continued, have ids however rare.
  """
  hashes = known.hashes()
  if size := settings['hash_size']:
    local_ids = encoder_lib.bucket(hashes, size)
    sums = np.zeros(size, np.int64)
    np.add.at(sums, local_ids, counts)
    none = np.zeros(0, np.uint64)
    return _Vocabulary(sums, local_ids, hashes=none, order=none)
  is_chosen = counts >= max(1, settings['min_count'])
  absent, gone = None, np.zeros(0, np.uint64)
  if before is not None:
    is_chosen |= np.isin(hashes, before)
    absent = np.flatnonzero(~np.isin(before, hashes))
    gone = before[absent]
  order = np.flatnonzero(is_chosen)
  order = order[np.argsort(-counts[order], kind='stable')]
  local_ids = np.zeros(len(counts), np.int64)
  local_ids[order] = 1 + np.arange(len(order))
  frequent = counts[order]
  return _Vocabulary(
    counts=np.concatenate(
      [[counts.sum() - frequent.sum()], frequent, np.zeros(len(gone), np.int64)]
    ),
    local_ids=local_ids,
    hashes=np.concatenate([hashes[order], gone]),
    order=order,
    num_rare=int(np.count_nonzero(counts[local_ids == 0])),
    absent=absent,
  )


def _moments(numbers: np.ndarray) -> np.ndarray:
  """Returns [5, numbers]: count, mean, squared distances, least, greatest."""
  is_missing = np.isnan(numbers)
  count = np.sum(~is_missing, 0)
  mean = np.nansum(numbers, 0) / np.maximum(count, 1)
  return np.stack([
    count,
    mean,
    np.nansum(np.square(numbers - mean), 0),
    np.where(is_missing, np.inf, numbers).min(0),
    np.where(is_missing, -np.inf, numbers).max(0),
  ])  # fmt: skip


@numba.njit(nogil=True, cache=True)
def _count(ids, split, starts, counts):
  """Counts the numbers of rows for training; a column's begin at its start."""
  for i in range(len(ids)):
    if split[i] == 0:
      for j in range(ids.shape[1]):
        if ids[i, j] >= 0:
          counts[starts[j] + ids[i, j]] += 1


@numba.njit(nogil=True, cache=True)
def _translate(ids, split, starts, final_ids, unknown_ids, out, num_unknown):
  """Translates numbers of categories; counts those that are unknown."""
  for i in range(len(ids)):
    for j in range(ids.shape[1]):
      out[i, j] = examples.PADDING
      if ids[i, j] >= 0:
        out[i, j] = final_ids[starts[j] + ids[i, j]]
        num_unknown[split[i]] += out[i, j] == unknown_ids[j]
