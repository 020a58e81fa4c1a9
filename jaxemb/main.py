"""`python -m jaxemb.main`: the command `jaxemb train`."""

import sys

from jaxemb.cli import train

if __name__ == '__main__':
  sys.exit(train.main())
