"""The page of a run on clicks, and the neighbours of its categories."""

import collections.abc
import html
import json
import re
import types

import numpy as np

from jaxemb.clicks import results
from jaxemb.report import pages

_HOSTILE = '<script>document.title = "hacked"</script>'
_SCORES = {
  'score': 0.75, 'auc': 0.75, 'log_loss': 0.4375, 'clicks': 0.25,
  'predicted_clicks': 0.28125, 'calibration': 1.125, 'found': 1234,
  'total': 1234, 'group_auc': 0.6875, 'groups': 17,
}  # fmt: skip
_BINS = {
  'validation': [[617, 0.125, 0.0625], [617, 0.5, 0.625]],
  'test': [[600, 0.25, 0.375], [634, 0.75, 1.0]],
}
_HOST = {'hostname': '<i>a', 'mean_cores': 1.5, 'examples': 31_234,
         'examples_per_sec': 45_600.0}  # fmt: skip
_REPORT = {
  'model': '<b>deepfm', 'vocab': 160, 'dim': 8, 'corpus_examples': 20_000,
  'examples': 60_000, 'examples_per_sec': np.float32(45_600),
  'examples_per_sec_with_compilation': 41_200, 'train_secs': 28.7,
  'total_secs': 41.0, 'loss_per_example': 0.4321, 'devices': ['cpu:0 cpu'],
  'evaluation': {'validation': _SCORES, 'test': _SCORES | {'auc': 0.71875}},
  'best': {'step': 20, 'epoch': 2.0, 'validation': _SCORES},
  'best_by': {'log_loss': {'epoch': 2.0}, 'auc': {'epoch': 3.0}},
  'calibration_bins': _BINS, 'fields': ['site', '<u>ad', 'rare'],
  'importances': [['<u>ad', 0.0625], ['site', 0.03125], ['rare', -0.00125]],
  'hosts': [_HOST],
  'collectives': {
    'all-reduce': 3, 'bytes_per_step_per_device': {'total': 2.5e6},
    'bytes_per_word': {'total': 625.0},
  },
  'dropped': {'bad_rows': 12_345, 'hash_collisions': 0,
              'problems': ['damaged <here>']},
  'config': {'train': {'epochs': 15},
             'eval': {'monitor': 'log_loss,auc', 'group': 'site'}},
}  # fmt: skip
_RANGES = [('site', 0, 100), ('<u>ad', 100, 50), ('rare', 150, 10)]


class _Keys(collections.abc.Sequence):
  """Names that are made when asked for, one at a time; counts them."""

  def __init__(self, num, ranges=_RANGES):
    self.num, self.ranges, self.asked = num, ranges, 0

  def __len__(self):
    return self.num

  def __iter__(self):
    raise AssertionError('a list of all names')

  def __getitem__(self, index):
    assert isinstance(index, int)
    self.asked += 1
    field, first, _ = next(x for x in self.ranges if index < x[1] + x[2])
    if index == first:
      return f'{field}?'
    if index == first + 1:
      return f'{field}='
    return f'{field}={_HOSTILE if index == first + 2 else index - first}'


def _arguments():
  vectors = np.random.default_rng(0).normal(size=(160, 8)).astype(np.float32)
  counts = np.concatenate([np.arange(num, 0, -1) for _, _, num in _RANGES])
  counts[150:] = 0
  return vectors, _Keys(160), counts, _RANGES


def _write(workdir, num_evaluations=3, num_rows=12):
  row = {'loss': 0.5, 'examples_per_sec': 45_600.0, 'learning_rate': 0.002,
         'examples': 321}  # fmt: skip
  metrics = [row | {'step': i, 'epoch': i / 4} for i in range(1, num_rows + 1)]
  records = [
    {'step': 10 * i, 'epoch': float(i),
     'validation': _SCORES | {'auc': 0.5 + i / 1024}}
    for i in range(1, num_evaluations + 1)
  ]  # fmt: skip
  values = _REPORT | {'evaluations': records}
  vectors, keys, counts, ranges = _arguments()
  fields = types.SimpleNamespace(ids=ranges)
  source = types.SimpleNamespace(keys=keys, counts=counts, fields=fields)
  model = types.SimpleNamespace(vectors_table='vectors')
  page = results.page(
    types.SimpleNamespace(source=source),
    types.SimpleNamespace(tables={'vectors': vectors}, model=model),
  )
  pages.write(workdir, page, values, metrics=metrics)
  return (workdir / 'report.html').read_text(encoding='utf-8')


def _text(page):
  text = re.sub(r'<(script|style).*?</\1>|<[^>]+>', ' ', page, flags=re.DOTALL)
  return re.sub(r'\s+', ' ', html.unescape(text))


def _data(page):
  return json.loads(re.search(r'id="data">(.*?)</script>', page)[1])


def test_page_shows_the_values_as_text(tmp_path):
  page = _write(tmp_path)
  text = _text(page)
  for expected in (
    '<b>deepfm, 160 categories of 3 fields × 8',
    '20 k examples, 3 epochs of at most 15 on CPU.',
    'Calibration 1.125 test, predicted / observed',
    'The model of epoch 2 was evaluated', 'the best by log loss',
    'The best by AUC, of epoch 3, is in export_auc.',
    'Validation 0.75000 0.43750 1.125 0.28125 0.25000 1,234 0.68750 17',
    '634 0.75000 1.00000', '<u>ad 0.06250', 'site? 100 ×', '(empty) 99 ×',
    f'{_HOSTILE} 98 ×', '0 <i>a 31,234 45.6 k', 'damaged <here>',
  ):  # fmt: skip
    assert expected in text, expected
  assert not re.search(r'\b(nan|inf|None|null|[Ww]ords?)\b', text)
  tags = re.findall(r'<(\w+)', page)
  assert not {'b', 'i', 'u'} & {*tags} and tags.count('script') == 2
  for tag in {*tags} - {'meta', 'link', 'br'}:
    assert tags.count(tag) == page.count(f'</{tag}>'), tag
  assert not re.search(r'(src|href)="(?!#|data:,)|@import|url\(', page)
  # Bars are shares of the largest; a field that only harms has none.
  bars = re.findall(r'--v:([^%]*)%">(?:-?0\.0\d+)<', page)
  assert bars == ['100.0', '50.0', '0']


def test_curves_and_calibration_are_drawn_from_what_was_measured(tmp_path):
  data = _data(_write(tmp_path))
  curves = {x['title']: x['series'] for x in data['curves']}
  assert [*curves] == ['Loss per example', 'Speed', 'Learning rate',
                       'Validation AUC']  # fmt: skip
  assert curves['Speed'][0]['ys'][-1] == 45_600
  (areas,) = curves['Validation AUC']
  assert areas['ys'] == [float(f'{0.5 + i / 1024:.6g}') for i in (1, 2, 3)]
  assert data['axes'][areas['axis']]['epoch'] == [1, 2, 3]
  losses = {x['name']: x['ys'] for x in curves['Loss per example']}
  assert losses['validation'] == [0.4375] * 3
  assert dict(data['calibration']) == _BINS


def test_neighbours_are_those_of_a_loop_over_the_field():
  vectors, keys, counts, ranges = _arguments()
  order = np.random.default_rng(1).permutation(100)
  counts[:100] = counts[order]  # not in order, as with hashes
  first, second = np.argsort(-counts)[:2]
  vectors[first], vectors[second], counts[7] = 0, np.inf, 0  # of no use
  bad = {first, second} | {int(i) for i in np.flatnonzero(counts == 0)}
  shown = results.field_neighbors(vectors, keys, counts, ranges)
  assert [*shown] == ['site', '<u>ad']
  assert keys.asked == 2 * 6 * 9  # the names on the page and no others
  wide = vectors.astype(np.float64)

  def name(i, field):
    return keys[i].removeprefix(f'{field}=')

  for field, first, num in ranges[:2]:
    known = [i for i in range(first, first + num) if i not in bad]
    known.sort(key=lambda i: (-counts[i], i))
    assert len(shown[field]) == 6
    for i, (label, count, near) in zip(known, shown[field], strict=False):
      assert (label, count) == (name(i, field), counts[i])
      cosines = {
        j: wide[i] @ wide[j] / np.sqrt(wide[i] @ wide[i] * (wide[j] @ wide[j]))
        for j in known if j != i
      }  # fmt: skip
      best = sorted(cosines, key=lambda j: -cosines[j])[:8]
      assert [x for x, _ in near] == [name(j, field) for j in best]
      np.testing.assert_allclose(
        [x for _, x in near], [cosines[j] for j in best], atol=1e-6
      )


def test_only_the_frequent_ids_of_a_large_field_are_searched(monkeypatch):
  monkeypatch.setattr(results, 'MAX_SEARCHED', 20)
  vectors, keys, counts, ranges = _arguments()
  counts[:100] = np.arange(100)  # the last ones are the most frequent
  shown = results.field_neighbors(vectors, keys, counts, ranges)['site']
  assert [count for _, count, _ in shown] == [99, 98, 97, 96, 95, 94]
  assert all(int(x) >= 80 for _, _, near in shown for x, _ in near)
