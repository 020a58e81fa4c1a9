"""`python -m jaxemb.launch`: the command `jaxemb launch`."""

import sys

from jaxemb.cli import launch

if __name__ == '__main__':
  sys.exit(launch.main())
