"""Documents as a source: lines of text, rows of tables, articles of dumps.

A line is a document, also one without a word. Its row in the table is its
number, or that of its tag: documents with one tag share a row. Tables and dumps
are written into the cache as such lines first, with a tag for each.
"""

import functools
import hashlib
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
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
from jaxemb.storage import packed
from jaxemb.text import encode, loader, wiki

ROLES = (
  roles.Role(
    'text',
    ('text reviewText content body abstract',),
    is_required=True,
  ),
  roles.Role('tag', ('tag', 'document_id doc_id')),
)
_FORMAT = 1
_HEAD_BYTES = 1 << 16
_LINES, _TAGS = 'lines.txt', 'tags.json'


class Lines(NamedTuple):
  """Where documents are lines of text."""

  path: str
  tags: Sequence[str] | None = None  # of rows; None = numbers of documents
  rows: np.ndarray | None = None  # [documents] int32, in order of the tags
  inputs: Sequence[roles.Input] = ()  # where they were written from tables
  dropped: int = 0  # rows of a table that cannot be read


class DocumentSource(blocks_lib.BlockSource):
  """Documents as a `data.base.Source`; its keys are tags or numbers."""

  has_device_batches = False  # words alone are packed there
  reside = None

  def __init__(
    self, corpus: encode.Encoded, spec: base.SourceSpec, lines: Lines
  ):
    self.is_end = np.flatnonzero(corpus.ids == sentences.END)
    self._first = np.searchsorted(self.is_end, corpus.blocks.starts[:-1])
    self._rows = lines.rows
    self._of_documents: np.ndarray | None = None  # frequencies, once counted
    super().__init__(corpus, spec)
    self._lines = lines
    self.context_keys, self.word_counts = self.keys, self.counts
    self.word_frequencies = self.frequencies
    self._count(lines)

  def _count(self, lines: Lines) -> None:
    """Sets keys, counts and frequencies to those of documents."""
    sample, num = self.spec.settings['sample'], len(self.is_end)
    keep = subsampling.keep_probabilities(self.word_counts, sample)
    words, kept = np.zeros(num, np.int64), np.zeros(num)
    batches.count_words(self.corpus.ids, keep, words, kept)
    self.keys = lines.tags
    if lines.tags is None:
      self.keys = list(map(str, range(num)))
    else:
      if num != len(lines.rows):
        raise errors.UserError(
          f'{num:,} lines were read of the {len(lines.rows):,} documents in '
          f'{lines.path}; {cache_lib.REMEDY}'
        )
      words = np.bincount(lines.rows, words, len(lines.tags)).astype(np.int64)
      kept = np.bincount(lines.rows, kept, len(lines.tags))
      tags = hashlib.sha256(json.dumps([*lines.tags]).encode())
      tags.update(lines.rows)
      self.fingerprint = f'{self.fingerprint} {tags.hexdigest()}'
    self.counts = words
    self.frequencies = self._of_documents = kept / max(kept.sum(), 1)
    self.dropped = {**self.dropped, 'unreadable_rows': lines.dropped}
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
    # adds: their number deviates by no more than its root.
    sample = self.spec.settings['sample']
    keep = subsampling.keep_probabilities(self.corpus.counts, sample)
    in_text = np.bincount(ids[ids != sentences.END], minlength=len(keep))
    mean = float(in_text @ keep)
    return min(most, math.ceil(mean + 20 * math.sqrt(mean)) + 1000) + 1

  def _cut(self, spec: base.SourceSpec) -> None:
    super()._cut(spec)
    if self._of_documents is not None:  # not of words, as there
      self.frequencies = self._of_documents
    self.steps = batches.Steps.of(spec)

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
  corpus = encode.encode(
    lines.path,
    settings._replace(columns=''),
    spec.cache,
    progress=spec.progress,
    num_parts=spec.num_parts,
    readers=spec.readers,
  )
  loader.check_step(spec, corpus.num_words)
  return DocumentSource(corpus, spec, lines)


def _lines(path: str, spec: base.SourceSpec) -> Lines:
  """Returns where documents are lines, which are written first if needed."""
  declared = spec.settings['columns']
  files, form = _find(path, declared)
  if form == 'lines':
    return Lines(path)
  identity = _FORMAT, declared, cache_lib.identity_of(files)
  folder = cache_lib.folder_of(spec.cache / 'documents', '', identity)
  progress = functools.partial(spec.progress, 'reading documents')
  reader = _reader(form, declared, progress)
  make = functools.partial(_write, files=files, reader=reader)
  return cache_lib.opened(folder, _read_lines, make)


def read(path: str, declared: str = '') -> Iterator[tuple[str, str | None]]:
  """Yields the text and the tag, if it has one, of each document of a path.

  `declared` is `data.columns`. Raises a `UserError` for what cannot be read.
  """
  files, form = _find(path, declared)
  reader = _reader(form, declared, lambda done, total: None)
  for file in files:
    yield from reader(file)


def _find(path: str, declared: str) -> tuple[list[pathlib.Path], str]:
  """Returns the files of a path, and their form."""
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
  return [*forms], kinds[0]


def _reader(form: str, declared: str, progress: Callable[[int, int], None]):
  """Returns what yields texts and tags of a file of a form."""
  if form == 'table':
    return _Table(declared, progress)
  return _Dump() if form == 'dump' else _text_lines


def _text_lines(file: pathlib.Path) -> Iterator[tuple[str, None]]:
  """Yields the lines of a file in UTF-8."""
  with packed.File(file) as stream:
    rest = b''
    while block := stream.read(text_files.BLOCK_BYTES):
      *lines, rest = (rest + block).split(b'\n')
      yield from ((x.decode(errors='replace'), None) for x in lines)
    if rest:
      yield rest.decode(errors='replace'), None


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
  stored = {
    'tags': [*row_of] if rows else None,
    'inputs': [x._asdict() for x in reader.inputs],
    'dropped': reader.num_bad,
  }
  if rows:
    np.save(folder / 'rows.npy', np.array(rows, np.int32))
  (folder / _TAGS).write_text(json.dumps(stored), 'utf-8')


class _Table:
  """Reads rows of tables and JSON lines, which have the same columns."""

  def __init__(self, declared: str, progress: Callable[[int, int], None]):
    self._declared, self._progress = declared, progress
    self.num_bad, self.inputs = 0, []

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
    text, tag = columns.index('text'), columns.index('tag')
    for table in reader.tables(self._progress, then=lambda table: table):
      columns_of = [*table.columns.values()]
      texts = _strings(columns_of[text])
      tags = [None] * len(texts)
      if tag is not None:
        tags = _strings(columns_of[tag])
        if '' in tags:
          raise errors.UserError(
            f'{file} has a row without a tag in the column '
            f'{columns.names[tag]}; fill it, or give -:{columns.names[tag]} in '
            '--config.data.columns'
          )
      yield from zip(texts, tags, strict=True)
    self.num_bad += reader.num_bad


def _strings(column: Any) -> list[str]:
  return [x or '' for x in columns_lib.names(column).strings().to_pylist()]


class _Dump:
  """Reads articles of MediaWiki dumps; tags are their titles."""

  num_bad = 0

  def __init__(self):
    self.inputs: list[roles.Input] = []

  def __call__(self, file: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yields texts and titles."""
    report = wiki.ReadReport()
    with packed.File(file) as stream:
      blocks = iter(lambda: stream.read(text_files.BLOCK_BYTES), b'')
      for page in wiki.pages(blocks, report):
        if not page.redirect and page.namespace == 0:
          if page.model == 'wikitext':
            yield wiki.plain(page.text, page.hidden), page.title
    shown = {'text': 'articles', 'tag': 'titles'}
    self.inputs.append(
      roles.Input((str(file),), 'MediaWiki dump', shown, first={})
    )
