"""Settings: types, ranges, names, and what may differ on resuming."""

import pathlib

import pytest

from jaxemb import build, errors
from jaxemb import config as config_lib
from jaxemb import rundir as workdirs
from jaxemb.tables import row_sharded


def test_the_default_is_accepted():
  config_lib.check(config_lib.default())


@pytest.mark.parametrize(
  ('key', 'value', 'words'),
  [
    ('model.dim', 0, 'at least 1'),
    ('model.window', -1, 'at least 1'),
    ('model.window', 256, 'at most 255'),
    ('model.negatives', 0, 'at least 1'),
    ('train.epochs', 0, 'at least 1'),
    ('train.epochs', 2.5, 'type int'),
    ('model.dim', '100', 'type int'),
    ('data.lowercase', 1, 'type bool'),
    ('optimizer.learning_rate', float('nan'), 'at least 0'),
    ('optimizer.learning_rate', -0.1, 'at least 0'),
    ('data.sample', 1.5, 'at most 1'),
    ('train.batch_words', 100, 'multiple of'),
    ('model.name', 'glove', "'skipgram' or 'cbow'"),
    ('model.loss', 'softmax', 'not available'),
    ('model.shortest_window', 6, 'at most config.model.window=5'),
    ('model.name', 'mixture', '--config.senses.top_n'),
    ('senses.top_n', 5, '--config.model.name=mixture'),
    ('model.shared_nodes', 5, '--config.model.loss=hierarchical_softmax'),
    ('table.dtype', 'int4', 'not available'),
    ('table.layout', 'diagonal', 'not available'),
    ('table.layout', 'row', '--config.strategy.name=sync'),
    ('table.rounding', 'up', 'not available'),
    ('table.exchange_dtype', 'int8', 'not available'),
    ('strategy.name', 'async', 'not available'),
    ('strategy.num_parts', 3, '--config.strategy.name=partition'),
    ('mesh.data', -1, 'at least 0'),
    ('mesh.table', 2, '--config.mesh.data instead'),
    ('mesh.table', 5000, 'at most 4,096'),
  ],
)
def test_what_cannot_be_honoured_is_refused(key, value, words):
  config = config_lib.default()
  section, name = key.split('.')
  with config.ignore_type():
    config[section][name] = value
  with pytest.raises(errors.UserError) as caught:
    config_lib.check(config)
  assert words in str(caught.value)
  assert key in str(caught.value)
  assert '\n' not in str(caught.value)


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


def test_every_number_has_a_range_and_every_choice_is_built():
  for key, value in config_lib.flat(config_lib.default()).items():
    if isinstance(value, int | float) and not isinstance(value, bool):
      assert key in config_lib._RANGES, key
  for kind, members in [
    ('model.name', {name for name, _ in build.MODELS}),
    ('model.loss', {loss for _, loss in build.MODELS}),
    ('table.layout', build.LAYOUTS),
    ('optimizer.name', build.OPTIMIZERS),
    ('strategy.name', build.STRATEGIES),
  ]:
    assert set(config_lib._CHOICES[kind]) == set(members)


@pytest.mark.parametrize(
  ('wrong', 'right'),
  [
    ('model.dmi', 'model.dim'),
    ('modle.dim', 'model.dim'),
    ('dim', 'model.dim'),
    ('optimiser.learning_rate', 'optimizer.learning_rate'),
    ('train.epoch', 'train.epochs'),
  ],
)
def test_an_unknown_key_names_the_nearest(wrong, right):
  with pytest.raises(errors.UserError, match=f'did you mean --config.{right}'):
    config_lib.check_key(wrong)


def test_a_missing_or_foreign_key_of_a_config_file_is_refused():
  config = config_lib.default()
  del config.model.dim
  with pytest.raises(errors.UserError, match='config.model.dim is missing'):
    config_lib.check(config)
  config = config_lib.default()
  config.model.senses = 3
  with pytest.raises(errors.UserError, match='no setting config.model.senses'):
    config_lib.check(config)


def test_only_what_matters_for_the_result_differs():
  one, other = config_lib.default(), config_lib.default()
  other.train.log_every_secs = 9.0
  other.eval.paths = 'x'
  assert not workdirs.differences(one, other.to_dict())
  other.model.dim = 7
  assert workdirs.differences(one, other.to_dict()) == [
    'model.dim (7 there, 100 now)'
  ]
  # Where words have one sense, nothing of senses matters.
  other.model.dim, other.senses.number = one.model.dim, 7
  assert not workdirs.differences(one, other.to_dict())
  one.model.name = other.model.name = 'mixture'
  assert workdirs.differences(one, other.to_dict())


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


def test_the_configs_of_the_repository_are_accepted():
  folder = pathlib.Path(__file__).parents[1] / 'configs'
  for path in sorted(folder.glob('*.py')):
    scope: dict = {}
    exec(compile(path.read_text(), path, 'exec'), scope)
    for variant in ('', 'smoke'):
      config_lib.check(scope['get_config'](variant))
