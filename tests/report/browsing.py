"""A page as a browser draws it, for tests of pages."""

import os
import pathlib
import shutil
import subprocess

import pytest


def drawn(page: pathlib.Path) -> str:
  """The document after its scripts ran, which say nothing on the console."""
  names = [os.environ.get('JAXEMB_CHROMIUM', ''), 'chromium', 'google-chrome']
  browser = next(filter(None, map(shutil.which, names)), None)
  if browser is None:
    pytest.skip('no chromium found; set JAXEMB_CHROMIUM to its path')
  done = subprocess.run(
    [
      browser, '--headless', '--no-sandbox', '--disable-gpu',
      '--enable-logging=stderr', f'--user-data-dir={page.parent / "profile"}',
      '--virtual-time-budget=5000', '--dump-dom', page.as_uri(),
    ],
    capture_output=True, timeout=120, check=True, text=True,
  )  # fmt: skip
  assert 'CONSOLE' not in done.stderr
  return done.stdout
