"""Documents as a source: lines of text, rows of tables, articles of dumps.

A line is a document, also one without a word. Its row in the table is its
number, or that of its tag: documents with one tag share a row. Tables and dumps
are written into the cache as such lines first, with a tag for each.
"""

import codecs
import functools
import hashlib
import io
import json
import math
import pathlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.data import base, sentences, subsampling
from jaxemb.data import blocks as blocks_lib
from jaxemb.documents import batches
from jaxemb.io import cache as cache_lib
from jaxemb.io import columns as columns_lib
from jaxemb.io import roles, tables, text_files
from jaxemb.models import base as model_base
from jaxemb.storage import formats, packed, word2vec_format
from jaxemb.text import encode, loader, wiki

ROLES = (
  roles.Role(
    'text',
    ('text reviewText content body abstract',),
    is_required=True,
  ),
  roles.Role('tag', ('tag', 'document_id doc_id')),
)
FORMAT = formats.Format('written documents', number=2, remedy=cache_lib.REMEDY)
_HEAD_BYTES = 1 << 16
_LINES, _TAGS = 'lines.txt', 'tags.json'


class Lines(NamedTuple):
  """Where documents are lines of text."""

  path: str
  tags: Sequence[str] | None = None  # of rows; None = numbers of documents
  rows: np.ndarray | None = None  # [documents] int32, in order of the tags
  inputs: Sequence[roles.Input] = ()  # where they were written from tables
  dropped: Mapping[str, Any] = types.MappingProxyType({})  # by their reader


def _added(
  dropped: Mapping[str, Any], more: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the sums, or lists, of what was dropped."""
  return {
    **dropped,
    **{k: dropped.get(k, type(x)()) + x for k, x in more.items()},
  }


class DocumentSource(blocks_lib.BlockSource):
  """Documents as a `data.base.Source`; its keys are tags or numbers."""

  has_device_batches = False  # words alone are packed there
  # Only batches that are packed on devices reside there.
  reside = None  # type: ignore[assignment]

  def __init__(
    self, corpus: encode.Encoded, spec: base.SourceSpec, lines: Lines
  ):
    self.is_end = np.flatnonzero(corpus.ids == sentences.END)
    self._first = np.searchsorted(self.is_end, corpus.blocks.starts[:-1])
    self._rows, self._lines, num = lines.rows, lines, len(self.is_end)
    if lines.rows is not None and num != len(lines.rows):
      raise errors.UserError(
        f'{num:,} lines were read of the {len(lines.rows):,} documents in '
        f'{lines.path}; {cache_lib.REMEDY}'
      )
    super().__init__(corpus, spec)
    self.context_keys = self.keys
    if lines.tags is None or lines.rows is None:
      self.keys = list(map(str, range(num)))
    else:
      self.keys = lines.tags
      tags = hashlib.sha256(json.dumps([*lines.tags]).encode())
      tags.update(lines.rows)
      self.fingerprint = f'{self.fingerprint} {tags.hexdigest()}'
    if spec.known:  # documents that come again learn as new ones do
      self.earlier = np.zeros(len(self.keys), np.int64)
      self.earlier_contexts = self.earlier_words
    self.dropped = _added(self.dropped, lines.dropped)
    if len(self.keys) > np.iinfo(np.int32).max - 1:
      raise errors.UserError(
        f'{len(self.keys):,} documents are more than a table has rows; train '
        'on fewer'
      )

  @property
  def inputs(self) -> list[roles.Input]:
    """Returns the files as they were understood, for log and report."""
    if self._lines.inputs:
      return list(self._lines.inputs)
    return [roles.Input(**x) for x in self.corpus.manifest['inputs']]

  def batches_on_host(self) -> Callable[[Sequence[blocks_lib.Chosen]], Any]:
    """See `data.blocks.BlockSource`."""
    return batches.OnHost(
      self.corpus,
      self.spec,
      first_documents=self._first,
      rows=self._rows,
      num_words=self._most_words(),
      has_windows=self.spec.has_windows,
    )

  def _most_words(self) -> int:
    """Returns the most words that a part of a batch keeps."""
    words, ids = self.corpus.blocks.words, self.corpus.ids
    most = max(
      int(np.sort(words[x])[-self._group :].sum()) for x in self._by_part
    )
    if self.num_parts > 1 or len(words) > self._group:
      return most + 1
    # Of all words together as many as are expected, and far more than chance
    # adds: their number deviates by no more than its root. The last block needs
    # room for all of its words.
    keep = self._chances_to_stay()
    in_text = np.bincount(ids[ids != sentences.END], minlength=len(keep))
    mean = float(in_text @ keep)
    expected = math.ceil(mean + 20 * math.sqrt(mean))
    return min(most, expected + blocks_lib.BLOCK_WORDS) + 1

  def _chances_to_stay(self) -> np.ndarray:
    """Returns [vocab] float64, of words in subsampling."""
    sample = self.spec.settings['sample']
    return subsampling.keep_probabilities(self.word_counts, sample)

  def _cut(self, spec: base.SourceSpec) -> None:
    """See `BlockSource`; counts and frequencies are those of documents."""
    self.counts = self.word_counts
    super()._cut(spec)
    self.word_frequencies = self.frequencies
    self.steps = batches.Steps.of(spec)
    words, surviving = np.zeros((2, len(self.is_end)))
    batches.count_words(
      self.corpus.ids, self._chances_to_stay(), words, surviving
    )
    if self._lines.tags is not None and self._rows is not None:
      num = len(self._lines.tags)
      words, surviving = (
        np.bincount(self._rows, x, num).astype(np.float64, copy=False)
        for x in (words, surviving)
      )
    self.counts = words.astype(np.int64)
    if spec.known:
      self.counts[: len(spec.known.keys)] += spec.known.counts
    self.frequencies = surviving / max(surviving.sum(), 1)

  def word_corpus(self) -> model_base.Corpus:
    """Returns what models may know of the words."""
    return model_base.Corpus(
      keys=self.context_keys,
      counts=self.word_counts,
      centers=self.word_frequencies,
      source=self,
    )

  def describe(self) -> list[str]:
    """Returns lines about the corpus for the log."""
    return [
      f'{len(self.is_end):,} documents with {len(self.keys):,} rows, '
      f'{(self.counts == 0).sum():,} of them without a word; '
      f'{self.corpus.num_words:,} words, vocabulary '
      f'{len(self.context_keys):,}, in {self.corpus.folder}'
    ]


def make(spec: base.SourceSpec) -> DocumentSource:
  """Returns the documents that the settings name.

  Raises a `UserError` for input that cannot be used.
  """
  if spec.readers.num_processes > 1:
    raise errors.UserError(
      'documents are read by one process; start without --num_processes, and '
      'give several devices to it'
    )
  path = spec.path
  if not path or path.startswith('toywiki:'):
    path = str(loader.embedded(spec).xml)
  lines = _lines(path, spec)
  settings = encode.settings_of(spec.settings, every_line=True)
  settings = settings._replace(columns='')
  corpus = encode.encode(
    lines.path,
    settings,
    spec.cache,
    progress=spec.progress,
    num_parts=spec.num_parts,
    readers=spec.readers,
    known=spec.known and _words_of(spec.known),
  )
  loader.check_step(spec, corpus.num_words)
  if spec.known:
    num = int((corpus.ids == sentences.END).sum())
    lines = _behind(spec.known, lines, num)
  return DocumentSource(corpus, spec, lines)


def _words_of(run: base.Known) -> base.Known:
  """Returns the words of a run that is continued, in place of documents."""
  words, counts = word2vec_format.read_vocab(run.folder / 'words' / 'vocab.txt')
  return run._replace(keys=words, counts=counts)


def _behind(run: base.Known, lines: Lines, num: int) -> Lines:
  """Returns `num` lines whose rows come behind those of a run.

  Those with tags of the run share its rows; numbers go on. Raises a `UserError`
  for lines without tags where the run has some.
  """
  old = list(run.keys)
  if lines.tags is None:
    if old != [str(i) for i in range(len(old))]:
      raise errors.UserError(
        f'--from={run.path} has tags of documents, and lines have none; give a '
        'table with tags, or a run of lines'
      )
    rows = np.arange(len(old), len(old) + num, dtype=np.int32)
    return lines._replace(tags=[*old, *map(str, rows.tolist())], rows=rows)
  spelled, _ = word2vec_format.spell(lines.tags)
  row_of = {x: i for i, x in enumerate(old)}
  new = [i for i, x in enumerate(spelled) if x not in row_of]
  row_of |= {spelled[x]: len(old) + i for i, x in enumerate(new)}
  rows = np.array([row_of[x] for x in spelled], np.int32)
  tags = [*old, *(lines.tags[i] for i in new)]
  return lines._replace(tags=tags, rows=rows[lines.rows])


def _lines(path: str, spec: base.SourceSpec) -> Lines:
  """Returns where documents are lines, which are written first if needed."""
  declared = spec.settings['columns']
  files, form = _find(path, declared, encoding=spec.settings['encoding'])
  if form == 'lines':
    return Lines(path)
  of_files = cache_lib.identity_of(files)
  identity = FORMAT.number, declared, of_files
  folder = cache_lib.folder_of(spec.cache / 'documents', '', identity)
  progress = functools.partial(spec.progress, 'reading documents')
  reader = _reader(form, declared, progress)

  def make(folder: pathlib.Path) -> None:
    _write(folder, files=files, reader=reader)
    cache_lib.check_unchanged(files, of_files)

  return cache_lib.opened(folder, _read_lines, make)


def read(
  path: str, declared: str = '', encoding: str = text_files.UTF_8
) -> Iterator[tuple[str, str | None]]:
  """Yields the text and the tag, if it has one, of each document of a path.

  `declared` is `data.columns`, `encoding` `data.encoding`. Raises a `UserError`
  for what cannot be read.
  """
  files, form = _find(path, declared, encoding=encoding)
  reader = functools.partial(_text_lines, encoding=encoding)
  if form != 'lines':
    reader = _reader(form, declared, lambda done, total: None)
  for file in files:
    yield from reader(file)


def _find(
  path: str, declared: str, encoding: str
) -> tuple[list[pathlib.Path], str]:
  """Returns the files of a path, and their form.

  Raises a `UserError` for files of different forms, and for an encoding where
  they are no lines of text.
  """
  files, _ = text_files.without_splits(path, text_files.find(path))
  forms = {x.path: _form(x.path, declared) for x in files if x.size_bytes}
  kinds = sorted({*forms.values()})
  if len(kinds) > 1:
    one, other = (
      next(k for k, x in forms.items() if x == y) for y in kinds[:2]
    )
    raise errors.UserError(
      f'{path} has files of different forms, {one.name} and {other.name}; give '
      'those of one'
    )
  if kinds[0] != 'lines' and not _is_utf8(encoding):
    raise errors.UserError(
      f'the encoding {encoding} is for lines of text, and {path} is a '
      f'{kinds[0]}, which is read as UTF-8; convert it first (iconv -f '
      f'{encoding} -t utf-8), and leave the encoding out'
    )
  return [*forms], kinds[0]


def _is_utf8(encoding: str) -> bool:
  try:
    return codecs.lookup(encoding).name == text_files.UTF_8
  except LookupError as error:
    raise errors.UserError(f'{error}; give one such as cp1252') from error


def _reader(form: str, declared: str, progress: Callable[[int, int], None]):
  """Returns what yields texts and tags of a table or a dump."""
  return _Table(declared, progress) if form == 'table' else _Dump()


def _text_lines(
  file: pathlib.Path, encoding: str
) -> Iterator[tuple[str, None]]:
  """Yields the lines of a file, which end with LF, CR or both."""
  if _is_utf8(encoding):
    encoding = 'utf-8-sig'
  try:
    with io.TextIOWrapper(packed.File(file), encoding, 'replace') as text:
      yield from ((line.removesuffix('\n'), None) for line in text)
  except OSError as error:
    raise errors.UserError(text_files.unreadable(file, error)) from error


def _form(file: pathlib.Path, declared: str) -> str:
  """Returns 'lines', 'table' or 'dump'; raises a `UserError` for others."""
  if declared or _is_table(file):
    return 'table'
  with packed.File(file) as stream:
    head = stream.read(_HEAD_BYTES)
  extract = wiki.extractor(head.removeprefix(b'\xef\xbb\xbf'), path=str(file))
  if extract is None:
    return 'lines'
  if extract is wiki.docs:
    raise errors.UserError(
      f'{file} has lines of text between <doc> and </doc>; write JSON lines '
      '(WikiExtractor: --json), of which each is a document'
    )
  return 'dump' if b'<mediawiki' in head or b'<page>' in head else 'table'


def _is_table(file: pathlib.Path) -> bool:
  suffixes = [x[1:].lower() for x in file.suffixes]
  return any(x in (*tables.WITH_NAMES, 'pq', 'ndjson') for x in suffixes)


def _read_lines(folder: pathlib.Path) -> Lines:
  """Opens what `_write` has written."""
  stored = json.loads((folder / _TAGS).read_text('utf-8'))
  # The folder's name has the number, too, as it had before the file did.
  FORMAT.check(folder, {'format': FORMAT.number} | stored)
  return Lines(
    path=str(folder / _LINES),
    tags=stored['tags'],
    rows=np.load(folder / 'rows.npy') if stored['tags'] is not None else None,
    inputs=[roles.Input(**x) for x in stored['inputs']],
    dropped=stored['dropped'],
  )


def _write(
  folder: pathlib.Path, files: Sequence[pathlib.Path], reader: Any
) -> None:
  """Writes documents as lines, and their tags."""
  row_of: dict[str, int] = {}
  rows = []
  with open(folder / _LINES, 'w', encoding='utf-8', errors='replace') as out:
    out.write('\N{NO-BREAK SPACE}')  # so that no first line passes for a form
    for file in files:
      for text, tag in reader(file):
        out.write(' '.join(text.splitlines()).replace('\0', ' ') + '\n')
        if tag is not None:
          rows.append(row_of.setdefault(tag, len(row_of)))
  stored = FORMAT.stamp() | {
    'tags': [*row_of] if rows else None,
    'inputs': [x._asdict() for x in reader.inputs],
    'dropped': reader.dropped(),
  }
  if rows:
    np.save(folder / 'rows.npy', np.array(rows, np.int32))
  (folder / _TAGS).write_text(json.dumps(stored), 'utf-8')


class _Table:
  """Reads rows of tables and JSON lines, which have the same columns."""

  def __init__(self, declared: str, progress: Callable[[int, int], None]):
    self._declared, self._progress = declared, progress
    self._num_bad, self._num_invalid_bytes = 0, 0
    self.inputs: list[roles.Input] = []

  def dropped(self) -> dict[str, Any]:
    """Returns what was not read, counted."""
    return {
      'unreadable_rows': self._num_bad,
      'invalid_utf8_bytes': self._num_invalid_bytes,
    }

  def __call__(self, file: pathlib.Path) -> Iterator[tuple[str, str | None]]:
    """Yields texts and tags."""
    is_header = functools.partial(
      roles.is_header, ROLES, declared=self._declared
    )
    head = tables.head(file, is_header=is_header)
    has_header = head.has_names or is_header(head.rows)
    names = head.rows[0] if head.rows else []
    columns = roles.require(
      str(file),
      ROLES,
      roles.assign(
        str(file), ROLES, names, declared=self._declared, has_header=has_header
      ),
    )
    if self.inputs and self.inputs[0].columns != columns.named():
      raise errors.UserError(
        f'{file} has other columns than {self.inputs[0].files[0]}; give files '
        'with the same'
      )
    row = head.rows[1] if has_header and len(head.rows) > 1 else names
    self.inputs.append(roles.Input.of([file], head.form, columns, row))
    reader = tables.Reader(
      str(file),
      head.form,
      remedy='give --config.data.columns=text:COLUMN',
      has_header=is_header,
    )
    text, tag = columns.by_role['text'][0], columns.index('tag')
    for table in reader.tables(self._progress, then=lambda table: table):
      columns_of = [*table.columns.values()]
      texts = _strings(columns_of[text])
      tags: Sequence[str | None] = [None] * len(texts)
      if tag is not None:
        tags = _strings(columns_of[tag])
        if '' in tags:
          raise errors.UserError(
            f'{file} has a row without a tag in the column '
            f'{columns.names[tag]}; fill it, or give -:{columns.names[tag]} in '
            '--config.data.columns'
          )
      yield from zip(texts, tags, strict=True)
    # Headers of files that were put together are no documents.
    if tag is None and reader.num_bad > reader.num_repeated:
      raise errors.UserError(
        f'{reader.num_bad:,} rows of {file} cannot be read, the first is '
        f'{reader.first_bad}; as numbers of documents are those of rows, mend '
        'the file, or give a column with tags, --config.data.columns=tag:COLUMN'
      )
    self._num_bad += reader.num_bad
    self._num_invalid_bytes += reader.num_invalid_bytes


def _strings(column: Any) -> list[str]:
  return [x or '' for x in columns_lib.names(column).strings().to_pylist()]


class _Dump:
  """Reads articles of MediaWiki dumps; tags are their titles."""

  def __init__(self):
    self.inputs: list[roles.Input] = []
    self._reports: list[wiki.ReadReport] = []

  def dropped(self) -> dict[str, Any]:
    """Returns what was not read, counted."""
    reports = self._reports
    return {
      'problems': [y for x in reports for y in x.problems],
      'invalid_utf8_bytes': sum(x.replaced_bytes for x in reports),
      'lost_bytes': sum(x.lost_bytes for x in reports),
      'redirects': sum(x.redirects for x in reports),
      'other_namespace_pages': sum(x.other_namespace_pages for x in reports),
    }

  def __call__(self, file: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yields texts and titles."""
    report = wiki.ReadReport()
    self._reports.append(report)
    try:
      with packed.File(file) as stream:
        for page in wiki.articles(text_files.blocks_of(stream, report), report):
          yield wiki.plain(page.text, page.hidden), page.title
    except OSError as error:
      raise errors.UserError(text_files.unreadable(file, error)) from error
    report.problems = [f'{file}: {x}' for x in report.problems]
    shown = {'text': 'articles', 'tag': 'titles'}
    self.inputs.append(
      roles.Input((str(file),), 'MediaWiki dump', shown, first={})
    )
