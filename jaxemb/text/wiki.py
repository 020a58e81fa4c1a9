"""Wikipedia text: MediaWiki XML dumps, wikitext and WikiExtractor's output.

Dumps of any export version are cut at </page>, which cannot stand in the text
of a page, and each page is parsed by itself. Real dumps end early, have
malformed pages, or are several in one file: all complete pages are read, and
what is missing is reported.

Wikitext becomes plain paragraphs in linear time and without a real parser:
first the tags that hide their contents go, then one walk over all brackets with
a stack (templates, tables and links nest to any depth; unbalanced ones do
little harm), then inline markup, then lines.

WikiExtractor writes <doc> elements or JSON lines. Its <doc> files are plain
text but for the few lines around each article, which are removed in bulk.
"""

import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from xml.etree import ElementTree
from xml.parsers import expat

# Prefixes of links that show no text, in English and by namespace.
HIDDEN = frozenset(('file', 'image', 'category'))
_HIDDEN_NAMESPACES = (6, 14)  # file, category

_REDIRECT = re.compile(r'\s*#\s*redirect\b', re.IGNORECASE)
_NAMESPACE = re.compile(rb'<namespace key="(-?\d{1,9})"[^>]*>([^<]*)')
_OLD_REVISIONS = re.compile(rb'<revision>.*</revision>(?=\s*<revision>)', re.S)
_MAX_PENDING_BYTES = 1 << 26
_CONTROLS = bytes(c for c in range(32) if c not in b'\t\n\r')
_CLEAN = bytes.maketrans(_CONTROLS, b'?' * len(_CONTROLS))

# Tags whose contents are not prose. <nowiki> is among them because what it
# holds is text, but not markup.
_OPAQUE = re.compile(
  r'(<!--|-->|<(/?)(categorytree|ce|chem|gallery|graph|hiero|imagemap'
  r'|includeonly|inputbox|mapframe|maplink|math|nowiki|pre|references|ref'
  r'|score|source|syntaxhighlight|table|templatedata|templatestyles|timeline)'
  r'(?=[\s/>])[^<>]*>)',
  re.IGNORECASE,
)
_MARKUP = {ord(c): f'&#{ord(c)};' for c in "[]{}|'<>*#:=!_/"}
# Every branch begins with one literal character, never with a repeat: only then
# does the engine skip ahead to the next such character.
_BRACKETS = re.compile(
  r'(\[\[|\]\]|\{\{+|\}\}+(?:[ \t]*\{\|)?|\n[ \t:*#]*\{\||\n[ \t]*\|\}+)'
)
_MAX_DEPTH = 99  # of links: joining their labels could take quadratic time
_EXTERNAL = re.compile(
  r'\[(?:[a-z]+:)?//[^][\s<>"]*'
  r'([^][\n]*(?:\[\[[^][\n]*\]\][^][\n]*)*)\]',
  re.IGNORECASE,
)
_LANGUAGE = re.compile(r'(?:[a-z]{2,3}(?:-[a-z]+)*|simple):\S')
_DISAMBIGUATION = re.compile(r'(?:\([^()]*\)|,.*)$')
_BREAK = re.compile(
  r'</?(?:blockquote|center|caption|d[dlt]|div|h[1-6r]|li|[ou]l|p|poem|t[dhr])'
  r'(?=[\s/>])[^<>]*>',
  re.IGNORECASE,
)
_TAG = re.compile(
  r'</?(?:abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|includeonly|ins'
  r'|kbd|mark|noinclude|onlyinclude|q|rb|rp|rt|ruby|s|samp|section|small|span'
  r'|strike|strong|su[bp]|time|tt|u|var|wbr)(?=[\s/>])[^<>]*>',
  re.IGNORECASE,
)
_NEWLINE_TAG = re.compile(r'<[/\s]*br\b[^<>]*>', re.IGNORECASE)
_SWITCH = re.compile(r'__(?:[^\W\d_]|_(?!_))+__')
_URL = re.compile(r'\b(?:https?|ftps?)://[^\s<>"|]+', re.IGNORECASE)
_HOLLOW = re.compile(r'\([\s,;:]*\)')

_MAX_LINE_BYTES = 1 << 23
_MAX_RECORD_BYTES = 1 << 28
_SPACES = (b' ', b'\t', b'\r', b'\v', b'\f')
_JSON_HEAD = re.compile(rb'\{\s*(?=")[^\n]*?"text"\s*:\s*"')
# The character before a lookbehind is searched first, which is faster than ^.
_OPEN_DOC = re.compile(rb'<(?<=\n<)doc [^\n]*\n')
_CLOSE_DOC = re.compile(rb'<(?<=\n<)/doc>\r?(?:\n|\Z)')
_ENTITY = re.compile(rb'&(lt|gt|quot|amp);')
_CHARS = {b'lt': b'<', b'gt': b'>', b'quot': b'"', b'amp': b'&'}


class Page(NamedTuple):
  """One page of a dump."""

  title: str  # with the prefix of its namespace
  namespace: int  # 0 holds the articles
  redirect: bool  # whether it only points to another page
  model: str  # 'wikitext' for everything that has paragraphs
  text: str  # wikitext, of the last revision in a dump with several
  hidden: frozenset[str]  # link prefixes as in `HIDDEN`, in the wiki's language


class Damage(NamedTuple):
  """A part of a dump that could not be used as it is."""

  message: str  # what is wrong and where; '' if nothing was lost
  lost_bytes: int  # of XML
  replaced_bytes: int  # that are not UTF-8 or not allowed in XML


class Extract(NamedTuple):
  """Text of some articles."""

  text: bytes
  num_docs: int  # articles that begin in it
  num_bad: int = 0  # lines dropped because they were unusable
  lost_bytes: int = 0  # in these lines


def pages(blocks: Iterable[bytes]) -> Iterator[Page | Damage]:
  """The complete pages of a dump, in order, of all namespaces, redirects too.

  And a `Damage` where something is missing, malformed or replaced. The XML may
  end early, start at a <page> instead of its header, or be several dumps in a
  row.
  """
  names: dict[str, int] = {}  # of namespaces, in lower case, to numbers
  num_pages, after = 0, 'in its first page'
  is_open = False  # whether a <mediawiki> is not closed yet
  data = b''  # what follows the last complete page
  for block in blocks:
    *chunks, data = (data + block).split(b'</page>')
    for chunk in chunks:
      header, start, body = chunk.rpartition(b'<page>')
      is_open = _read_header(header, names, is_open)
      if b'<page>' in header or not start:
        unclosed = header[max(0, header.find(b'<page>')) :]
        yield _malformed(after, 'not one page', len(unclosed or chunk))
      if not start:
        continue
      xml = start + body + b'</page>'
      try:
        fields, num_replaced = _fields(xml)
      except ElementTree.ParseError as error:
        yield _malformed(after, expat.ErrorString(error.code), len(xml))
        continue
      if num_replaced:
        yield Damage('', 0, num_replaced)
      num_pages += 1
      after = f'after page {num_pages} ("{fields.get("title", "")}")'
      yield _page(fields, names)
    if len(data) > _MAX_PENDING_BYTES:  # a page with all its history, or none
      start_byte = data.find(b'<page>')
      if start_byte < 0:
        start_byte = len(data) - len('</mediawiki>')
      is_open = _read_header(data[:start_byte], names, is_open)
      data = _OLD_REVISIONS.sub(b'', data[start_byte:])
  if _read_header(data, names, is_open) or b'<page>' in data:
    yield Damage(f'cut {after}; the pages so far are used', len(data), 0)


def _malformed(after: str, reason: str, lost_bytes: int) -> Damage:
  message = f'malformed {after} ({reason}); reading goes on after that page'
  return Damage(message, lost_bytes, 0)


def _read_header(xml: bytes, names: dict[str, int], is_open: bool) -> bool:
  """Adds namespaces to `names`; returns whether a <mediawiki> is open after."""
  for key, name in _NAMESPACE.findall(xml):
    names[html.unescape(name.decode(errors='replace')).lower()] = int(key)
  opened, closed = xml.rfind(b'<mediawiki'), xml.rfind(b'</mediawiki>')
  return is_open if opened == closed else opened > closed


def _fields(xml: bytes) -> tuple[dict[str, str], int]:
  """The last text of each element of a page, and how many bytes are replaced.

  Raises:
    ParseError: if it is malformed, apart from characters not allowed in XML.
  """
  try:
    page, num_replaced = ElementTree.fromstring(xml), 0
  except ElementTree.ParseError:
    num_replaced = len(xml) - len(xml.translate(None, _CONTROLS))
    text = xml.translate(_CLEAN).decode(errors='replace')
    num_replaced += text.count('\ufffd') - xml.count(b'\xef\xbf\xbd')
    for bad in '\ufffe\uffff':
      num_replaced += 3 * text.count(bad)
      text = text.replace(bad, '\ufffd')
    page = ElementTree.fromstring(text)
  return {x.tag: x.text or '' for x in page.iter()}, num_replaced


def _page(fields: dict[str, str], names: dict[str, int]) -> Page:
  title, text = fields.get('title', ''), fields.get('text', '')
  if 'ns' in fields:
    number = fields['ns'].strip()
    namespace = int(number) if re.fullmatch(r'-?\d{1,9}', number) else 0
  else:  # exports before version 0.6 name it in the title alone
    prefix, colon, _ = title.partition(':')
    namespace = names.get(prefix.lower(), 0) if colon else 0
  redirect = 'redirect' in fields or bool(_REDIRECT.match(text))
  model = fields.get('model', 'wikitext')
  hidden = HIDDEN.union(x for x in names if names[x] in _HIDDEN_NAMESPACES)
  return Page(title, namespace, redirect, model, text, hidden)


def _hide(text: str) -> str:
  """Drops comments and opaque tags with their contents; linear time."""
  parts = _OPAQUE.split(text)
  if len(parts) == 1:
    return text
  last = {}  # where each tag is closed for the last time
  for i in range(1, len(parts), 4):
    if parts[i + 1]:
      last[parts[i + 2].lower()] = i
    elif parts[i] == '-->':
      last['!--'] = i
  out = [parts[0]]
  inside = ''  # the tag whose end is looked for
  held: list[str] = []
  for i in range(1, len(parts), 4):
    tag, slash, name, after = parts[i : i + 4]
    name = name.lower() if name else '!--'
    closes = slash or tag == '-->'
    if inside:
      if closes and name == inside:
        if name == 'nowiki':
          out.append(''.join(held).translate(_MARKUP))
        inside = ''
        out.append(after)
      else:
        held += (tag, after)
    elif closes or tag.endswith('/>') or last.get(name, -1) < i:
      out += (tag if tag == '-->' else '', after)
    else:
      inside = name
      held = [after]
  return ''.join(out)


def _link(content: str, hidden: frozenset[str]) -> str:
  """What [[content]] shows."""
  target, bar, label = content.partition('|')
  if '\n' in target:
    return content
  prefix, colon, name = target.partition(':')
  if colon:
    if prefix.strip().lower() in hidden or _LANGUAGE.match(target):
      return ''
    if not prefix.strip():
      prefix, _, name = name.partition(':')
      target = target.strip()[1:]
  if not bar:
    return target
  if label.strip():
    return label.rpartition('|')[2]
  return _DISAMBIGUATION.sub('', (name or prefix).strip()).rstrip()


def _unclosed(kind: str, content: str, hidden: frozenset[str]) -> str:
  """What brackets that are never closed show."""
  line, newline, rest = content.partition('\n')
  if kind == '[[' and line.partition(':')[0].strip().lower() not in hidden:
    return line.rpartition('|')[2] + newline + rest
  return newline + rest


def _unbracket(text: str, hidden: frozenset[str]) -> str:
  """Drops templates and tables, and puts links' labels in their place."""
  parts = _BRACKETS.split(text)
  frames = [('', [parts[0]])]  # what is open: its kind, the text inside
  num_open = {'{{': 0, '{|': 0}

  def close(kind: str) -> None:
    """Drops the innermost open `kind` with everything opened inside it."""
    closed = None if num_open[kind] else kind
    while closed != kind:
      closed = frames.pop()[0]
      if closed in num_open:
        num_open[closed] -= 1

  for token, after in zip(parts[1::2], parts[2::2], strict=True):
    if token == '[[':
      if len(frames) < _MAX_DEPTH:
        frames.append(('[[', []))
    elif token == ']]':
      if frames[-1][0] == '[[':
        label = _link(''.join(frames.pop()[1]), hidden)
        frames[-1][1].append(label)
    elif token[0] == '{':
      num_templates = len(token) // 2
      frames += (('{{', []) for _ in range(num_templates))
      num_open['{{'] += num_templates
    else:
      braces = token.count('}')
      if token[0] == '\n' and braces:
        if frames[-1][0] == '{|' or not num_open['{{']:
          braces -= 1
          close('{|')
      for _ in range(braces // 2):
        close('{{')
      if token.endswith('{|'):
        frames[-1][1].append('\n')
        frames.append(('{|', []))
        num_open['{|'] += 1
    frames[-1][1].append(after)
  return ''.join(frames[0][1]) + ''.join(
    _unclosed(kind, ''.join(inside), hidden) for kind, inside in frames[1:]
  )


def _paragraphs(text: str) -> str:
  """One paragraph, list item or heading a line; no empty lines."""
  out: list[str] = []
  joins = False  # whether a plain line continues the paragraph before it
  for line in text.split('\n'):
    line = line.strip()
    if not line:
      joins = False
    elif line[0] in '*#:;=|!-':
      joins = False
      if line[0] == '=':
        line = line.strip('= \t')
      elif line[0] in '*#:;':
        line = line.lstrip('*#:; \t')
      elif line[0] == '|' or line[0] == '!' and ('!!' in line or '|' in line):
        line = ''  # a row of a table that was never closed
      elif line[:4] == '----':
        line = line.lstrip('-')
      if line:
        out += ('\n', line)
    else:
      out += (' ' if joins else '\n', line)
      joins = True
  return ''.join(out[1:])


def plain(text: str, hidden: frozenset[str] = HIDDEN) -> str:
  """The paragraphs, list items and headings of wikitext, one a line.

  Drops comments, references, formulas, code, galleries, templates, tables,
  files, categories, links to other languages, addresses and magic words. Keeps
  the words that links, headings, lists and formatting show.
  """
  if '<' in text:
    text = _hide(text)
  if '//' in text:
    text = _EXTERNAL.sub(r'\1', text)
  text = _unbracket('\n' + text, hidden)
  if '<' in text:
    text = _NEWLINE_TAG.sub(' ', text)
    text = _BREAK.sub('\n', text)
    text = _TAG.sub('', text)
  if "''" in text:
    for quotes in ("'''''", "'''", "''"):
      text = text.replace(quotes, '')
  if '__' in text:
    text = _SWITCH.sub(lambda m: '' if m[0].isupper() else m[0], text)
  if '://' in text:
    text = _URL.sub('', text)
  text = _paragraphs(text.replace('&nbsp;', ' ').replace('\xa0', ' '))
  if '&' in text:
    text = html.unescape(text)
  return _HOLLOW.sub('', text) if '(' in text else text


def plain_batch(texts: Iterable[str], hidden: frozenset[str]) -> bytes:
  """`plain` for several pages: UTF-8, every paragraph with its line end."""
  stripped = (plain(text, hidden) for text in texts)
  lines = [text + '\n' for text in stripped if text]
  return ''.join(lines).encode(errors='replace')


def file_format(head: bytes) -> str:
  """'dump', 'docs', 'json' or 'plain', by the first bytes of a text."""
  head = head.lstrip()
  if head.startswith((b'<mediawiki', b'<page>')) or (
    head.startswith((b'<?xml', b'<!--')) and b'<mediawiki' in head
  ):
    return 'dump'
  if head.startswith(b'<doc '):
    return 'docs'
  return 'json' if _JSON_HEAD.match(head) else 'plain'


def docs(blocks: Iterable[bytes]) -> Iterator[Extract]:
  """The text of <doc> elements, without their tags and with plain < > " &."""
  opens_line = True
  for block in _at_lines(blocks, _MAX_LINE_BYTES):
    # A line break in front lets the first line match like all others.
    data = b'\n' + block if opens_line else block
    data, num_docs = _OPEN_DOC.subn(b'', data)
    data = _unescape(_CLOSE_DOC.sub(b'', data))
    yield Extract(data[1:] if opens_line else data, num_docs)
    opens_line = block.endswith(b'\n')


def json_lines(blocks: Iterable[bytes]) -> Iterator[Extract]:
  """The "text" of one JSON object per line; lines without it are lost."""
  for block in _at_lines(blocks, _MAX_RECORD_BYTES):
    lines = [line for line in block.split(b'\n') if line.strip()]
    texts = [_text_of(line) for line in lines]
    bad = [x for x, text in zip(lines, texts, strict=True) if text is None]
    good = [text + b'\n' for text in texts if text is not None]
    yield Extract(b''.join(good), len(good), len(bad), sum(map(len, bad)))


def _text_of(line: bytes) -> bytes | None:
  try:
    record = json.loads(line)
    text = record['text'].encode(errors='replace')
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
    return None
  # WikiExtractor escapes in JSON too; other programs mean what they write.
  return _unescape(text) if 'title' in record else text


def _unescape(data: bytes) -> bytes:
  return _ENTITY.sub(lambda match: _CHARS[match[1]], data)


def _at_lines(blocks: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
  """The same bytes in blocks that end at a line end, or in a longer line."""
  rest = b''
  for block in blocks:
    data = rest + block
    end = data.rfind(b'\n') + 1
    if not end and len(data) > max_bytes:
      end = max(data.rfind(space) for space in _SPACES) + 1 or len(data)
    rest = data[end:]
    if end:
      yield data[:end]
  if rest:
    yield rest
