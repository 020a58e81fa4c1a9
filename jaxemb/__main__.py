"""Runs the commands, as `jaxemb` and as `python -m jaxemb`."""

import importlib
import os
import sys
from collections.abc import Sequence

COMMANDS = {
  'train': 'train embedding tables, or resume a run',
  'merge': 'merge models that were trained separately',
  'query': 'print the nearest neighbors of a word or an expression',
  'predict': 'predict clicks, classes or vectors of nodes, or vectors of '
  'documents',
  'plan': 'estimate the memory and communication of a run on other devices',
  'evaluate': 'evaluate word vectors on benchmarks',
  'launch': 'run several processes of a job on this host',
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command; returns its exit code."""
  command, *rest = (sys.argv[1:] if argv is None else argv) or ['--help']
  if command in ('-h', '--help'):
    lines = [f'  {name:<10}{what}' for name, what in COMMANDS.items()]
    print('usage: jaxemb COMMAND ...', '', *lines, '', sep='\n')
    print('`jaxemb COMMAND --help` shows the options of a command.')
    return 0
  if command not in COMMANDS:
    names = ', '.join(COMMANDS)
    line = f'jaxemb: there is no command {command!r}; choose {names}'
    print(line, file=sys.stderr)
    return 2
  # For `module:attribute` of the user's own, as with `python -m`.
  if os.getcwd() not in sys.path and '' not in sys.path:
    sys.path.append(os.getcwd())
  try:
    module = importlib.import_module(f'jaxemb.cli.{command}')
  except KeyboardInterrupt:  # imports take seconds on a busy machine
    print('jaxemb: interrupted', file=sys.stderr)
    return 130
  return module.main(rest)


if __name__ == '__main__':
  sys.exit(main())
