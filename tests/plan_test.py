"""Plans for devices that are not here, and what their compilers make of steps.

Compiled in a process of its own: libtpu starts once in each.
"""

import importlib.util
import json
import subprocess
import sys

import pytest

from jaxemb import errors, plan

needs_libtpu = pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None,
  reason='needs the extra tpu: pip install jaxemb[tpu]',
)
# Topology, settings of a plan.
SYNC = '--config.strategy.name=sync'
ROW = '--config.table.layout=row'
CASES = [
  ('v5e:1x1', 100, [SYNC]),
  ('v6e:1x1', 300, [SYNC, '--config.optimizer.name=adagrad']),
  ('tpu7x:2x2x1', 128, [SYNC, ROW]),
  ('v5e:2x2', 300, [SYNC, '--config.table.layout=column']),
]


def _plan(path, topology, dim, flags):
  command = [
    sys.executable, '-m', 'jaxemb.plan', f'--topology={topology}',
    '--vocab=1e6', f'--config.model.dim={dim}', f'--json={path}', *flags,
  ]  # fmt: skip
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return json.loads(path.read_text()), done.stdout


@needs_libtpu
@pytest.mark.parametrize(
  ('topology', 'dim', 'flags'),
  [CASES[0], *(pytest.param(*x, marks=pytest.mark.slow) for x in CASES[1:])],
)
def test_programs_for_tpus_copy_no_table(topology, dim, flags, tmp_path):
  found, shown = _plan(tmp_path / 'plan.json', topology, dim, flags)
  assert found['table_copies_by_loop_depth'] == {}
  assert 'copies of whole tables: none' in shown
  memory = found['memory']
  planned, peak = memory['planned_bytes'], memory['peak_bytes']
  assert planned == pytest.approx(peak, rel=0.05) or peak - planned < 20e6
  held = memory['tables_bytes'] + memory['slots_bytes']
  assert peak < 1.1 * held or peak - held < 40e6
  if ROW in flags:
    assert found['collectives']['all-to-all']
    assert found['sent_bytes_per_word'] > 100


def test_zipf_counts_fall():
  counts = plan.zipf_counts(1000)
  assert len(counts) == 1000 and counts.min() >= 1
  assert (counts[1:] <= counts[:-1]).all()


@pytest.mark.parametrize('name', ['', 'v5e', 'v5e:3x3', 'cuda:h200x3', 'v6e-8'])
def test_a_topology_that_does_not_exist(name):
  with pytest.raises(errors.UserError) as error:
    plan.topology(name)
  line = str(error.value)
  assert '\n' not in line and 'v5e: 1x1 2x2' in line and 'h200x8' in line


@pytest.mark.parametrize(
  ('name', 'extra'), [('v5e:2x4', 'tpu'), ('cuda:h200x8', 'cuda')]
)
def test_a_compiler_that_is_missing(monkeypatch, name, extra):
  monkeypatch.setattr(plan, '_has', lambda module: False)
  with pytest.raises(errors.UserError, match=f'pip install .jaxemb.{extra}'):
    plan.topology(name)


def test_a_number_of_words_that_is_none(capsys):
  assert plan.main(['--topology=v5e:1x1', '--vocab=many']) == 2
  assert 'such as 1e6' in capsys.readouterr().err


@needs_libtpu
def test_what_would_fit(tmp_path):
  command = [
    sys.executable, '-m', 'jaxemb', 'plan', '--topology=v5e:1x1',
    '--vocab=5e7', SYNC, '--config.model.dim=128',
  ]  # fmt: skip
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 2
  assert 'would fit: --topology=v5e:2x2' in done.stderr
  assert done.stderr.count('\n') == 1
