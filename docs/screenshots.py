"""Takes screenshots of the report of one small run per kind of data.

  python docs/screenshots.py               # all kinds, minutes on two cores
  python docs/screenshots.py text clicks   # some

It writes docs/images/report-KIND.png, and for one kind also its dark mode, its
layout on a phone and its print. It needs Chromium, in the search path or in
JAXEMB_CHROMIUM. Pillow, if it is installed, makes the files smaller.
"""

import argparse
import base64
import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_ROOT = pathlib.Path(__file__).parents[1]
_IMAGES = _ROOT / 'docs' / 'images'
# Synthetic data that the package makes.
_RUNS = {
  'text': ('wiki', 'model.dim=32'),
  'senses': ('mixture', 'model.dim=16', 'train.epochs=1'),
  'documents': ('documents', 'model.dim=16', 'train.epochs=2'),
  'clicks': ('ctr',),
  'items': ('rec:item2vec', 'model.dim=16', 'train.epochs=2'),
  'graph': ('graph:line', 'model.dim=16', 'train.epochs=3'),
  'graphsage': ('graphsage', 'train.epochs=10'),
}


class Look(NamedTuple):
  """How a page is pictured."""

  width: int = 1100
  height: int = 860
  scheme: str = 'light'
  media: str = 'screen'


_VARIANTS = {
  'dark': Look(scheme='dark'),
  'phone': Look(width=390),
  'print': Look(width=718, height=1010, media='print'),  # A4 with margins
}
_OF_VARIANTS = 'text'


class Browser:
  """A headless Chromium, spoken to by the DevTools protocol."""

  def __init__(self, path: str, profile: str):
    """Starts the browser and opens a page."""
    reads, self._to = os.pipe()
    self._from, writes = os.pipe()
    # Chromium reads commands from descriptor 3 and answers on 4.
    shell = f'exec "$0" "$@" 3<&{reads} 4>&{writes}'
    options = '--headless --no-sandbox --disable-gpu --hide-scrollbars'
    self._process = subprocess.Popen(
      ['sh', '-c', shell, path, *options.split(), '--remote-debugging-pipe',
       f'--user-data-dir={profile}', 'about:blank'],
      pass_fds=(reads, writes), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(reads)
    os.close(writes)
    self._answers = self._messages()
    self._number, self._session = 0, {}
    target = self.call('Target.createTarget', url='about:blank')['targetId']
    found = self.call('Target.attachToTarget', targetId=target, flatten=True)
    self._session = {'sessionId': found['sessionId']}

  def _messages(self) -> Iterator[dict[str, Any]]:
    with os.fdopen(self._from, 'rb') as file:
      while data := b''.join(iter(lambda: file.read(1), b'\0')):
        yield json.loads(data)

  def call(self, method: str, **arguments: Any) -> dict[str, Any]:
    """Calls a method of the protocol and returns its result."""
    self._number += 1
    message = {'id': self._number, 'method': method, 'params': arguments}
    os.write(self._to, json.dumps(message | self._session).encode() + b'\0')
    for answer in self._answers:
      if answer.get('id') == self._number:
        if 'error' in answer:
          raise RuntimeError(f'{method}: {answer["error"]["message"]}')
        return answer['result']
    raise RuntimeError(f'{method}: the browser has ended')

  def run(self, script: str) -> Any:
    """Returns the value of an expression in the page."""
    result = self.call(
      'Runtime.evaluate', expression=script, returnByValue=True,
      awaitPromise=True,
    )  # fmt: skip
    return result['result'].get('value')

  def show(self, page: pathlib.Path, look: Look) -> None:
    """Opens a page and waits until it is drawn."""
    self.call(
      'Emulation.setDeviceMetricsOverride', width=look.width,
      height=look.height, deviceScaleFactor=1, mobile=look.width < 500,
    )  # fmt: skip
    scheme = {'name': 'prefers-color-scheme', 'value': look.scheme}
    self.call('Emulation.setEmulatedMedia', media=look.media, features=[scheme])
    url = page.absolute().as_uri()
    self.call('Page.navigate', url='about:blank')  # the page may be the same
    self.call('Page.navigate', url=url)
    ready = (
      'document.readyState === "complete" && location.href !== "about:blank"'
    )
    while not self.run(ready):
      time.sleep(0.05)
    if look.media == 'print':
      self.run('dispatchEvent(new Event("beforeprint"))')

  def picture(self) -> bytes:
    """Returns what is in view as a PNG."""
    shot = self.call('Page.captureScreenshot', format='png')
    return base64.b64decode(shot['data'])

  def close(self) -> None:
    """Ends the browser."""
    with contextlib.suppress(RuntimeError, OSError):
      self.call('Browser.close')
    os.close(self._to)
    self._process.wait(60)


def find_browser() -> str | None:
  """Returns the path of a Chromium, None if there is none."""
  names = [os.environ.get('JAXEMB_CHROMIUM', ''), 'chromium', 'google-chrome']
  return next(filter(None, map(shutil.which, names)), None)


def smaller(png: bytes) -> bytes:
  """Returns a picture in 128 colors; as it is where Pillow is missing."""
  try:
    from PIL import Image
  except ImportError:
    return png
  image, file = Image.open(io.BytesIO(png)).convert('RGB'), io.BytesIO()
  image = image.quantize(
    128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
  )
  image.save(file, 'PNG', optimize=True)
  return file.getvalue()


def train(kind: str, workdir: pathlib.Path) -> None:
  """Trains a small run of a kind."""
  config, *settings = _RUNS[kind]
  command = [sys.executable, '-m', 'jaxemb', 'train', f'--config={config}']
  command += [f'--workdir={workdir}', *(f'--config.{x}' for x in settings)]
  subprocess.run(command, cwd=_ROOT, check=True)


def take(browser: Browser, kind: str, page: pathlib.Path) -> None:
  """Writes the screenshots of a page."""
  looks = {'': Look()} | (_VARIANTS if kind == _OF_VARIANTS else {})
  for name, look in looks.items():
    browser.show(page, look)
    stem = '-'.join(filter(None, ('report', kind, name)))
    path = _IMAGES / f'{stem}.png'
    path.write_bytes(smaller(browser.picture()))
    print(f'{path.relative_to(_ROOT)}: {path.stat().st_size / 1e3:.0f} kB')


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the script."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('kinds', nargs='*', metavar='KIND', help=', '.join(_RUNS))
  parser.add_argument('--runs', help='keep the runs in this folder')
  args = parser.parse_args(argv)
  kinds = args.kinds or [*_RUNS]
  if unknown := {*kinds} - {*_RUNS}:
    parser.error(f'unknown: {", ".join(unknown)}')
  path = find_browser()
  if path is None:
    print('no Chromium found; set JAXEMB_CHROMIUM to its path')
    return 1
  _IMAGES.mkdir(exist_ok=True)
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(args.runs or scratch)
    for kind in kinds:
      if not (folder / kind / 'report.html').exists():
        train(kind, folder / kind)
    with contextlib.closing(Browser(path, f'{scratch}/profile')) as browser:
      for kind in kinds:
        take(browser, kind, folder / kind / 'report.html')
  return 0


if __name__ == '__main__':
  sys.exit(main())
