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
  ('copies', 'free_bytes', 'needed'),
  [(1, 4000, 0), (1, 500, 4), (1, 399, 8), (2, 399, 16)],
)
def test_tables_that_do_not_fit_are_refused(
  monkeypatch, copies, free_bytes, needed
):
  monkeypatch.setattr(resources, 'available_bytes', lambda: free_bytes)
  devices = jax.devices()[:2]  # which share the memory of the host
  if not needed:
    return budget.check_state(devices, 2000, 2000 * copies, SMALLER)
  with pytest.raises(errors.UserError) as caught:
    budget.check_state(devices, 1000, 2000 * copies, SMALLER)
  line = str(caught.value)
  # Rows are divided by powers of two alone.
  assert f'{needed} hosts' in line and f'mesh.table={needed}' in line
  assert '\n' not in line


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
    state_bytes=300_000_000,
    rows_bytes=0,
    batch_bytes=150_000_000,
    result_bytes=300_000_000,
  )
  assert memory.peak_bytes - memory.process_bytes == 1_000_000_000
  line = memory.describe()
  assert f'most {memory.peak_bytes / 1e6:,.0f} MB' in line
  assert 'program 250, state 300, rows 0, batch 150, result 300' in line
  monkeypatch.setattr(resources, 'available_bytes', lambda: 10**9)
  memory.check(SMALLER)
  monkeypatch.setattr(resources, 'available_bytes', lambda: 10**9 - 1)
  with pytest.raises(errors.UserError, match=f'0.3 GB.* 1.0 GB .*{SMALLER}'):
    memory.check(SMALLER)
