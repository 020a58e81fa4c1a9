"""What does not fit into memory is refused with numbers."""

import types

import jax
import pytest

from jaxemb import errors
from jaxemb.clicks import toyclicks
from jaxemb.graphs import toygraph
from jaxemb.runtime import budget, resources

SMALLER = 'lower --config.model.dim or --config.data.max_vocab'


@pytest.mark.parametrize(
  ('copies', 'free_mb', 'result_mb', 'needed'),
  [(1, 4000, 0, 0), (1, 690, 0, 4), (1, 589, 0, 8), (2, 589, 0, 16),
   (1, 1690, 1000, 4), (1, 1690, 1400, 32)],
)  # fmt: skip
def test_tables_that_do_not_fit_are_refused(
  monkeypatch, copies, free_mb, result_mb, needed
):
  monkeypatch.setattr(resources, 'available_bytes', lambda: free_mb * 10**6)
  devices = jax.devices()[:2]  # which share the memory of the host
  sizes = {
    'held_bytes': 2 * 10**9 if not needed else 10**9,
    'copy_bytes': 2 * 10**9 * copies,
    'result_bytes': result_mb * 10**6,
  }
  if not needed:
    return budget.check_state(devices, **sizes, smaller=SMALLER)
  with pytest.raises(errors.UserError) as caught:
    budget.check_state(devices, **sizes, smaller=SMALLER)
  line = str(caught.value)
  # Rows are divided by powers of two alone.
  assert f'{needed} hosts' in line and f'mesh.table={needed}' in line
  assert '\n' not in line


def test_no_hosts_are_named_where_results_do_not_fit(monkeypatch):
  monkeypatch.setattr(resources, 'available_bytes', lambda: 10**9)
  with pytest.raises(errors.UserError) as caught:
    budget.check_state(
      jax.devices()[:1],
      held_bytes=2 * 10**9,
      copy_bytes=2 * 10**9,
      result_bytes=9 * 10**8,
      smaller=SMALLER,
    )
  assert str(caught.value) == (
    f'the tables need 2.0 GB on each host, where 1.0 GB are free; {SMALLER}'
  )


def test_synthetic_data_that_does_not_fit_is_refused(monkeypatch, tmp_path):
  monkeypatch.setattr(resources, 'available_bytes', lambda: 2_000_000)
  for make in (
    lambda: toygraph.make('toygraph:1000'),
    lambda: toyclicks.write(tmp_path, 3000),
  ):
    with pytest.raises(errors.UserError, match='takes 0.00[23] GB .* 0.002 GB'):
      make()


def test_a_step_that_does_not_fit_is_refused(monkeypatch):
  monkeypatch.setattr(resources, 'available_bytes', lambda: 10**9)
  sizes = types.SimpleNamespace(
    output_size_in_bytes=9, alias_size_in_bytes=9, temp_size_in_bytes=6 * 10**8
  )
  program = types.SimpleNamespace(memory_analysis=lambda: sizes)
  devices = jax.devices()[:2]
  budget.check_step(program, devices[:1], SMALLER)
  with pytest.raises(
    errors.UserError, match='a step needs 1.2 GB on each host'
  ):
    budget.check_step(program, devices, SMALLER)


@pytest.mark.parametrize(
  ('num_workers', 'expected'), [(0, 690e6), (3, 500e6 + 3 * 690e6)]
)
def test_a_store_that_does_not_fit_is_refused(
  monkeypatch, num_workers, expected
):
  store = budget.Store(
    table_bytes=900_000_000,
    resident_bytes=500_000_000,
    rows_bytes=0,
    num_workers=num_workers,
  )
  assert store.needed_bytes == expected
  monkeypatch.setattr(resources, 'available_bytes', lambda: expected)
  store.check(SMALLER)
  monkeypatch.setattr(resources, 'available_bytes', lambda: expected - 1)
  with pytest.raises(errors.UserError, match=f'need .* GB .*{SMALLER}'):
    store.check(SMALLER)
  assert '900.0 MB of tables' in store.describe()


def test_results_that_do_not_fit_are_refused(monkeypatch):
  memory = budget.memory(
    has_dense=True,
    merges=False,
    state_bytes=300_000_000,
    rows_bytes=0,
    batch_bytes=150_000_000,
    snapshot_bytes=200_000_000,
    result_bytes=300_000_000,
  )
  # Of snapshots and results, which come one after the other, the larger.
  assert memory.peak_bytes - memory.process_bytes == 1_040_000_000
  saved = memory._replace(snapshot_bytes=400_000_000)
  assert saved.peak_bytes - memory.peak_bytes == 100_000_000
  line = memory.describe()
  assert f'most {memory.peak_bytes / 1e6:,.0f} MB' in line
  assert (
    'program 290, state 300, rows 0, batch 150, snapshot 200, result 300'
    in line
  )
  monkeypatch.setattr(resources, 'available_bytes', lambda: 1_040_000_000)
  memory.check(SMALLER)
  monkeypatch.setattr(resources, 'available_bytes', lambda: 1_039_999_999)
  with pytest.raises(errors.UserError, match=f'0.3 GB.* 1.0 GB .*{SMALLER}'):
    memory.check(SMALLER)
