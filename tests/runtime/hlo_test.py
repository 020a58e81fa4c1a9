"""The reader of compiled programs: collectives, their bytes, their loops."""

import math

import jax
import jax.numpy as jnp
import pytest

from jaxemb.runtime import hlo
from tests import compiling


def _one(instruction, before=''):
  """The collective of a program of eight devices."""
  (found,) = hlo.collectives(f"""HloModule jit_f, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {{
  ROOT %sum = f32[] add(%x, %y), metadata={{op_name="a }} all-reduce(" id=1}}
}}

%wrapped (x: f32[16,4]) -> f32[128,4] {{
  %x = f32[16,4]{{1,0}} parameter(0)
  ROOT %g = f32[128,4]{{1,0}} all-gather(%x), replica_groups={{}}
}}

ENTRY %main.3 (p: f32[16,4]) -> f32[16,4] {{
  %p = f32[16,4]{{1,0:T(8,128)S(1)}} parameter(0)
  %i = s32[10]{{0}} parameter(1)
  {before}
  ROOT %a = {instruction}, metadata={{op_name="{{'x'}}"}}
}}
""")
  assert found.loops == () and not found.is_in_branch
  assert found.runs_per_step(hlo.Loop(4, 5, 6)) == 0
  return found


_REDUCE = 'f32[16,4]{1,0} all-reduce(%p), channel_id=1, '
_MESH = _REDUCE + "replica_groups=mesh['x'=2,'y'=4] "
_PERMUTE = 'f32[16,4] collective-permute(%p), '


@pytest.mark.parametrize(
  ('instruction', 'sent_bytes'),
  [
    (_REDUCE + 'replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add', 384),
    (_REDUCE + 'replica_groups=[2,4]<=[8], use_global_device_ids=true', 384),
    (_MESH + "{'y'}, to_apply=%add", 384),  # along axes of a mesh
    (_REDUCE + 'replica_groups={}', 448),  # all devices
    (_REDUCE + 'replica_groups={{0},{1}}', 0),
    # Several arrays at once, their types before their names.
    (
      '(f32[16,4]{1,0}, /*index=1*/s32[10]{0}) all-reduce(f32[16,4]{1,0:T(8)} '
      '%p, /*index=1*/s32[10]{0} %i), replica_groups={{0,1}}', 256 + 40,
    ),
    ('f32[64,4] all-gather(%p), replica_groups={{0,4,1,5},{2,6,3,7}}', 768),
    (
      '(f32[16,4]{1,0}, f32[16,4]{1,0}) all-to-all(%p, /*index=1*/%p), '
      'replica_groups={{0,1},{2,3}}', 256,
    ),
    (
      'f32[16,4] ragged-all-to-all(%p, %p, %i, %i, %i, %i), '
      'replica_groups={{0,1,2,3}}', 192,
    ),
    ('f32[2,4]{1,0} reduce-scatter(%p), replica_groups={}', 224),
    (_PERMUTE + 'source_target_pairs={{0,1},{1,0}}', 256),
    ('f32[16,4] collective-broadcast(%p), replica_groups={{0,1}}', 128),
  ],
)  # fmt: skip
def test_bytes_of_one_device(instruction, sent_bytes):
  found = _one(instruction)
  assert f' {found.kind}(' in instruction
  assert found.sent_bytes == sent_bytes


def test_bytes_of_numbers():
  for number, num_bytes in ('pred', 1), ('s4', 0.5), ('f8e4m3fn', 1):
    before = f'%x = {number}[10,<=3]{{1,0}} fusion(%p), kind=kLoop'
    found = _one(f'{number}[20,3] all-gather(%x)', before)
    assert found.sent_bytes == 7 * 30 * num_bytes
    assert found.shapes == ((10, 3), (20, 3))


def test_an_asynchronous_pair_is_one():
  for start in (
    '(f32[16,4], f32[128,4]) all-gather-start(%p), dimensions={0}',
    '((f32[16,4]), f32[128,4], u32[]) all-gather-start(%p), '
    'replica_groups={}, calls=%wrapped',
    '((f32[16,4]), f32[128,4], u32[]) async-start(%p), calls=%wrapped',
  ):
    before = f'%s = {start}\n  %u = (f32[16,4]) all-gather-update(%s)'
    found = _one('f32[128,4]{1,0} all-gather-done(%u)', before)
    assert found.kind == 'all-gather' and found.sent_bytes == 7 * 256


def test_what_cannot_be_read_is_no_number():
  for operands in (
    '(%p), replica_groups=@mesh<x=8>{x}',
    '(%nowhere), replica_groups={{0,1}}',
  ):
    assert math.isnan(_one(f'f32[16,4] all-reduce{operands}').sent_bytes)


def test_a_compiled_program_with_loops_and_branches():
  auto, spec = jax.sharding.AxisType.Auto, jax.sharding.PartitionSpec
  mesh = jax.make_mesh((2, 4), ('x', 'y'), axis_types=(auto, auto))

  def more(carry):
    i, num, a = carry
    return (i < num) & (jax.lax.all_gather(a, 'x').sum() < 9)

  def known(_, a):
    return jax.lax.psum(jnp.sin(a), ('x', 'y'))

  def unknown(_, a):
    return jax.lax.all_to_all(a, 'y', 1, 1, tiled=True)

  def branch(a):
    return jax.lax.ppermute(a, 'x', [(0, 1), (1, 0)])

  def step(carry):
    i, num, a = carry  # [3, 8] float32 on each device
    a = jax.lax.fori_loop(0, 3, known, a)
    a = jax.lax.fori_loop(0, num, unknown, a)
    return i + 1, num, jax.lax.cond(num > 2, branch, jnp.cos, a)

  @jax.jit
  @jax.shard_map(
    mesh=mesh,
    in_specs=(spec(('x', 'y')), spec()),
    out_specs=spec(('x', 'y')),
    check_vma=False,
  )
  def program(a, num):
    a = jax.lax.while_loop(more, step, (0, num, a))[2]
    return jax.lax.psum_scatter(a, 'y', scatter_dimension=1, tiled=True)

  text = compiling.text(program.lower(jnp.ones((24, 8)), 7))
  size = 3 * 8 * 4
  # Kind, bytes, loops, whether in a branch, bytes per step.
  expected = [
    ('all-gather', size, (None,), False, size / 2),
    ('all-reduce', 1.75 * size, (None, 3), False, 1.75 * size * 1.5),
    ('all-to-all', 0.75 * size, (None, None), False, 0.75 * size * 2.5),
    ('collective-permute', size, (None,), True, size / 8),
    ('reduce-scatter', 0.75 * size, (), False, 0),
  ]
  found = hlo.collectives(text)
  assert sorted(x[:1] + x[2:] for x in found) == [x[:-1] for x in expected]
  traffic = hlo.traffic(text, hlo.Loop(steps=2, inner=5, branch=0.25))
  num = dict.fromkeys(hlo.KINDS, 0) | {x[0]: 1 for x in expected}
  assert {kind: traffic[kind] for kind in hlo.KINDS} == num
  zeros = dict.fromkeys((*hlo.KINDS, 'total'), 0)
  sent = {x[0]: x[-1] for x in expected}
  sent['total'] = sum(sent.values())
  assert traffic['bytes_per_step_per_device'] == zeros | sent
  for text in ('', 'HloModule jit_f, num_partitions=8\n'):
    assert hlo.traffic(text, hlo.Loop())['bytes_per_step_per_device'] == zeros


@pytest.mark.parametrize('is_donated', [True, False])
def test_arrays_that_a_program_copies(is_donated):
  def add(rows, ids):
    return rows.at[ids].add(1.0)

  program = jax.jit(add, donate_argnums=(0,) if is_donated else ())
  text = program.lower(jnp.zeros((50, 3)), jnp.arange(4)).compile().as_text()
  assert ((50, 3) in hlo.copied_arrays(text)) != is_donated


def _counted(compared='LT', first=0, by=1):
  """The lengths that are read of a loop as compilers for TPUs write it."""
  text = f"""HloModule jit_f, num_partitions=2

%cond (p: (s32[], f32[4])) -> pred[] {{
  %c = s32[]{{:T(128)}} constant(16)
  %p = (s32[], f32[4]) parameter(0)
  %g = s32[] get-tuple-element(%p), index=0
  ROOT %lt = pred[] compare(%g, %c), direction={compared}
}}

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %one = s32[] constant({by})
  %p.1 = (s32[], f32[4]) parameter(0)
  %g.1 = s32[] get-tuple-element(%p.1), index=0
  %x = f32[4]{{0:T(128)}} get-tuple-element(%p.1), index=1
  %sum = f32[4]{{0:T(128)}} all-reduce(%x), replica_groups={{}}
  %next = s32[] add(%g.1, %one)
  ROOT %t = (s32[], f32[4]) tuple(%next, %sum)
}}

ENTRY %main (q: f32[4]) -> (s32[], f32[4]) {{
  %q = f32[4]{{0:T(128)}} parameter(0)
  %zero = s32[] constant({first})
  %copied = s32[] copy(%zero)
  %both = (s32[], f32[4]) tuple(%copied, %q)
  ROOT %w = (s32[], f32[4]) while(%both), condition=%cond, body=%body
}}
"""
  (found,) = hlo.collectives(text)
  return found.loops


def test_a_loop_that_counts_to_a_number_has_that_length():
  assert _counted() == (16,)
  for other in {'compared': 'NE'}, {'first': 1}, {'by': 2}:
    assert _counted(**other) == (None,)
