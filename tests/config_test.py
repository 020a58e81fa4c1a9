"""Settings: types, ranges, names, and what may differ on resuming."""

import pytest

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb import rundir as workdirs
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
  ('settings', 'mesh', 'told'),
  [
    ({'data.parts': 4}, (3, 1), 'cannot be dealt to config.mesh.data=3'),
    ({'table.layout': 'row'}, (1, 3), 'must divide 256'),
    ({'train.batch_words': 48}, (2, 2), 'multiple of 64'),
    (
      {'strategy.name': 'replicas', 'data.parts': 4},
      (2, 1),
      'the number of replicas',
    ),
  ],
)
def test_what_does_not_fit_the_mesh_is_refused(settings, mesh, told):
  config = config_lib.default()
  config.strategy.name = 'sync'
  config.update_from_flattened_dict(settings)
  with pytest.raises(errors.UserError) as caught:
    config_lib.resolved(config, 'cpu', mesh)
  assert told in str(caught.value) and '\n' not in str(caught.value)


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
  config.data.parts = parts
  for words in (multiple, 3 * multiple):
    config.train.batch_words = words
    found = config_lib.resolved(config, 'cpu', mesh)
    assert found.train.batch_words == words
    assert found.data.parts == (parts or mesh[0])
  config.train.batch_words = multiple + 16 if multiple > 16 else 24
  with pytest.raises(errors.UserError, match=f'multiple of {multiple}'):
    config_lib.resolved(config, 'cpu', mesh)


def test_classes_of_rows_are_those_of_the_tables():
  assert config_lib._ROW_CLASSES == row_sharded.NUM_CLASSES


@pytest.mark.parametrize(
  ('platform', 'settings', 'batch_words', 'max_duplicates'),
  [
    ('cpu', {}, 256, 16),
    ('cpu', {'model.chunk': 12}, 264, 16),
    ('gpu', {}, 8192, 8),
    ('tpu', {'train.batch_words': 1024}, 1024, 16),
    ('cpu', {'train.batch_words': 65_536}, 65_536, 8),
    ('gpu', {'optimizer.max_duplicates': 0.0}, 8192, 0),
    ('gpu', {'optimizer.max_duplicates': 12.0}, 8192, 12),
  ],
)
def test_steps_suit_the_device(platform, settings, batch_words, max_duplicates):
  config = config_lib.default()
  config.update_from_flattened_dict(settings)
  config_lib.check(config)
  found = config_lib.resolved(config, platform, (1, 1))
  assert found.train.batch_words == batch_words
  assert found.optimizer.max_duplicates == max_duplicates
  config_lib.check(found)


def test_every_setting_is_declared_in_full():
  names = {x.name for x in config_lib.SETTINGS}
  assert len(names) == len(config_lib.SETTINGS)
  for setting in config_lib.SETTINGS:
    assert setting.help and '\n' not in setting.describe()
    is_number = type(setting.default) in (int, float)
    assert bool(setting.limits) == is_number, setting.name
    setting.check(setting.default)
    other, *values = setting.only_with or ('model.name', 'cbow')
    known = {x.name: x for x in config_lib.SETTINGS}[other]
    for value in values:
      known.check(value)
  for name in config_lib.MEMBERS:
    assert name in names


def test_only_what_matters_for_the_result_differs():
  one, other = config_lib.default(), config_lib.default()
  other.train.log_every_secs = 9.0
  other.eval.paths = 'x'
  assert not workdirs.differences(one, other.to_dict())
  other.model.dim = 7
  assert workdirs.differences(one, other.to_dict()) == [
    'model.dim (7 there, 100 now)'
  ]


def test_a_run_goes_on_with_another_kind_of_device():
  config = config_lib.default()
  config.strategy.name = 'sync'
  begun = config_lib.resolved(config, 'cpu', (1, 1))
  # As `build.on_devices` does.
  config.data.parts = begun.data.parts
  config.train.batch_words = begun.train.batch_words
  there = config_lib.resolved(config, 'gpu', (1, 1))
  assert there.table.duplicates != begun.table.duplicates
  assert not workdirs.differences(there, begun.to_dict())
