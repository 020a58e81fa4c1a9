"""Steps on the device at hand: against loops in float64, and their contracts.

The cases and the loops are those of the tests that run on CPUs.
"""

import dataclasses
import itertools

import jax
import pytest

from tests import contracts_test as contracts
from tests.data import packing_test
from tests.kernels.cpu import step_test
from tests.kernels.gpu import windows_test
from tests.strategies import sync_test
from tests.tables import laying, layouts_test

_DEVICES = jax.devices()
_IS_GPU = _DEVICES[0].platform == 'gpu'
_ERROR = 1e-4  # of functions such as exp, which differ between devices
# Along the table axis, where rows or columns are split.
_SPLIT = 1, min(2, len(_DEVICES))

# Tables.


@pytest.mark.parametrize(
  ('layout', 'shape', 'optimizer'),
  [
    ('replicated_merging', (1, 1), 'adagrad_full'),
    ('replicated_merging@gpu', (1, 1), 'sgd_limited'),
    ('replicated_merging@gpu', (1, 1), 'adagrad'),
    ('replicated_merging@gpu', (1, 1), 'adam_full'),
    ('row@gpu', (1, 1), 'adagrad'),
    ('row', _SPLIT, 'adam'),
    ('column_merging', _SPLIT, 'adagrad'),
  ],
)
def test_updates_of_tables_equal_the_loops(layout, shape, optimizer):
  layouts_test.test_steps_equal_the_loops(layout, shape, optimizer)


# Batches.


@pytest.mark.parametrize(
  'sizes', [({'sample': 1e-3}, 1, True), ({'window': 255}, 3, False)], ids=str
)
def test_the_device_makes_the_batches_of_the_host(monkeypatch, sizes):
  packing_test.test_a_device_makes_the_batches_of_the_host(
    monkeypatch, *sizes, num_threads=0
  )


# Steps of XLA. The loops have more digits than the products of a GPU, unless
# it is asked for all of them.


@pytest.mark.parametrize(
  'case',
  [
    *(sync_test.Case(optimizer=x, deduplicates=True) for x in laying.OPTIMIZERS
      if x in sync_test.RATES),
    sync_test.Case('cbow', deduplicates=True),
    *(x._replace(shape=_SPLIT) for x in sync_test.ON_MESH),
  ],
  ids=lambda case: '-'.join(map(str, case)),
)  # fmt: skip
def test_a_dispatch_equals_the_loops(case):
  with jax.default_matmul_precision('highest'):
    sync_test.check_a_dispatch(case, _ERROR)


@pytest.mark.parametrize('model', step_test.MODELS)
@pytest.mark.parametrize('name', ['plain', 'half_padding', 'window_over_chunk'])
def test_a_step_equals_the_loops(model, name):
  case = step_test.CASES[name]._replace(model=model, way='xla')
  with jax.default_matmul_precision('highest'):
    step_test.check_a_call(case, _ERROR)


# The kernel that takes whole steps, of a GPU or of the CPU. Products of a GPU
# have ten bits of each factor.
_KERNEL_ERROR = 5e-3 if _IS_GPU else 1e-4
_KERNEL_CASES = {
  **{
    name: step_test.CASES[name]
    for name in ('plain', 'half_padding', 'few_words', 'limited', 'adagrad')
  },
}
_WIDE_CASES = {
  'hundred_columns': step_test.CASES['hundred_columns'],
  'three_hundred_columns': step_test.Case(dim=300, words=20),
  'window_of_twelve': step_test.CASES['window_of_twelve'],
}


def _skip_without_kernel():
  if not contracts.is_fused(('sync', 'replicated', 'sgd', 'skipgram', 'any')):
    pytest.skip('this device has no kernel for whole steps')


def _in_order(trainable):
  """The same, but chunks are taken one after another, as by the loops."""
  kernel = trainable.fused
  if hasattr(kernel, 'num_blocks'):
    kernel = dataclasses.replace(kernel, num_blocks=1)
  return dataclasses.replace(trainable, fused=kernel)


@pytest.mark.parametrize(
  ('model', 'name'),
  [
    *itertools.product(step_test.MODELS, _KERNEL_CASES),
    *itertools.product(('skipgram',), _WIDE_CASES),
  ],
)
def test_a_step_of_the_kernel_equals_the_loops(model, name):
  _skip_without_kernel()
  case = (_KERNEL_CASES | _WIDE_CASES)[name]._replace(model=model)
  equal = 0.9 if _IS_GPU else 0.98
  step_test.check_a_call(case, _KERNEL_ERROR, equal, change=_in_order)


@pytest.mark.parametrize('optimizer', ['sgd', 'adagrad'])
@pytest.mark.parametrize('model', step_test.MODELS)
def test_changes_of_low_precision_are_rounded(model, optimizer):
  _skip_without_kernel()
  case = step_test.Case(model, optimizer, 'bfloat16', dim=18)
  windows_test.check_changes_are_rounded(case, _in_order)


# What every table, optimizer, model and strategy promises. Strategy, layout,
# optimizer, model, and how steps are taken.
_MEMBERS = [
  *(('sync', 'replicated', x, 'skipgram', 'xla') for x in contracts.OPTIMIZERS),
  *(('sync', x, 'adagrad', 'cbow', 'any') for x in contracts.LAYOUTS[1:]),
  *(
    ('sync', 'replicated', optimizer, model, 'any')
    for model in step_test.MODELS
    for optimizer in ('sgd', 'adagrad')
  ),
  ('sync', 'replicated', 'sgd', 'skipgram', 'any-bfloat16'),
  ('sync', 'replicated', 'adagrad', 'cbow-tree', 'any-bfloat16'),
  ('sync', 'replicated', 'adagrad', 'mixture-tree', 'any'),
  ('sync', 'replicated', 'adagrad', 'contexts', 'any'),
  ('sync-memory', 'replicated', 'sgd', 'skipgram', 'any'),
  ('sync-disk', 'replicated', 'adam', 'cbow', 'any'),
  ('replicas', 'replicated', 'sgd', 'skipgram', 'any'),
  ('replicas-hot', 'replicated', 'adagrad', 'cbow', 'any'),
]
_every_member = pytest.mark.parametrize('member', _MEMBERS, ids='-'.join)


def _skip_without_devices(member):
  """Skips members that need more devices than there are."""
  needs_two = member[0].startswith('replicas') or member[1] != 'replicated'
  if needs_two and len(_DEVICES) == 1:
    pytest.skip('needs two devices')


@_every_member
def test_learns_the_planted_problem(member):
  _skip_without_devices(member)
  contracts.test_learns_the_planted_problem(member)


@_every_member
def test_the_same_seed_gives_the_same_bits_and_others_do_not(member):
  _skip_without_devices(member)
  if _IS_GPU and contracts.is_fused(member):
    pytest.skip('the atomic additions of a GPU have no order')
  contracts.test_the_same_seed_gives_the_same_bits_and_others_do_not(member)


@_every_member
def test_one_program_for_all_dispatches_changes_the_state_in_place(member):
  _skip_without_devices(member)
  contracts.test_one_program_for_all_dispatches_changes_the_state_in_place(
    member
  )
