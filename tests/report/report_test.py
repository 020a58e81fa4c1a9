"""report.json and report.html, and the page in a real browser."""

import html
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from jaxemb.report import report

_HOSTILE = '<script>document.title = "hacked"</script>'
_ANALOGIES = {'score': 0.5, 'score_cosmul': 0.625, 'found': 4, 'total': 8}
_HOST = {
  'hostname': 'a', 'mean_cores': 1.5, 'peak_cores': 1.75,
  'network_received_bytes': 12e6, 'network_received_bytes_per_sec': 1.2e6,
}  # fmt: skip
_REPORT = {
  'model': '<b>skipgram', 'vocab_words': 300, 'dim': 8,
  'words_per_sec': np.float32(2_870_000), 'corpus_words': np.int64(16_451_234),
  'train_secs': 28.7, 'compile_secs': np.nan, 'total_secs': 7500,
  'peak_rss_bytes': 812_000_000, 'loss_per_example': 2.151,
  'devices': ['cuda:0 NVIDIA H200', 'cuda:1 NVIDIA H200'],
  'versions': {'jaxemb': '0.1.0'},
  'collectives': {
    'all-reduce': 3, 'all-gather': 0,
    'bytes_per_step_per_device': {'all-reduce': 2.35e6, 'total': 2.35e6},
  },
  'dropped': {
    'corpus': {'overlong_words': 512_034, 'problems': ['damaged <here>']},
    'redirects': 0, 'new_counter': 7,
  },
  'config': {'seed': 'bad \udc80', 'eval': {'paths': ''}},
  'evaluation': {
    'pairs': {'kind': 'similarity', 'found': 9, 'total': 10, 'malformed': 3},
    'questions': _ANALOGIES | {'kind': 'analogies', 'semantic': _ANALOGIES,
                               'sections': {'capital': _ANALOGIES}},
    'groups': {'kind': 'categorization', 'score': 0.91, 'found': 5, 'total': 5},
    'nothing': {'kind': 'similarity', 'score': None, 'found': 0, 'total': 9},
    'none': {'kind': 'analogies', 'score': None, 'found': 0, 'total': 9},
  },
  'hosts': [_HOST, _HOST | {'hostname': '<i>b'}],
}  # fmt: skip


def _write(workdir, figures=_REPORT, num_rows=20):
  letters = str.maketrans('0123456789', 'abcdefghij')
  words = [f'{i:04d}'.translate(letters) for i in range(300)]
  words[20] = _HOSTILE
  host = {'cores': 1.5, 'network_sent_bytes_per_sec': 100.0}
  row = {'loss': 3.5, 'words_per_sec': 1e6, 'learning_rate': 0.025,
         'hosts': [host | {'hostname': name} for name in 'aab']}  # fmt: skip
  metrics = [
    row | {'step': step, 'epoch': step / num_rows}
    for step in [*range(1, num_rows + 1), *range(5, num_rows + 1)]
  ]
  vectors = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
  categories = {'<u>group': words[10:40], 'plain': words[40:90]}
  report.write(
    workdir, figures, metrics, words, vectors,
    np.arange(300, 0, -1), categories,
  )  # fmt: skip
  return (workdir / 'report.html').read_text(encoding='utf-8')


def test_json_holds_the_values_and_null_for_what_is_not_finite(tmp_path):
  _write(tmp_path)
  text = (tmp_path / 'report.json').read_text()
  read = json.loads(text, parse_constant=pytest.fail)
  assert read == _REPORT | {'compile_secs': None}
  assert '\n  "words_per_sec": 2870000.0,' in text


def test_page_shows_the_values_as_text(tmp_path):
  page = _write(tmp_path, num_rows=1000)
  text = re.sub(r'<script.*?</script>|<[^>]+>', ' ', page, flags=re.DOTALL)
  text = re.sub(r'\s+', ' ', html.unescape(text))
  for expected in (
    '<b>skipgram vectors, 300 words × 8', '2.87 M', '28.7 s', '2 h 5 min',
    '812 MB', '0.910', '62.5%', '4 / 8', '9 / 10', '90.0%',
    '3 malformed lines dropped', 'capital', 'Semantic', '512,034',
    'Overlong words, dropped', 'New counter', 'damaged <here>',
    'Zero: redirects', '2 × NVIDIA H200', 'all-reduce', '2.35 MB',
    'config.eval.paths (empty)', 'No item of nothing, none was found',
    '12 MB 1.2 MB/s', '0 a 1.500 1.750', '1 <i>b', '<u>group', _HOSTILE,
    '20 of 1000 logged rows', 'one in 4',
  ):  # fmt: skip
    assert expected in text, expected
  assert not re.search(r'\b(nan|inf|None|null)\b', text)
  tags = re.findall(r'<(\w+)', page)
  assert not {'b', 'i', 'u'} & {*tags} and tags.count('script') == 2
  for tag in {*tags} - {'meta', 'link', 'br'}:
    assert tags.count(tag) == page.count(f'</{tag}>'), tag
  assert not re.search(r'(src|href)="(?!#|data:,)|@import|url\(', page)
  assert len(page) < 200_000
  data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
  curves = {title: points for title, _, points in data['curves']}
  assert len(curves) == 5 and len(curves['CPU']) == 250
  assert curves['CPU'][-1] == [1, 4.5]  # of three processes
  assert curves['Network'][-1] == [1, 200]  # of two hosts


def test_nothing_known(tmp_path):
  words, vectors = ['a'], np.zeros((1, 4), np.float32)
  report.write(tmp_path, {}, [], words, vectors, np.ones(1), {})
  page = (tmp_path / 'report.html').read_text()
  for line in ('No measurements were logged', 'were not evaluated', 'too few',
               'Nothing was dropped', 'no words to show'):  # fmt: skip
    assert line in page, line
  assert 'The loss is not finite' in _write(
    tmp_path, {'loss_per_example': np.nan}
  )


def test_numbers():
  for name, value, text in (
    ('short', 999_950, '1 M'), ('short', 0.025, '0.025'), ('fixed', None, '–'),
    ('duration', 99.96, '1 min 40 s'), ('duration', 3599.9, '1 h 0 min'),
  ):  # fmt: skip
    assert report.FILTERS[name](value) == text


_PROBE = """<script>
const input = document.querySelector('.find input');
input.value = 'AAC';
input.dispatchEvent(new Event('input'));
document.title += `: ${document.querySelectorAll('.mark.on').length} found`;
</script></body>"""


def test_browser_draws_the_page_and_finds_a_word(tmp_path):
  names = [os.environ.get('JAXEMB_CHROMIUM', ''), 'chromium', 'google-chrome']
  browser = next(filter(None, map(shutil.which, names)), None)
  if browser is None:
    pytest.skip('no chromium found; set JAXEMB_CHROMIUM to its path')
  page = tmp_path / 'report.html'
  page.write_text(_write(tmp_path).replace('</body>', _PROBE))
  done = subprocess.run(
    [
      browser, '--headless', '--no-sandbox', '--disable-gpu',
      '--enable-logging=stderr', f'--user-data-dir={tmp_path / "profile"}',
      '--virtual-time-budget=5000', '--dump-dom', page.as_uri(),
    ],
    capture_output=True, timeout=120, check=True, text=True,
  )  # fmt: skip
  assert 'CONSOLE' not in done.stderr
  assert '× 8 · jaxemb report: 9 found</title>' in done.stdout
  assert done.stdout.count('class="line"') == 5
