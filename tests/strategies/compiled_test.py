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

from jaxemb import build, mesh
from jaxemb import config as config_lib
from jaxemb.data import loader
from jaxemb.strategies import base, replicas

VOCAB, DIM, MAX_STEPS = 50_000, 100, 8
TABLE, SLOT = f'f32[{VOCAB},{DIM}]', f'f32[{VOCAB}]'

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

every_program = pytest.mark.parametrize(
  ('model', 'optimizer', 'batch_words', 'strategy'),
  [
    (model, optimizer, batch_words, strategy)
    for model in build.MODELS
    for optimizer in build.OPTIMIZERS
    for batch_words, strategy in (
      (256, 'sync'),
      (1024, 'sync'),
      (256, 'replicas'),
      (256, 'merging'),
    )
  ],
)


class Instruction(NamedTuple):
  """One line of a compiled program."""

  shape: str  # without layout, such as 'f32[50000,100]'
  opcode: str
  operands: list[str]
  called: list[str]  # computations
  is_root: bool


_LINE = re.compile(
  r'^\s*(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = '
  r'(?P<shape>\((?:[^()]|\([^()]*\))*\)|\S+) (?P<opcode>[\w\-]+)\((?P<rest>.*)$'
)
_CALLS = re.compile(
  r'(?:calls|to_apply|body|condition|true_computation|false_computation)='
  r'%?([\w.\-]+)|branch_computations=\{([^}]*)\}'
)
_HEAD = re.compile(r'^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$')


def _parse(text):
  """{computation: {name: Instruction}}, and the name of the entry."""
  computations, entry, current = {}, None, None
  for line in text.splitlines():
    head = _HEAD.match(line)
    if head:
      current = computations.setdefault(head['name'], {})
      entry = head['name'] if head['entry'] else entry
      continue
    found = _LINE.match(line)
    if not found:
      continue
    called = []
    for one, many in _CALLS.findall(found['rest']):
      names = [one] if one else many.split(',')
      called += [name.strip().lstrip('%') for name in names]
    current[found['name']] = Instruction(
      re.sub(r'\{[^}]*\}', '', found['shape']),
      found['opcode'],
      re.findall(r'%([\w.\-]+)', found['rest'].split('), ')[0]),
      called,
      bool(found['root']),
    )
  return computations, entry


def _executed(computations, name):
  """(computation, instruction) of all that one run of a computation runs."""
  for instruction in computations[name].values():
    yield computations[name], instruction
    for called in instruction.called:
      yield from _executed(computations, called)


def _root(computations, name):
  return next(x for x in computations[name].values() if x.is_root)


def _squeezed(shape):
  """The shape without axes of size one."""
  kind, _, sizes = shape.partition('[')
  kept = [x for x in sizes.rstrip(']').split(',') if x != '1']
  return f'{kind}[{",".join(kept)}]'


class Program(NamedTuple):
  """A compiled dispatch."""

  text: str
  computations: dict[str, dict[str, Instruction]]
  entry: str
  num_arrays: int  # of the state, not counting empty ones


@functools.cache
def _compiled(model_name, optimizer_name, batch_words, strategy_name):
  config = config_lib.default()
  config.model.name, config.model.dim = model_name, DIM
  config.optimizer.name, config.optimizer.learning_rate = optimizer_name, 0.1
  config.train.batch_words = batch_words
  config.strategy.name = 'sync' if strategy_name == 'merging' else strategy_name
  if strategy_name == 'merging':
    # As on a GPU: rows written once, a loop of known length, no condition.
    config.table.duplicates, config.train.steps_per_loop = 'merge', 4
    config.train.loss_every_steps = 1
  config = config_lib.resolved(config, 'cpu')
  strategy = build.trainer(
    config,
    10**7 // np.arange(1, VOCAB + 1),
    mesh.data_mesh(2 if strategy_name == 'replicas' else 1),
  ).strategy
  m = config.model
  state = jax.eval_shape(strategy.init, jax.random.key(0))
  size = MAX_STEPS * batch_words

  def array(shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype)

  batch = loader.Batch(
    array((size + 2 * m.window,), jnp.int32),
    array((size,), jnp.uint8),
    array((size,), jnp.uint8),
    array((), jnp.int32),
  )
  schedule = base.Schedule(
    np.float32(0.1), np.float32(0.1), np.zeros(2, np.uint32)
  )

  def placed(x, sharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  # What lives everywhere is no table, so its sharding goes without saying.
  sharding = strategy.state_sharding
  if strategy_name == 'replicas':
    sharding = replicas.ReplicaState(
      *(
        jax.tree.map(lambda x, s=s: s, part)
        for part, s in zip(state, sharding, strict=True)
      )
    )
  else:
    sharding = jax.tree.map(lambda x: strategy.state_sharding, state)
  state = jax.tree.map(placed, state, sharding)
  compiled = strategy.step.lower(
    state, strategy.constants(), batch, schedule
  ).compile()
  arrays = [x for x in jax.tree.leaves(state) if x.size]
  text = compiled.as_text()
  return Program(text, *_parse(text), len(arrays))


def _loop_body(program):
  """Name of the body of the loop over steps."""
  loops = [
    x
    for x in program.computations[program.entry].values()
    if x.opcode == 'while' and TABLE in x.shape
  ]
  assert len(loops) == 1
  return next(
    name
    for name in loops[0].called
    if TABLE in _root(program.computations, name).shape
  )


@every_program
def test_nothing_of_a_tables_size_is_copied(
  model, optimizer, batch_words, strategy
):
  program = _compiled(model, optimizer, batch_words, strategy)
  met = 0
  for _, x in _executed(program.computations, program.entry):
    if _squeezed(x.shape) not in (TABLE, SLOT):
      continue
    met += 1
    if x.opcode in ('fusion', 'call'):
      # Fused: in place if that is what it ends with.
      x = _root(program.computations, x.called[0])
    assert x.opcode in IN_PLACE, x
  assert met > 10
  for line in program.text.splitlines():
    assert not (' copy' in line.split('(')[0] and TABLE in line), line


@every_program
def test_one_gather_and_one_scatter_a_table(
  model, optimizer, batch_words, strategy
):
  program = _compiled(model, optimizer, batch_words, strategy)
  gathers = scatters = 0
  body = _loop_body(program)
  for scope, x in _executed(program.computations, body):
    if x.opcode in ('gather', 'dynamic-slice'):
      source = scope[x.operands[0]].shape
      gathers += _squeezed(source) == TABLE
    scatters += x.opcode == 'scatter' and _squeezed(x.shape) == TABLE
  # Adam's first moment is a table more: read, written and read again.
  extra = 2 * (optimizer == 'adam')
  if strategy == 'replicas':
    # An exchange reads two slices of each table, in a fusion of its own.
    gathers -= 2 * 2
  assert gathers == 2 * (1 + extra)
  assert scatters == 2 * (1 + extra / 2)


@every_program
def test_state_is_donated_and_stays_on_its_device(
  model, optimizer, batch_words, strategy
):
  program = _compiled(model, optimizer, batch_words, strategy)
  head = program.text.splitlines()[0]
  aliases = re.search(r'input_output_alias=\{ (.*?) \}, entry', head)[1]
  # Every array of the state is written where it was read.
  pairs = re.findall(r'\{(\d+)\}: \((\d+), ', aliases)
  assert pairs == [(str(i), str(i)) for i in range(program.num_arrays)]
  found = set()
  for _, x in _executed(program.computations, program.entry):
    if x.opcode.startswith(COLLECTIVES):
      found.add(x.opcode)
      # What travels is a chunk of rows or a figure, never a table.
      sizes = re.findall(r'\[([\d,]*)\]', x.shape)
      rows = [int(size.split(',')[0] or 1) for size in sizes]
      assert max(rows) <= 1024, x
  assert found == ({'all-reduce'} if strategy == 'replicas' else set())
  for _, x in _executed(program.computations, program.entry):
    assert x.opcode not in ('infeed', 'outfeed', 'send', 'recv'), x


def test_an_accelerator_is_not_asked_within_its_steps():
  # Its loop over steps has a length that is known, and nothing in it chooses.
  program = _compiled('skipgram', 'sgd', 256, 'merging')
  bodies = [
    x.called
    for _, x in _executed(program.computations, program.entry)
    if x.opcode == 'while' and TABLE in x.shape
  ]
  assert len(bodies) == 2
  assert 'known_trip_count":{"n":"4"}' in program.text.replace(' ', '')
  opcodes = {
    x.opcode for _, x in _executed(program.computations, program.entry)
  }
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

  text = jax.jit(dispatch).lower(table, 3).compile().as_text()
  computations, entry = _parse(text)
  found = [
    x.opcode for _, x in _executed(computations, entry) if x.shape == TABLE
  ]
  assert 'copy' in found
