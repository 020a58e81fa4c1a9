"""`python -m jaxemb.evaluate`: the command `jaxemb evaluate`."""

from jaxemb.cli import evaluate

if __name__ == '__main__':
  raise SystemExit(evaluate.main())
