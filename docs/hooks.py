"""Generates the pages of the reference that the package can write itself.

MkDocs calls `on_files` and `on_page_content`. Commands show what `--help`
prints, settings what `settings.toml` declares, so neither page can be out of
date.
"""

import contextlib
import io
import math
import pathlib
import re
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure import files as mkdocs_files

from jaxemb import __main__ as commands
from jaxemb import config as config_lib
from jaxemb.config import kinds

_ROOT = pathlib.Path(__file__).parents[1]
# Pages of MkDocs from files that lie elsewhere.
_COPIES = {'contributing.md': 'CONTRIBUTING.md'}
# A short flag in a sentence or a cell.
_FLAG = re.compile(r'<code>(--[a-z][^<]{1,40})</code>')
_GLOSSARY = "The [glossary](../glossary.md) defines jaxemb's terms."
# Columns of the table of names in settings.md.
_PROGRAMS = 'gensim', 'word2vec', 'fastText'


class OtherNames(NamedTuple):
  """A setting, and its names in other programs."""

  setting: str
  what: str  # what it is
  by_program: list[list[str]]  # names in each of `_PROGRAMS`
  default: str  # as settings.md states it


def on_files(
  files: mkdocs_files.Files, config: MkDocsConfig
) -> mkdocs_files.Files:
  """Adds the generated pages to the site's files."""
  pages = {
    'reference/commands.md': commands_page(),
    'reference/all_settings.md': settings_page(),
  }
  pages |= {page: (_ROOT / x).read_text() for page, x in _COPIES.items()}
  for page, text in pages.items():
    files.append(mkdocs_files.File.generated(config, page, content=text))
  return files


def on_page_content(html: str, **context: Any) -> str:
  """Keeps flags on one line, which browsers break after the hyphens."""
  return _FLAG.sub(r'<code style="white-space: nowrap">\1</code>', html)


def commands_page() -> str:
  """Returns the page of commands: what `--help` of each prints."""
  lines = [
    '# Commands',
    '',
    '`python -m jaxemb` also runs these commands.',
    _GLOSSARY,
    '',
  ]
  for name, what in commands.COMMANDS.items():
    usage = io.StringIO()
    with contextlib.redirect_stdout(usage), contextlib.suppress(SystemExit):
      commands.main([name, '--help'])
    lines += [f'## jaxemb {name}', '', what[0].upper() + what[1:] + '.', '']
    lines += ['```text', usage.getvalue().strip(), '```', '']
  return '\n'.join(lines)


def settings_page() -> str:
  """Returns the page of settings, one table for each group."""
  groups: dict[str, list[config_lib.Setting]] = {}
  for setting in config_lib.settings().values():
    group = setting.name.rpartition('.')[0]
    groups.setdefault(group, []).append(setting)
  lines = [
    '# All settings',
    '',
    'To change a setting, pass `--config.NAME=VALUE` on the command line (such',
    'as `--config.model.window=10`), set `config.NAME` in a config, or pass',
    '`settings={...}` to `jaxemb.train` ([Settings](settings.md)).',
    '`module:attribute` names [your own code](../guides/extending.md).',
    'Configs change some of these defaults: see',
    '`jaxemb train --config=NAME --help`.',
    _GLOSSARY,
    '',
    '## Names in other programs',
    '',
    '<div class="names" markdown>',
    '',
    '| meaning | setting | default | names in other programs |',
    '|---|---|---|---|',
    *_named_elsewhere(),
    '',
    '</div>',
    '',
  ]
  for group, settings in groups.items():
    lines += [f'## {group or "General"}', '']
    lines += ['<div class="names" markdown>', '']
    lines += ['| setting | meaning | default | values |']
    lines += ['|---|---|---|---|', *map(_row, settings), '', '</div>', '']
  return '\n'.join(lines)


def other_names() -> list[OtherNames]:
  """Returns the table of names of other programs in `settings.md`."""
  text = (_ROOT / 'docs/reference/settings.md').read_text()
  table = text[text.index('\n|') :].partition('\n\n')[0]  # the first one
  result = []
  for row in table.strip().splitlines()[2:]:
    cells = [x.strip() for x in row.strip('|').split('|')]
    setting, *_ = re.findall(r'`([^`]+)`', cells[1])
    if not setting.startswith('--'):  # an argument that is no setting
      by_program = [re.findall(r'`([^`]+)`', x) for x in cells[3:]]
      result.append(OtherNames(setting, cells[0], by_program, default=cells[2]))
  return result


def _named_elsewhere():
  """Yields rows of the table of names, with links to the settings."""
  known, settings = other_names(), config_lib.settings()
  for names in known:
    programs = zip(_PROGRAMS, names.by_program, strict=True)
    others = ', '.join(
      f'{program} ' + ', '.join(f'`{x}`' for x in all_names)
      for program, all_names in programs
      if all_names
    )
    default = names.default.replace('](#', '](settings.md#')
    yield _cells(names.what, _link(settings[names.setting]), default, others)


def _row(setting):
  """Returns a setting's row of a table."""
  notes = '; '.join(_conditions(setting))
  notes = f'{setting.help} ({notes})' if notes else setting.help
  name = f'<a id="{setting.name}"></a>`{setting.name}`'
  return _cells(name, notes, _default(setting), _values(setting))


def _conditions(setting):
  """Yields with which values of other settings a setting has an effect."""
  by_condition: dict[str, list[str]] = {}
  for kind in kinds.built_in():
    condition = kind.only_with.get(setting.name, setting.only_with)
    if condition != setting.only_with:
      by_condition.setdefault(condition, []).append(kind.source)
  always = '|'.join(by_condition.pop('', []))
  if setting.only_with:
    exception = f'; with `data.source={always}`, always' if always else ''
    yield f'only with `{setting.only_with}`{exception}'
  for condition, sources in by_condition.items():
    yield f'for `data.source={"|".join(sources)}`, only if `{condition}`'


def _link(setting):
  """Returns a link to the row of a setting."""
  return f'[`{setting.name}`](#{setting.name})'


def _default(setting):
  return f'`{setting.default!r}`'


def _cells(*cells):
  """Returns the row of a table."""
  return '| ' + ' | '.join(map(_escaped, cells)) + ' |'


def _escaped(cell):
  """Returns a cell with its bars escaped, which code shows as they are."""
  texts = re.split('(`[^`]*`)', cell)  # every second one is code
  texts[::2] = [x.replace('|', '\\|') for x in texts[::2]]
  return ''.join(texts)


def _values(setting):
  """Returns the values that a setting takes, in words."""
  if isinstance(setting.default, bool):
    return '`True`, `False`'
  if isinstance(setting.default, str):
    members = kinds.members().get(setting.name)
    values = [f'`{x!r}`' for x in (*setting.values, *(members or ()))]
    if members is not None:
      values.append('`module:attribute`')
    return ', '.join(values) or 'string'
  low, high = setting.values
  if high == math.inf:
    return f'at least {low:,}'
  return f'{low:,} to {high:,}'
