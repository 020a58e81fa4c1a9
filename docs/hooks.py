"""Generates the pages of the reference that the package can write itself.

MkDocs calls `on_files`. Commands show what `--help` prints, settings what
`settings.toml` declares, so neither page can be out of date.
"""

import contextlib
import io
import math
import pathlib

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure import files as mkdocs_files

from jaxemb import __main__ as commands
from jaxemb import config as config_lib
from jaxemb.config import kinds

_ROOT = pathlib.Path(__file__).parents[1]
# Pages of MkDocs from files that lie elsewhere.
_COPIES = {'contributing.md': 'CONTRIBUTING.md'}


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


def commands_page() -> str:
  """Returns the page of commands: what `--help` of each prints."""
  lines = ['# Commands', '', '`jaxemb` is `python -m jaxemb`.', '']
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
    'Give a setting as `--config.NAME=VALUE` on the command line, or as',
    '`config.NAME` in a config. [Settings](settings.md) explains the choices.',
    '',
  ]
  for group, settings in groups.items():
    lines += [f'## {group or "General"}', '']
    lines += ['| setting | default | values | what it is |']
    lines += ['|---|---|---|---|', *map(_row, settings), '']
  return '\n'.join(lines)


def _row(setting):
  """Returns a setting's row of a table."""
  notes = setting.help
  if setting.only_with:
    notes += f' (only with `{setting.only_with}`)'
  cells = (
    f'`{setting.name}`',
    f'`{setting.default!r}`' if setting.default != '' else "`''`",
    _values(setting),
    notes,
  )
  return '| ' + ' | '.join(x.replace('|', '\\|') for x in cells) + ' |'


def _values(setting):
  """Returns the values that a setting takes, in words."""
  if isinstance(setting.default, bool):
    return '`True`, `False`'
  if isinstance(setting.default, str):
    values = [*setting.values, *kinds.members().get(setting.name, ())]
    return ', '.join(f'`{x!r}`' for x in values) or 'text'
  low, high = setting.values
  if high == math.inf:
    return f'at least {low:,}'
  return f'{low:,} to {high:,}'
