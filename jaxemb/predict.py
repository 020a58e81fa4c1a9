"""`python -m jaxemb.predict`: the command `jaxemb predict`."""

import sys

from jaxemb.cli import predict

if __name__ == '__main__':
  sys.exit(predict.main())
