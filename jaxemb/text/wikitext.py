"""Wikitext to plain paragraphs, in linear time and without a real parser.

First the tags that hide what they hold, then one walk over all brackets with
a stack (templates, tables and links nest to any depth; unbalanced ones do
little harm), then inline markup, then lines.
"""

import html
import re
from collections.abc import Iterable

HIDDEN = frozenset(('file', 'image', 'category'))

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
  """What is kept of brackets that are never closed."""
  line, newline, rest = content.partition('\n')
  if kind == '[[' and line.partition(':')[0].strip().lower() not in hidden:
    return line.rpartition('|')[2] + newline + rest
  return newline + rest


def _unbracket(text: str, hidden: frozenset[str]) -> str:
  """Drops templates and tables, and puts links' labels in their place."""
  parts = _BRACKETS.split(text)
  frames = [('', [parts[0]])]  # what is open: its kind, the text inside
  num_open = {'{{': 0, '{|': 0}
  for i in range(1, len(parts), 2):
    token = parts[i]
    if token == '[[':
      if len(frames) < 99:  # else joining labels could take quadratic time
        frames.append(('[[', []))
    elif token == ']]':
      if frames[-1][0] == '[[':
        label = _link(''.join(frames.pop()[1]), hidden)
        frames[-1][1].append(label)
    else:
      braces = token.count('{') if token[0] == '{' else token.count('}')
      if token[0] == '{':
        frames += (('{{', []) for _ in range(braces // 2))
        num_open['{{'] += braces // 2
      else:
        table = frames[-1][0] == '{|' or not num_open['{{']
        if token[0] == '\n' and braces and table:
          braces -= 1
          _close('{|', frames, num_open)
        for _ in range(braces // 2):
          _close('{{', frames, num_open)
        if token.endswith('{|'):
          frames[-1][1].append('\n')
          frames.append(('{|', []))
          num_open['{|'] += 1
    frames[-1][1].append(parts[i + 1])
  return ''.join(frames[0][1]) + ''.join(
    _unclosed(kind, ''.join(inside), hidden) for kind, inside in frames[1:]
  )


def _close(
  kind: str, frames: list[tuple[str, list[str]]], num_open: dict[str, int]
) -> None:
  """Drops the innermost open `kind` with everything opened inside it."""
  closed = None if num_open[kind] else kind
  while closed != kind:
    closed = frames.pop()[0]
    if closed in num_open:
      num_open[closed] -= 1


def _paragraphs(text: str) -> str:
  """One paragraph, list item or heading a line; no empty lines."""
  out: list[str] = []
  joins = False  # whether a plain line goes on with the paragraph before it
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
  """Strips wikitext down to its paragraphs.

  Dropped: comments, references, formulas, code, galleries, templates, tables,
  files, categories, links to other languages, addresses, magic words. Kept:
  the words that links, headings, lists and formatting show.

  Args:
    text: Wikitext of one page.
    hidden: Lower-case prefixes of links that show nothing (see `Page`).

  Returns:
    One paragraph, list item or heading a line, without empty lines; '' if
    nothing is left.
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
