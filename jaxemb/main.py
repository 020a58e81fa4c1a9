"""`python -m jaxemb.main`: the command `jaxemb train`, or the one it names."""

import sys

from jaxemb import __main__

if __name__ == '__main__':
  arguments = sys.argv[1:]
  names_command = bool(arguments) and not arguments[0].startswith('-')
  sys.exit(__main__.main(arguments if names_command else ['train', *arguments]))
