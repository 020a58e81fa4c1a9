"""Wikipedia text: MediaWiki XML dumps, wikitext and WikiExtractor's output.

Dumps of any export version are split at </page>, which cannot occur in the text
of a page. Real dumps end early, have malformed pages, or are several in one
file: all complete pages are read, and missing pages are reported.

Wikitext is converted to plain paragraphs in linear time, without a full parser:
first tags are removed with their contents, then one pass with a stack handles
all brackets (templates, tables and links nest to any depth; unbalanced ones do
little harm), then inline markup, then lines.

WikiExtractor writes <doc> elements, which are plain text but for the few lines
around each article; these are removed in bulk. Its JSON is read as any other.
"""

import collections
import dataclasses
import functools
import html
import itertools
import re
from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import NamedTuple

from jaxemb import errors
from jaxemb.io import text_files
from jaxemb.text import records

# Prefixes of links that show no text, in English and by namespace.
HIDDEN = frozenset(('file', 'image', 'category'))
_HIDDEN_NAMESPACES = (6, 14)  # file, category

_REDIRECT = re.compile(r'\s*#\s*redirect\b', re.IGNORECASE)
_NAMESPACE = re.compile(rb'<namespace key="(-?\d{1,9})"[^<>]*>([^<]*)')
_FIELD = re.compile(
  r'<(title|ns|redirect|model|text)\b[^<>]*(?:/>|>([^<]*)</\1>)'
)
_OLD_REVISIONS = re.compile(rb'<revision>.*</revision>(?=\s*<revision>)', re.S)
_MAX_PENDING_BYTES = 1 << 26
_MAX_DAMAGES = 10  # reported one by one
_CONTROLS = bytes(c for c in range(32) if c not in b'\t\n\r')
_CLEAN = bytes.maketrans(_CONTROLS, b'?' * len(_CONTROLS))

# Tags whose contents are not prose; those of <nowiki> are text without markup.
_OPAQUE_NAMES = (
  'categorytree|ce|chem|gallery|graph|hiero|imagemap|includeonly|inputbox'
  '|mapframe|maplink|math|nowiki|pre|references|ref|score|source'
  '|syntaxhighlight|table|templatedata|templatestyles|timeline'
)
_OPAQUE = re.compile(
  rf'<(?:!--|(/?)({_OPAQUE_NAMES})(?=[\s/>])[^<>]*>)', re.IGNORECASE
)
_CLOSING = {
  name: re.compile(rf'</{name}(?=[\s/>])[^<>]*>', re.IGNORECASE)
  for name in _OPAQUE_NAMES.split('|')
} | {'!--': re.compile('-->')}
_MARKUP = {ord(c): f'&#{ord(c)};' for c in "[]{}|'<>*#:=!_/"}
# Every branch begins with a literal character, never with a repeat: only then
# does the engine skip to the next such character.
_BRACKETS = re.compile(
  r'(\[\[|\]\]|\{\{+|\}\}+(?:[ \t]*\{\|)?|\n[ \t:*#]*\{\||\n[ \t]*\|\}+)'
)
# Templates that stand for a sign within a word, or for nothing.
_SIGNS = {
  'shy': '', 'wbr': '', 'wj': '', "'": "'", 'zwnj': '\u200c', 'zwj': '\u200d',
}  # fmt: skip
_MAX_DEPTH = 99  # of links: joining their labels could take quadratic time
_MAX_FRAMES = 10_000  # brackets that are open at once
_EXTERNAL = re.compile(
  r'\[(?:[a-z]+:)?//[^][\s<>"]*+'
  r'([^][\n]*+(?:\[\[[^][\n]*+\]\][^][\n]*+)*+)\]',
  re.IGNORECASE,
)
# Digits of which Python makes no integer.
_LONG_REFERENCE = re.compile(r'&#\d{1000,};?')
_LANGUAGE = re.compile(r'(?:[a-z]{2,3}(?:-[a-z]+)*|simple):\S')
_DISAMBIGUATION = re.compile(r'\([^()]*\)$|(?s:,.*)')
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
_MAX_WAITING_BATCHES = 16
# At a line start; looking for "<" first is faster than for ^.
_OPEN_DOC = re.compile(rb'<(?<![^\n]<)doc [^\n]*\n')
_CLOSE_DOC = re.compile(rb'<(?<![^\n]<)/doc>\r?(?:\n|\Z)')
_ENTITY = re.compile(rb'&(lt|gt|quot|amp);')
_CHARS = {b'lt': b'<', b'gt': b'>', b'quot': b'"', b'amp': b'&'}

_UNTIMED = "grep -vE '^(WEBVTT|[0-9]+)?.?$|-->' FILE > text.txt"
_UNTAGGED = "sed 's/<[^>]*>//g' FILE > text.txt"
# What else than plain text is: its lines of which more than a fraction match,
# or its start; and the command that makes text of it.
_MARKUP_CHARS = 1 << 12
_CHUNK = re.compile(r'O|[BIELMSU]-\S+')
_MARKUPS = tuple(
  (what, re.compile(pattern, re.IGNORECASE), fraction, command)
  for what, pattern, fraction, command in (
    ('LaTeX', r'\A(%.*\n\s*)*\\document(class|style)', 0,
     'pandoc -f latex -t plain FILE -o text.txt'),
    ('HTML', r'\A(<[?!][^>]*>\s*)*<(html|head|body)\b|\A<!doctype html', 0,
     'pandoc -f html -t plain FILE -o text.txt'),
    ('subtitles', r'\AWEBVTT[^\n]*\n\s*\n', 0, _UNTIMED),
    ('subtitles', r'^[\d:]*\d:\d\d[\d:.,]* +--> +\d', 0.2, _UNTIMED),
    ('XML', r'\A<[^\0]*<w[ >]', 0,
     """awk '/<s[ >]/ {print ""} /<w[ >]/ {gsub(/<[^>]*>/, ""); """
     """printf "%s ", $0}' FILE > text.txt"""),
    ('XML', r'\A<(\?xml|!doctype)', 0, _UNTAGGED),
    ('text with tags', r'</(?!s>)[a-z][\w:.-]*\s*>|<[a-z][\w:.-]*\s+[\w:.-]+=',
     0.5, _UNTAGGED),
    ('text with tags', r'^\s*</(?!s>)[a-z][^<>]*>\s*$', 0.1, _UNTAGGED),
    ('lyrics', r'^\s*\[\d+:\d\d\.\d+\]', 0.5,
     r"sed -E 's/\[[0-9:.]+\]//g' FILE > text.txt"),
    ('subtitles', r'^Dialogue: *\d', 0.2,
     "sed -nE 's/^Dialogue:([^,]*,){9}//p' FILE > text.txt"),
    ('text with entities', r'&(#?\w{2,8});', 0.5,
     "python3 -c 'import html, sys; "
     "sys.stdout.writelines(map(html.unescape, sys.stdin))' < FILE > text.txt"),
    ('text with tags',
     r'^\s*(\S+[_/|]((?-i:[A-Z]{1,5}\$?)|[.,:])(\s+|$)){2,}$', 0.9,
     "sed -E 's,[_/|][^_/| ]+( |$),\\1,g' FILE > text.txt"),
    ('parsed text', r'^\s*(?-i:\(\(?[A-Z]+ *\([A-Z])', 0.5,
     r"sed -E 's/\([^ ()]+ ?|\)//g' FILE > text.txt"),
  )
)  # fmt: skip


class Page(NamedTuple):
  """One page of a dump."""

  title: str  # with the prefix of its namespace
  namespace: int  # 0 holds the articles
  redirect: bool
  model: str  # 'wikitext' for everything that has paragraphs
  text: str  # wikitext, of the last revision in a dump with several
  hidden: frozenset[str]  # link prefixes as in `HIDDEN`, in the wiki's language


@dataclasses.dataclass
class ReadReport(text_files.ReadReport):
  """Counts and problems of reading one file; complete when it ends."""

  pages: int = 0  # articles or documents used; 0 for plain text
  form: str = 'plain text'
  columns: dict[str, str] = dataclasses.field(default_factory=dict)
  first: str = ''  # line, shortened
  redirects: int = 0  # skipped pages
  other_namespace_pages: int = 0  # skipped pages that are not articles
  damages: int = 0  # damaged places of a dump
  lost_bytes: int = 0  # of damaged markup

  def lose(self, num_bytes: int, why: str) -> None:
    """Counts a damaged place of a dump; reports the first ones as problems."""
    self.lost_bytes += num_bytes
    self.damages += 1
    if self.damages <= _MAX_DAMAGES:
      self.problems.append(why)


def pages(blocks: Iterable[bytes], report: ReadReport) -> Iterator[Page]:
  """Yields the complete pages of a dump, of all namespaces, with redirects.

  The XML may lack its header or its end, or be several dumps in a row. The
  report counts missing, malformed and replaced parts.
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
      why = f'malformed {after} (%s); reading goes on after that page'
      if b'<page>' in header:
        lost_bytes = len(header) - header.find(b'<page>')
        report.lose(lost_bytes, why % 'a page that is not closed')
      xml = start + body + b'</page>'
      if page := _page(xml, names, report):
        num_pages += 1
        after = f'after page {num_pages} ("{page.title}")'
        yield page
      else:
        report.lose(len(xml), why % 'no title or no text')
    if len(data) > _MAX_PENDING_BYTES:  # a page with its history, or no page
      start_byte = data.find(b'<page>')
      if start_byte < 0:
        start_byte = len(data) - len('</mediawiki>')
      is_open = _read_header(data[:start_byte], names, is_open)
      data = _without_old_revisions(data[start_byte:])
  if _read_header(data, names, is_open) or b'<page>' in data:
    report.lose(len(data), f'cut {after}; the pages so far are used')
  if (num_more := report.damages - _MAX_DAMAGES) > 0:
    report.problems.append(f'damaged in {num_more} more places')


def _without_old_revisions(page: bytes) -> bytes:
  """Removes all revisions of an unfinished page but the last one."""
  # Where the first <revision> does not match, no later one does.
  start = page.find(b'<revision>')
  match = _OLD_REVISIONS.match(page, start) if start >= 0 else None
  return page[:start] + page[match.end() :] if match else page


def _unescaped(text: str) -> str:
  """Replaces references such as &amp;; those to no character by U+FFFD."""
  try:
    return html.unescape(text)
  except ValueError:
    return html.unescape(_LONG_REFERENCE.sub('\ufffd', text))


def _read_header(xml: bytes, names: dict[str, int], is_open: bool) -> bool:
  """Adds namespaces to `names`; returns whether a <mediawiki> is open after."""
  for key, name in _NAMESPACE.findall(xml):
    names[_unescaped(name.decode(errors='replace')).lower()] = int(key)
  opened, closed = xml.rfind(b'<mediawiki'), xml.rfind(b'</mediawiki>')
  return is_open if opened == closed else opened > closed


def _page(xml: bytes, names: dict[str, int], report: ReadReport) -> Page | None:
  """Parses a page and replaces invalid characters; None if malformed."""
  num_replaced = len(xml) - len(xml.translate(None, _CONTROLS))
  text = xml.translate(_CLEAN).decode(errors='replace')
  num_replaced += text.count('\ufffd') - xml.count(b'\xef\xbf\xbd')
  for bad in '\ufffe\uffff':
    num_replaced += 3 * text.count(bad)
    text = text.replace(bad, '\ufffd')
  fields = dict(_FIELD.findall(text))  # of the last revision
  if 'title' not in fields or 'text' not in fields:
    return None
  report.replaced_bytes += num_replaced
  title, text = _unescaped(fields['title']), _unescaped(fields['text'])
  number, namespace = fields.get('ns', '').strip(), 0
  if re.fullmatch(r'-?\d{1,9}', number):
    namespace = int(number)
  elif 'ns' not in fields and ':' in title:  # before version 0.6
    namespace = names.get(title.partition(':')[0].lower(), 0)
  redirect = 'redirect' in fields or bool(_REDIRECT.match(text))
  model = fields.get('model', 'wikitext')
  hidden = HIDDEN.union(x for x in names if names[x] in _HIDDEN_NAMESPACES)
  return Page(
    title=title,
    namespace=namespace,
    redirect=redirect,
    model=model,
    text=text,
    hidden=hidden,
  )


def _hide(text: str) -> str:
  """Drops comments and opaque tags with their contents; linear time."""
  out, end = [], 0
  unclosed = set()  # tags that are never closed again
  while tag := _OPAQUE.search(text, end):
    out.append(text[end : tag.start()])
    end = tag.end()
    name = (tag[2] or '!--').lower()
    if name not in ('!--', 'nowiki'):
      out.append(' ')  # what is around it is not one word
    if tag[1] or tag[0].endswith('/>') or name in unclosed:
      continue
    if not (closing := _CLOSING[name].search(text, end)):
      unclosed.add(name)
      continue
    if name == 'nowiki':
      out.append(text[end : closing.start()].translate(_MARKUP))
    end = closing.end()
  return ''.join(out) + text[end:]


def _link(content: str, hidden: frozenset[str]) -> str:
  """Returns the text that [[content]] shows."""
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


def _unbracket(text: str, hidden: frozenset[str]) -> str:
  """Drops templates and tables, and replaces links by their labels."""
  parts = _BRACKETS.split(text)
  frames = [('', [parts[0]])]  # open brackets: kind and the text inside
  num_open: collections.Counter[str] = collections.Counter()

  def close(kind: str) -> None:
    """Drops the innermost open `kind` with all brackets opened inside it.

    A template leaves a space, as many stand for one or for a dash.
    """
    if not num_open[kind]:
      return
    closed = ''
    while closed != kind:
      closed, inside = frames.pop()
      num_open[closed] -= 1
    if kind == '{{':
      name = inside[0].partition('|')[0].strip().lower()
      frames[-1][1].append(_SIGNS.get(name, ' '))

  for token, after in zip(parts[1::2], parts[2::2], strict=True):
    if token == '[[':
      if len(frames) < _MAX_DEPTH:
        frames.append(('[[', []))
    elif token == ']]':
      if frames[-1][0] == '[[':
        label = _link(''.join(frames.pop()[1]), hidden)
        frames[-1][1].append(label)
    elif token[0] == '{':
      room = max(0, _MAX_FRAMES - len(frames))
      num_templates = min(len(token) // 2, room)
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
      if token.endswith('{|') and len(frames) < _MAX_FRAMES:
        frames[-1][1].append('\n')
        frames.append(('{|', []))
        num_open['{|'] += 1
    frames[-1][1].append(after)
  out = frames[0][1]
  for kind, inside in frames[1:]:  # never closed: up to the end of the line
    line, newline, rest = ''.join(inside).partition('\n')
    if kind == '[[' and line.partition(':')[0].strip().lower() not in hidden:
      out.append(line.rpartition('|')[2])
    out.append(newline + rest)
  return ''.join(out)


def _paragraphs(text: str) -> str:
  """One paragraph, list item or heading a line; no empty lines."""
  out: list[str] = []
  joins = False  # whether a plain line continues the paragraph before it
  for line in map(str.strip, text.split('\n')):
    first = line[:1]
    is_plain = first not in '*#:;=|!-'  # which '' is in
    if first == '=':
      line = line.strip('= \t')
    elif first == '|' or first == '!' and ('!!' in line or '|' in line):
      line = ''  # a row of a table that was never closed
    elif line[:4] == '----':
      line = line.lstrip('-')
    else:
      line = line.lstrip('*#:; \t')
    if line:
      out += (' ' if joins and is_plain else '\n', line)
    joins = is_plain
  return ''.join(out[1:])


def plain(text: str, hidden: frozenset[str] = HIDDEN) -> str:
  """The paragraphs, list items and headings of wikitext, one a line.

  Drops comments, references, formulas, code, galleries, templates, tables,
  files, categories, interlanguage links, URLs and magic words.
  """
  text = _EXTERNAL.sub(r'\1', _hide(text))
  text = _unbracket('\n' + text, hidden)
  text = _NEWLINE_TAG.sub(' ', text)
  text = _TAG.sub('', _BREAK.sub('\n', text))
  for quotes in ("'''''", "'''", "''"):
    text = text.replace(quotes, '')
  text = _SWITCH.sub(lambda m: '' if m[0].isupper() else m[0], text)
  if '://' in text:
    text = _URL.sub('', text)
  text = _paragraphs(text.replace('&nbsp;', ' ').replace('\xa0', ' '))
  return _HOLLOW.sub('', _unescaped(text))


def plain_batch(texts: Iterable[str], hidden: frozenset[str]) -> bytes:
  """`plain` for several pages: UTF-8, every paragraph with its line end."""
  stripped = (plain(text, hidden) for text in texts)
  lines = [text + '\n' for text in stripped if text]
  return ''.join(lines).encode(errors='replace')


def extractor(
  head: bytes,
  pool: futures.Executor | None = None,
  path: str = '',
  columns: str = '',
  is_tokenized: bool = False,
) -> text_files.Extract | None:
  """Returns what makes plain text of a file's blocks, by its first bytes.

  None stands for plain text. The `pool` strips wikitext in parallel. Raises a
  `UserError` for JSON in which `columns`, `data.columns`, leaves open what is
  the text, and for markup; if text `is_tokenized`, whatever is between spaces
  is a token.
  """
  if extract := records.extractor(head, path, columns):
    return extract
  start = head.lstrip()
  is_docs = start.startswith(b'<doc ')
  is_dump = start.startswith((b'<mediawiki', b'<page>')) or (
    start.startswith((b'<?xml', b'<!--')) and b'<mediawiki' in head
  )
  if not (is_dump or is_tokenized):
    _refuse_markup(path, start.decode(errors='ignore'), is_docs)
  if columns:
    raise errors.UserError(
      f'{path} is neither JSON nor a table: leave out '
      f'config.data.columns={columns}, which names a key or a column'
    )
  if is_dump:
    return functools.partial(_dump, pool=pool)
  return docs if is_docs else None


def _refuse_markup(path: str, head: str, is_docs: bool) -> None:
  """Raises a `UserError` for text with tags, times or columns among words.

  `is_docs` says that it is in <doc> elements, which may be.
  """
  lines = [x for x in head[:_MARKUP_CHARS].splitlines() if x.strip()]
  problem = command = ''
  if column := _token_column(head[:_MARKUP_CHARS]):
    problem = 'has a token per line, with columns'
    command = (
      r"""awk '!/^(#|-DOCSTART)/ {printf "%s", /^$|^</ ? "\n" : $"""
      rf"""{column} " "}}' {path} > text.txt"""
    )
  elif not is_docs:
    for what, pattern, fraction, remedy in _MARKUPS:
      matches = map(pattern.search, lines if fraction else [head])
      if sum(map(bool, matches)) > fraction * len(lines):
        problem, command = f'is {what}', remedy.replace('FILE', path)
        break
  if problem:
    raise errors.UserError(
      f'{path} {problem}, not plain text; convert it first ({command})'
    )


def _token_column(head: str) -> int:
  """Returns the column of tokens where each has a line with its tags, or 0."""
  text, *_ = head.strip().rpartition('\n')
  lines = [x for x in text.splitlines() if x.strip() and x[0] not in '#<']
  rows = [x.split() for x in lines]
  sizes = [len(x) for x in rows]
  most = max(sizes, key=sizes.count, default=0)
  alike = [x for x in rows if len(x) == most]
  if most < 2 or len(alike) < 0.9 * len(rows):
    return 0
  has_groups = bool(re.search(r'^\s*(#.*|<.*)?$', text, re.MULTILINE))
  is_tabbed = sum(x.count('\t') == most - 1 for x in lines) > 0.9 * len(lines)
  tags = {x[-1] for x in alike}
  is_chunked = tags > {'O'} and all(map(_CHUNK.fullmatch, tags))
  # Two languages side by side are no tokens.
  is_tagged = is_tabbed and (most > 2 or all(x.isupper() for x in tags))
  if not (is_chunked or (has_groups and is_tagged)):
    return 0
  return 2 if all(x[0][:1].isdigit() for x in alike) else 1


def _dump(blocks, report, pool):
  """The articles of a dump as plain paragraphs."""
  report.form = 'MediaWiki dump'
  batches = _articles(blocks, report)
  if not pool:
    return itertools.starmap(plain_batch, batches)
  return text_files.map_ahead(
    pool, function=plain_batch, items=batches, depth=_MAX_WAITING_BATCHES
  )


def _articles(
  blocks: Iterable[bytes], report: ReadReport
) -> Iterator[tuple[list[str], frozenset[str]]]:
  """Batches of articles: their wikitext and the prefixes of hidden links."""
  batch, batch_chars, hidden = [], 0, HIDDEN
  for page in articles(blocks, report):
    hidden = page.hidden
    batch.append(page.text)
    batch_chars += len(page.text)
    if batch_chars >= text_files.BLOCK_BYTES:
      yield batch, hidden
      batch, batch_chars = [], 0
  yield batch, hidden


def articles(blocks: Iterable[bytes], report: ReadReport) -> Iterator[Page]:
  """Yields the articles of a dump; counts other pages, and problems."""
  for page in pages(blocks, report):
    if page.redirect:
      report.redirects += 1
    elif page.namespace != 0 or page.model != 'wikitext':
      report.other_namespace_pages += 1
    else:
      report.pages += 1
      yield page
  if not report.pages:
    report.problems.append('a dump without a single article')


def docs(blocks: Iterable[bytes], report: ReadReport) -> Iterator[bytes]:
  """The text of <doc> elements, without their tags and with plain < > " &."""
  report.form = 'WikiExtractor'
  before = b''  # the end of a line that was too long
  for block in text_files.at_lines(blocks, _MAX_LINE_BYTES):
    data, num_docs = _OPEN_DOC.subn(b'', before + block)
    data = _CLOSE_DOC.sub(b'', data)
    data = _ENTITY.sub(lambda match: _CHARS[match[1]], data)
    report.pages += num_docs
    yield data[1:] if before else data
    before = b'' if block.endswith(b'\n') else b' '
