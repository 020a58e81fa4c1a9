"""Phrases that a run joined, such as `new_york`, and joining them in new text.

phrases.txt, in the export of a run, has its settings as JSON in the first line
and then a phrase a line, the highest score of each pass first:

  pass, occurrences, score and words, between tabs; between the words spaces

Phrases of a pass are joined before the next one, so that their words may be
phrases: `new_york times`.
"""

import itertools
import json
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from jaxemb import errors
from jaxemb.config import schema
from jaxemb.io import json_text
from jaxemb.storage import atomic, export, formats

FILE = 'phrases.txt'
DELIMITER = '_'
# As gensim's ENGLISH_CONNECTOR_WORDS.
ENGLISH = frozenset(
  'a an the for of with without at from to in on by and or'.split()
)
THRESHOLDS = {'word2vec': 10.0, 'npmi': 0.5}  # by score
USUAL = -2.0  # below all scores: the threshold that suits the score
_MAX_PASSES = 1000
FORMAT = formats.Format(
  'phrases', number=1, remedy='find them again by a run with data.phrases'
)


class Rules(NamedTuple):
  """What a phrase is."""

  score: str  # 'word2vec' or 'npmi', as gensim's 'default' and 'npmi'
  threshold: float  # which the score exceeds
  min_count: int
  connectors: tuple[str, ...]  # words that may stand within a phrase, sorted


class Phrase(NamedTuple):
  """Two words, and what connects them, that are joined."""

  words: tuple[str, ...]
  count: int  # type: ignore[assignment]  # hides tuple.count, of no use here
  score: float


def connectors(text: str) -> tuple[str, ...]:
  """Returns the words that `config.data.phrases_connectors` names."""
  return tuple(sorted(ENGLISH if text == 'english' else schema.names(text)))


def _setting(value: str | tuple[str, ...]) -> str:
  """Returns the setting of a score, or of connectors."""
  if isinstance(value, str):
    return value
  return 'english' if set(value) == ENGLISH else ','.join(value)


class Phrases:
  """Joins the phrases of a run in other text, like gensim's `FrozenPhrases`.

  Examples:
    The examples of all methods begin with the phrases of a run with
    `data.phrases`:

    >>> import jaxemb
    >>> phrases = jaxemb.load_phrases('runs/cities')
    >>> phrases[['he', 'left', 'new', 'york']]
    ['he', 'left', 'new_york']
    >>> list(phrases[[['san', 'francisco'], ['in', 'new', 'york']]])
    [['san_francisco'], ['in', 'new_york']]
    >>> len(phrases)
    2
  """

  def __init__(self, rules: Rules, passes: Sequence[Sequence[Phrase]]):
    """`passes` are the phrases of each, which are joined in this order."""
    self.rules = rules
    self.passes = tuple(map(tuple, passes))
    self.connector_words = frozenset(rules.connectors)
    self._scores = [{x.words: x.score for x in phrases} for phrases in passes]

  def __len__(self) -> int:
    return sum(map(len, self.passes))

  def __repr__(self) -> str:
    numbers = ' + '.join(f'{len(x):,}' for x in self.passes)
    return f'Phrases({numbers} phrases, {self.rules})'

  def __getitem__(
    self, sentences: Sequence[str] | Iterable[Sequence[str]]
  ) -> list[str] | Iterator[list[str]]:
    """Joins the phrases in the tokens of a sentence, or of several.

    Returns a list, or an iterator over lists. Raises a `UserError` for text
    that is not cut into tokens.
    """
    if isinstance(sentences, str):
      raise errors.UserError(
        f'{sentences[:40]!r} is a string; give lists of tokens, such as '
        f'{sentences.split()[:3]}'
      )
    rest = iter(sentences)
    first = next(rest, None)
    if first is None:
      return []
    items = itertools.chain([first], rest)
    if isinstance(first, str):
      return self._joined(cast('Iterator[str]', items))
    return map(self._joined, items)

  def then(self, other: 'Phrases') -> 'Phrases':
    """Returns phrases with the passes of `other` after these passes.

    A pass joins tokens in a sentence; the next pass can join the resulting
    phrases. If `other` begins with these passes, they are not repeated. Raises
    a `UserError` if `data.phrases_score` or `data.phrases_connectors` of the
    runs differ.

    Examples:
      >>> twice = phrases.then(phrases)
      >>> len(twice.passes)
      1
    """
    for name in ('score', 'connectors'):
      values = [getattr(x.rules, name) for x in (self, other)]
      if values[0] != values[1]:
        first, second = (_setting(x) for x in values)
        raise errors.UserError(
          f'phrases that a run joined have the {name} {first!r}, and those '
          f'joined after them {second!r}; give '
          f"--config.data.phrases_{name}='{first}', or other phrases"
        )
    passes = other.passes
    if passes[: len(self.passes)] != self.passes:
      passes = self.passes + passes
    return Phrases(other.rules, passes)

  def export_phrases(self) -> dict[str, float]:
    """Returns the score of each phrase by its name.

    Examples:
      >>> sorted(phrases.export_phrases())
      ['new_york', 'san_francisco']
    """
    return {
      DELIMITER.join(words): score
      for scores in self._scores
      for words, score in scores.items()
    }

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes phrases.txt. Raises a `UserError` if it cannot be written.

    Examples:
      >>> phrases.save('phrases.txt')
      >>> len(jaxemb.load_phrases('phrases.txt'))
      2
    """
    head = FORMAT.stamp() | {'passes': len(self.passes)}
    lines = [json.dumps(head | self.rules._asdict(), ensure_ascii=False)]
    for number, phrases in enumerate(self.passes, 1):
      lines += [
        f'{number}\t{x.count}\t{x.score!r}\t{" ".join(x.words)}'
        for x in phrases
      ]
    with atomic.write(pathlib.Path(path)) as file:
      file.write('\n'.join([*lines, '']).encode())

  def _joined(self, sentence: Iterable[str]) -> list[str]:
    """Returns the tokens of a sentence after all passes."""
    for scores in self._scores:
      out, start = [], None
      for token in sentence:
        out.append(token)
        if token in self.connector_words:
          continue
        if start is not None and tuple(out[start:]) in scores:
          out[start:] = [DELIMITER.join(out[start:])]
          start = None
        else:
          start = len(out) - 1
      sentence = out
    return [*sentence]


def file_of(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the phrases.txt that a run, its export or the file itself names."""
  path = pathlib.Path(os.path.expanduser(path))
  for folder in reversed(export.folders(path)):
    if (folder / FILE).is_file():
      return folder / FILE
  return path


def load(path: str | os.PathLike[str]) -> Phrases:
  """Reads the phrases of a run; raises a `UserError` if there are none."""
  path = file_of(path)
  try:
    if path.is_dir():
      raise errors.UserError(
        f'{path} has no {FILE}; give a run with --config.data.phrases'
      )
    first, *lines = path.read_text('utf-8').removesuffix('\n').split('\n')
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or errors.one_line(error)
    raise errors.UserError(
      f'cannot read {path}: {reason}; give a run with --config.data.phrases, '
      f'or its {FILE}'
    ) from error
  rules, num_passes = _head(path, first)
  passes: list[list[Phrase]] = [[] for _ in range(num_passes)]
  for number, line in enumerate(lines, 2):
    try:
      index, count, score, words = line.split('\t')
      phrase = Phrase(tuple(words.split(' ')), int(count), float(score))
      if len(phrase.words) < 2 or not all(phrase.words) or int(index) < 1:
        raise ValueError(line)
      passes[int(index) - 1].append(phrase)
    except (ValueError, IndexError) as error:
      raise errors.UserError(
        f'{path}, line {number}: {line[:60]!r} is no phrase; give pass, '
        'count, score and words between tabs'
      ) from error
  return Phrases(rules, passes)


def _head(path: pathlib.Path, line: str) -> tuple[Rules, int]:
  """Returns the rules in the first line of a file, and the number of passes."""
  try:
    head: Mapping[str, Any] = json_text.loads(line)
    FORMAT.check(path, head)
    rules = Rules(
      score=head['score'],
      threshold=float(head['threshold']),
      min_count=int(head['min_count']),
      connectors=tuple(map(str, head['connectors'])),
    )
    if rules.score not in THRESHOLDS or math.isnan(rules.threshold):
      raise ValueError(f'score {rules.score}')
    num_passes = int(head['passes'])
    if not 0 <= num_passes <= _MAX_PASSES:
      raise ValueError(f'{num_passes} passes')
    ' '.join(rules.connectors).encode()  # may have half characters
    return rules, num_passes
  except (ValueError, KeyError, TypeError, OverflowError) as error:
    raise errors.UserError(
      f'{path} has no settings of phrases in its first line; give the {FILE} '
      'of a run with --config.data.phrases'
    ) from error
