"""Certificates as docs/security.md makes them, for this machine's loopback."""

import pathlib
import re
import shutil
import subprocess

from jaxemb.runtime import tls

_ROOT = pathlib.Path(__file__).parents[1]


def missing() -> str:
  """Returns why none can be made, or ''."""
  if not shutil.which('openssl'):
    return 'there is no openssl'
  version = subprocess.check_output(['openssl', 'version'], text=True)
  is_new = int(version.split()[1].split('.')[0]) >= 3
  return '' if is_new else f'{version.strip()} is older than 3'


def commands() -> str:
  """Returns those of the page, for one machine: this one."""
  text = (_ROOT / 'docs' / 'security.md').read_text()
  (block,) = re.findall('^```bash\n(openssl.*?)^```', text, re.DOTALL | re.M)
  assert '10.0.0.1 10.0.0.2' in block
  return block.replace('10.0.0.1 10.0.0.2', '127.0.0.1')


def make(folder: pathlib.Path, block: str = '') -> tls.Credentials:
  """Makes a new CA and a certificate of it in a folder, by `commands`."""
  folder.mkdir()
  script = ['bash', '-ec', block or commands()]
  subprocess.run(script, cwd=folder, check=True, capture_output=True)
  names = '127.0.0.1.pem', '127.0.0.1.key', 'ca.pem'
  return tls.Credentials(*(str(folder / x) for x in names))


def of_jax(credentials: tls.Credentials) -> dict[str, str]:
  """Returns the variables of the environment by which JAX uses them."""
  return {
    'JAX_MTLS_CERT_FILE': credentials.cert_file,
    'JAX_MTLS_KEY_FILE': credentials.key_file,
    'JAX_MTLS_CA_FILE': credentials.ca_file,
  }


def of_ray(credentials: tls.Credentials) -> dict[str, str]:
  """Returns the variables of the environment by which Ray uses them."""
  return {
    'RAY_USE_TLS': '1',
    'RAY_TLS_SERVER_CERT': credentials.cert_file,
    'RAY_TLS_SERVER_KEY': credentials.key_file,
    'RAY_TLS_CA_CERT': credentials.ca_file,
  }
