"""What XLA makes of a dispatch, at a realistic size: no table is ever copied.

A program that copies a [vocab, dim] array in every step still computes the
right thing, only many times slower, so the compiled text is read.
"""

import functools
import math
import re
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxemb.kernels.cpu import turns
from jaxemb.runtime import hlo
from tests import compiling, dispatches, marking

VOCAB, DIM, MAX_STEPS = 50_000, 100, 8
TABLE = f'f32[{VOCAB},{DIM}]'
# What may have the shape of a table: names for memory, and writes in place.
IN_PLACE = {
  'bitcast',
  'dynamic-update-slice',
  'get-tuple-element',
  'opt-barrier',
  'parameter',
  'scatter',
}
_KINDS = {'float32': 'f32', 'uint16': 'u16', 'int8': 's8', 'int32': 's32'}


class Case(NamedTuple):
  """What is compiled, and for which mesh."""

  model: str
  optimizer: str
  # 'merging' is sync as on a GPU; 'fused' has a kernel, on a mesh replicas.
  strategy: str = 'sync'
  layout: str = 'replicated'
  mesh: tuple[int, int] = (1, 1)
  dtype: str = 'float32'


# Each member of a field is met, and each layout with a mesh of both axes.
CASES = [
  Case('skipgram', 'sgd'),
  Case('skipgram', 'sgd', 'merging'),
  Case('cbow', 'adagrad', 'fused', mesh=(2, 1)),
  Case('skipgram', 'adagrad', layout='row', mesh=(2, 2)),
  Case('skipgram', 'adam', 'merging', mesh=(2, 2)),
  Case('cbow', 'adagrad', layout='column', mesh=(2, 2)),
  Case('skipgram', 'adagrad', 'replicas', mesh=(2, 1), dtype='int8'),
  Case('tree', 'sgd', 'fused', dtype='bfloat16'),
  Case('contexts', 'adagrad'),
]
# As many senses that a table of priors is larger than a step's own arrays.
SENSES = {'model.name': 'mixture', 'senses.number': 2, 'senses.top_ratio': 0.4}
TREE = {'model.name': 'skipgram', 'model.loss': 'hierarchical_softmax'}
MODELS = {
  'skipgram': {'model.name': 'skipgram'},
  'cbow': {'model.name': 'cbow'},
  'tree': TREE,
  'contexts': TREE | SENSES | {'senses.method': 'contexts'},
}


class Program(NamedTuple):
  """A compiled dispatch."""

  text: str
  parsed: hlo.Program
  num_arrays: int  # of the state
  tables: set[str]  # shapes of a device's shards of tables
  opt_state: set[str]  # and of what else it holds of each row

  def executed(self, name=''):
    """All that one run of a computation runs."""
    found = hlo.executed(self.parsed, name or self.parsed.entry)
    return [x for x, _, _ in found]

  def is_table(self, shape):
    """Whether a table is what a shape is, or is one of those that it names."""
    return any(table in shape for table in self.tables)

  def root(self, name):
    """The result of a computation."""
    return [*self.parsed.computations[name].values()][-1]


@functools.cache
def _compiled(case):
  strategy, fixed = case.strategy, {}
  if strategy == 'merging':
    # As on a GPU: rows written once, a loop of known length, no condition.
    strategy = 'sync'
    fixed = {'deduplicates': True, 'steps_per_loop': 4, 'loss_every_steps': 1}
  if strategy == 'fused':
    strategy = 'sync' if case.mesh == (1, 1) else 'replicas'
    fixed = {'fused': True}
  settings = MODELS[case.model] | {
    'optimizer.name': case.optimizer, 'model.dim': DIM,
    'train.batch_words': 256, 'table.layout': case.layout,
    'table.dtype': case.dtype, 'strategy.name': strategy,
  }  # fmt: skip
  counts = 10**7 // np.arange(1, VOCAB + 1)
  made = dispatches.trainer(counts, settings, case.mesh, **fixed)
  state, lowered = dispatches.lowered(made.trainable, made.strategy, MAX_STEPS)
  tables, opt_state = set(), set()
  # Each replica's copy is on a device of its own: [1, vocab, dim].
  first = int(strategy == 'replicas')
  is_row = case.layout == 'row'
  for x in jax.tree.leaves(state.tables):
    own = x.sharding.shard_shape(x.shape)[first:]
    forms = [own]
    if is_row:  # [groups, classes, dim], or flattened
      forms.append((math.prod(own[:2]), *own[2:]))
    if own[0] == 1:
      continue  # no entry for each row
    shapes = tables if len(own) > 1 + is_row else opt_state
    kind = _KINDS[x.dtype.name]
    shapes |= {f'{kind}[{",".join(map(str, form))}]' for form in forms}
  text = compiling.text(lowered)
  num_arrays = len(jax.tree.leaves(state))
  return Program(text, hlo.parse(text), num_arrays, tables, opt_state)


def _squeezed(shape):
  """The shape without axes of size one."""
  kind, _, sizes = shape.partition('[')
  kept = [x for x in sizes.rstrip(']').split(',') if x != '1']
  return f'{kind}[{",".join(kept)}]'


def _check_nothing_is_copied(program):
  num = 0
  for x in program.executed():
    if _squeezed(x.shape) not in program.tables | program.opt_state:
      continue
    num += 1
    if x.opcode in ('fusion', 'call'):
      # Fused: in place if that is what it ends with.
      x = program.root(x.called[0])
    assert x.opcode in IN_PLACE, x
  assert num > 7
  for line in program.text.splitlines():
    is_copy = ' copy' in line.split('(')[0]
    assert not (is_copy and program.is_table(line)), line


def _check_gathers_and_scatters(program, case):
  """One of each for every table."""
  loops = [
    x
    for x in program.parsed.computations[program.parsed.entry].values()
    if x.opcode == 'while' and program.is_table(x.shape)
  ]
  assert len(loops) == 1
  is_body = [program.is_table(program.root(x).shape) for x in loops[0].called]
  gathers = scatters = 0
  for x in program.executed(loops[0].called[is_body.index(True)]):
    if x.opcode in ('gather', 'dynamic-slice'):
      gathers += _squeezed(x.operands[0]) in program.tables
    scatters += x.opcode == 'scatter' and _squeezed(x.shape) in program.tables
  # Adam's first moment is one table more: read, written and read again.
  extra = 2 * (case.optimizer == 'adam')
  if case.strategy == 'replicas':
    # A synchronisation reads two slices of each table, and of each first
    # moment, in a fusion of its own.
    gathers -= 2 * (2 + extra)
  assert gathers == 2 * (1 + extra)
  assert scatters == 2 * (1 + extra / 2)


def _check_one_kernel(program):
  """One call changes both tables and their optimizer state in place."""
  calls = [x for x in program.executed() if x.opcode == 'custom-call']
  assert len(calls) == 1
  aliases = re.findall(r'\{(\d)\}: \((\d+), \{\}\)', calls[0].attributes)
  outputs, inputs = np.array(aliases, int).T
  np.testing.assert_array_equal(outputs, turns.RESULTS + np.arange(4))
  np.testing.assert_array_equal(np.diff(inputs), 1)
  assert sum(calls[0].shape.count(x) for x in program.tables) == 2


@pytest.mark.parametrize(
  'case',
  marking.slow_after(1, CASES),
  ids=lambda case: '-'.join(map(str, case)),
)
def test_a_dispatch_changes_tables_in_place(case):
  program = _compiled(case)
  _check_nothing_is_copied(program)
  if case.strategy == 'fused':
    _check_one_kernel(program)
  elif case.dtype == 'float32' and case.model in ('skipgram', 'cbow'):
    _check_gathers_and_scatters(program, case)
  head = program.text.splitlines()[0]
  aliases = re.search(r'input_output_alias=\{ (.*?) \}, entry', head)[1]
  # Every array of the state is written where it was read.
  pairs = re.findall(r'\{(\d+)\}: \((\d+), ', aliases)
  assert pairs == [(str(i), str(i)) for i in range(program.num_arrays)]


@pytest.mark.slow
def test_an_accelerator_is_not_asked_within_its_steps():
  # Its loop over steps has a length that is known, and nothing in it chooses.
  program = _compiled(Case('skipgram', 'sgd', 'merging'))
  instructions = program.executed()
  loops = [x for x in instructions if x.opcode == 'while' and TABLE in x.shape]
  assert len(loops) == 2
  assert 'known_trip_count":{"n":"4"}' in program.text.replace(' ', '')
  opcodes = {x.opcode for x in instructions}
  assert 'conditional' not in opcodes and 'sort' in opcodes
  # Rows that come once need no atomic addition.
  scatters = [
    line
    for line in program.text.splitlines()
    if ' scatter(' in line and TABLE in line.split(' scatter(')[0]
  ]
  assert scatters and all('unique_indices=true' in x for x in scatters)
