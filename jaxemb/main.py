"""`python -m jaxemb.main`: the command `jaxemb train`."""

from jaxemb.cli import train

if __name__ == '__main__':
  raise SystemExit(train.main())
