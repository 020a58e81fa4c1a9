"""`python -m jaxemb.merge`: the command `jaxemb merge`."""

import sys

from jaxemb.cli import merge

if __name__ == '__main__':
  sys.exit(merge.main())
