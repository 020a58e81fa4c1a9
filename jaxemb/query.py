"""`python -m jaxemb.query`: the command `jaxemb query`."""

import sys

from jaxemb.cli import query

if __name__ == '__main__':
  sys.exit(query.main())
