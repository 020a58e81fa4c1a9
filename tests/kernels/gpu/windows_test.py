"""The kernel of `windows.cu` against the loops, run on a CPU by fibers.

The same source is compiled by g++; XLA launches it through the handler, whose
driver is a fake. Products have the digits of TF32, or of float16.
"""

import ctypes
import functools
import hashlib
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

from jaxemb.kernels.gpu import launch, nvrtc, step, windows
from tests import marking
from tests.kernels.cpu import step_test
from tests.kernels.gpu import nvrtc_test

_FOLDER = pathlib.Path(__file__).parent
_SOURCES = (
  _FOLDER / 'windows.cpp', _FOLDER / 'emulate.h', windows.SOURCE
)  # fmt: skip
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 11)
_NUM_POINTERS = 16  # of arguments; results are the last of them again
_ERROR = 3e-3  # of ten bits in each factor

needs_compiler = pytest.mark.skipif(
  not shutil.which('g++'), reason='needs g++, which runs kernels on a CPU'
)


@pytest.fixture(scope='session', name='compiled')
def _compiled(pytestconfig, tmp_path_factory):
  """Returns a function from a variant to the library that runs it."""
  cache = getattr(pytestconfig, 'cache', None)
  folder = pathlib.Path(
    cache.mkdir('kernels') if cache else tmp_path_factory.mktemp('kernels')
  )
  source = b''.join(x.read_bytes() for x in _SOURCES)

  @functools.cache
  def compiled(variant, halves=False):
    macros = variant.macros() | {'HALVES': int(halves)}
    digest = hashlib.sha256(source + repr(macros).encode()).hexdigest()[:16]
    path = folder / f'{digest}.so'
    if not path.exists():
      own = tmp_path_factory.mktemp('kernel') / path.name
      # Addresses that a GPU would refuse, and shifts too far, are errors.
      options = '-O1 -std=c++20 -w -shared -fPIC -fsanitize=undefined'
      subprocess.run(
        ['g++', *options.split(), '-fno-sanitize-recover=all',
         f'-I{windows.SOURCE.parent}',
         *(f'-D{k}={x}' for k, x in macros.items()),
         '-o', own, _SOURCES[0]],
        check=True,
      )  # fmt: skip
      shutil.move(own, path)
    return ctypes.CDLL(str(path))

  return compiled


class _Gpu:
  """Launches kernels on the CPU."""

  def __init__(self, compiled):
    self._compiled, self._libraries = compiled, []
    self._fake = _LAUNCH(self._launch)
    launch.register('cpu')

  def _launch(self, kernel, blocks, *numbers):
    shared_bytes, arguments = numbers[5], numbers[-2]
    places = ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p))
    pointers = (ctypes.c_void_p * _NUM_POINTERS)(
      *(
        ctypes.cast(places[i], ctypes.POINTER(ctypes.c_void_p))[0]
        for i in range(_NUM_POINTERS)
      )
    )
    library = self._libraries[kernel - 1]
    return library.emulate(blocks, pointers, ctypes.c_long(shared_bytes))

  def kernel(self, variant, parameter, num_blocks, halves=False):
    """A kernel of a variant, which runs here."""
    self._libraries.append(self._compiled(variant, halves))
    address = ctypes.cast(self._fake, ctypes.c_void_p).value
    digest = 1000 + len(self._libraries)
    launch.put(digest, len(self._libraries), launcher=address)
    return step.Kernel(variant, digest, parameter, num_blocks=num_blocks)


@pytest.fixture(name='gpu')
def _gpu(compiled):
  return _Gpu(compiled)


def _fused(gpu, case, num_blocks=1, halves=False):
  """Returns a function from a trainable to one whose steps the kernel takes."""

  def fused(trainable):
    _, constants = step_test.laying.OPTIMIZERS[case.optimizer]
    is_adagrad = case.optimizer == 'adagrad'
    optimizer = {
      'name': 'adagrad' if is_adagrad else 'sgd', 'max_duplicates': 0.0,
      **constants,
    }  # fmt: skip
    spec = trainable.tables['input'].spec
    table = {'dtype': spec.dtype, 'rounding': spec.rounding}
    variant = step.variant(trainable.model, table, optimizer)
    kernel = gpu.kernel(
      variant,
      optimizer['epsilon' if is_adagrad else 'max_duplicates'],
      num_blocks=num_blocks,
      halves=halves,
    )
    return step_test.dataclasses.replace(trainable, fused=kernel)

  return fused


Case = step_test.Case
_CASES = {
  'plain': step_test.CASES['plain'],
  'adagrad': step_test.CASES['adagrad'],
  'half_padding': step_test.CASES['half_padding'],
  'window_over_chunk': step_test.CASES['window_over_chunk'],
  'one_word_sentences': step_test.CASES['one_word_sentences'],
  'only_padding': step_test.CASES['only_padding'],
  'few_words': step_test.CASES['few_words'],
  'limited_few_words': step_test.CASES['limited_few_words'],
  'adagrad_few_words': step_test.CASES['adagrad_few_words'],
  'window_of_twelve': step_test.CASES['window_of_twelve'],
  'chunk_of_thirty_two': Case(chunk=32, window=15, lengths=(40,)),
  'many_draws': Case(shared=70, dim=40),
  'two_columns': Case(dim=2),
  'whole_units': Case(dim=128, words=20),
  'wide': Case(dim=300, words=12),
  'wide_adagrad': Case(optimizer='adagrad', dim=512, words=6),
}
_QUICK = {
  'skipgram': ('plain', 'half_padding'),
  'cbow': ('plain',),
  'skipgram-tree': (),
  'cbow-tree': ('adagrad',),
}


def _all_cases():
  for model, quick in _QUICK.items():
    for name, case in _CASES.items():
      marks = () if name in quick else pytest.mark.slow
      case = case._replace(model=model)
      yield pytest.param(case, id=f'{model}-{name}', marks=marks)


@needs_compiler
@pytest.mark.parametrize('case', list(_all_cases()))
def test_a_call_is_that_of_the_loops(case, gpu):
  step_test.check_a_call(
    case._replace(way='xla'), _ERROR, 0.999, change=_fused(gpu, case)
  )


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
  'model', marking.slow_after(1, ['skipgram', 'cbow-tree'])
)
def test_gpus_without_tf32_multiply_float16(model, gpu):
  case = Case(model, dim=20, way='xla')
  step_test.check_a_call(case, _ERROR, change=_fused(gpu, case, halves=True))


@needs_compiler
@pytest.mark.parametrize(
  'model', marking.slow_after(1, ['skipgram', 'cbow-tree'])
)
def test_blocks_share_the_chunks(model, gpu):
  # One block after another: the order of chunks is that of one block.
  case = Case(model, size=56, way='xla')
  step_test.check_a_call(case, _ERROR, change=_fused(gpu, case, num_blocks=3))


def check_changes_are_rounded(case, change):
  """Compares a call with the loops; `change` changes what is called.

  The kernel rounds each change by itself, from what a row was: rows that come
  again, of which there are few, may have other numbers than the loops.
  """
  case = case._replace(vocab=3000, size=16, words=16)
  trainable = change(step_test._make(case))
  batch = step_test.dispatches.random_step(case)
  state, rate = step_test._state(case, trainable), np.float32(0.1)
  expected, *_ = step_test._loops(case, trainable, batch, state, float(rate))
  new, _ = step_test._program(trainable)(state, batch, rate)
  for k, table in new.tables.items():
    found = step_test._wide(table.vectors)
    before = step_test._wide(state.tables[k].vectors)
    # What is added has the spacing of the larger number; on its way a number
    # may have been as large as others in its row.
    largest = np.maximum(np.abs(before), np.abs(expected[k])).max(1)
    assert (np.abs(found - expected[k]).max(1) <= 2.0**-6 * largest).all()
    has_changed = (expected[k] != before).any(1)
    assert has_changed.sum() > 5
    assert (found == expected[k])[has_changed].mean() > 0.8
    assert (found == before)[~has_changed].all()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
  ('model', 'optimizer', 'dim'),
  marking.slow_after(
    1,
    [
      ('skipgram', 'sgd', 16),
      ('cbow', 'adagrad', 18),
      ('skipgram-tree', 'sgd', 18),
      ('cbow-tree', 'adagrad', 16),
    ],
  ),
)
def test_changes_of_low_precision_are_rounded(model, optimizer, dim, gpu):
  case = Case(model, optimizer, 'bfloat16', dim=dim, way='xla')
  check_changes_are_rounded(case, _fused(gpu, case))


@pytest.mark.slow
@needs_compiler
def test_stochastic_rounding_is_right_on_average(gpu):
  case = Case(dtype='bfloat16', vocab=300, dim=32, size=16, words=16, way='xla')
  trainable = step_test._make(case, **{'table.rounding': 'stochastic'})
  trainable = _fused(gpu, case)(trainable)
  batch = step_test.dispatches.random_step(case)
  state, rate = step_test._state(case, trainable), np.float32(0.01)
  call = step_test._program(trainable)
  # Draws depend on the key, and only rounding on the number of the step.
  found = [call(state, batch, rate, step_test.KEY, i)[0] for i in range(64)]
  exact, *_ = step_test._loops(
    case._replace(dtype='float32'), trainable, batch, state, float(rate)
  )
  for k in exact:
    rows = np.stack([step_test._wide(x.tables[k].vectors) for x in found])
    spacing = 2.0**-8 * np.abs(exact[k]) + 1e-6
    error = (rows.mean(0) - exact[k]) / spacing
    has_changed = (rows != rows[0]).any(0)
    assert has_changed.sum() > 200
    # A rounded number is off by at most one spacing, with variance 1/4; a word
    # that comes more often by more.
    assert np.abs(error[has_changed].mean()) < 0.02
    assert np.sqrt((error[has_changed] ** 2).mean()) < 4 / np.sqrt(64)


# What NVIDIA's compiler makes of it.


_VARIANTS = {
  'skipgram': windows.Variant('skipgram', 128, 16, 5, draws=24),
  'cbow': windows.Variant('cbow', 100, 16, 5, draws=24),
  'adagrad': windows.Variant('cbow', 128, 16, 5, adagrad=True, draws=24),
  'tree': windows.Variant('hierarchical', 128, 1, 5, firsts=12, deep=18),
  'bfloat16': windows.Variant(
    'skipgram', 128, 16, 5, 'bfloat16', True, draws=24
  ),
  'wide': windows.Variant('skipgram', 512, 16, 15, draws=24),
}  # fmt: skip


def _frame_bytes(program):
  """Bytes that each thread has in memory, from a cubin (an ELF file).

  `.nv.info` holds records of a format, an attribute and a size; that of frames
  has a symbol and its bytes.
  """
  sections = int.from_bytes(program[40:48], 'little')
  size, number = (
    int.from_bytes(program[i : i + 2], 'little') for i in (58, 60)
  )
  frames = []
  for k in range(number):
    header = program[sections + k * size :][:size]
    kind, start, length = (
      int.from_bytes(header[i : i + n], 'little')
      for i, n in ((4, 4), (24, 8), (32, 8))
    )
    if kind != 0x70000000:  # of CUDA's facts
      continue
    data = program[start : start + length]
    # Format 4 has a size; attribute 0x11 is the size of frames.
    for found in re.finditer(b'\x04\x11\x08\x00', data):
      frames.append(int.from_bytes(data[found.end() + 4 :][:4], 'little'))
  return frames


@nvrtc_test.needs_nvrtc
@pytest.mark.parametrize('capability', nvrtc_test.GENERATIONS)
def test_no_thread_spills_registers(capability):
  for name, variant in _VARIANTS.items():
    program = nvrtc.cubin(
      windows.SOURCE.read_text(), variant.macros(), capability
    )
    frames = _frame_bytes(program)
    assert frames and not any(frames), (name, frames)


def test_shared_memory_fits_the_devices_that_are_named():
  for name, most in {
    'skipgram': 64 << 10,  # a T4
    'wide': 227 << 10,  # an H100
  }.items():
    assert not _VARIANTS[name].refusal(most)
  assert 'shared memory' in _VARIANTS['wide'].refusal(64 << 10)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize('name', _VARIANTS)
def test_shared_memory_is_that_of_the_source(name, compiled):
  variant = _VARIANTS[name]
  needed = compiled(variant).shared_size()
  assert needed <= variant.shared_bytes < needed + 64
