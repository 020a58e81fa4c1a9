"""`python -m jaxemb.plan`: the command `jaxemb plan`."""

import sys

from jaxemb.cli import plan

if __name__ == '__main__':
  sys.exit(plan.main())
