"""What XLA makes of a dispatch, at a realistic size: no table is ever copied.

A program that copies a [vocab, dim] array in every step still computes the
right thing, only many times slower, so the compiled text is read.
"""

import functools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb import build
from jaxemb import config as config_lib
from jaxemb.data import windows
from jaxemb.runtime import hlo, mesh
from jaxemb.strategies import base
from jaxemb.tables import row_sharded
from tests import compiling

VOCAB, DIM, MAX_STEPS = 50_000, 100, 8
TABLE = f'f32[{VOCAB},{DIM}]'

COLLECTIVES = (
  'all-gather',
  'all-reduce',
  'all-to-all',
  'collective-broadcast',
  'collective-permute',
  'ragged-all-to-all',
  'reduce-scatter',
)
# What may have the shape of a table: names for memory, and writes in place.
IN_PLACE = {
  'bitcast',
  'dynamic-update-slice',
  'get-tuple-element',
  'opt-barrier',
  'parameter',
  'scatter',
}


class Case(NamedTuple):
  """What is compiled, and for which mesh."""

  model: str
  optimizer: str
  batch_words: int = 256
  strategy: str = 'sync'  # 'merging' is sync as on a GPU
  layout: str = 'replicated'
  mesh: tuple[int, int] = (1, 1)
  dtype: str = 'float32'

  def __str__(self):
    shape = 'x'.join(map(str, self.mesh))
    return '-'.join(map(str, (*self[:-2], shape, self.dtype)))


CASES = [
  Case(model, optimizer, batch_words, strategy, mesh=shape)
  for model in ('skipgram', 'cbow')
  for optimizer in config_lib.MEMBERS['optimizer.name']
  for batch_words, strategy, shape in (
    (256, 'sync', (1, 1)),
    (1024, 'sync', (1, 1)),
    (256, 'replicas', (2, 1)),
    (256, 'merging', (1, 1)),
  )
]
ON_MESHES = [
  Case(model, optimizer, 256, strategy, layout, shape)
  for layout in config_lib.MEMBERS['table.layout']
  for model, optimizer, strategy, shape in (
    ('skipgram', 'adagrad', 'sync', (2, 2)),
    ('cbow', 'sgd', 'sync', (2, 2)),
    ('skipgram', 'sgd', 'merging', (2, 2)),
    ('skipgram', 'adam', 'sync', (2, 2)),
    ('skipgram', 'sgd', 'sync', (1, 2)),
    ('skipgram', 'adam', 'sync', (1, 2)),
  )
  if layout != 'replicated' or (optimizer != 'adam' and shape == (2, 2))
]
IN_FEW_BITS = [
  Case('skipgram', 'sgd', dtype='bfloat16'),
  Case('skipgram', 'adagrad', 256, 'replicas', mesh=(2, 1), dtype='int8'),
  Case('skipgram', 'sgd', 256, 'sync', 'row', (1, 2), 'float16'),
  Case('skipgram', 'sgd', 256, 'sync', 'column', (1, 2), 'int8'),
]
every_program = pytest.mark.parametrize('case', CASES + ON_MESHES, ids=str)


def _executed(parsed, name=''):
  """(computation, instruction) of all that one run of a computation runs."""
  for x in hlo.executed(parsed, name or parsed.entry):
    yield x.scope, x.instruction


def _root(parsed, name):
  return next(x for x in parsed.computations[name].values() if x.is_root)


def _squeezed(shape):
  """The shape without axes of size one."""
  kind, _, sizes = shape.partition('[')
  kept = [x for x in sizes.rstrip(']').split(',') if x != '1']
  return f'{kind}[{",".join(kept)}]'


class Program(NamedTuple):
  """A compiled dispatch."""

  text: str
  parsed: hlo.Program
  num_arrays: int  # of the state
  tables: set[str]  # shapes of a device's share of a table
  slots: set[str]  # and of what an optimizer has of each row of it
  row_counts: set[int]  # sizes of axes along a table's rows


def _shares(case):
  """A device's share of a table, of the slots, and its numbers of rows."""
  tables, slots, counts = _shares_of_floats(case)
  if case.dtype != 'float32':
    kind = 's8[' if case.dtype == 'int8' else 'u16['
    tables = {x.replace('f32[', kind) for x in tables}
    slots |= {x.replace('f32[', 's32[') for x in slots}
  return tables, slots, counts


def _shares_of_floats(case):
  num_table = case.mesh[1]
  if case.layout == 'row':
    groups = -(-VOCAB // row_sharded.NUM_CLASSES)
    classes = row_sharded.NUM_CLASSES // num_table
    rows = groups * classes
    tables = f'f32[{groups},{classes},{DIM}]', f'f32[{rows},{DIM}]'
    slots = f'f32[{groups},{classes}]', f'f32[{rows}]'
    return set(tables), set(slots), {groups, rows, num_table * rows, VOCAB}
  dim = DIM // num_table if case.layout == 'column' else DIM
  return {f'f32[{VOCAB},{dim}]'}, {f'f32[{VOCAB}]'}, {VOCAB}


def _config(case):
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
  config_lib.check(config)
  return config_lib.resolve(config, 'cpu', case.mesh, **fixed)


@functools.cache
def _compiled(case):
  text, num_arrays, _ = _compiled_text(*_config(case), case.mesh)
  return Program(text, hlo.parse(text), num_arrays, *_shares(case))


def _compiled_text(config, tuning, shape):
  """The program of a dispatch, its state's arrays, and the shapes of tables."""
  made = build.trainer(
    config,
    tuning,
    10**7 // np.arange(1, VOCAB + 1),
    mesh.make(mesh.Shape(*shape)),
    [str(i) for i in range(VOCAB)],
  )
  strategy = made.strategy
  num_parts, window = tuning.parts, config.model.window
  size = MAX_STEPS * tuning.part_words

  def array(shape, dtype):
    sharding = strategy.batch_sharding
    return jax.ShapeDtypeStruct((num_parts, *shape), dtype, sharding=sharding)

  batch = windows.Batch(
    array((size + 2 * window,), jnp.int32),
    array((size,), jnp.uint8),
    array((size,), jnp.uint8),
    *(array((), jnp.int32) for _ in range(3)),
  )
  schedule = base.Schedule(
    np.float32(0.1), np.float32(0.1), np.zeros(2, np.uint32)
  )
  state = jax.tree.map(
    lambda sharding, part: jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part
    ),
    strategy.state_sharding,
    jax.eval_shape(strategy.init, jax.random.key(0)),
  )
  lowered = strategy.step.lower(state, strategy.constants(), batch, schedule)
  text = compiling.text(lowered)
  # Of rows in few bits the codes, which are the first of the two arrays.
  leaves = {k: jax.tree.leaves(x.vectors) for k, x in state.tables.items()}
  tables = {k: x[0].shape for k, x in leaves.items()}
  return text, len(jax.tree.leaves(state)), tables


def _is_table(program, shape):
  """Whether a table is what a shape is, or is one of those that it names."""
  return any(table in shape for table in program.tables)


def _loop_body(program):
  """Name of the body of the loop over steps."""
  loops = [
    x
    for x in program.parsed.computations[program.parsed.entry].values()
    if x.opcode == 'while' and _is_table(program, x.shape)
  ]
  assert len(loops) == 1
  return next(
    name
    for name in loops[0].called
    if _is_table(program, _root(program.parsed, name).shape)
  )


@pytest.mark.parametrize('case', CASES + ON_MESHES + IN_FEW_BITS, ids=str)
def test_nothing_of_a_tables_size_is_copied(case):
  program = _compiled(case)
  met = 0
  for _, x in _executed(program.parsed):
    if _squeezed(x.shape) not in program.tables | program.slots:
      continue
    met += 1
    if x.opcode in ('fusion', 'call'):
      # Fused: in place if that is what it ends with.
      x = _root(program.parsed, x.called[0])
    assert x.opcode in IN_PLACE, x
  assert met > 10
  for line in program.text.splitlines():
    is_copy = ' copy' in line.split('(')[0]
    assert not (is_copy and _is_table(program, line)), line


@pytest.mark.parametrize(
  ('model', 'method'),
  [('skipgram', ''), ('mixture', 'likelihoods'), ('mixture', 'contexts')],
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
  config_lib.check(config)
  resolved = config_lib.resolve(config, 'cpu', (1, 1))
  text, _, tables = _compiled_text(*resolved, (1, 1))
  assert tables['input'][0] == VOCAB + (20_000 if method else 0)
  assert len(tables) == {'': 2, 'likelihoods': 3, 'contexts': 4}[method]
  parsed = hlo.parse(text)
  shapes = {f'f32[{",".join(map(str, x))}]' for x in tables.values()}
  met = 0
  for _, x in _executed(parsed):
    if _squeezed(x.shape) in shapes:
      met += 1
      if x.opcode in ('fusion', 'call'):
        x = _root(parsed, x.called[0])
      assert x.opcode in IN_PLACE, x
  assert met > 10


@every_program
def test_one_gather_and_one_scatter_a_table(case):
  program = _compiled(case)
  gathers = scatters = 0
  body = _loop_body(program)
  for scope, x in _executed(program.parsed, body):
    if x.opcode in ('gather', 'dynamic-slice'):
      source = scope[x.operands[0]].shape
      gathers += _squeezed(source) in program.tables
    scatters += x.opcode == 'scatter' and _squeezed(x.shape) in program.tables
  # Adam's first moment is a table more: read, written and read again.
  extra = 2 * (case.optimizer == 'adam')
  if case.strategy == 'replicas':
    # An exchange reads two slices of each table, in a fusion of its own.
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
  found = set()
  for _, x in _executed(program.parsed):
    if x.opcode.startswith(COLLECTIVES):
      found.add(x.opcode)
      # What travels is some rows or figures, never a table or its slots.
      for size in re.findall(r'\[([\d,]*)\]', x.shape):
        sizes = [int(axis) for axis in size.split(',') if axis]
        assert not program.row_counts & set(sizes), x
        if case.strategy == 'replicas':
          assert max(sizes, default=1) <= 1024, x  # a chunk of rows
  assert found == _collectives(case)
  for _, x in _executed(program.parsed):
    assert x.opcode not in ('infeed', 'outfeed', 'send', 'recv'), x


def _collectives(case):
  """The kinds that a dispatch has."""
  if case.mesh == (1, 1):
    return set()
  if case.strategy == 'replicas':
    return {'all-reduce'}
  # Metrics are summed; so are scores of split columns, and rounds are cut.
  found = {'all-reduce'}
  if case.layout == 'row':
    found.add('all-to-all')
  if case.layout == 'replicated' or case.mesh[0] > 1:
    found.add('all-gather')  # of gradients
  return found


def test_an_accelerator_is_not_asked_within_its_steps():
  # Its loop over steps has a length that is known, and nothing in it chooses.
  program = _compiled(Case('skipgram', 'sgd', 256, 'merging'))
  bodies = [
    x.called
    for _, x in _executed(program.parsed)
    if x.opcode == 'while' and TABLE in x.shape
  ]
  assert len(bodies) == 2
  assert 'known_trip_count":{"n":"4"}' in program.text.replace(' ', '')
  opcodes = {x.opcode for _, x in _executed(program.parsed)}
  assert 'conditional' not in opcodes and 'sort' in opcodes
  # Rows that come once need no atomic addition.
  scatters = [
    line
    for line in program.text.splitlines()
    if ' scatter(' in line and TABLE in line.split(' scatter(')[0]
  ]
  assert scatters and all('unique_indices=true' in x for x in scatters)


def test_the_reader_reads():
  # A program with both faults: it must see them.
  table = jnp.zeros((VOCAB, DIM))

  def step(i, tables):
    first, second = tables
    old = first.at[i].get(mode='clip')
    return second.at[i].add(1.0), first.at[i].add(old).at[i + 1].add(1.0)

  def dispatch(table, num):
    return jax.lax.fori_loop(0, num, step, (table, table))

  lowered = jax.jit(dispatch).lower(table, 3)
  text = compiling.text(lowered)
  parsed = hlo.parse(text)
  found = [x.opcode for _, x in _executed(parsed) if x.shape == TABLE]
  assert 'copy' in found
