"""`python -m jaxemb.plan`: the command `jaxemb plan`."""

from jaxemb.cli import plan

if __name__ == '__main__':
  raise SystemExit(plan.main())
