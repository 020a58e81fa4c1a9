"""The page in a real browser: chromium, from $JAXEMB_CHROMIUM or the path."""

import os
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

from jaxemb.report import report

# Windows narrower than 500 pixels are refused by some builds; frames are not.
_FRAME = """<!DOCTYPE html><meta name="color-scheme" content="light dark">
<body><script>
addEventListener('message', (event) => {
  for (const [name, value] of Object.entries(event.data))
    document.body.setAttribute('data-' + name, value);
});
</script><iframe src="inner.html" width="{width}" height="900" frameborder="0">
</iframe></body>"""
_PROBE = """<script>
addEventListener('load', () => parent.postMessage({
  width: innerWidth,
  content: document.documentElement.scrollWidth,
  ground: getComputedStyle(document.body).backgroundColor,
  requests: performance.getEntriesByType('resource').length,
}, '*'));
</script></body>"""
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
_GROUNDS = {'dark': 'rgb(20, 23, 26)', 'light': 'rgb(255, 255, 255)'}


@pytest.fixture(scope='module')
def chromium() -> str:
  names = (
    os.environ.get('JAXEMB_CHROMIUM', ''),
    'chromium',
    'chromium-browser',
    'google-chrome',
  )
  found = next(filter(None, map(shutil.which, filter(None, names))), None)
  if found is None:
    pytest.skip('no chromium found; set JAXEMB_CHROMIUM to its path')
  return found


@pytest.fixture(scope='module')
def page(tmp_path_factory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp('report')
  rng = np.random.default_rng(0)
  words = [f'{"abcdefghij"[i % 10] * 4}{chr(97 + i // 10)}' for i in range(200)]
  words[30] = 'supercalifragilistic' * 8
  words[31] = '<script>document.title = "hacked"</script>'
  vectors = rng.normal(size=(200, 8)).astype(np.float32)
  part = {'score': 0.5, 'score_cosmul': 0.4, 'correct': 9, 'found': 18}
  part['total'] = 20
  section = 'a-section-of-analogies-with-a-rather-long-name'
  figures = {
    'model': 'skipgram',
    'vocab_words': 200,
    'dim': 8,
    'devices': ['cpu'],
    'dropped': {'redirects': 5, 'problems': ['/data/' + 'deep/' * 40]},
    'config': {'data': {'path': '/data/' + 'corpus' * 40}},
    'versions': {'jaxemb': '0.1.0'},
    'evaluation': {
      'x' * 60: {'kind': 'similarity', 'score': 0.6, 'found': 1, 'total': 2},
      'questions': part | {'kind': 'analogies', 'sections': {section: part}},
    },
  }
  metrics = [
    {
      'step': i,
      'epoch': i / 50,
      'loss': 3 - i / 50,
      'words_per_sec': 1e6,
      'learning_rate': 0.02,
    }
    for i in range(50)
  ]
  categories = {'long_ones': words[30:40], 'others': words[40:120]}
  report.write(
    workdir, figures, metrics, words, vectors, np.arange(200, 0, -1), categories
  )
  return workdir / 'report.html'


def _dump(
  chromium: str,
  page: pathlib.Path,
  profile: pathlib.Path,
  scheme: str = 'light',
) -> tuple[str, list[str]]:
  """The document after loading, and what the browser's console said."""
  done = subprocess.run(
    [
      chromium,
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
      '--hide-scrollbars',
      '--enable-logging=stderr',
      f'--user-data-dir={profile}',
      '--window-size=1280,900',
      '--virtual-time-budget=5000',
      f'--blink-settings=preferredColorScheme={int(scheme == "light")}',
      '--dump-dom',
      page.as_uri(),
    ],
    capture_output=True,
    timeout=120,
    check=True,
  )
  console = [
    line
    for line in done.stderr.decode(errors='replace').splitlines()
    if 'CONSOLE' in line
  ]
  return done.stdout.decode(), console


def test_opens_without_a_complaint(chromium, page, tmp_path):
  document, console = _dump(chromium, page, tmp_path)
  assert not console
  assert '<title>Skipgram vectors, 200 words × 8' in document
  assert document.count('<svg') > 5 and document.count('<table') > 3
  # The page's own script ran, under the page's own policy.
  assert '<figure class="map scripted">' in document
  assert 'Find a word' in document


def test_policy_stops_other_scripts(chromium, page, tmp_path):
  text = page.read_text(encoding='utf-8')
  copy = tmp_path / 'copy.html'
  other = (
    '<script>document.title = "hacked"</script><img src="http://x.invalid/">'
  )
  copy.write_text(text.replace('</body>', f'{other}</body>'), encoding='utf-8')
  document, console = _dump(chromium, copy, tmp_path / 'profile')
  assert '<title>hacked' not in document
  assert len(console) >= 2


@pytest.mark.parametrize(
  ('width', 'scheme'), [(1280, 'dark'), (390, 'light'), (360, 'dark')]
)
def test_fits_the_window(chromium, page, tmp_path, width, scheme):
  text = _POLICY.sub('', page.read_text(encoding='utf-8'))
  inner = text.replace('</body>', _PROBE)
  (tmp_path / 'inner.html').write_text(inner, encoding='utf-8')
  outer = tmp_path / 'outer.html'
  outer.write_text(_FRAME.replace('{width}', str(width)))
  document, console = _dump(chromium, outer, tmp_path / 'profile', scheme)
  body = document[document.index('<body') :]
  seen = dict(re.findall(r'data-(\w+)="([^"]*)"', body[:300]))
  assert seen['width'] == str(width)
  assert int(seen['content']) <= width
  assert seen['ground'] == _GROUNDS[scheme]
  assert seen['requests'] == '0'
  assert not console
