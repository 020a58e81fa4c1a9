"""What the network carries: the compiled programs against the closed forms."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests import compiling

_ROOT = pathlib.Path(__file__).parents[1]


def _run(*args):
  result = subprocess.run(
    [sys.executable, 'experiments/comm_volume.py', *args],
    cwd=_ROOT,
    env=os.environ | compiling.WITHOUT_OPTIMIZATIONS,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert result.returncode == 0, result.stderr[-2000:]
  return result.stdout


@pytest.fixture
def comm_volume(monkeypatch):
  monkeypatch.syspath_prepend(str(_ROOT / 'experiments'))
  import comm_volume

  return comm_volume


def test_what_is_compiled_is_what_the_sizes_say(tmp_path):
  output = tmp_path / 'volume.json'
  # What was measured before stays.
  output.write_text(json.dumps({'measured': {}}))
  shown = _run('--quick', f'--output={output}')
  assert output.with_suffix('.txt').read_text() == shown
  result = json.loads(output.read_text())
  assert result['measured'] == {}
  found = {
    (p['layout'], p['data'], p['table'], p['dim']): p for p in result['points']
  }
  assert {layout for layout, *_ in found} == {'replicated', 'row', 'column'}
  for p in found.values():
    assert p['bytes_per_word'] == pytest.approx(
      p['formula_bytes_per_word'], rel=1e-12
    )
    per_step = p['bytes_per_step_per_device']['total']
    words = result['batch_words'] / p['kept_share']
    assert p['bytes_per_word'] * words == pytest.approx(p['devices'] * per_step)
    assert (p['bytes_per_word'] == 0) == (p['devices'] == 1)
    assert p['travels_with_vocabulary_axis'] == []
    assert f'{p["bytes_per_word"]:,.0f}' in shown
  narrow, wide = found['column', 1, 4, 8], found['column', 1, 4, 24]
  assert narrow['bytes_per_word'] == wide['bytes_per_word']
  # Six contexts, five negatives: (2 + 30) rows of 8, 36 products of 4 servers.
  row = found['row', 1, 4, 8]
  for p, per_center in ((row, 32 * 8 * 4), (narrow, 36 * 4 * 4)):
    expected = per_center * p['kept_share']
    assert p['published_bytes_per_word'] == pytest.approx(expected)
  assert shown.count('no collective moves an array') == 3
  assert 'independent of dim' in shown and 'NOT' not in shown
  ratio = narrow['bytes_per_word'] / row['bytes_per_word']
  assert f'column / row on 1 x 4, dim 8: {ratio:.3f}' in shown


def test_columns_send_a_third_of_what_rows_do(comm_volume):
  def sent(layout, dim):
    point = comm_volume.Point(layout, 1, 8, dim)
    return comm_volume.closed_form(comm_volume.make(point, 100_000, 8192))

  assert sent('column', 512) <= sent('row', 512) / 3
  assert sent('column', 512) == sent('column', 64)


@pytest.mark.parametrize('shape', [(1, 2), (2, 2)])
def test_optimizers_that_want_squares(comm_volume, shape):
  point = comm_volume.Point('column', *shape, 8)
  job = comm_volume.make(point, 500, 256, 'adagrad')
  sgd = comm_volume.make(point, 500, 256)
  found = comm_volume.traffic(job, comm_volume.compiled_text(job))
  assert found.total == pytest.approx(comm_volume.closed_form(job), rel=1e-12)
  assert found.total > comm_volume.closed_form(sgd)


def test_a_vocabulary_that_travels_is_seen(comm_volume):
  text = """HloModule jit_f, num_partitions=2
%body (a: f32[500,8]) -> f32[500,8] {{
  %a = f32[{0},8]{{1,0}} parameter(0)
  ROOT %r = f32[{0},8]{{1,0}} all-reduce(%a), replica_groups={{}}
}}
ENTRY %main (a: f32[500,8]) -> f32[500,8] {{
  ROOT %w = f32[500,8] while(%a), condition=%body, body=%body
}}
"""
  for layout, rows, is_seen in (
    ('replicated', 500, True),
    ('replicated', 64, False),
    ('row', 2 * 128, True),  # 500 rows in two groups of 256, of two devices
    ('row', 2 * 256, True),
    ('row', 64, False),
    ('column', 500, True),
  ):
    shape = (2, 1) if layout == 'replicated' else (1, 2)
    job = comm_volume.make(comm_volume.Point(layout, *shape, 8), 500, 256)
    found = comm_volume.traffic(job, text.format(rows))
    assert bool(found.of_vocabulary) == is_seen, (layout, rows)


def test_two_processes_over_loopback(tmp_path):
  output = tmp_path / 'volume.json'
  shown = _run('--quick', '--measure', f'--output={output}')
  (found,) = json.loads(output.read_text())['measured'].values()
  assert found['steps'] > 100
  # Headers come on top, and what processes tell each other beside.
  assert 1 < found['ratio'] < 2
  assert f'{found["ratio"]:.3f}' in shown
