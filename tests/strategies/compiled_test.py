"""What XLA makes of a dispatch, at a realistic size: no table is ever copied.

A program that copies a [vocab, dim] array in every step still computes the
right thing, only many times slower, so the compiled text is read.
"""

import functools
import math
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb import build
from jaxemb import config as config_lib
from jaxemb.runtime import hlo, mesh
from tests import compiling, dispatches

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
  strategy: str = 'sync'  # 'merging' is sync as on a GPU
  layout: str = 'replicated'
  mesh: tuple[int, int] = (1, 1)
  dtype: str = 'float32'
  batch_words: int = 256

  def __str__(self):
    return '-'.join(str(x).replace(', ', 'x').strip('()') for x in self)


ON_ONE_DEVICE = [
  Case('skipgram', 'sgd'),
  Case('skipgram', 'adagrad'),
  Case('skipgram', 'adam'),
  Case('cbow', 'sgd'),
  Case('skipgram', 'sgd', batch_words=1024),
  Case('skipgram', 'adagrad', batch_words=1024),
  Case('skipgram', 'sgd', 'merging'),
  Case('cbow', 'adam', 'merging'),
]
ON_MESHES = [
  Case('skipgram', 'adam', 'replicas', mesh=(2, 1)),
  Case('cbow', 'adagrad', 'replicas', mesh=(2, 1)),
  Case('skipgram', 'adagrad', mesh=(2, 2)),
  Case('skipgram', 'adagrad', layout='row', mesh=(2, 2)),
  Case('skipgram', 'adagrad', layout='column', mesh=(2, 2)),
  Case('skipgram', 'adam', layout='column', mesh=(1, 2)),
]
SLOW = [
  Case('cbow', 'adagrad'),
  Case('cbow', 'adam', batch_words=1024),
  Case('skipgram', 'sgd', 'replicas', mesh=(2, 1)),
  Case('skipgram', 'sgd', 'merging', mesh=(2, 2)),
  Case('skipgram', 'adam', layout='row', mesh=(1, 2)),
  Case('skipgram', 'sgd', 'merging', layout='row', mesh=(2, 2)),
  Case('cbow', 'sgd', layout='row', mesh=(2, 2)),
  Case('cbow', 'sgd', layout='column', mesh=(2, 2)),
]
LOW_PRECISION = [
  Case('skipgram', 'sgd', dtype='bfloat16'),
  Case('skipgram', 'sgd', layout='column', mesh=(1, 2), dtype='int8'),
]
SLOW_LOW_PRECISION = [
  Case('skipgram', 'adagrad', 'replicas', mesh=(2, 1), dtype='int8'),
  Case('skipgram', 'sgd', layout='row', mesh=(1, 2), dtype='float16'),
]


def _cases(fast, slow):
  slow = [pytest.param(x, marks=pytest.mark.slow) for x in slow]
  return pytest.mark.parametrize('case', [*fast, *slow], ids=str)


every_program = _cases(ON_ONE_DEVICE + ON_MESHES, SLOW)


class Program(NamedTuple):
  """A compiled dispatch."""

  text: str
  parsed: hlo.Program
  num_arrays: int  # of the state
  shapes: dict[str, tuple[int, ...]]  # of tables as a whole
  tables: set[str]  # shapes of a device's shards of tables
  slots: set[str]  # and of what else it holds of each row
  row_counts: set[int]  # sizes of axes along a table's rows

  def executed(self, name=''):
    """All that one run of a computation runs."""
    return hlo.executed(self.parsed, name or self.parsed.entry)

  def is_table(self, shape):
    """Whether a table is what a shape is, or is one of those that it names."""
    return any(table in shape for table in self.tables)

  def root(self, name):
    """The result of a computation."""
    return next(x for x in self.parsed.computations[name].values() if x.is_root)


def _program(config, shape, **fixed):
  config_lib.check(config)
  config, tuning = config_lib.resolve(config, 'cpu', shape, **fixed)
  made = build.trainer(
    config,
    tuning,
    10**7 // np.arange(1, VOCAB + 1),
    mesh.make(mesh.Shape(*shape)),
    [str(i) for i in range(VOCAB)],
  )
  state, lowered = dispatches.lowered(made.trainable, made.strategy, MAX_STEPS)
  tables, slots, counts = set(), set(), {VOCAB}
  # Each replica's copy is on a device of its own: [1, vocab, dim].
  first = int(config.strategy.name == 'replicas')
  is_row = config.table.layout == 'row'
  for x in jax.tree.leaves(state.tables):
    own, whole = x.sharding.shard_shape(x.shape)[first:], x.shape[first:]
    forms = [own]
    if is_row:  # [groups, classes, dim], or flattened
      forms.append((math.prod(own[:2]), *own[2:]))
      counts.add(math.prod(whole[:2]))
    if own[0] == 1:
      continue  # no entry for each row
    counts |= {whole[0], *(form[0] for form in forms)}
    shapes = tables if len(own) > 1 + is_row else slots
    kind = _KINDS[x.dtype.name]
    shapes |= {f'{kind}[{",".join(map(str, form))}]' for form in forms}
  text = compiling.text(lowered)
  shapes = {
    k: jax.tree.leaves(x.vectors)[0].shape for k, x in state.tables.items()
  }
  num_arrays = len(jax.tree.leaves(state))
  return Program(
    text, hlo.parse(text), num_arrays, shapes, tables, slots, counts
  )


@functools.cache
def _compiled(case):
  config = config_lib.default()
  config.model.name, config.model.dim = case.model, DIM
  config.optimizer.name, config.optimizer.learning_rate = case.optimizer, 0.1
  config.train.batch_words, config.table.layout = case.batch_words, case.layout
  config.table.dtype = case.dtype
  is_replicas = case.strategy == 'replicas'
  config.strategy.name = 'replicas' if is_replicas else 'sync'
  fixed = {}
  if case.strategy == 'merging':
    # As on a GPU: rows written once, a loop of known length, no condition.
    fixed = {'deduplicates': True, 'steps_per_loop': 4, 'loss_every_steps': 1}
  return _program(config, case.mesh, **fixed)


def _squeezed(shape):
  """The shape without axes of size one."""
  kind, _, sizes = shape.partition('[')
  kept = [x for x in sizes.rstrip(']').split(',') if x != '1']
  return f'{kind}[{",".join(kept)}]'


def _check_nothing_is_copied(program):
  num = 0
  for found in program.executed():
    x = found.instruction
    if _squeezed(x.shape) not in program.tables | program.slots:
      continue
    num += 1
    if x.opcode in ('fusion', 'call'):
      # Fused: in place if that is what it ends with.
      x = program.root(x.called[0])
    assert x.opcode in IN_PLACE, x
  assert num > 10
  for line in program.text.splitlines():
    is_copy = ' copy' in line.split('(')[0]
    assert not (is_copy and program.is_table(line)), line


@_cases(ON_ONE_DEVICE + ON_MESHES + LOW_PRECISION, SLOW + SLOW_LOW_PRECISION)
def test_nothing_of_a_tables_size_is_copied(case):
  _check_nothing_is_copied(_compiled(case))


@pytest.mark.parametrize(
  ('model', 'method'),
  [
    ('skipgram', ''),
    pytest.param('mixture', 'likelihoods', marks=pytest.mark.slow),
    pytest.param('mixture', 'contexts', marks=pytest.mark.slow),
  ],
)
def test_hierarchical_softmax_and_senses_copy_no_table(model, method):
  config = config_lib.default()
  config.model.name, config.model.loss = model, 'hierarchical_softmax'
  config.model.dim, config.optimizer.name = DIM, 'adagrad'
  config.train.batch_words, config.strategy.name = 256, 'sync'
  if method:
    # As many that a table of priors is larger than a step's own arrays.
    config.senses.number, config.senses.top_ratio = 2, 20_000 / VOCAB
    config.senses.method = method
  program = _program(config, (1, 1))
  assert program.shapes['input'][0] == VOCAB + (20_000 if method else 0)
  assert len(program.shapes) == {'': 2, 'likelihoods': 3, 'contexts': 4}[method]
  _check_nothing_is_copied(program)


@every_program
def test_one_gather_and_one_scatter_for_each_table(case):
  program = _compiled(case)
  loops = [
    x
    for x in program.parsed.computations[program.parsed.entry].values()
    if x.opcode == 'while' and program.is_table(x.shape)
  ]
  assert len(loops) == 1
  body = next(
    name
    for name in loops[0].called
    if program.is_table(program.root(name).shape)
  )
  gathers = scatters = 0
  for found in program.executed(body):
    x = found.instruction
    if x.opcode in ('gather', 'dynamic-slice'):
      source = found.scope[x.operands[0]].shape
      gathers += _squeezed(source) in program.tables
    scatters += x.opcode == 'scatter' and _squeezed(x.shape) in program.tables
  # Adam's first moment is one table more: read, written and read again.
  extra = 2 * (case.optimizer == 'adam')
  if case.strategy == 'replicas':
    # A meeting reads two slices of each table, in a fusion of its own.
    gathers -= 2 * 2
  assert gathers == 2 * (1 + extra)
  assert scatters == 2 * (1 + extra / 2)


@every_program
def test_state_is_donated_and_stays_on_its_device(case):
  program = _compiled(case)
  head = program.text.splitlines()[0]
  aliases = re.search(r'input_output_alias=\{ (.*?) \}, entry', head)[1]
  # Every array of the state is written where it was read.
  pairs = re.findall(r'\{(\d+)\}: \((\d+), ', aliases)
  assert pairs == [(str(i), str(i)) for i in range(program.num_arrays)]
  kinds = set()
  for found in program.executed():
    x = found.instruction
    assert x.opcode not in ('infeed', 'outfeed', 'send', 'recv'), x
    if x.opcode.startswith(hlo.KINDS):
      kinds.add(x.opcode)
      # What travels is some rows or numbers, never a table or its slots.
      for size in re.findall(r'\[([\d,]*)\]', x.shape):
        sizes = [int(axis) for axis in size.split(',') if axis]
        assert not program.row_counts & set(sizes), x
        if case.strategy == 'replicas':
          assert max(sizes, default=1) <= 1024, x  # a chunk of rows
  # Metrics are summed, and so are scores of split columns.
  expected = {'all-reduce'} if case.mesh != (1, 1) else set()
  if case.layout == 'row':
    expected.add('all-to-all')
  if case.strategy != 'replicas' and case.mesh != (1, 1):
    if case.layout == 'replicated' or case.mesh[0] > 1:
      expected.add('all-gather')  # of gradients
  assert kinds == expected


def test_an_accelerator_is_not_asked_within_its_steps():
  # Its loop over steps has a length that is known, and nothing in it chooses.
  program = _compiled(Case('skipgram', 'sgd', 'merging'))
  instructions = [x.instruction for x in program.executed()]
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


def test_a_copy_of_a_table_is_seen():
  table = jnp.zeros((VOCAB, DIM))

  def step(i, tables):
    first, second = tables
    old = first.at[i].get(mode='clip')
    return second.at[i].add(1.0), first.at[i].add(old).at[i + 1].add(1.0)

  def dispatch(table, num):
    return jax.lax.fori_loop(0, num, step, (table, table))

  text = compiling.text(jax.jit(dispatch).lower(table, 3))
  program = Program(text, hlo.parse(text), 0, {}, {TABLE}, set(), set())
  with pytest.raises(AssertionError):
    _check_nothing_is_copied(program)
