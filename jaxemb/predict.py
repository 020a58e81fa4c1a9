"""`python -m jaxemb.predict`: the command `jaxemb predict`."""

from jaxemb.cli import predict

if __name__ == '__main__':
  raise SystemExit(predict.main())
