"""What is in report.json and report.html."""

import html.parser
import json
import math
import pathlib
import re

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.report import report

_HOSTILE = [
  '<script>alert(1)</script>',
  '"onload="alert(1)',
  "it's",
  '&lt;',
  'שלום',
  'bell\x07',
  'word' * 60,
]
_VOID = {'meta', 'link', 'br', 'input'}


class _Checker(html.parser.HTMLParser):
  """Fails on tags that do not nest; keeps elements and text."""

  def __init__(self):
    super().__init__()
    self.open, self.elements, self.texts, self.ids = [], [], [], []

  def handle_starttag(self, tag, attrs):
    attrs = dict(attrs)
    self.elements.append((tag, attrs))
    self.ids += [attrs['id']] if 'id' in attrs else []
    if tag not in _VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))

  def handle_endtag(self, tag):
    assert self.open.pop() == tag, self.getpos()

  def handle_data(self, data):
    self.texts.append(data)


def _read_page(workdir: pathlib.Path) -> tuple[str, _Checker]:
  page = (workdir / 'report.html').read_text(encoding='utf-8')
  checker = _Checker()
  checker.feed(page)
  checker.close()
  assert not checker.open
  assert len(set(checker.ids)) == len(checker.ids)
  return page, checker


def _vocabulary(num_words=300, dim=8):
  rng = np.random.default_rng(0)
  letters = np.array(list('abcdefghij'))
  words = [
    ''.join(letters[list(map(int, f'{i:04d}'))]) for i in range(num_words)
  ]
  vectors = rng.normal(size=(num_words, dim)).astype(np.float32)
  counts = (1e6 / (1 + np.arange(num_words))).astype(np.int64)
  return words, vectors, counts


def _full_report() -> dict:
  part = {
    'score': 0.5,
    'score_cosmul': 0.625,
    'correct': 2,
    'found': 4,
    'total': 8,
  }
  return {
    'words_per_sec': np.float32(2_870_000),
    'words_per_sec_with_compilation': 2.5e6,
    'corpus_words': np.int64(16_451_234),
    'train_secs': 28.7,
    'compile_secs': 2.9,
    'total_secs': 48.3,
    'encode_secs': 4.2,
    'peak_rss_bytes': 812_000_000,
    'table_bytes': 58_200_000,
    'devices': ['cuda:0 NVIDIA H200', 'cuda:1 NVIDIA H200'],
    'versions': {'jaxemb': '0.1.0'},
    'machine': {'cpu': 'a <fast> one', 'cores': 2, 'memory': 16e9},
    'collectives': {
      'all-reduce': 3,
      'all-gather': 0,
      'bytes_per_step_per_device': {
        'all-reduce': 2_350_000.0,
        'all-gather': 0.0,
        'total': 2_350_000.0,
      },
    },
    'dropped': {
      'corpus': {
        'out_of_vocabulary_words': 512_034,
        'redirects': 0,
        'problems': ['x.bz2: cut <here>'],
      },
      'blocks_never_heard_of': 7,
    },
    'loss_per_example': 2.151,
    'config': {'seed': 1, 'train': {'epochs': 5}, 'eval': {'paths': ''}},
    'evaluation': {
      'pairs': {
        'kind': 'similarity',
        'score': 0.647,
        'pearson': 0.6,
        'found': 90,
        'total': 100,
        'malformed': 3,
      },
      'questions': part
      | {
        'kind': 'analogies',
        'semantic': part,
        'syntactic': part | {'score': None},
        'sections': {'capital': part, 'gram1-plural': part},
      },
      'groups': {
        'kind': 'categorization',
        'score': 0.91,
        'found': 5,
        'total': 5,
        'clusters': 2,
      },
    },
    'started': '2026-01-02T03:04:05',
    'vocab_words': 300,
    'dim': 8,
    'model': 'skipgram',
    'finished': True,
  }


def _metrics(num_rows=20) -> list[dict]:
  return [
    {
      'step': 10 * i,
      'epoch': i / num_rows,
      'words': 1000 * i,
      'words_per_sec': 1e6,
      'loss': 4 - i / num_rows,
      'learning_rate': 0.025 * (1 - i / num_rows),
      'elapsed_secs': 1.0 * i,
    }
    for i in range(1, num_rows + 1)
  ]


def _write(workdir, figures=None, metrics=(), categories=None):
  words, vectors, counts = _vocabulary()
  figures = _full_report() if figures is None else figures
  report.write(
    workdir, figures, metrics, words, vectors, counts, categories or {}
  )
  return words


def test_json_round_trip(tmp_path):
  _write(tmp_path, _full_report() | {'shape': (np.int32(3), [np.pi])})
  text = (tmp_path / 'report.json').read_text(encoding='utf-8')
  read = json.loads(text)
  assert read == _full_report() | {'shape': [3, [math.pi]]}
  assert '\n  "words_per_sec": 2870000.0,' in text
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    'report.html',
    'report.json',
  ]


def test_not_finite_becomes_null_and_a_warning(tmp_path):
  figures = {
    'loss_per_example': math.nan,
    'words_per_sec': math.inf,
    'evaluation': {'x': {'kind': 'similarity', 'score': np.float32('nan')}},
  }
  _write(tmp_path, figures, [{'step': 1, 'loss': math.nan, 'epoch': 0.1}])
  strict = (tmp_path / 'report.json').read_text()
  read = json.loads(strict, parse_constant=pytest.fail)
  assert read['loss_per_example'] is None and read['words_per_sec'] is None
  assert read['evaluation']['x']['score'] is None
  page, checker = _read_page(tmp_path)
  assert not re.search(r'\b(nan|inf)\b', ' '.join(checker.texts), re.I)
  assert 'The loss is not finite' in page
  assert 'The loss of 1 logged rows is not finite' in page


def test_page_holds_the_figures(tmp_path):
  words = _write(tmp_path, metrics=_metrics())
  _, checker = _read_page(tmp_path)
  text = re.sub(r'\s+', ' ', ' '.join(checker.texts))
  for figure in (
    'Skipgram vectors, 300 words × 8',
    '2.87 M',
    '28.7 s',
    '812 MB',
    '0.647',
    '0.910',
    '62.5 %',
    '4 / 8',
    '90 / 100',
    '90.0 %',
    '3 malformed lines left out',
    'gram1-plural',
    'Semantic',
    'Syntactic',
    '512,034',
    'Words of the corpus that have no vector',
    'Blocks never heard of',
    'x.bz2: cut <here>',
    'pages skipped as redirects',
    'a <fast> one',
    '16 GB',
    '2 × NVIDIA H200',
    'all-reduce',
    '2.35 MB',
    'config.train',
    '(empty)',
    '2026-01-02 03:04:05',
  ):
    assert figure in text, figure
  assert words[20] in text
  assert 'is not finished' not in text


def test_needs_nothing_else(tmp_path):
  _write(tmp_path, metrics=_metrics())
  page, checker = _read_page(tmp_path)
  assert not re.search(
    r'https?:|//[a-z]|@import|url\(', page.split('<body>')[0]
  )
  for tag, attrs in checker.elements:
    assert tag not in ('img', 'iframe', 'object', 'base'), tag
    assert 'src' not in attrs and 'srcset' not in attrs
    link = attrs.get('href', '#')
    assert link.startswith('#') or link == 'data:,'
    assert link == '#' or link == 'data:,' or link[1:] in checker.ids
  assert "default-src 'none'" in page


def test_charts_are_described(tmp_path):
  _write(tmp_path, metrics=_metrics())
  _, checker = _read_page(tmp_path)
  charts = [a for tag, a in checker.elements if a.get('role') == 'img']
  assert len(charts) == 5  # three curves, the map at two widths
  for chart in charts:
    assert set(chart['aria-labelledby'].split()) <= set(checker.ids)
  tables = [tag for tag, _ in checker.elements if tag == 'table']
  captions = [tag for tag, _ in checker.elements if tag == 'caption']
  assert len(tables) == len(captions) >= 5


def test_hostile_words_stay_text(tmp_path):
  words, vectors, counts = _vocabulary()
  words[40 : 40 + len(_HOSTILE)] = _HOSTILE
  figures = _full_report()
  figures['model'] = '<b>"model'
  figures['config'] = {'data': {'path': '</style><script>alert(2)</script>'}}
  figures['evaluation'] = {'</table>': {'kind': 'similarity', 'score': 0.5}}
  categories = {'<i>group': _HOSTILE, 'plain': words[:5]}
  report.write(tmp_path, figures, [], words, vectors, counts, categories)
  page, checker = _read_page(tmp_path)
  assert sum(tag == 'script' for tag, _ in checker.elements) == 1
  assert not any('onload' in attrs for _, attrs in checker.elements)
  assert not {'i', 'b'} & {tag for tag, _ in checker.elements}
  assert '\x07' not in page and 'bell\ufffd' in page
  assert ('<script>alert(1)</script>') in checker.texts
  assert '<bdi>שלום</bdi>' in page


@pytest.mark.parametrize('figures', [{}, {'dropped': {}, 'evaluation': {}}])
def test_nothing_known(tmp_path, figures):
  report.write(
    tmp_path, figures, [], ['a'], np.zeros((1, 4), np.float32), np.ones(1), {}
  )
  page, _ = _read_page(tmp_path)
  for line in (
    'No measurements were logged',
    'were not evaluated',
    'no word to show',
    'too few words for a map',
    'Nothing was counted',
    'memory and network was not measured',
  ):
    assert line in page, line


def test_unfinished_run_says_so(tmp_path):
  _write(tmp_path, {'finished': False})
  assert 'The run is not finished' in _read_page(tmp_path)[0]


def test_rows_of_a_repeated_step_count_once(tmp_path):
  rows = _metrics(4)
  again = [row | {'loss': 1.0} for row in rows[2:]]
  _write(tmp_path, metrics=rows + again)
  page, _ = _read_page(tmp_path)
  assert '4 of 4 logged rows' in page
  assert 'to 1 at the end' in page


def test_same_input_same_page(tmp_path):
  pages = []
  for name in 'ab':
    _write(tmp_path / name, metrics=_metrics())
    pages.append((tmp_path / name / 'report.html').read_bytes())
  assert pages[0] == pages[1]


def test_failed_write_keeps_the_last_report(tmp_path):
  _write(tmp_path)
  before = (tmp_path / 'report.html').read_bytes()
  (tmp_path / '.report.json.tmp').mkdir()
  with pytest.raises(errors.UserError, match='report.json'):
    _write(tmp_path, {})
  assert (tmp_path / 'report.html').read_bytes() == before
