"""Kernels of a step, read in what XLA dumps for a GPU."""

import pytest

from jaxemb.runtime import gpu, hlo

_TEXT = """HloModule m, num_partitions=1

%look (t: f32[900,4], i: s32[6,1]) -> f32[6,4] {
  %t = f32[900,4] parameter(0)
  %b = f32[900,4] bitcast(%t)
  %i = s32[6,1] parameter(1)
  ROOT %g = f32[6,4] gather(%b, %i), slice_sizes={1,4}
}

%change (t2: f32[900,4], i2: s32[6,1], r: f32[6,4]) -> f32[900,4] {
  %t2 = f32[900,4] parameter(0)
  %i2 = s32[6,1] parameter(1)
  %r = f32[6,4] parameter(2)
  ROOT %s = f32[900,4] scatter(%t2, %i2, %r), to_apply=%sum
}

%inner (q: (s32[], f32[900,4])) -> (s32[], f32[900,4]) {
  %q = (s32[], f32[900,4]) parameter(0)
  %ids = s32[6,1] constant(0)
  %table = f32[900,4] get-tuple-element(%q), index=1
  %rows.1 = f32[6,4] fusion(%table, %ids), kind=kLoop, calls=%look
  %put = f32[900,4] fusion(%table, %ids, %rows.1), kind=kInput, calls=%change
  ROOT %z = (s32[], f32[900,4]) tuple(%ids, %put)
}

%outer (p: (s32[], f32[900,4])) -> (s32[], f32[900,4]) {
  %p = (s32[], f32[900,4]) parameter(0)
  %known = (s32[], f32[900,4]) while(%p), condition=%c, body=%inner, \
backend_config={"known_trip_count":{"n":"16"}}
  ROOT %more = (s32[], f32[900,4]) while(%known), condition=%c, body=%rest
}

ENTRY %main (a: (s32[], f32[900,4])) -> (s32[], f32[900,4]) {
  %a = (s32[], f32[900,4]) parameter(0)
  ROOT %steps = (s32[], f32[900,4]) while(%a), condition=%c, body=%outer
}
"""
_THUNKS = """000: kCopy         [source       | next=001 (1)] kCopy
001: kWhile        [prev=000 (1) | sink        ]
condition:
    002: kCustomKernel [source | sink] compare grid: [1, 1, 1]
  body:
    003: kWhile        [source       | sink        ]
condition:
      body:
        000: kCommandBuffer [source | sink]
            004: kCustomKernel [source | sink] rows_1 grid: [4, 1, 1]
            005: kCustomKernel [prev=004 (1)| sink] put grid: [4, 1, 1]
    006: kWhile        [source       | sink        ]
condition:
      body:
        007: kCopy        [source | sink] kCopy
"""
_NAMES = {1: 'steps', 3: 'known', 4: 'rows.1', 5: 'put', 6: 'more'}
_PTX = """.visible .entry put(
  @%p1 red.global.add.f32 [%rd1], %f2;
  setp.lt.u32 %pred.b32, %r1, %r2;
  atom.relaxed.sys.global.cas.b32 %r4, [%rd3], %r13, %r12;
.visible .entry exchange(
  atom.relaxed.sys.global.max.s32 %r3, [%rd1], %r2;
"""


def _dump(folder):
  names = ''.join(
    f'thunk_metadata {{ thunk_info {{\n profile_annotation: "{name}"\n'
    f' thunk_id: {i}\n}} }}\n'
    for i, name in _NAMES.items()
  )
  prefix = 'module_0001.jit_step.'
  files = {
    'thunk_sequence_after_thunk_passes.txt': _THUNKS,
    'thunk_metadata.txt': names,
    '1.ptx': _PTX,
  }
  for name, text in files.items():
    (folder / (prefix + name)).write_text(text)


def test_kernels_count_by_the_loops_around_and_rows_by_those_touched(tmp_path):
  _dump(tmp_path)
  found = gpu.read(tmp_path, _TEXT, hlo.Loop(steps=16, inner=2), {})
  by_name = {x.name: x for x in found.kernels if x.name}
  # Six rows of 16 bytes are read from the table, written apart, and changed in
  # place; ids take 24 bytes.
  assert by_name['rows.1'] == ('rows.1', 96 + 24 + 96, 1)
  assert by_name['put'] == ('put', 96 + 24 + 96 + 96, 1)
  # What is compared once in 16 steps, and two turns of what is copied in them.
  assert found.per_step == pytest.approx(2 + 1 / 16 + 2 / 16)
  # The outer loop asks once in 16 steps, the inner after two turns and before.
  assert found.waits_per_step == pytest.approx(1 / 16 + 3 / 16)
  assert found.atomics == {
    'put': ['red.global.add.f32', 'atom.relaxed.sys.global.cas.b32']
  }
  assert found.bytes_per_step == 216 + 312


@pytest.mark.parametrize(
  ('distinct', 'num', 'vocab'),
  # A table of fewer rows than there are gradients, too.
  [({}, 12, 900), ({12: 5.0}, 5, 900), ({12: 2.0}, 2, 3)],
)
def test_kernels_of_ours_count_rows_that_they_change(
  tmp_path, distinct, num, vocab
):
  _dump(tmp_path)
  kernel = """  %i = s32[12] parameter(0)
  %grads = f32[12,4] parameter(1)
  %t = f32[900,4] parameter(2)
  %put = (f32[900,4], f32[2,4]) custom-call(%i, %grads, %t), \
custom_call_target="__gpu$xla.gpu.triton", \
output_to_operand_aliasing={{0}: (2, {})}, metadata={}
"""
  line = next(x for x in _TEXT.splitlines() if x.startswith('  %put = '))
  kernel = kernel.replace('900', f'{vocab}')
  text = _TEXT.replace(line + '\n', kernel)
  found = gpu.read(tmp_path, text, hlo.Loop(steps=16, inner=2), distinct)
  by_name = {x.name: x for x in found.kernels if x.name}
  # Ids, gradients, parts of sums, and rows that are read and written.
  assert by_name['put'].num_bytes == 48 + 192 + 32 + 2 * num * 16


def test_seconds_are_of_starts_or_of_bytes(tmp_path):
  _dump(tmp_path)
  found = gpu.read(tmp_path, _TEXT, hlo.Loop(steps=16, inner=2), {})
  secs = found.secs(1.0, 10.0, bytes_per_sec=100.0)
  assert secs == pytest.approx(2.16 + 3.12 + 3 / 16 + 10 * 4 / 16)


def test_a_compiler_that_writes_other_files(tmp_path):
  assert gpu.read(tmp_path, _TEXT, hlo.Loop(), {}) is None
