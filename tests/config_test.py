"""Settings: what they accept, what they become, what may change on resuming."""

import dataclasses
import functools
import json
import math
import types

import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.run import devices as devices_lib
from jaxemb.run import rundir
from jaxemb.strategies import replicas
from tests import dispatches

_SYNC = {'strategy.name': 'sync'}
_TREE = {'model.loss': 'hierarchical_softmax'}
_SUBWORDS = {'model.subwords': '3-6'}


def _config(settings):
  return config_lib.check(config_lib.default(), settings)


def test_every_setting_is_declared_in_full():
  settings = config_lib.settings()
  members = kinds.members()
  assert members.keys() <= settings.keys()
  declared = [x.name for x in kinds.CORE]
  by_folder = {type(x).__module__.split('.')[1]: x for x in kinds.built_in()}
  for kind in by_folder.values():
    if kind.start not in ('mixture', 'documents'):  # they have those of text
      declared += [x.name for x in kind.settings]
  assert len(declared) == len(set(declared))
  for x in settings.values():
    assert x.help and '\n' not in x.help
    has_limits = x.values and not isinstance(x.values[0], str)
    assert bool(has_limits) == (type(x.default) in (int, float)), x.name
    x.check(x.default, members.get(x.name))
    other, _, values = (x.only_with or 'model.name=cbow').partition('=')
    for value in values.split('|'):
      settings[other].check(value, members.get(other))
  assert _config({}) == config_lib.default()
  optional = {x.name for x in kinds.CORE if x.optional}
  assert optional == {y for x in kinds.built_in() for y in x.uses} | {
    'model.temperature'
  }


@pytest.mark.parametrize(
  ('layout', 'parts', 'shape', 'multiple'),
  [
    ('replicated', 0, (1, 1), 16),
    ('replicated', 0, (8, 1), 16 * 8),
    ('row', 0, (1, 8), 16 * 8),
    ('row', 4, (1, 8), 16 * 4 * 2),  # two devices to a part
    ('row', 8, (1, 8), 16 * 8),
    ('column', 0, (2, 4), 16 * 2),
  ],
)
def test_each_device_has_whole_chunks(layout, parts, shape, multiple):
  config = _config({**_SYNC, 'table.layout': layout})
  fixed = {'parts': parts} if parts else {}
  for words in (multiple, 3 * multiple):
    config.train.batch_words = words
    resolved, tuning = config_lib.resolve(config, 'cpu', shape, **fixed)
    assert resolved.train.batch_words == words
    assert tuning.parts == parts or not parts
    assert tuning.part_words == words // tuning.parts
  config.train.batch_words = multiple + 16 if multiple > 16 else 24
  with pytest.raises(errors.UserError, match=f'multiple of {multiple}'):
    config_lib.resolve(config, 'cpu', shape, **fixed)


@pytest.mark.parametrize(
  ('layout', 'batch_words', 'shapes', 'parts'),
  [
    ('replicated', 0, [(1, 1), (2, 1), (4, 1), (8, 1)], 8),
    ('row', 256, [(1, 4), (2, 4), (4, 2)], 8),
    ('column', 64, [(1, 2), (2, 2), (4, 1)], 4),
    ('replicated', 0, [(3, 1)], 24),  # which does not divide eight
  ],
)
def test_the_text_is_cut_alike_on_every_mesh(
  layout, batch_words, shapes, parts
):
  settings = {'table.layout': layout, 'train.batch_words': batch_words}
  config = _config({**_SYNC, 'train.fused': False, **settings})
  tunings = [config_lib.resolve(config, 'cpu', shape)[1] for shape in shapes]
  assert {x.parts for x in tunings} == {parts}
  assert len({x.part_words for x in tunings}) == 1


@pytest.mark.parametrize(
  ('expected', 'settings', 'platform'),
  [
    (True, {}, 'gpu'),
    (True, _SYNC, 'gpu'),
    (True, {'data.source': 'graph', 'model.name': 'cbow'}, 'gpu'),
    (True, {}, 'cpu'),
    (True, _SYNC, 'cpu'),
    (False, {'optimizer.name': 'adam'}, 'cpu'),
    (False, {'strategy.name': 'partition'}, 'cpu'),
    (False, {'table.store': 'memory'}, 'cpu'),
    (False, {'strategy.name': 'partition'}, 'gpu'),
    (False, {'table.store': 'memory'}, 'gpu'),
    (False, {'data.source': 'clicks', 'model.name': 'fm'}, 'gpu'),
  ],
)
def test_devices_make_batches_of_words(expected, settings, platform):
  tuning = config_lib.resolve(_config(settings), platform, (1, 1))[1]
  assert bool(tuning.device_words) == expected
  by_xla = _config({**settings, 'train.fused': False})
  slower = config_lib.resolve(by_xla, platform, (1, 1))[1]
  if platform == 'cpu':  # whose threads make them, and not XLA
    assert not slower.device_words
  else:
    assert 4 * slower.device_words == tuning.device_words


@pytest.mark.parametrize(
  ('expected', 'settings', 'platform', 'shape'),
  [
    (True, {'model.name': 'cbow'}, 'cpu', (1, 1)),
    (True, {'optimizer.name': 'adagrad'}, 'cpu', (4, 1)),
    (True, _SYNC, 'cpu', (1, 1)),
    (False, _SYNC, 'cpu', (2, 1)),
    (False, {**_SYNC, 'table.layout': 'column'}, 'cpu', (1, 1)),
    (False, {'table.dtype': 'int8'}, 'cpu', (1, 1)),
    (False, {'optimizer.name': 'adam'}, 'cpu', (1, 1)),
    (False, {'model.name': 'mixture', 'senses.number': 1}, 'cpu', (1, 1)),
    (False, {'train.fused': False}, 'cpu', (1, 1)),
    (True, _SUBWORDS, 'cpu', (1, 1)),
    (True, {**_SUBWORDS, 'model.name': 'cbow'}, 'cpu', (2, 1)),
    (False, {**_SUBWORDS, 'table.store': 'memory'}, 'cpu', (1, 1)),
    (False, _SUBWORDS, 'gpu', (1, 1)),
    (True, {}, 'gpu', (1, 1)),
    (True, {'table.dtype': 'bfloat16'}, 'gpu', (4, 1)),
    (True, {'model.loss': 'hierarchical_softmax'}, 'gpu', (1, 1)),
    (True, {'strategy.name': 'partition'}, 'gpu', (1, 1)),
    (True, {'model.dim': 512, 'model.window': 15}, 'gpu', (1, 1)),
    (False, {'model.dim': 513}, 'gpu', (1, 1)),
    (False, {'model.window': 16}, 'gpu', (1, 1)),
    (False, {'table.store': 'memory'}, 'gpu', (1, 1)),
    (False, {'strategy.name': 'workers'}, 'gpu', (1, 1)),
    (False, _SYNC, 'gpu', (2, 1)),
    (False, {'optimizer.name': 'adam'}, 'gpu', (1, 1)),
    (False, {}, 'tpu', (1, 1)),
  ],
)
def test_a_kernel_takes_the_steps_that_it_can(
  expected, settings, platform, shape
):
  config = _config(settings)
  for given, fused in (({}, expected), ({'fused': False}, False)):
    _, tuning = config_lib.resolve(config, platform, shape, **given)
    assert tuning.fused == fused


def test_threads_share_the_cores_of_a_device():
  for expected, settings, shape, given in (
    (3, {}, (1, 1), {}),
    (3, {}, (2, 1), {}),  # each in a process of its own
    (7, {'train.threads': 7}, (1, 1), {}),
    (1, {}, (1, 1), {'fused': False}),
    (2, {}, (1, 1), {'threads': 2}),
    (2, {'train.threads': 2}, (2, 1), {}),
    # Sub-models have the same bits again.
    (1, {'strategy.name': 'partition'}, (1, 1), {}),
  ):
    _, tuning = config_lib.resolve(_config(settings), 'cpu', shape, 3, **given)
    assert tuning.threads == expected
  # Of many cores no more than are fine, which are far apart in a step.
  config, tuning = config_lib.resolve(_config({}), 'cpu', (1, 1), 200)
  assert tuning.threads == 64 and config.train.batch_words == 65_536
  config = _config({'train.threads': 2, 'optimizer.name': 'adam'})
  with pytest.raises(errors.UserError, match='threads=2 is only used where a'):
    config_lib.resolve(config, 'cpu', (1, 1))


def test_blocks_of_a_gpu_have_a_limit_of_words_in_flight():
  def choose(settings, shape=(1, 1), multiprocessors=132):
    return config_lib.resolve(_config(settings), 'gpu', shape, multiprocessors)

  tree = {'model.loss': 'hierarchical_softmax'}
  for blocks, words, settings, shape, multiprocessors in (
    (132, 16_896, {}, (1, 1), 132),
    (132, 16_896, {}, (1, 1), 160),
    (40, 16_384, {}, (1, 1), 40),
    (160, 16_384, tree, (1, 1), 160),  # of one center each
    (264, 33_792, {'train.threads': 264}, (1, 1), 132),
    (132, 16_896, {'strategy.name': 'partition'}, (1, 1), 132),
    # Between exchanges of replicas, but all blocks have a chunk.
    (132, 2112, {}, (8, 1), 132),
    (132, 4096, {'train.batch_words': 4096}, (1, 1), 132),
    (1, 2048, {'model.dim': 600}, (1, 1), 132),  # by XLA
  ):
    config, tuning = choose(settings, shape, multiprocessors)
    assert (tuning.threads, config.train.batch_words) == (blocks, words)
    assert tuning.steps_per_loop == (4 if tuning.fused else 16)
  # As on a CPU.
  config, _ = choose({'optimizer.name': 'sgd'})
  assert config.optimizer.learning_rate == 0.035
  assert config.optimizer.max_duplicates == 0


def test_without_a_kernel_of_steps_a_gpu_has_one_that_sums_rows():
  for given, settings, sums in (
    ({}, {}, False),
    ({'fused': False}, {}, True),
    ({}, {'optimizer.name': 'adam'}, True),
    ({}, {'train.fused': False}, False),
  ):
    _, tuning = config_lib.resolve(_config(settings), 'gpu', (1, 1), **given)
    assert tuning.row_sums == sums and not tuning.row_threads


@pytest.mark.parametrize(
  ('platform', 'settings', 'expected'),
  [
    ('gpu', {}, (2048, 0.03, 16)),
    ('gpu', {'train.batch_words': 8192}, (8192, 0.03, 8)),
    ('gpu', {'strategy.name': 'partition', 'strategy.num_parts': 4},
     (256, 0.04, 16)),
    ('gpu', {**_TREE, 'strategy.name': 'partition', 'strategy.num_parts': 4},
     (256, 0.02, 8)),
    ('gpu', _TREE, (256, 0.02, 8)),
    ('cpu', _TREE, (256, 0.02, 8)),
    ('gpu', {**_TREE, 'train.batch_words': 512}, (512, 0.005, 16)),
    ('gpu', {**_TREE, 'model.name': 'cbow'}, (256, 0.1, 16)),
    ('gpu', {**_TREE, 'optimizer.name': 'adagrad'}, (2048, 0.1, -1)),
  ],
)  # fmt: skip
def test_short_steps_by_xla_have_rates_of_their_own(
  platform, settings, expected
):
  config, _ = config_lib.resolve(
    _config(settings), platform, (1, 1), fused=False
  )
  o = config.optimizer
  found = config.train.batch_words, o.learning_rate, o.max_duplicates
  assert found == expected


@pytest.mark.parametrize(
  ('name', 'fused', 'expected'),
  [
    ('skipgram', True, 0.035),
    ('skipgram', False, 0.03),
    ('cbow', True, 0.1),
    ('cbow', False, 0.05),
  ],
)
def test_rates_of_words_with_subwords(name, fused, expected):
  config = _config({**_SUBWORDS, 'model.name': name})
  config, _ = config_lib.resolve(config, 'cpu', (1, 1), fused=fused)
  assert config.optimizer.learning_rate == expected


_fitted = functools.partial(config_lib.fitted_batch_words, platform='gpu')


def test_steps_by_a_gpus_kernel_follow_the_size_of_the_text():
  config, tuning = config_lib.resolve(_config({}), 'gpu', (1, 1), 132)
  for words, expected in (
    (1e5, 16_896), (82e6, 208_896), (1e12, 1 << 20), (400 * 16_900, 17_408),
  ):  # fmt: skip
    assert _fitted(config, tuning, words) == expected
  # Where few words share fewer blocks.
  tuning = dataclasses.replace(tuning, threads=2)
  assert _fitted(config, tuning, 1e4) == 256
  # Other devices have larger chunks.
  tuning = dataclasses.replace(tuning, threads=1, chunk=8)
  assert _fitted(config, tuning, 400 * 90) == 128
  # The host makes the batches of sub-models, of many steps.
  apart = _config({'strategy.name': 'partition', 'strategy.num_parts': 4})
  apart = config_lib.resolve(apart, 'gpu', (1, 1), 132)
  assert _fitted(*apart, 1e12) == 1 << 17
  tree = _config({'model.loss': 'hierarchical_softmax'})
  config, tuning = config_lib.resolve(tree, 'gpu', (1, 1), 132)
  assert _fitted(config, tuning, 1e4) % 64 == 0


def test_steps_by_a_cpus_kernel_follow_the_size_of_the_text():
  resolved = config_lib.resolve(_config({}), 'cpu', (1, 1), 2)
  for words, expected in ((1e5, 16_384), (400e5, 100_352), (1e12, 1 << 17)):
    found = config_lib.fitted_batch_words(*resolved, words, platform='cpu')
    assert found == expected


@pytest.mark.parametrize(
  ('settings', 'shape', 'words', 'expected'),
  [
    ({}, (1, 1), 10e6, 256),
    ({}, (1, 1), 82e6, 1024),
    ({}, (1, 1), 1e12, 2048),
    # Their rates are those of short steps.
    (_TREE, (1, 1), 1e12, 256),
    ({'strategy.name': 'partition', 'strategy.num_parts': 4}, (1, 1), 1e12,
     256),
    ({'optimizer.name': 'adagrad', 'strategy.name': 'replicas'}, (2, 1),
     82e6, 1024),
    # Not shorter than a chunk of each part.
    ({**_SYNC, 'model.loss': 'hierarchical_softmax', 'table.layout': 'row'},
     (1, 1), 10e6, 512),
  ],
)  # fmt: skip
def test_steps_by_xla_follow_the_size_of_the_text(
  settings, shape, words, expected
):
  resolved = config_lib.resolve(_config(settings), 'gpu', shape, fused=False)
  fitting = _fitted(*resolved, words)
  config, tuning = config_lib.with_step(*resolved, fitting)
  assert config.train.batch_words == expected
  num_parts = tuning.parts if config.strategy.name == 'sync' else 1
  assert tuning.part_words * num_parts == expected


def test_words_in_flight_are_those_that_do_not_see_each_other():
  tree = {'model.loss': 'hierarchical_softmax'}
  by_xla = {'train.fused': False, 'train.batch_words': 1024}
  for expected, settings, platform, shape in (
    (3 * 16, {}, 'cpu', (1, 1)),
    (3, tree, 'cpu', (1, 1)),
    (16, {'train.threads': 1}, 'cpu', (2, 1)),  # of each replica
    (3 * 16, {}, 'gpu', (1, 1)),
    (1024, by_xla, 'cpu', (1, 1)),
    (1024, by_xla, 'gpu', (4, 1)),
    (1024, by_xla | _SYNC, 'gpu', (4, 1)),
    (1024, by_xla | {'strategy.name': 'partition'}, 'gpu', (4, 1)),
  ):
    config, tuning = config_lib.resolve(_config(settings), platform, shape, 3)
    mesh = types.SimpleNamespace(size=math.prod(shape))
    setup = devices_lib.Setup(config, tuning, mesh, kinds.of(config))
    assert setup.words_in_flight == expected


@pytest.mark.parametrize('name', ['ctr', 'graphsage'])
def test_a_rate_is_constant_unless_a_final_one_is_given(name):
  first = config_lib.load(name).optimizer.learning_rate
  for values, expected in (
    ({'learning_rate': 0.5}, (0.5, 0.5)),
    ({'final_learning_rate': 0.25}, (first, 0.25)),
    ({'final_learning_rate': 0.25, 'learning_rate': 0.5}, (0.5, 0.25)),
  ):
    settings = {f'optimizer.{k}': x for k, x in values.items()}
    found = config_lib.load(name, settings).optimizer
    assert (found.learning_rate, found.final_learning_rate) == expected


@pytest.mark.parametrize('name', ['sync', 'partition'])
def test_policies_that_are_strategies(name):
  policy = {'sync': 'bsp', 'partition': 'never'}[name]
  settings = {'strategy.policy': policy, 'mesh.data': 3}
  more = {} if name == 'sync' else {'strategy.merge': 'pca'}
  config = _config(settings | more)
  other = {'mesh.data': 3, 'strategy.name': name}
  if name == 'partition':
    other |= {'strategy.num_parts': 3, 'strategy.merge': 'pca'}
  assert config.to_dict() == _config(other).to_dict()


def test_hot_rows_have_synchronisations_of_their_own():
  settings = {'strategy.policy': 'hot', 'strategy.hot_every': 5000}
  _, tuning = config_lib.resolve(_config(settings), 'cpu', (2, 1))
  assert tuning.sync_words == 5000
  config = _config(settings | {'strategy.sync_every': 4999})
  with pytest.raises(errors.UserError, match='sync_every=4999 is less than'):
    config_lib.resolve(config, 'cpu', (2, 1))


@pytest.mark.parametrize(
  ('settings', 'fused', 'expected'),
  [
    ({}, True, 32_768),
    ({'train.threads': 32}, True, 32_768),
    ({'strategy.sync_every': 4096}, True, 4096),
    ({}, False, 8192),
    ({'strategy.pace': 'bsp'}, True, 1),
  ],
)
def test_rounds_of_workers_have_steps_that_fit(settings, fused, expected):
  settings = {'strategy.name': 'workers', 'train.fused': fused, **settings}
  config, tuning = config_lib.resolve(_config(settings), 'cpu', (1, 1))
  assert tuning.sync_words == expected
  if settings.get('strategy.pace') != 'bsp':
    assert config.train.batch_words <= min(8192, expected)


@pytest.mark.parametrize(
  ('sync_every', 'steps_per_loop', 'expected'),
  [
    (0, 16, (4, 4)),  # what an accelerator has
    (20 * 8192, 16, (20, 10)),
    (5 * 8192, 1, (5, 1)),
  ],
)
def test_replicas_run_no_loops_of_padding(
  monkeypatch, sync_every, steps_per_loop, expected
):
  monkeypatch.setattr(
    replicas,
    'replicas',
    lambda trainable, _, make: (
      make(2).every_steps,
      trainable.steps_per_loop,
    ),
  )
  settings = {
    'strategy.sync_every': sync_every, 'train.batch_words': 8192
  }  # fmt: skip
  made = dispatches.trainer(
    np.full(40, 100), settings, (2, 1), steps_per_loop=steps_per_loop
  )
  assert made.strategy == expected


def test_the_only_metric_is_not_one_of_several():
  with pytest.raises(errors.UserError, match='choose mrr$'):
    config_lib.load('graph:relations', {'eval.monitor': 'mrr,hits@10'})


def test_a_run_is_resumed_with_settings_that_may_change(tmp_path):
  config = _config({**_SYNC, 'mesh.data': 1})
  begun, tuning = config_lib.resolve(config, 'cpu', (1, 1))
  rundir.check(begun, tmp_path)  # nothing is there
  rundir.record(begun.to_dict(), tuning, tmp_path, 'text')
  recorded = rundir.recorded(tmp_path)
  assert recorded['tuning.parts'] == 1 and recorded['model.dim'] == 100
  # A version with other defaults.
  earlier = recorded | {'model.shared_negatives': 7}
  goes_on, *_ = devices_lib.choose(
    config.copy_and_resolve_references(), earlier
  )
  assert goes_on.model.shared_negatives == 7
  rundir.check(begun, tmp_path)
  # Another device, or one without a kernel, which would choose other steps.
  there, other, *_ = devices_lib.choose(config, recorded, fused=False)
  assert other.fused != tuning.fused and other.parts == tuning.parts
  assert other.device_words == tuning.device_words > 0
  there.train.log_every_secs, there.eval.paths = 9.0, 'x'
  rundir.check(there, tmp_path)
  old = config.to_dict()
  old['data']['parts'] = 1
  for text, words in (
    (json.dumps(old), 'another version of jaxemb'),
    ('[1', 'does not hold the settings'),
  ):
    (tmp_path / 'config.json').write_text(text)
    with pytest.raises(errors.UserError, match=words):
      rundir.check(config, tmp_path)


@pytest.mark.parametrize(
  ('name', 'args', 'available', 'words'),
  [
    ('no_such_module:x', (), {}, 'adagrad_full, adam_full or module:attribute'),
    ('half_written:make', (), {}, 'half_written.py, line 1'),
    ('operator:add', (1,), {}, "missing a required argument: 'b'"),
    ('operator:neg', (1, 2), {'a': 3}, 'argument'),
  ],
)
def test_members_that_cannot_be_used_are_one_line(
  tmp_path, monkeypatch, name, args, available, words
):
  (tmp_path / 'half_written.py').write_text('def make(\n')
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(errors.UserError) as caught:
    kinds.bind('optimizer.name', name, args, available)
  assert f'config.optimizer.name={name}' in str(caught.value)
  assert words in str(caught.value) and '\n' not in str(caught.value)
