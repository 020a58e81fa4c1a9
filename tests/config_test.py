"""Settings: types, ranges, names, and what may differ on resuming."""

import json

import pytest

from jaxemb import config as config_lib
from jaxemb import errors, rundir
from jaxemb.tables import row_sharded


def test_the_default_is_accepted():
  config_lib.check(config_lib.default())


@pytest.mark.parametrize(
  ('key', 'value', 'words'),
  [
    ('train.epochs', 2.5, 'type int'),
    ('model.dim', '100', 'type int'),
    ('data.lowercase', 1, 'type bool'),
    ('data.path', 3, 'type str'),
  ],
)
def test_values_of_another_type_are_refused(key, value, words):
  config = config_lib.default()
  section, name = key.split('.')
  with config.ignore_type():
    config[section][name] = value
  with pytest.raises(errors.UserError, match=f'{key}.*{words}'):
    config_lib.check(config)


@pytest.mark.parametrize(
  ('settings', 'mesh', 'message'),
  [
    ({'table.layout': 'row'}, (1, 3), 'must divide 256'),
    ({'train.batch_words': 48}, (2, 2), 'multiple of 64: 16 centers'),
    (
      {'optimizer.name': 'mine:sgd'},
      (1, 1),
      'set --config.optimizer.learning_rate',
    ),
  ],
)
def test_what_does_not_fit_the_mesh_is_refused(settings, mesh, message):
  config = config_lib.default()
  config.strategy.name = 'sync'
  config.update_from_flattened_dict(settings)
  with pytest.raises(errors.UserError) as caught:
    config_lib.resolve(config, 'cpu', mesh)
  assert message in str(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize(
  ('layout', 'parts', 'mesh', 'multiple'),
  [
    ('replicated', 0, (1, 1), 16),
    ('replicated', 0, (8, 1), 16 * 8),
    ('row', 0, (1, 8), 16 * 8),
    ('row', 4, (1, 8), 16 * 4 * 2),  # two devices to a part
    ('row', 8, (1, 8), 16 * 8),
    ('column', 0, (2, 4), 16 * 2),
  ],
)
def test_each_device_has_whole_chunks(layout, parts, mesh, multiple):
  config = config_lib.default()
  config.strategy.name, config.table.layout = 'sync', layout
  fixed = {'parts': parts} if parts else {}
  for words in (multiple, 3 * multiple):
    config.train.batch_words = words
    resolved, tuning = config_lib.resolve(config, 'cpu', mesh, **fixed)
    assert resolved.train.batch_words == words
    assert tuning.parts == (parts or mesh[0])
    assert tuning.part_words == words // tuning.parts
  config.train.batch_words = multiple + 16 if multiple > 16 else 24
  with pytest.raises(errors.UserError, match=f'multiple of {multiple}'):
    config_lib.resolve(config, 'cpu', mesh, **fixed)


def test_classes_of_rows_are_those_of_the_tables():
  assert config_lib._ROW_CLASSES == row_sharded.NUM_CLASSES


@pytest.mark.parametrize(
  ('platform', 'settings', 'fixed', 'batch_words', 'max_duplicates'),
  [
    ('cpu', {}, {}, 256, 16),
    ('cpu', {}, {'chunk': 12}, 264, 16),
    ('gpu', {}, {}, 8192, 8),
    ('tpu', {'train.batch_words': 1024}, {}, 1024, 16),
    ('cpu', {'train.batch_words': 65_536}, {}, 65_536, 8),
    ('gpu', {'optimizer.max_duplicates': 0.0}, {}, 8192, 0),
    ('gpu', {'optimizer.max_duplicates': 12.0}, {}, 8192, 12),
    ('cpu', {'optimizer.name': 'adam'}, {}, 256, -1),
  ],
)
def test_steps_suit_the_device(
  platform, settings, fixed, batch_words, max_duplicates
):
  config = config_lib.default()
  config.update_from_flattened_dict(settings)
  config_lib.check(config)
  resolved, tuning = config_lib.resolve(config, platform, (1, 1), **fixed)
  assert resolved.train.batch_words == batch_words
  assert resolved.optimizer.max_duplicates == max_duplicates
  assert resolved.optimizer.learning_rate > 0 == config.optimizer.learning_rate
  assert tuning.deduplicates == (platform == 'gpu')
  on_cpu = platform == 'cpu'
  assert tuning.loss_every_steps == (64 if on_cpu else 1)
  assert tuning.steps_per_loop == (1 if on_cpu else 16)
  config_lib.check(resolved)


def test_more_replicas_exchange_sooner():
  config = config_lib.default()
  _, two = config_lib.resolve(config, 'cpu', (2, 1))
  _, four = config_lib.resolve(config, 'cpu', (4, 1))
  assert (two.sync_words, two.sync_lookups) == (16_384, 8)
  assert (four.sync_words, four.sync_lookups) == (2048, 1)
  config.strategy.sync_every = 100
  assert config_lib.resolve(config, 'cpu', (4, 1))[1].sync_words == 100


def test_every_setting_is_declared_in_full():
  names = {x.name for x in config_lib.SETTINGS}
  assert len(names) == len(config_lib.SETTINGS)
  for setting in config_lib.SETTINGS:
    assert setting.help and '\n' not in setting.help
    is_number = type(setting.default) in (int, float)
    assert bool(setting.limits) == is_number, setting.name
    setting.check(setting.default)
    other, *values = setting.only_with or ('model.name', 'cbow')
    known = {x.name: x for x in config_lib.SETTINGS}[other]
    for value in values:
      known.check(value)
  for name in config_lib.MEMBERS:
    assert name in names


def test_a_run_is_resumed_with_settings_that_may_change(tmp_path):
  config = config_lib.default()
  config.strategy.name = 'sync'
  begun, tuning = config_lib.resolve(config, 'cpu', (1, 1))
  rundir.check(begun, tmp_path)  # nothing is there
  rundir.record(begun, tuning, tmp_path, 'text')
  recorded = rundir.recorded(tmp_path)
  assert recorded['tuning.parts'] == 1 and recorded['model.dim'] == 100
  rundir.check(begun, tmp_path)
  # Another device, which would choose other steps.
  config.train.batch_words = recorded['train.batch_words']
  there, other = config_lib.resolve(config, 'gpu', (1, 1))
  assert other.deduplicates != tuning.deduplicates
  there.train.log_every_secs, there.eval.paths = 9.0, 'x'
  rundir.check(there, tmp_path)
  there.model.dim = 7
  with pytest.raises(errors.UserError, match=r'model.dim \(100 there, 7 now\)'):
    rundir.check(there, tmp_path)


def test_a_run_of_another_version_is_refused(tmp_path):
  config = config_lib.default()
  old = config.to_dict()
  old['data'] |= {'parts': 1, 'cache': ''}
  (tmp_path / 'config.json').write_text(json.dumps(old))
  with pytest.raises(errors.UserError, match='another version of jaxemb'):
    rundir.check(config, tmp_path)
  (tmp_path / 'config.json').write_text('[1')
  with pytest.raises(errors.UserError, match='does not hold the settings'):
    rundir.check(config, tmp_path)
