"""Whole runs on clicks: evaluated, ended early, resumed, used."""

import json
import shutil
import types

import jax
import numpy as np
import pyarrow as pa
import pytest
from jax import export
from pyarrow import csv, parquet

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.cli import predict
from jaxemb.clicks import results, toyclicks
from jaxemb.evaluation import ranking
from jaxemb.run import lifecycle as train
from tests import runs

SMOKE = {'train.epochs': 3, 'mesh.data': 1}


def _run(workdir, **settings):
  given = {k.replace('__', '.'): v for k, v in settings.items()}
  config = config_lib.load('ctr:smoke', SMOKE | given)
  return train.run(config, workdir)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('clicks') / 'run'
  more = {'model__batch_norm': True, 'eval__monitor': 'auc,log_loss'}
  assert _run(workdir, **more) == 0
  return workdir


def _test_file(tmp_path):
  return toyclicks.write(tmp_path, 20_000) / 'test.csv'


def test_a_run_is_evaluated_and_reported(trained):
  report = runs.report(trained)
  assert report['corpus_examples'] == 16_000 and report['finished']
  scores = report['evaluation']
  assert [*scores] == [
    'validation', 'test', 'validation by log_loss', 'test by log_loss',
  ]  # fmt: skip
  for found in scores.values():
    assert found['score'] == found['auc'] > 0.57
    assert found['found'] == found['total'] == 2000
    assert 0.8 < found['calibration'] < 1.25
  lines = (trained / 'evaluation.jsonl').read_text().splitlines()
  each = [json.loads(x)['validation']['auc'] for x in lines]
  assert len(each) == 3 and report['best']['validation']['auc'] == max(each)
  assert scores['validation']['auc'] == pytest.approx(max(each), abs=1e-6)
  each = [json.loads(x)['validation']['log_loss'] for x in lines]
  assert report['best_by']['log_loss']['validation']['log_loss'] == min(each)
  assert len(report['importances']) == 9
  page = (trained / 'report.html').read_text()
  assert '9 fields × 4' in page and '<bdi>si000</bdi>' in page


@pytest.mark.parametrize(
  ('name', 'numbers', 'vocab', 'is_named'),
  [
    ('ctr:avazu', [], 5000, True),
    ('ctr:avazu', ['price'], 5000, False),
    ('ctr:avazu', [], 5_000_000, False),
    ('ctr:ids', [], 5000, False),
  ],
)
def test_the_log_names_the_config_for_few_ids_alone(
  name, numbers, vocab, is_named, caplog
):
  fields = types.SimpleNamespace(ids=[], numbers=numbers, vocab=vocab)
  source = types.SimpleNamespace(fields=fields, valid=[])
  with caplog.at_level('INFO', 'jaxemb'):
    results.check_data(config_lib.load(name), source)
  assert ('5,000 ids alone: --config=ctr:ids' in caplog.text) == is_named


@pytest.mark.parametrize(
  ('files', 'given', 'expected'),
  [
    ('train', {}, ('0.1', '0.1')),
    ('train test', {}, ('0.1', '')),
    ('train valid test', {}, ('', '')),
    ('train valid test', {'data.valid': '0.2'}, ('0.2', '')),
  ],
)
def test_splits_of_a_folder_come_before_the_fractions_of_a_config(
  files, given, expected, tmp_path
):
  for name in files.split():
    (tmp_path / f'{name}.csv').write_text('label,user')
  values = {'data.path': str(tmp_path)} | given
  found = config_lib.load('ctr:avazu', values).data
  assert (found.valid, found.test) == expected


def test_the_best_model_by_a_second_metric_predicts(trained, tmp_path):
  path = _test_file(tmp_path)
  chances = jaxemb.load(trained / 'export_log_loss').predict(str(path))
  clicks = csv.read_csv(path)['click'].to_numpy()
  expected = -np.log(np.where(clicks, chances, 1 - chances.astype(float)))
  found = runs.report(trained)['evaluation']['test by log_loss']['log_loss']
  assert found == pytest.approx(expected.mean(), abs=1e-6)


def test_a_trained_model_predicts_files_and_tables(trained, tmp_path):
  path = _test_file(tmp_path)
  model, table = jaxemb.load(trained), csv.read_csv(path)
  chances = model.predict(str(path))
  assert chances.dtype == np.float32 and chances.shape == (2000,)
  found = ranking.auc(table['click'].to_numpy(), chances)
  assert found == pytest.approx(
    runs.report(trained)['evaluation']['test']['auc'], abs=1e-6
  )
  without = table.drop_columns('click')
  np.testing.assert_allclose(model.predict(without), chances, 1e-6)
  np.testing.assert_allclose(
    model.predict(without.slice(5, 3).to_pydict()), chances[5:8], 1e-5
  )
  with pytest.raises(errors.UserError, match='column ad is missing'):
    model.predict(table.drop_columns('ad'))
  with pytest.raises(errors.UserError, match='int is no table'):
    model.predict(3)


def test_scores_without_an_unknown_field_name_the_fields():
  log = {
    'label': [1, 0, 0, 1] * 50,
    'color': ['red', 'green', 'blue', 'red'] * 50,
    'price': [i / 100 for i in range(200)],
  }
  model = jaxemb.train(log, config='ctr', epochs=1)
  rows, _ = model.encoder.encode(pa.table(log), has_labels=True)
  assert model.scores(rows, without='color').shape == (200,)
  for name in 'price', 'size':
    with pytest.raises(errors.UserError, match=f'{name}.*fields are color$'):
      model.scores(rows, without=name)


def test_a_saved_model_replaces_models_alone(trained, tmp_path):
  model, folder = jaxemb.load(trained), tmp_path / 'model'
  for _ in range(2):
    model.save(str(folder))
  (folder / 'notes.txt').write_text('of the user')
  with pytest.raises(errors.UserError, match="has 'notes.txt', which would be"):
    model.save(folder)
  (folder / 'notes.txt').unlink()
  path = _test_file(tmp_path)
  loaded = jaxemb.load(folder)
  np.testing.assert_array_equal(loaded.predict(path), model.predict(path))


def test_a_model_of_unknown_terms_is_refused(trained, tmp_path):
  folder = shutil.copytree(trained / 'export', tmp_path / 'export')
  path = folder / 'model.json'
  record = json.loads(path.read_text())
  path.write_text(json.dumps(record | {'terms': ['first', 'second']}))
  with pytest.raises(errors.UserError, match='term second'):
    jaxemb.load(folder)


@pytest.mark.parametrize('end', ['csv', 'parquet'])
def test_the_command_writes_a_line_for_each_row(end, trained, tmp_path, capsys):
  path = _test_file(tmp_path)
  path = path.rename(path.with_name('new.csv'))
  path.write_text(path.read_text().replace('ad00', 'new'))
  output = tmp_path / f'out.{end}'
  flags = f'--model={trained} --data={path} --output={output} --keep=click,ad'
  assert predict.main(flags.split()) == 0
  err = capsys.readouterr().err
  assert '2,000 rows' in err and 'does not know: ad ' in err
  read = csv.read_csv if end == 'csv' else parquet.read_table
  found = read(output)
  assert found.column_names == ['click', 'ad', 'prediction']
  expected = jaxemb.load(trained).predict(str(path))
  np.testing.assert_allclose(found['prediction'].to_numpy(), expected, 1e-5)


def test_a_function_serves_without_the_package(trained, tmp_path):
  folder = trained / 'export' / 'serving'
  function = export.deserialize(bytearray((folder / 'function').read_bytes()))
  arrays = np.load(folder / 'arrays.npz')
  arrays = [arrays[f'arr_{i}'] for i in range(len(arrays.files))]
  model, path = jaxemb.load(trained), _test_file(tmp_path)
  rows, _ = model.encoder.encode(csv.read_csv(path), False)
  for num in (7, 300):
    found = function.call(arrays, rows.ids[:num], rows.numbers[:num])
    expected = model.predict(str(path))[:num]
    np.testing.assert_allclose(found, expected, 1e-5)


@pytest.mark.slow
def test_training_ends_where_it_gets_no_better(tmp_path):
  more = {'train__epochs': 30, 'optimizer__decay': 0.0}
  more |= {'optimizer__plateau_factor': 0.5, 'train__patience': 2}
  assert _run(tmp_path, **more) == 0
  report = runs.report(tmp_path)
  each = [x['validation']['auc'] for x in report['evaluations']]
  assert len(each) < 30 and max(each) == each[-3]
  assert report['evaluation']['validation']['auc'] == pytest.approx(
    max(each), abs=1e-6
  )
  model = (tmp_path / 'export' / 'vectors.npy').read_bytes()
  # A second start changes nothing.
  assert _run(tmp_path, **more) == 0
  assert (tmp_path / 'export' / 'vectors.npy').read_bytes() == model
  assert len(runs.report(tmp_path)['evaluations']) == len(each)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_same_bits(
  trained, tmp_path, interrupting
):
  more = {'model__batch_norm': True, 'train__checkpoint_every_secs': 0.0}
  with interrupting(2), pytest.raises(KeyboardInterrupt):
    _run(tmp_path, **more)
  assert _run(tmp_path, **more) == 0
  assert 'resuming after' in runs.log(tmp_path)
  for name in ('vectors.npy', 'weights.npy', 'dense.npz'):
    found, expected = (x / 'export' / name for x in (tmp_path, trained))
    found, expected = np.load(found), np.load(expected)
    jax.tree.map(np.testing.assert_array_equal, *(
      dict(x) if hasattr(x, 'files') else x for x in (found, expected)
    ))  # fmt: skip
  each = [runs.report(x)['evaluations'] for x in (tmp_path, trained)]
  assert each[0] == each[1] and len(each[0]) == 3


@pytest.mark.slow
def test_a_model_that_diverges_is_refused(tmp_path):
  settings = {'optimizer__name': 'sgd', 'optimizer__learning_rate': 1e6}
  with pytest.raises(errors.UserError, match='dense_learning_rate'):
    _run(tmp_path / 'run', **settings)


@pytest.mark.slow
def test_one_class_has_no_auc(tmp_path):
  rows = 400
  rng = np.random.default_rng(0)
  columns = {'y': np.ones(rows, int), 'c': rng.integers(0, 5, rows)}
  columns['y'][:200] = 0
  csv.write_csv(pa.table(columns), tmp_path / 'log.csv')
  path, valid = str(tmp_path / 'log.csv'), 'last:0.2'
  assert _run(tmp_path / 'run', data__path=path, data__valid=valid,
              model__name='logistic', model__hidden='256,128',
              data__columns='category:c') == 0  # fmt: skip
  assert 'no AUC, as all labels are the same' in runs.log(tmp_path / 'run')
  found = runs.report(tmp_path / 'run')['evaluation']['validation']
  assert found['auc'] is None and found['log_loss'] > 0
  page = (tmp_path / 'run' / 'report.html').read_text()
  assert 'AUC is not defined where all labels are the same' in page
  assert 'Importances are not known' in page


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'line'),
  [('libffm', '0:{}:1 1:{}:1'), ('libsvm', '{}:1 {}:1')],
)
def test_lines_of_features_need_no_label_to_be_predicted(kind, line, tmp_path):
  rng = np.random.default_rng(0)
  features = [line.format(*x) for x in rng.integers(1, 6, (400, 2)).tolist()]
  labels = rng.integers(0, 2, 400)
  path, bare = (tmp_path / f'{x}.{kind}' for x in ('log', 'bare'))
  rows = zip(labels, features, strict=True)
  path.write_text(''.join(f'{x} {y}\n' for x, y in rows))
  bare.write_text('\n'.join(features))
  more = {'data__format': kind, 'data__valid': '0.2', 'train__epochs': 30}
  assert _run(tmp_path / 'run', data__path=str(path), **more) == 0
  model = jaxemb.load(tmp_path / 'run')
  found = model.predict(str(path))
  assert found.std() > 1e-3  # or a shift of features would not show
  np.testing.assert_array_equal(model.predict(str(bare)), found)
