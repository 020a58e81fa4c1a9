"""MediaWiki XML dumps: the pages of a file, one at a time in memory.

Expat streams any export version. Two things happen to real dumps: they end
early, and several are put into one file; the complete pages of both are read,
and what is missing is said.
"""

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from xml.parsers import expat

from jaxemb.text import wikitext


class Page(NamedTuple):
  """One page of a dump.

  Attributes:
    title: Its title, with the namespace's prefix if it has one.
    namespace: Its namespace's number; 0 holds the articles.
    redirect: Whether it only points to another page.
    model: Content model; 'wikitext' for everything that has paragraphs.
    text: Its wikitext (of the last revision, in a dump with several).
    hidden: Lower-case prefixes of the links that show no text, in this wiki's
      language: files and categories.
  """

  title: str
  namespace: int
  redirect: bool
  model: str
  text: str
  hidden: frozenset[str]


class Damage(NamedTuple):
  """A part of a dump that could not be used as it is.

  Attributes:
    message: What is wrong and where, without the name of the file; '' when
      bytes were replaced and nothing was lost.
    lost_bytes: XML bytes skipped because of it.
    replaced_bytes: Bytes that are not UTF-8 or not allowed in XML.
  """

  message: str
  lost_bytes: int
  replaced_bytes: int


_HIDDEN_NAMESPACES = (6, 14)  # file, category
_KEPT = frozenset(('title', 'ns', 'text', 'model', 'namespace'))
_ROOT = b'<mediawiki>'
_OPENING = re.compile(rb'<mediawiki[\s>]|<page>')
_REDIRECT = re.compile(r'\s*#\s*redirect\b', re.IGNORECASE)
_JUNK = expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]
_CONTROLS = bytes(c for c in range(32) if c not in b'\t\n\r')
_CLEAN = bytes.maketrans(_CONTROLS, b'?' * len(_CONTROLS))


def _integer(text: str) -> int:
  return int(text) if re.fullmatch(r'-?\d{1,9}', text) else 0


class _Parser:
  """Expat and the little state that a page needs.

  Byte positions count from the start of the stream, not of the parser.
  """

  def __init__(self, start_byte: int, names: dict[str, int], headless: bool):
    self.done: list[Page] = []  # pages completed by the last `feed`
    self.done_byte = start_byte  # end of the last complete page
    self.depth = 0
    self.headless = headless  # starts at a <page>: gets a root of ours
    self._names = names  # of namespaces, in lower case, to numbers
    self._start_byte = start_byte
    self._parts: list[str] = []
    self._fields: dict[str, str] = {}
    self._key = 0
    self._hidden = self._hidden_prefixes()
    self._expat = expat.ParserCreate('utf-8')
    self._expat.buffer_text = True
    self._expat.buffer_size = 1 << 18
    # Newer expat holds back what might go on in the next block, so that the
    # end of a dump would seem cut; blocks are large enough without that.
    if hasattr(self._expat, 'SetReparseDeferralEnabled'):
      self._expat.SetReparseDeferralEnabled(False)
    self._expat.StartElementHandler = self._start
    self._expat.EndElementHandler = self._end
    if headless:
      self._start_byte -= len(_ROOT)
      self._expat.Parse(_ROOT, False)

  def feed(self, block: bytes, final: bool = False) -> None:
    self.done = []
    self._expat.Parse(block, final)

  def error_byte(self) -> int:
    return self._start_byte + self._expat.ErrorByteIndex

  def _hidden_prefixes(self) -> frozenset[str]:
    return wikitext.HIDDEN.union(
      name for name, key in self._names.items() if key in _HIDDEN_NAMESPACES
    )

  def _start(self, name: str, attributes: dict[str, str]) -> None:
    self.depth += 1
    if name in _KEPT:
      self._parts.clear()
      self._key = _integer(attributes.get('key', ''))
      self._expat.CharacterDataHandler = self._parts.append
    elif name == 'redirect':
      self._fields['redirect'] = ''
    elif name == 'page':
      self._fields.clear()

  def _end(self, name: str) -> None:
    self.depth -= 1
    if name in _KEPT:
      self._expat.CharacterDataHandler = None  # also flushes its buffer
      self._fields[name] = ''.join(self._parts)
      self._parts.clear()
      if name == 'namespace':
        self._names[self._fields[name].lower()] = self._key
    elif name == 'namespaces':
      self._hidden = self._hidden_prefixes()
    elif name == 'page':
      self.done.append(self._page())
      end = self._expat.CurrentByteIndex + len('</page>')
      self.done_byte = self._start_byte + end

  def _page(self) -> Page:
    title = self._fields.get('title', '')
    text = self._fields.get('text', '')
    if 'ns' in self._fields:
      namespace = _integer(self._fields['ns'].strip())
    else:  # exports before version 0.6 name it in the title alone
      prefix, colon, _ = title.partition(':')
      namespace = self._names.get(prefix.lower(), 0) if colon else 0
    redirect = 'redirect' in self._fields or bool(_REDIRECT.match(text))
    model = self._fields.get('model', 'wikitext')
    return Page(title, namespace, redirect, model, text, self._hidden)


def _valid(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
  """Replaces what XML may not contain; yields blocks and how many bytes."""
  decoder = codecs.getincrementaldecoder('utf-8')()
  for block in blocks:
    clean = block.translate(_CLEAN)
    num_bad = len(block) - len(block.translate(None, _CONTROLS))
    try:
      decoder.errors = 'strict'
      text = decoder.decode(clean)
    except UnicodeDecodeError:
      decoder.errors = 'replace'
      text = decoder.decode(clean)
      num_bad += text.count('\ufffd') - clean.count(b'\xef\xbf\xbd')
    for bad in '\ufffe\uffff':
      if bad in text:
        num_bad += 3 * text.count(bad)
        text = text.replace(bad, '\ufffd')
    yield text.encode(), num_bad


def pages(blocks: Iterable[bytes]) -> Iterator[Page | Damage]:
  """Streams the pages of a dump, in order.

  Args:
    blocks: The XML in pieces of any size. It may end early, start at a <page>
      instead of its header, or be several dumps in a row.

  Yields:
    Every complete page of every namespace, redirects too, and a `Damage` where
    something is missing, malformed or replaced.
  """
  names: dict[str, int] = {}
  parser: _Parser | None = None  # None while looking for a place to start
  after, cause = 'in its first page', ''
  num_pages = read_bytes = done_byte = 0
  data = b''  # what the parser has not seen yet, up to `read_bytes`
  for block, num_bad in _valid(blocks):
    if num_bad:
      yield Damage('', 0, num_bad)
    read_bytes += len(block)
    data += block
    while data:
      if fresh := parser is None:
        opening = _OPENING.search(data)
        if not opening:
          data = data[-len(_ROOT) :]
          break
        data = data[opening.start() :]
        start_byte = read_bytes - len(data)
        if cause:
          message = f'{cause}; reading goes on behind that page'
          yield Damage(message, start_byte - done_byte, 0)
        headless = opening[0] == b'<page>'
        parser = _Parser(start_byte, names, headless)
      current, error = parser, None
      try:
        parser.feed(data)
        data = b''
      except expat.ExpatError as raised:
        error, parser = raised, None
        skip = current.error_byte() - (read_bytes - len(data))
        data = data[max(skip, fresh) :]
      yield from current.done
      if current.done:
        num_pages += len(current.done)
        after = f'after page {num_pages} ("{current.done[-1].title}")'
      done_byte = current.done_byte
      # Junk after the document is the next of several dumps in a row.
      is_damage = error and error.code != _JUNK
      reason = expat.ErrorString(error.code) if is_damage else ''
      cause = f'malformed {after} ({reason})' if is_damage else ''
  if parser and parser.depth > parser.headless:
    cause = f'cut {after}'
  if cause:
    message = f'{cause}; the pages so far are used'
    yield Damage(message, read_bytes - done_byte, 0)
