"""`python -m jaxemb.evaluate`: the command `jaxemb evaluate`."""

import sys

from jaxemb.cli import evaluate

if __name__ == '__main__':
  sys.exit(evaluate.main())
