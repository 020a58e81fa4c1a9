"""`python -m jaxemb.launch`: the command `jaxemb launch`."""

from jaxemb.cli import launch

if __name__ == '__main__':
  raise SystemExit(launch.main())
