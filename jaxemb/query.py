"""`python -m jaxemb.query`: the command `jaxemb query`."""

from jaxemb.cli import query

if __name__ == '__main__':
  raise SystemExit(query.main())
