"""What a GPU's kernel of whole steps gets, by a fake of the driver's launch."""

import ctypes
import types

import jax
import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb.data import windows as windows_data
from jaxemb.kernels import ffi
from jaxemb.kernels.gpu import driver, launch, nvrtc, step
from jaxemb.strategies import base
from tests import dispatches, oracle

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 11)
_DIGEST, _VOCAB, _WINDOW, _CHUNK, _SIZE = 77, 300, 3, 8, 32
_NAMES = (
  'numbers', 'integers', 'tokens', 'left', 'right', 'chunk_numbers',
  'input_brakes', 'output_brakes', 'a', 'b', 'c', 'totals', 'inputs',
  'outputs', 'input_state', 'output_state',
)  # fmt: skip
_CHANGED = 5


class _Gpu:
  """Records what launches get; adds 1, 2, ... 5 to what they change."""

  def __init__(self):
    self.calls, self.shapes = [], {}
    self._fake = _LAUNCH(self._launch)
    launch.register('cpu')
    address = ctypes.cast(self._fake, ctypes.c_void_p).value
    launch.put(_DIGEST, 1, launcher=address)

  def _launch(self, kernel, blocks, *numbers):
    """Reads arrays by their shapes."""
    places = ctypes.cast(numbers[-2], ctypes.POINTER(ctypes.c_void_p))
    num = len(_NAMES) + _CHANGED
    addresses = [
      ctypes.cast(places[i], ctypes.POINTER(ctypes.c_void_p))[0]
      for i in range(num)
    ]
    assert addresses[-_CHANGED:] == addresses[-2 * _CHANGED : -_CHANGED]
    arrays = {}
    for name, address in zip(_NAMES, addresses, strict=False):
      shape, dtype = self.shapes[name]
      size = int(np.prod(shape)) * np.dtype(dtype).itemsize
      buffer = (ctypes.c_char * size).from_address(address)
      arrays[name] = np.frombuffer(buffer, dtype).reshape(shape)
    self.calls.append(
      {k: x.copy() for k, x in arrays.items()}
      | {'blocks': blocks, 'threads': numbers[2], 'shared': numbers[5]}
    )
    for i, name in enumerate(_NAMES[-_CHANGED:]):
      arrays[name][...] += i + 1
    return 0


@pytest.fixture(name='gpu')
def _gpu():
  return _Gpu()


def _make(settings, num_blocks=3, num_parts=1):
  """A trainable whose steps a kernel takes, which is not compiled."""
  settings = {
    'model.name': 'skipgram', 'model.dim': 6, 'model.window': _WINDOW,
    'model.negatives': 5, 'strategy.name': 'sync', 'train.fused': False,
    'train.batch_words': num_parts * _SIZE,
  } | settings  # fmt: skip
  if settings.get('model.loss') != 'hierarchical_softmax':
    settings['model.shared_negatives'] = 4
  made = dispatches.trainer(
    np.arange(_VOCAB, 0, -1),
    settings,
    steps=windows_data.Steps(_SIZE, num_parts, _WINDOW, _CHUNK),
    parts=num_parts,
    chunk=_CHUNK,
    shared_nodes=4,
  )
  optimizer = {'name': settings['optimizer.name'], 'max_duplicates': 2.0}
  optimizer['epsilon'] = 1e-6
  spec = made.trainable.tables['input'].spec
  table = {'dtype': spec.dtype, 'rounding': spec.rounding}
  variant = step.variant(made.trainable.model, table, optimizer)
  parameter = optimizer['epsilon' if variant.adagrad else 'max_duplicates']
  kernel = step.Kernel(variant, _DIGEST, parameter, num_blocks=num_blocks)
  return made.trainable, kernel


def _batch(num_parts=1):
  rng, runs = np.random.default_rng(0), []
  for _ in range(num_parts):
    sentences = oracle.random_sentences(rng, _VOCAB, _SIZE, (2, 5, 9))
    tokens = oracle.pack(sentences, _VOCAB, _SIZE, _WINDOW, rng)
    runs.append(tokens)
  chunks = 100 + np.arange(num_parts * _SIZE // _CHUNK, dtype=np.uint32)
  return windows_data.StepBatch(*map(np.stack, zip(*runs, strict=True)), chunks)


def _call(gpu, trainable, kernel, batch, stream=0, measure=True):
  """The state before and after a step, its metrics, and the launches."""
  model, brakes = trainable.model, [0] * 2
  state = jax.jit(trainable.init)(jax.random.key(1))
  before = jax.tree.map(np.asarray, state)
  specs = [trainable.tables[x].spec for x in ('input', 'output')]
  others = (kernel.num_blocks - 1) * kernel.variant.chunk
  brakes = [step.brakes.of_rows(x.lookups_per_center, others) for x in specs]
  constants, _ = step._constants(model)
  tables = [state.tables[x] for x in ('input', 'output')]
  states = [jax.tree.leaves(x.opt_state)[0] for x in tables]
  arrays = [*brakes, *constants, np.zeros(2, np.float32)]
  arrays += [*(x.vectors for x in tables), *states]
  gpu.shapes = {
    'numbers': ((3 + _WINDOW,), np.float32), 'integers': ((10,), np.int32),
    'tokens': (batch.tokens.shape[1:], np.int32),
    'left': (batch.left.shape[1:], np.uint8),
    'right': (batch.right.shape[1:], np.uint8),
    'chunk_numbers': ((_SIZE // _CHUNK,), np.uint32),
  } | {
    k: (x.shape, x.dtype) for k, x in zip(_NAMES[6:], arrays, strict=True)
  }  # fmt: skip

  def take(state, batch):
    context = base.StepContext(
      index=3,
      key=dispatches.KEY,
      learning_rate=np.float32(0.5),
      measure=measure,
      devices=base.Devices(None, stream),
    )
    carry = state, trainable.no_metrics()
    return kernel(trainable, batch, context, carry)

  new, metrics = jax.jit(take, donate_argnums=0)(state, batch)
  return before, jax.tree.map(np.asarray, new), metrics, brakes


def _signed(numbers):
  return np.asarray(numbers, np.uint32).view(np.int32)


def test_a_launch_gets_what_the_kernel_reads_and_changes(gpu):
  trainable, kernel = _make({'optimizer.name': 'sgd'}, num_blocks=300)
  batch = _batch()
  before, after, metrics, brakes = _call(gpu, trainable, kernel, batch)
  (call,) = gpu.calls
  # No more blocks than chunks.
  assert call['blocks'] == _SIZE // _CHUNK
  assert call['threads'] == kernel.variant.threads
  assert call['shared'] == kernel.variant.shared_bytes
  # Weights by distance, with the sum of windows of 1 to 3 on average.
  weights = np.array([1, 1 / 2, 1 / 3]) * 2 / (11 / 6)
  np.testing.assert_allclose(call['numbers'], [0.5, 2, 5 / 4, *weights], 1e-6)
  entries = trainable.model.negatives.lines.size // 2
  assert len(brakes[0]) > 1 < len(brakes[1])
  np.testing.assert_array_equal(
    call['integers'],
    [
      4, _VOCAB, *_signed(dispatches.KEY), 0, 0, *map(len, brakes), entries,
      64,
    ],
  )  # fmt: skip
  for name in ('tokens', 'left', 'right'):
    np.testing.assert_array_equal(call[name], getattr(batch, name)[0])
  np.testing.assert_array_equal(call['chunk_numbers'], batch.chunks)
  np.testing.assert_array_equal(call['input_brakes'], brakes[0])
  np.testing.assert_array_equal(call['output_brakes'], brakes[1])
  np.testing.assert_array_equal(call['a'], trainable.model.negatives.lines)
  np.testing.assert_array_equal(call['totals'], [0, 0])
  for i, name in enumerate(('input', 'output')):
    old, new = before.tables[name], after.tables[name]
    given = call[f'{name}s'], call[f'{name}_state']
    np.testing.assert_array_equal(given[0], old.vectors)
    np.testing.assert_array_equal(new.vectors, old.vectors + 2 + i)
    old, new = (jax.tree.leaves(x.opt_state)[0] for x in (old, new))
    np.testing.assert_array_equal(given[1], old)
    np.testing.assert_array_equal(new, old + 4 + i)
  assert metrics.loss == metrics.examples == 1


def test_parts_of_the_text_are_launched_one_after_the_other(gpu):
  trainable, kernel = _make({'optimizer.name': 'sgd'}, num_parts=2)
  batch = _batch(2)
  before, after, metrics, _ = _call(gpu, trainable, kernel, batch)
  for i, call in enumerate(gpu.calls):
    np.testing.assert_array_equal(call['tokens'], batch.tokens[i])
    np.testing.assert_array_equal(call['left'], batch.left[i])
    chunks = batch.chunks[4 * i :][:4]
    np.testing.assert_array_equal(call['chunk_numbers'], chunks)
    assert call['integers'][0] == 4
    assert call['blocks'] == 3
    # It goes on with what the one before has left.
    np.testing.assert_array_equal(call['totals'], [i, i])
    vectors = before.tables['input'].vectors + 2 * i
    np.testing.assert_array_equal(call['inputs'], vectors)
  assert len(gpu.calls) == 2 == metrics.loss
  vectors = before.tables['output'].vectors + 3 + 3
  np.testing.assert_array_equal(after.tables['output'].vectors, vectors)


def test_a_tree_is_given_its_paths_and_the_centers_one_by_one(gpu):
  tree = {'model.loss': 'hierarchical_softmax', 'optimizer.name': 'adagrad'}
  trainable, kernel = _make({'model.name': 'cbow'} | tree, num_blocks=9)
  split = trainable.model.tree.split
  _call(gpu, trainable, kernel, _batch())
  (call,) = gpu.calls
  for name, expected in zip('abc', split[:1] + split[2:], strict=True):
    np.testing.assert_array_equal(call[name], expected)
  assert call['integers'][0] == _SIZE and call['blocks'] == 9
  assert tuple(call['integers'][8:]) == (0, 64 * _CHUNK)
  np.testing.assert_array_equal(call['numbers'][:2], np.float32([0.5, 1e-6]))
  variant = kernel.variant
  assert (variant.chunk, variant.averages, variant.adagrad) == (1, True, True)
  assert variant.firsts == split.firsts.shape[1]
  assert variant.deep == split.deep.shape[1]
  assert kernel.words_in_flight == 9


@pytest.mark.parametrize('rounding', ['stochastic', 'nearest'])
def test_rows_of_low_precision_are_rounded_by_a_key_of_the_step(rounding, gpu):
  settings = {'table.dtype': 'bfloat16', 'table.rounding': rounding}
  trainable, kernel = _make({'optimizer.name': 'sgd'} | settings)
  is_stochastic = rounding == 'stochastic'
  assert kernel.variant.stochastic == is_stochastic
  keys = []
  for stream in (0, 1):
    _call(gpu, trainable, kernel, _batch(), stream)
    keys.append(gpu.calls[-1]['integers'][4:6].tolist())
  assert (keys[0] != keys[1]) == is_stochastic
  assert (keys[0] == [0, 0]) != is_stochastic
  assert gpu.calls[0]['inputs'].dtype == np.uint16


def test_a_step_whose_loss_is_not_measured_says_so(gpu):
  trainable, kernel = _make({'optimizer.name': 'sgd'})
  _call(gpu, trainable, kernel, _batch(), measure=np.False_)
  assert gpu.calls[0]['integers'][9] == 0


# Making: compiled, loaded, and put into the table of the process.


def _device(**changes):
  facts = {
    'platform': 'gpu', 'device_kind': 'a GPU', 'compute_capability': '9.0',
    'core_count': 132, 'shared_memory_per_block_optin': 232_448,
    'local_hardware_id': 0,
  }  # fmt: skip
  return types.SimpleNamespace(**facts | changes)


@pytest.fixture(name='loaded')
def _loaded(monkeypatch):
  """Programs as they are compiled and loaded on devices that are here."""
  loaded = types.SimpleNamespace(cubins=0, ordinals=[])
  here = [_device(), _device(local_hardware_id=3)]

  def cubin(source, macros, **more):
    loaded.cubins += 1
    assert 'train' in source and macros['CHUNK'] == _CHUNK
    assert more['capability'] == 90 and more['newest'] == 13
    return b'cubin'

  def load(program, name, shared_bytes, ordinals):
    loaded.ordinals.append(ordinals)
    assert (program, name) == (b'cubin', 'train')
    return 4321

  monkeypatch.setattr(jax, 'local_devices', lambda: here)
  monkeypatch.setattr(launch, 'register', lambda: None)
  monkeypatch.setattr(nvrtc, 'cubin', cubin)
  monkeypatch.setattr(driver, 'cuda_version', lambda: 13)
  monkeypatch.setattr(driver, 'load', load)
  monkeypatch.setattr(driver, 'launcher', lambda: 1)
  monkeypatch.setattr(step, '_compiling', {})
  monkeypatch.setattr(step, '_loaded', {})
  return here, loaded


_SGD = {'name': 'sgd', 'max_duplicates': 0.0}


def test_a_kernel_is_loaded_once_where_it_is_needed(loaded):
  here, counted = loaded
  _, kernel = _make({'optimizer.name': 'sgd', 'model.dim': 33})
  absent = [_device(local_hardware_id=None)]
  first = step.make(kernel.variant, _SGD, 5, devices=absent)
  assert not counted.ordinals
  # On one device, then on both, which are to have its shared memory.
  for devices in (here[1:], here[1:], here, here, here[:1]):
    made = step.make(kernel.variant, _SGD, 5, devices=devices)
    assert made == first
  assert counted.ordinals == [[3], [0, 3]] and counted.cubins == 1
  _, other = _make({'optimizer.name': 'sgd', 'model.dim': 34})
  assert step.make(other.variant, _SGD, 5, devices=absent).digest != made.digest


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'compute_capability': '7.0'}, 'compute capability 7.0'),
    ({'shared_memory_per_block_optin': 100}, 'shared memory'),
    ({'compute_capability': '8.0'}, 'several generations'),
  ],
)
def test_gpus_that_cannot_have_it_are_one_line(change, message, loaded):
  here, _ = loaded
  _, kernel = _make({'optimizer.name': 'sgd', 'model.dim': 35})
  here[1].__dict__.update(change)
  with pytest.raises(ffi.Unavailable, match=message):
    step.make(kernel.variant, _SGD, 5, devices=here)


@pytest.mark.parametrize('name', ['skipgram', 'cbow'])
@pytest.mark.parametrize('optimizer', ['sgd', 'adagrad'])
def test_the_kernel_of_the_data_is_the_one_that_settings_lead_to(
  name, optimizer
):
  settings = {
    'model.name': name, 'optimizer.name': optimizer, 'table.dtype': 'bfloat16',
  }  # fmt: skip
  _, kernel = _make(settings)
  config = config_lib.check(
    config_lib.default(),
    settings
    | {
      'model.dim': 6, 'model.window': _WINDOW, 'model.shared_negatives': 4,
      'optimizer.max_duplicates': 2.0,
    },
  )  # fmt: skip
  assert step.expected(config.to_dict(), _CHUNK) == kernel.variant
  tree = {'model.loss': 'hierarchical_softmax'}
  tree = config_lib.check(config_lib.default(), tree)
  assert step.expected(tree.to_dict(), _CHUNK) is None
  assert step.fitting_chunk(tree.to_dict(), 64, shared_bytes=0) == 64


def test_a_chunk_is_halved_where_its_rows_have_no_room():
  settings = {
    'model.dim': 300, 'model.window': 5, 'model.shared_negatives': 24,
  }  # fmt: skip
  config = config_lib.check(config_lib.default(), settings).to_dict()
  for shared_bytes, expected in ((232_448, 16), (101_376, 8)):
    assert step.fitting_chunk(config, 16, shared_bytes) == expected
  with pytest.raises(ffi.Unavailable, match='shared memory'):
    step.fitting_chunk(config, 16, 65_536)


def test_whatever_fails_is_one_line(loaded, monkeypatch):
  def fail(*args, **more):
    raise RuntimeError('no\nsuch thing')

  monkeypatch.setattr(nvrtc, 'cubin', fail)
  _, kernel = _make({'optimizer.name': 'sgd', 'model.dim': 36})
  with pytest.raises(ffi.Unavailable, match='^no such thing$'):
    step.make(kernel.variant, _SGD, 5, devices=loaded[0])
