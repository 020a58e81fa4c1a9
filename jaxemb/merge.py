"""`python -m jaxemb.merge`: the command `jaxemb merge`."""

from jaxemb.cli import merge

if __name__ == '__main__':
  raise SystemExit(merge.main())
