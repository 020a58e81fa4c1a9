"""report.json, report.html in a real browser, and the words on the page."""

import html
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from jaxemb import embeddings
from jaxemb.evaluation import benchmarks
from jaxemb.report import pages, report

_HOSTILE = '<script>document.title = "hacked"</script>'
_ANALOGIES = {'score': 0.5, 'score_cosmul': 0.625, 'found': 4, 'total': 8}
_HOST = {
  'hostname': 'a', 'mean_cores': 1.5, 'peak_cores': 1.75,
  'network_received_bytes': 12e6, 'network_received_bytes_per_sec': 1.2e6,
  'words': 8_225_617, 'words_per_sec': 1.43e6,
  'collective_bytes': 31e6, 'collective_bytes_per_sec': 7.3e6,
  'synchronisations': 63,
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
  'staleness': {'bound_words': 8000, 'max_words': 6000, 'mean_words': 4321.5},
}  # fmt: skip


def _table(num_words, dim=6):
  letters = str.maketrans('0123456789', 'abcdefghij')
  words = [f'{i:05d}'.translate(letters) for i in range(num_words)]
  vectors = np.random.default_rng(0).normal(size=(num_words, dim))
  counts = np.arange(num_words, 0, -1)
  return embeddings.Embeddings(words, vectors.astype(np.float32), counts)


def _write(workdir, num_rows=20):
  table = _table(300, 8)
  words = table.index_to_key
  words[20] = _HOSTILE
  host = {'cores': 1.5, 'network_sent_bytes_per_sec': 100.0}
  row = {'loss': 3.5, 'words_per_sec': 1e6, 'learning_rate': 0.025,
         'hosts': [host | {'hostname': name} for name in 'aab']}  # fmt: skip
  metrics = [
    row | {'step': step, 'epoch': step / num_rows}
    for step in range(1, num_rows + 1)
  ]
  groups = benchmarks.Benchmark(
    workdir, 'groups', 'categories', [(word,) for word in words[10:90]],
    ['<u>group'] * 30 + ['plain'] * 50, 0,
  )  # fmt: skip
  pages.write(workdir, report.page(table, [groups]), _REPORT, metrics=metrics)
  return (workdir / 'report.html').read_text(encoding='utf-8')


def test_json_holds_the_values_and_null_for_what_is_not_finite(tmp_path):
  _write(tmp_path)
  text = (tmp_path / 'report.json').read_text()
  read = json.loads(text, parse_constant=pytest.fail)
  assert read == pages.FORMAT.stamp() | _REPORT | {'compile_secs': None}
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
    '8,225,617 1.43 M 31 MB 7.3 MB/s 31 MB 7.3 MB/s 63',
    'from at most 6,000 words, and from 4,322',
    'the policy allows 8,000',
    '12 MB 1.2 MB/s', '0 a 1.500 1.750', '1 <i>b', '<u>group', _HOSTILE,
    '20 of 1000 intervals', 'one in 4',
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
  curves = {x['title']: x['series'][0]['ys'] for x in data['curves']}
  assert len(curves) == 5 and len(curves['CPU']) == 250
  assert curves['CPU'][-1] == 4.5  # of three processes
  assert curves['Network'][-1] == 200  # of two hosts
  assert data['axes']['training']['epoch'][-1] == 1
  assert data['axes']['training']['step'][-2:] == [996, 1000]


def test_short_intervals_are_merged_with_the_previous(tmp_path):
  rows = [
    {'step': step, 'epoch': step / 41, 'loss': loss, 'words_per_sec': speed}
    for step, loss, speed in (
      (20, 4.0, 2e6), (40, 3.0, 2e6), (41, 2.0, 1e6), (41, None, None)
    )
  ]  # fmt: skip
  pages.write(tmp_path, report.page(_table(300)), _REPORT, metrics=rows)
  page = (tmp_path / 'report.html').read_text()
  data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
  loss, speed = (x['series'][0]['ys'] for x in data['curves'])
  assert loss == [4, pytest.approx((20 * 3 + 2) / 21, rel=1e-5)]
  assert speed == [2e6, pytest.approx(21 / (20 / 2e6 + 1 / 1e6), rel=1e-5)]
  assert data['axes']['training']['step'] == [20, 41]
  assert '2 of 2 intervals' in re.sub(r'\s+', ' ', page)


def test_rows_are_called_after_the_data(tmp_path):
  of_nodes = report.page(_table(300))._replace(noun='node')
  pages.write(tmp_path, of_nodes, _REPORT, metrics=[])
  page = (tmp_path / 'report.html').read_text()
  assert 'vectors, 300 nodes × 8' in page and 'words with' not in page
  assert 'nodes on the two main axes' in page


def test_nothing_known(tmp_path):
  zeros = embeddings.Embeddings(['a'], np.zeros((1, 4), 'f'), np.ones(1))
  pages.write(tmp_path, report.page(zeros), {}, metrics=[])
  page = (tmp_path / 'report.html').read_text()
  for line in 'No measurements', 'too few', 'Nothing was dropped', 'no words':
    assert line in page, line


_PROBE = """<script>
const input = document.querySelector('.find input');
input.value = 'AAAC';
input.dispatchEvent(new Event('input'));
document.title += `: ${document.querySelectorAll('.mark.on').length} found`;
</script></body>"""


def _drawn(page):
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


@pytest.mark.slow
def test_browser_draws_the_page_and_finds_a_word(tmp_path):
  page = tmp_path / 'report.html'
  page.write_text(_write(tmp_path).replace('</body>', _PROBE))
  found = _drawn(page)
  assert '× 8 · jaxemb report: 9 found</title>' in found
  assert found.count('class="line s0"') == 5


_CHARTS = """<script>
const pointer = (type, x) => {
  const svg = document.querySelector('#curves svg');
  const box = svg.getBoundingClientRect();
  const [clientX, clientY] = [box.left + x * box.width, box.top + 50];
  svg.setPointerCapture = () => {};
  const where = {clientX, clientY, pointerType: 'mouse'};
  svg.dispatchEvent(new PointerEvent(type, where));
};
const find = (selector) => [...document.querySelectorAll(selector)];
const tips = () => find('#curves .tip').map((tip) => tip.textContent);
pointer('pointermove', .6);
const result = {shown: tips()};
pointer('pointerdown', .5);
pointer('pointermove', .8);
pointer('pointerup', .8);
result.zoomed = view.range;
result.paths = find('#curves path.line').length;
document.querySelector('#unzoom').click();
const axis = document.querySelector('#controls select');
axis.value = 'step';
axis.dispatchEvent(new Event('input'));
pointer('pointermove', 1);
result.step = tips()[0];
const table = document.querySelector('table');
const heads = [...table.tHead.rows[0].cells];
heads.find((head) => head.textContent === 'Step').firstChild.click();
result.first = table.tBodies[0].rows[0].cells[0].textContent;
document.title = JSON.stringify(result);
</script></body>"""


@pytest.mark.slow
def test_browser_zooms_smooths_and_sorts(tmp_path):
  page = tmp_path / 'report.html'
  page.write_text(_write(tmp_path, num_rows=50).replace('</body>', _CHARTS))
  found = re.search('<title>(.*)</title>', _drawn(page))[1]
  found = json.loads(html.unescape(found))
  assert len(found['shown']) == 5  # all charts show their value there
  assert found['shown'][0].startswith('3.5 at epoch 0.5')
  assert found['shown'][1].startswith('1 M at epoch 0.5')
  low, high = found['zoomed']
  assert 0.3 < low < 0.5 and 0.7 < high < 0.9
  assert found['paths'] == 9  # four of them smoothed
  assert found['step'] == '3.5 at step 50' and found['first'] == '50'


@pytest.mark.slow
def test_browser_draws_validation_where_losses_of_training_are_unknown(
  tmp_path,
):
  scores = {'score': 0.5, 'log_loss': 0.7}
  record = {'step': 5, 'epoch': 1, 'validation': scores}
  row = {'step': 5, 'epoch': 1, 'loss': np.nan, 'elapsed_secs': 2.0}
  page = report.page(_table(50))
  pages.write(tmp_path, page, {'evaluations': [record]}, metrics=[row])
  found = _drawn(tmp_path / 'report.html')
  assert 'Loss per example: from 0.7 to 0.7' in found
  assert found.count('class="line s0"') == 2


def test_words_span_all_ranks_and_alternate_between_categories():
  table = _table(20_000)
  words = table.index_to_key
  categories = {'a': words[150::300], 'b': words[151::300]}
  shown = report.neighbours(table, categories)
  word, rank, count, nearest = shown[-1]
  assert (rank, count) == (words.index(word) + 1, 20_001 - rank)
  assert nearest == table.most_similar(word, topn=8)
  ranks = [rank for _, rank, _, _ in shown]
  assert ranks == sorted(set(ranks)) and len(ranks) == 36
  assert ranks[0] > 100 and ranks[-1] > 10_000
  # Steps beyond rank 3,000 are wide enough for words of both.
  late = {word for word, rank, _, _ in shown if rank > 3000}
  num_a, num_b = (len(late & {*words}) for words in categories.values())
  assert num_a + num_b == len(late) and abs(num_a - num_b) <= 1


@pytest.mark.filterwarnings('error')
def test_unusable_vectors_are_skipped():
  table = _table(200)
  table.vectors[60], table.vectors[70], names = np.nan, 0, table.index_to_key
  for categories in ({'some': names[50:100]}, {}):
    shown = report.neighbours(table, categories)
    points = sum(report.word_map(table, categories).groups.values(), [])
    words = {item[0] for item in [*shown, *points]}
    words |= {word for item in shown for word, _ in item[3]}
    assert np.isfinite([point[1:] for point in points]).all()
    assert not {names[60], names[70]} & words


def test_words_of_any_script_are_shown_and_numbers_if_there_is_nothing_else():
  vectors = np.eye(7, dtype=np.float32)
  words = ['the', 'of', 'हिन्दी', '東京', 'k0a', 'don’t', 'word']
  table = embeddings.Embeddings(words, vectors, vectors[0])
  shown = report.neighbours(table, {})
  assert [item[0] for item in shown] == ['the', 'हिन्दी', '東京', 'word']
  numbers = embeddings.Embeddings([*'1234567'], vectors, vectors[0])
  assert len(report.neighbours(numbers, {})) == 7


def test_map_takes_the_frequent_words_of_the_largest_categories():
  table = _table(3000)
  words = table.index_to_key
  categories = {
    'large': [*words[1000:3000], 'unknown'], 'small': words[:30],
    'shared': words[20:40],  # a word counts in its first category
    'empty': ['unknown'],
  }  # fmt: skip
  word_map = report.word_map(table, categories)
  sizes = {name: len(points) for name, points in word_map.groups.items()}
  assert sizes == {'large': 440, 'shared': 10, 'small': 30}
  assert [p[0] for p in word_map.groups['large']] == words[1000:1440]
  assert (word_map.num_groups_omitted, word_map.num_words_omitted) == (0, 1560)
  word_map = report.word_map(table, {})  # clusters
  assert word_map.is_clustered and len(word_map.groups) > 9
  assert all(name == points[0][0] for name, points in word_map.groups.items())


@pytest.mark.parametrize('dim', [1, 6])
def test_map_axes_are_the_principal_ones(dim):
  table = _table(50, dim)
  word_map = report.word_map(table, {'all': table.index_to_key})
  found = np.array([point[2:] for point in word_map.groups['all']])
  covariance = np.cov(table.get_normed_vectors().T, bias=True).reshape(dim, dim)
  variances = np.pad(np.linalg.eigvalsh(covariance)[::-1], (0, 1))
  np.testing.assert_allclose(found.var(axis=0), variances[:2], 1e-3, 1e-6)
  explained = variances[:2].sum() / variances.sum()
  assert word_map.explained_variance == pytest.approx(explained, rel=1e-5)
