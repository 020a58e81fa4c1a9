"""Code blocks of the documentation, and the commands in them."""

import pathlib
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted([ROOT / 'README.md', *(ROOT / 'docs').rglob('*.md')])
SHELL = 'bash'
_FENCE = re.compile(r'^( *)```(\w*)')
_LIST_ITEM = re.compile(r'^(?:[-*]|\d+\.) |^!!!')
# Programs before a command that are no part of it, and their arguments.
_WRAPPERS = {'srun': 0, 'taskset': 2, 'exec': 0, 'do': 0}
_SEPARATORS = {'&&', '||', '|', ';', '&'}
# Of the first line of a block of commands, after comments.
_PROGRAM = re.compile(
  r'(?:#.*\n)*(?:--config\.|(?:\w+=\S+ )*(?:\S*/)?'
  r'(?:jaxemb|python3?|pip|git|export|ray|gcloud|srun|sudo|taskset|'
  r'tensorboard) )'
)


class Block(NamedTuple):
  """A code block of a page."""

  page: str  # from docs/ on, or README.md
  line: int
  language: str  # bash for all commands; '' = other indented text
  text: str

  def __str__(self) -> str:
    return f'{self.page}:{self.line}'


def name(page: pathlib.Path) -> str:
  """Returns the name of a page in tables of tests."""
  return page.relative_to(ROOT).as_posix().removeprefix('docs/')


def of_page(page: pathlib.Path) -> list[Block]:
  """Returns the blocks of a page, fenced and indented, from top to bottom."""
  blocks, lines = [], page.read_text('utf-8').split('\n')
  number, is_in_list = 0, False
  while number < len(lines):
    line, start = lines[number], number
    if fence := _FENCE.match(line):
      number += 1
      while not lines[number].startswith(f'{fence[1]}```'):
        number += 1
      text = _dedented(lines[start + 1 : number])
      blocks.append(Block(name(page), start + 2, fence[2], text))
    elif line.startswith(' ' * (8 if is_in_list else 4)) and (
      not lines[number - 1].strip()
    ):
      depth = len(line) - len(line.lstrip())
      while number < len(lines) and (
        not lines[number].strip() or lines[number].startswith(' ' * depth)
      ):
        number += 1
      text = _dedented(lines[start:number])
      language = SHELL if _PROGRAM.match(text) else ''
      blocks.append(Block(name(page), start + 1, language, text))
      continue
    elif line[:1].strip():
      is_in_list = bool(_LIST_ITEM.match(line))
    number += 1
  return blocks


def _dedented(lines: list[str]) -> str:
  depth = len(lines[0]) - len(lines[0].lstrip())
  return '\n'.join(x[depth:] for x in lines).rstrip('\n') + '\n'


def all_blocks() -> list[Block]:
  """Returns the blocks of all pages."""
  return [x for page in PAGES for x in of_page(page)]


def commands(text: str) -> Iterator[list[str]]:
  """Yields the programs that a shell starts, with their arguments.

  Wrappers such as srun and variables of the environment are left out. Commands
  within an argument, for another shell, are yielded too.
  """
  pending = ''
  for line in re.sub(r'\\\n\s*', '', text).splitlines():
    pending += line
    if pending.startswith('--config.'):  # settings, and what they are
      flags = [x for x in re.split(r'\s+', pending) if x.startswith('--')]
      yield ['jaxemb', 'train', *(x.replace("'", '') for x in flags)]
      pending = ''
      continue
    try:
      tokens = shlex.split(pending, comments=True)
    except ValueError:  # a quotation that goes on
      pending += '\n'
      continue
    pending, start = '', 0
    for number, token in enumerate([*tokens, ';']):
      if token in _SEPARATORS:
        yield from _commands(tokens[start:number])
        start = number + 1


def _commands(tokens: list[str]) -> Iterator[list[str]]:
  while tokens and (tokens[0] in _WRAPPERS or re.match(r'\w+=', tokens[0])):
    tokens = tokens[1 + _WRAPPERS.get(tokens[0], 0) :]
  if not tokens:
    return
  program = tokens[0].rpartition('/')[2].replace('python3', 'python')
  rest = [x.strip('[]') if x.startswith('[--') else x for x in tokens[1:]]
  yield [program, *rest]
  for token in tokens[1:]:
    if found := re.search(r'(?:\S*/)?jaxemb [a-z].*', token, re.DOTALL):
      yield from commands(found[0])
