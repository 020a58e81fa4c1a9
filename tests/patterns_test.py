"""Regular expressions take linear time in the length of what users give."""

import ast
import importlib
import itertools
import pathlib
import re
import time
from re import _constants as constants
from re import _parser as parser

from jaxemb.graphs import edge_columns, published
from jaxemb.io import columns

_PACKAGE = pathlib.Path(__file__).parents[1] / 'jaxemb'
_METHODS = {
  'search', 'match', 'fullmatch', 'sub', 'split', 'findall', 'finditer',
}  # fmt: skip
# Quadratic time is a second or more for strings of this length, and linear time
# a few milliseconds, so that a busy or slow computer passes, too.
_LENGTH, _MAX_SECONDS = 20_000, 0.25
_SHORT_LENGTH, _SHORT_SECONDS = 2_000, 2e-3  # faster is not tried longer
# Lengths of strings that are bounded: names of files, and a setting.
_LENGTHS = {
  'inputs._PARTS': 255, 'atomic._TEMPORARY': 255, 'reading._OTHERS': 255,
  'roles._MINIMUM': 255,
}  # fmt: skip
# Modules that read what XLA, Linux, or packages and this one write.
_TRUSTED = {'hlo', 'resources', 'topologies', 'toywiki'}
_REPEATS = (
  constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT,
)  # fmt: skip
_CATEGORIES = {
  constants.CATEGORY_DIGIT: r'\d', constants.CATEGORY_NOT_DIGIT: r'\D',
  constants.CATEGORY_SPACE: r'\s', constants.CATEGORY_NOT_SPACE: r'\S',
  constants.CATEGORY_WORD: r'\w', constants.CATEGORY_NOT_WORD: r'\W',
}  # fmt: skip
_CHARS = 'a0 \n_-.,"\'<[{(:A\0'
_ENDS = '', '\0', '\n\0', 'a'


def _patterns(value):
  """Compiled patterns in a module's constant."""
  if isinstance(value, re.Pattern):
    return [value]
  if isinstance(value, dict):
    value = (*value.values(),)
  nested = value if isinstance(value, tuple) else ()
  return [y for x in nested for y in _patterns(x)]


def _evaluated(node, names):
  code = compile(ast.Expression(node), 'argument', 'eval')
  return eval(code, dict(names))


def _literal(call, names):
  """The pattern of a call such as `re.sub('a+', '', x)`; None if local."""
  position = {'sub': 4, 'split': 3}.get(call.func.attr, 2)
  flags = [*call.args[position:], *(x.value for x in call.keywords)]
  try:
    return re.compile(*(_evaluated(x, names) for x in [call.args[0], *flags]))
  except NameError:
    return None


def _uses_of(path):
  """Yields names, methods and patterns of a module."""
  tree = ast.parse(path.read_text('utf-8'))
  parts = path.relative_to(_PACKAGE.parent).with_suffix('').parts
  names = vars(importlib.import_module('.'.join(parts)))
  for node in ast.walk(tree):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
      function = node.func
      is_re = ast.unparse(function.value) == 're' and function.attr in _METHODS
      if is_re and (pattern := _literal(node, names)):
        yield f'{path.stem}:{node.lineno}', function.attr, pattern
    if isinstance(node, ast.Attribute) and node.attr in _METHODS:
      name = ast.unparse(node.value).partition('[')[0]
      for pattern in _patterns(names.get(name)):
        yield f'{path.stem}.{name}', node.attr, pattern


def _uses():
  for path in sorted(_PACKAGE.rglob('*.py')):
    is_user = re.search(r'^import re$', path.read_text('utf-8'), re.MULTILINE)
    if is_user and path.stem not in _TRUSTED:
      yield from _uses_of(path)
  for sign in (',', r'\s'):
    yield 'columns._element', 'match', columns._element(sign)
  for x in itertools.chain(*edge_columns._SIGNS):
    yield 'edge_columns._SIGNS', 'fullmatch', re.compile(x)
  for x in published._TABLE['refused']:
    if begins := x.get('begins'):
      pattern = re.compile(begins, re.IGNORECASE)
      yield 'published._TABLE', 'match', pattern


def _is_in(char, items):
  is_negated = items[0][0] is constants.NEGATE
  is_any = any(
    (what is constants.LITERAL and ord(char) == x)
    or (what is constants.RANGE and x[0] <= ord(char) <= x[1])
    or (what is constants.CATEGORY and re.match(_CATEGORIES[x], char))
    for what, x in items
  )
  return is_any != is_negated


class _Strings:
  """Strings that may take a pattern long, from its parts."""

  def __init__(self, pattern):
    text, flags = pattern.pattern, pattern.flags
    self._is_bytes = isinstance(text, bytes)
    if self._is_bytes:
      text = text.decode('latin-1')
    tree = parser.parse(text, flags & ~re.UNICODE if self._is_bytes else flags)
    self._literals, self._ends = '', dict.fromkeys(_ENDS)
    self._sample(tree)
    self._chars = ''.join(dict.fromkeys(self._literals + _CHARS))
    self._cycles = {('', x) for x in self._chars}  # with what is before them
    self._visit(tree, [''])
    self._cycles |= {('', x) for x in self._sample(tree)}
    signs = dict.fromkeys(x for x in self._literals if not x.isalnum())
    pairs = itertools.permutations([*signs][:5] + ['0', ' '], 2)
    self._cycles |= {('', x + y) for x, y in pairs}

  def of(self, length):
    """Yields strings of a length, the same with each; longer with words."""
    for start, cycle in sorted(self._cycles):
      for end in self._ends if cycle else ():
        num = min(length // min(len(cycle), 4), 5 * length // len(cycle))
        text = start + cycle * num + end
        yield text.encode('latin-1', 'replace') if self._is_bytes else text

  def _matching(self, what, value):
    """Characters that a part of one character matches."""
    if what is constants.LITERAL:
      self._literals += chr(value)
      return [chr(value)]
    chars = getattr(self, '_chars', _CHARS)
    if what is not constants.IN:
      return [*chars]
    first = [chr(x[0]) for y, x in value if y is constants.RANGE]
    first += [chr(x) for y, x in value if y is constants.LITERAL]
    self._literals += ''.join(first)
    if value[0][0] is constants.NEGATE and first:  # which it does not match
      self._ends[first[-1]] = None
    return [x for x in dict.fromkeys([*chars, *first]) if _is_in(x, value)]

  def _branches(self, what, value):
    """Trees within a part, one of which it matches."""
    if what is constants.BRANCH:
      return value[1]
    if what is constants.SUBPATTERN:
      return [value[3]]
    return [value] if what is constants.ATOMIC_GROUP else []

  def _sample(self, tree):
    """A few strings that a tree matches, but for what it looks for around."""
    texts = ['']
    for what, value in tree:
      if what in _REPEATS:
        least, most, body = value
        more = [x * max(least, 1) for x in self._sample(body)[: max(most, 1)]]
        more = [*more, ''] if not least else more
      elif branches := self._branches(what, value):
        more = [y for x in branches for y in self._sample(x)[:2]]
      elif what in (constants.LITERAL, constants.IN, constants.ANY):
        more = self._matching(what, value)[:3]
      else:
        more = ['']
      # Each choice once, with any of those before it.
      size = max(len(texts), len(more))
      cycled = zip(itertools.cycle(texts), itertools.cycle(more), strict=False)
      texts = [x + y for x, y in itertools.islice(cycled, size)]
    return [*dict.fromkeys(texts)][:8] or ['']

  def _visit(self, tree, starts):
    """Adds cycles of what is repeated, behind what is before it."""
    for i, (what, value) in enumerate(tree):
      before = [x + y for x in starts[:2] for y in self._sample(tree[:i])[:3]]
      if what in _REPEATS:
        body = value[2]
        texts = self._sample(body)
        if len(body) == 1 and not self._branches(*body[0]):
          texts = self._matching(*body[0])[:10]
        if value[1] > 1:
          self._cycles |= {(x, y) for x in before for y in texts}
          self._cycles |= {('', x + y) for x in before for y in texts[:4]}
          self._cycles |= {('', x) for x in before}
        self._visit(body, before)
      for branch in self._branches(what, value):
        self._visit(branch, before)
      if what in (constants.ASSERT, constants.ASSERT_NOT):
        self._visit(value[1], before)


def _seconds(pattern, method, text):
  call, start = getattr(pattern, method), time.thread_time()
  if method == 'sub':
    call(text[:0], text)
  elif method == 'finditer':
    all(call(text))
  else:
    call(text)
  return time.thread_time() - start


def _slowest(pattern, method, length):
  """The most seconds that a string takes, and that string."""
  strings = _Strings(pattern)
  short, slow = min(_SHORT_LENGTH, length), (0.0, '')
  for i, text in enumerate(strings.of(short)):
    seconds = _seconds(pattern, method, text)
    if short < length and _SHORT_SECONDS < seconds < _MAX_SECONDS:
      text = next(itertools.islice(strings.of(length), i, None))
      seconds = _seconds(pattern, method, text)
    slow = max(slow, (seconds, text), key=lambda x: x[0])
    if seconds > _MAX_SECONDS:
      break
  return slow


def test_every_pattern_takes_linear_time():
  uses = {(x.pattern, x.flags, y): (name, x) for name, y, x in _uses()}
  assert len(uses) > 120
  slow = []
  for (*_, method), (name, pattern) in uses.items():
    length = _LENGTHS.get(name, _LENGTH)
    seconds, text = _slowest(pattern, method, length)
    if seconds > _MAX_SECONDS:
      slow.append(
        f'{name} {method} {pattern.pattern!r} takes {seconds:.2f} s for '
        f'{text[:20]!r} ... {text[-5:]!r}'
      )
  assert not slow, '\n'.join(slow)
