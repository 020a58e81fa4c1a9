"""Runs of sub-models: together, alone, interrupted, refused."""

import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import ml_collections
import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors, merge, metrics, train
from jaxemb import rundir as workdirs
from jaxemb.merging import parts as parts_lib
from jaxemb.partition import rounds, submodels
from jaxemb.runtime import distributed, hlo
from jaxemb.storage import orbax_export, word2vec_format
from jaxemb.text import encode, loader, partition_sampling
from tests import compiling

_ROOT = pathlib.Path(__file__).parents[2]
_ALONE = compiling.environment('--xla_force_host_platform_device_count=2') | {
  'JAX_PLATFORMS': 'cpu',
  'PYTHONPATH': os.pathsep.join([str(_ROOT), os.environ.get('PYTHONPATH', '')]),
}
_PARTS = 3
_CENSUS = partition_sampling.SampleCounts(None, 1000, 50)


def _config(cache: pathlib.Path, **settings) -> ml_collections.ConfigDict:
  config = config_lib.default()
  config.data.cache = str(cache)
  config.data.embedded_words = 60_000
  config.data.min_count = 2
  config.model.dim = 16
  config.train.epochs = 2
  config.mesh.data = 2
  config.eval.paths = 'none'
  config.strategy.name = 'partition'
  config.strategy.num_parts = _PARTS
  config.strategy.min_seen = 2
  config.update_from_flattened_dict(settings)
  config_lib.check(config)
  return config


def _train(config, workdir, *args) -> int:
  return train.run(config, workdir, *args)


@pytest.fixture(scope='session')
def cache(tmp_path_factory) -> pathlib.Path:
  return tmp_path_factory.mktemp('cache')


@pytest.fixture(scope='session')
def together(cache, tmp_path_factory) -> pathlib.Path:
  """Three on two devices: two rounds."""
  workdir = tmp_path_factory.mktemp('runs') / 'together'
  assert _train(_config(cache), workdir) == 0
  return workdir


def _vectors(workdir, part):
  return (workdir / f'parts/{part:02}/export/vectors.npy').read_bytes()


def _figures(workdir, part):
  return json.loads((workdir / f'parts/{part:02}/part.json').read_text())


def _text(cache):
  """The corpus of the runs, once more."""
  xml = next(cache.rglob('*.xml.bz2'))
  settings = encode.Settings('words', True, 2, 1_000_000, '')
  return partition_sampling.index(
    encode.encode(str(xml), settings, cache, lambda *args: None)
  )


def _resolved():
  return config_lib.resolved(_config(pathlib.Path()), 'cpu', (2, 1))


def test_what_a_run_leaves(cache, together):
  text = _text(cache)
  told = json.loads((together / 'report.json').read_text())
  everything = word2vec_format.read_vocab(together / 'parts/00/vocab.txt')[0]
  merged = jaxemb.load(together)
  assert len(merged) == told['vocab_words'] == told['merge']['words']
  assert told['merge']['missing_words'] == len(everything) - len(merged)
  # In the order of the corpus, with its counts; what no part has is missing.
  rank = {word: i for i, word in enumerate(everything)}
  ranks = [rank[word] for word in merged.index_to_key]
  assert ranks == sorted(ranks) and (np.diff(merged.counts) <= 0).all()
  parts = [jaxemb.load(together / f'parts/0{part}') for part in range(_PARTS)]
  assert set(merged.index_to_key) == {w for x in parts for w in x.index_to_key}
  for part, figures in enumerate(told['parts']):
    folder = together / f'parts/{part:02}'
    words, seen = word2vec_format.read_vocab(folder / 'vocab.txt')
    assert words == everything
    mine = jaxemb.load(folder)
    # Words that it has not read are missing, not noise.
    has = np.array(seen) > 0
    assert 0.5 < has.mean() < 1 and np.array(seen)[has].min() >= 2
    # Nor are those that it has seen too seldom, or with no other beside them.
    share = submodels.share(_resolved(), part)
    census = partition_sampling.count(text, share, 2)
    enough = census.seen >= 2
    assert figures['words_seen'] == (census.seen > 0).sum() > enough.sum()
    assert has.sum() < enough.sum() and not has[~enough].any()
    assert mine.index_to_key == [words[i] for i in np.flatnonzero(has)]
    assert mine.counts.tolist() == np.array(seen)[has].tolist()
    if part == 1:
      arrays = orbax_export.read(folder / 'export' / 'orbax')
      np.testing.assert_array_equal(arrays['vectors'], mine.vectors)
      assert len(arrays['context_vectors']) == len(mine)
    # Nobody else's words: about half of the text, with the words drawn again.
    assert figures['part'] == part and figures['vocab_words'] == has.sum()
    assert 0 <= figures['words'] - sum(seen) < figures['words'] / 50
    assert figures['corpus_share'] == pytest.approx(9 / 19, rel=0.1)
    assert figures['loss_per_example'] < 4.2 and figures['train_secs'] > 0
  words = sum(x['words'] for x in told['parts'])
  assert told['words_per_sec'] * told['train_secs'] == pytest.approx(words)
  assert not any(told['collectives'][kind] for kind in hlo.KINDS)
  assert len(told['devices']) == 2
  rows = metrics.read(together / 'metrics.jsonl')
  assert [row['words'] for row in rows] == sorted({x['words'] for x in rows})
  assert rows[-1]['words'] == words
  assert rows[-1]['learning_rate'] == pytest.approx(1e-4)
  vectors = [_vectors(together, part) for part in range(_PARTS)]
  assert len(set(vectors)) == _PARTS


def test_a_job_of_one_part_is_that_part_to_the_last_bit(
  cache, together, tmp_path
):
  # It was beside another; here it is all there is.
  part = 1
  config = _config(cache, **{'strategy.part': part, 'mesh.data': 0})
  assert _train(config, tmp_path) == 0
  assert _vectors(tmp_path, part) == _vectors(together, part)
  folder = tmp_path / f'parts/{part:02}'
  for name in ('report.html', 'report.json', 'log.txt', 'metrics.jsonl'):
    assert (folder / name).exists(), name
  mine, theirs = _figures(tmp_path, part), _figures(together, part)
  for key in ('words', 'sentences', 'words_seen', 'loss_per_example'):
    assert mine[key] == theirs[key]
  assert mine['totals']['losses'] == theirs['totals']['losses']
  told = json.loads((folder / 'report.json').read_text())
  assert told['started'] > '2020' and told['encode_secs'] > 0
  assert told['total_secs'] > told['encode_secs'] + told['train_secs']
  assert not (tmp_path / 'log.txt').exists()
  assert [x.name for x in (tmp_path / 'parts').iterdir()] == ['01']
  # The others by a run of all, beside each other, and the same merged model.
  before = (folder / 'part.json').stat().st_mtime_ns
  assert _train(_config(cache), tmp_path) == 0
  for part in range(_PARTS):
    assert _vectors(tmp_path, part) == _vectors(together, part)
  assert (folder / 'part.json').stat().st_mtime_ns == before
  told = json.loads((tmp_path / 'report.json').read_text())['parts']
  assert [x['part'] for x in told] == [0, 1, 2]
  whole = [x / 'export/vectors.bin' for x in (tmp_path, together)]
  assert whole[0].read_bytes() == whole[1].read_bytes()


def test_processes_that_share_nothing_but_the_text(cache, together, tmp_path):
  text = next(cache.rglob('*.xml.bz2'))
  settings = config_lib.flat(_config(tmp_path))
  flags = [
    f'--config.{key}={settings[key]}'
    for key in (
      'data.min_count',
      'model.dim',
      'eval.paths',
      'strategy.name',
      'strategy.min_seen',
    )
  ]
  flags += ['--config.train.epochs=1', '--config.strategy.num_parts=2']

  def start(name, *more):
    # A machine of its own: its folder, its cache, its one device or two.
    folder = tmp_path / name
    folder.mkdir()
    command = [
      sys.executable, '-m', 'jaxemb.main', f'--config={_ROOT}/configs/wiki.py',
      f'--config.data.path={shutil.copy(text, folder)}',
      f'--config.data.cache={folder}/cache', f'--workdir={folder}/run',
      *flags, *more,
    ]  # fmt: skip
    return subprocess.Popen(
      command, cwd=folder, env=_ALONE, stderr=subprocess.PIPE, text=True
    )

  started = [
    start('both', '--config.mesh.data=2'),
    start('first', '--config.strategy.part=0'),
    start('second', '--config.strategy.part=1'),
  ]
  for process in started:
    assert process.communicate()[1] is not None and process.returncode == 0
  apart = [tmp_path / 'first/run/parts/00', tmp_path / 'second/run/parts/01']
  beside = [tmp_path / 'both/run/parts/00', tmp_path / 'both/run/parts/01']
  merged = []
  for folders in (apart, beside):
    folder = tmp_path / f'merged-{len(merged)}'
    assert merge.main([*map(str, folders), f'--output={folder}']) == 0
    merged.append((folder / 'export/vectors.bin').read_bytes())
  assert merged[0] == merged[1]
  for one, other in zip(apart, beside, strict=True):
    vectors = [x / 'export/vectors.npy' for x in (one, other)]
    assert vectors[0].read_bytes() == vectors[1].read_bytes()


def test_merged_again_in_another_way(cache, together, tmp_path):
  shutil.copytree(together, tmp_path / 'run')
  (tmp_path / 'run/metrics.jsonl').unlink()  # as if all had been jobs
  shutil.rmtree(tmp_path / 'run/export')
  for way in ('none', 'concat'):
    if way != 'none':
      with pytest.raises(errors.UserError, match=r'sub-models, .*parts/\*'):
        jaxemb.load(tmp_path / 'run')
    config = _config(cache, **{'strategy.merge': way})
    assert _train(config, tmp_path / 'run') == 0
    told = json.loads((tmp_path / 'run/report.json').read_text())
    assert len(told['parts']) == _PARTS
  assert jaxemb.load(tmp_path / 'run').vector_size == _PARTS * 16
  assert told['merge']['method'] == 'concat' and told['dim'] == 48


def test_a_job_of_senses_leaves_what_a_run_leaves(cache, tmp_path):
  listed = tmp_path / 'listed.txt'
  listed.write_text('the\nnonesuch\n')
  settings = {
    'model.name': 'mixture',
    'senses.top_n': 20,
    'senses.words': str(listed),
    'senses.number': 3,
    'strategy.min_seen': 1,
    'strategy.num_parts': 2,
    'strategy.part': 1,
    'mesh.data': 1,
    'table.dtype': 'int8',
    'eval.paths': '',
  }
  assert _train(_config(cache, **settings), tmp_path / 'run') == 0
  folder = tmp_path / 'run/parts/01'
  told = json.loads((folder / 'report.json').read_text())
  assert 'senses MaxSimC' in told['evaluation'] and told['finished']
  assert (folder / 'report.html').exists()
  assert told['dropped']['sense_words_out_of_vocabulary'] == 1
  assert (
    f'20 words have 3 senses each; 1 of the 2 in {listed} are not in the '
    'vocabulary'
  ) in (folder / 'log.txt').read_text()
  loaded, table = jaxemb.load(folder), jaxemb.load(folder).sense_table
  assert told['vocab_words'] == len(table.words) == len(loaded) - 40
  binary = word2vec_format.read(folder / 'export/vectors.bin')
  assert binary.words == loaded.index_to_key
  np.testing.assert_array_equal(binary.vectors, loaded.vectors)
  # Every file has the vectors that int8 has room for.
  rows = (folder / 'export/dmwe.txt').read_text().splitlines()[1:]
  rows = np.array([x.split()[1:] for x in rows if len(x.split()) > 2], float)
  np.testing.assert_array_equal(rows.astype(np.float32), binary.vectors)
  # Its counts are those of the part.
  part = parts_lib.open_part(folder)
  assert (part.counts <= loaded.counts * 2).all() and part.counts.sum() > 0
  assert part.counts.tolist() != loaded.counts.tolist()


def test_sub_models_of_senses_are_merged(cache, tmp_path, capsys):
  settings = {
    'model.name': 'mixture',
    'model.loss': 'hierarchical_softmax',
    'optimizer.name': 'adagrad',
    'senses.top_n': 20,
    'senses.number': 3,
    'strategy.min_seen': 1,
    'strategy.num_parts': 2,
    'eval.paths': '',
  }
  workdir = tmp_path / 'run'
  assert _train(_config(cache, **settings), workdir) == 0
  told = json.loads((workdir / 'report.json').read_text())
  found, loaded = told['merge']['senses'], jaxemb.load(workdir)
  assert found['words'] == found['matched_words'] == 20
  assert (
    found['cosine_matched'] >= found['cosine_in_order'] and found['outputs']
  )
  assert 'senses MaxSimC' in told['evaluation']
  parts = [jaxemb.load(workdir / f'parts/0{i}') for i in range(2)]
  table = loaded.sense_table
  assert table.words == parts[0].sense_table.words
  assert table.counts.tolist() == parts[0].sense_table.counts.tolist()
  word = table.words[0]
  assert len(loaded.senses(word)) == len(loaded.disambiguate(word, 0)) == 3
  sums = np.add.reduceat(table.priors, table.starts[:-1])
  np.testing.assert_allclose(sums, 1, 1e-5)
  # Weighted by how often each part read a word, not by what all read.
  seen = [
    np.array(word2vec_format.read_vocab(workdir / f'parts/0{i}/vocab.txt')[1])
    for i in range(2)
  ]
  for i in range(2):
    part = parts_lib.open_part(workdir / f'parts/0{i}')
    assert part.counts.tolist() == seen[i].tolist()
    assert part.counts.tolist() != parts[i].counts.tolist()
  shares = np.array([x[0] for x in seen]) / (seen[0][0] + seen[1][0])
  means = [
    shares[0] * parts[0].sense_table.priors[:3]
    + shares[1] * parts[1].sense_table.priors[list(order)]
    for order in itertools.permutations(range(3))
  ]
  told = np.sort(table.priors[:3])
  assert any(np.allclose(np.sort(x), told, atol=1e-6) for x in means)
  # The same from the folders; not what training would go on with.
  argv = [str(workdir / 'parts/00'), str(workdir / 'parts/01')]
  assert merge.main([*argv, f'--output={tmp_path}/m']) == 0
  again = jaxemb.load(tmp_path / 'm')
  np.testing.assert_allclose(again.vectors, loaded.vectors, atol=1e-5)
  np.testing.assert_array_equal(again.sense_table.priors, table.priors)
  capsys.readouterr()
  assert merge.main([*argv, f'--output={tmp_path}/m', '--trainable']) == 2
  assert 'leave out --trainable' in capsys.readouterr().err
  argv[0] += '/checkpoints'
  assert merge.main([*argv, f'--output={tmp_path}/m']) == 2
  assert 'give the folder of the run' in capsys.readouterr().err


def _terminate():
  signal.raise_signal(signal.SIGTERM)


def test_a_run_goes_on_where_each_part_stands(
  cache, together, tmp_path, interrupting
):
  more = {'train.checkpoint_every_secs': 0.0}
  alone = _config(cache, **more, **{'mesh.data': 1})
  with interrupting(1), pytest.raises(KeyboardInterrupt):
    _train(alone, tmp_path)
  # Part 0 stands in its middle; now part 1 is beside it, and gets there too.
  with interrupting(1), pytest.raises(KeyboardInterrupt):
    _train(_config(cache, **more), tmp_path)
  for part in (0, 1):
    folder = tmp_path / f'parts/{part:02}'
    assert any(folder.glob('checkpoints/[0-9]*'))
    assert not (folder / 'part.json').exists()
  # These two go on beside each other to their end, and part 2 to its middle.
  both = _config(cache, **more)
  with interrupting(0, _terminate):
    assert _train(both, tmp_path) == train.STOPPED
  assert not (tmp_path / 'report.json').exists()
  assert _train(_config(cache), tmp_path) == 0
  log = (tmp_path / 'log.txt').read_text()
  assert log.count('resuming behind') == 4
  for part in range(_PARTS):
    assert _vectors(tmp_path, part) == _vectors(together, part)
    totals = [_figures(x, part)['totals'] for x in (tmp_path, together)]
    assert totals[0]['losses'] == totals[1]['losses']
    assert len(totals[0]['losses']) == 2 and totals[0]['losses'][0][1] > 0
  rows = metrics.read(tmp_path / 'metrics.jsonl')
  words = [row['words'] for row in rows]
  assert words == sorted(set(words))


def test_a_part_that_another_process_trains_is_left_to_it(
  cache, together, tmp_path
):
  shutil.copytree(together, tmp_path / 'run')
  shutil.rmtree(tmp_path / 'run/parts/01')
  (tmp_path / 'run/parts/01').mkdir()
  with workdirs.locked(tmp_path / 'run/parts/01'):
    assert _train(_config(cache), tmp_path / 'run') == train.STOPPED
  log = (tmp_path / 'run/log.txt').read_text()
  assert 'sub-models 1 are being trained by other processes' in log


def test_random_choices_are_of_a_part():
  config = config_lib.resolved(_config(pathlib.Path()), 'cpu', (1, 1))
  item = loader.Loaded(None, 7, None, 0, 400)
  plans = [
    rounds.schedules(config, [rounds.Model(i, None, _CENSUS, None, None)], 1)(
      rounds.Together(None, (item,), 0, 400)
    )
    for i in range(4)
  ]
  assert len({x.key.tobytes() for x in plans}) == 4
  # By the progress of the part, not of the whole text.
  assert plans[0].last_learning_rate[0] == pytest.approx(0.03 * 0.6, rel=0.01)


def test_connected_processes_are_refused(cache, tmp_path):
  place = distributed.Job('localhost:1', 2, 1, False)
  with pytest.raises(errors.UserError, match='--config.strategy.part=0, 1'):
    _train(_config(cache), tmp_path, place)


def test_other_settings_in_the_same_folder_are_refused(
  cache, together, tmp_path
):
  with pytest.raises(errors.UserError, match='strategy.divide'):
    _train(_config(cache, **{'strategy.divide': 'equal'}), together)
  # Also where only the parts know: folders of jobs that were put together.
  shutil.copytree(together / 'parts', tmp_path / 'parts')
  with pytest.raises(errors.UserError, match='parts/00 holds a run with'):
    _train(_config(cache, seed=2), tmp_path)


def test_a_part_without_a_sentence_is_named(cache, tmp_path):
  path = tmp_path / 'a.txt'
  path.write_text('one two three four five\n' * 6)
  settings = {'data.path': str(path), 'strategy.divide': 'equal'}
  with pytest.raises(errors.UserError, match='sub-model . of 99 gets no sent'):
    _train(
      _config(cache, **settings, **{'strategy.num_parts': 99}), tmp_path / 'r'
    )


def test_a_part_that_diverges_is_named(cache, tmp_path):
  settings = {
    'optimizer.learning_rate': 1e4,
    'optimizer.max_duplicates': 0.0,
    'train.loss_every_steps': 1,
  }
  with pytest.raises(errors.UserError, match='sub-model 0: training diverged'):
    _train(_config(cache, **settings), tmp_path)


def test_a_part_of_another_text_is_refused(cache, together, tmp_path):
  shutil.copytree(together, tmp_path / 'run')
  (tmp_path / 'run/parts/01/text.sha256').write_text('another')
  config = tmp_path / 'run/config.json'
  config.write_text(config.read_text() + ' ')
  before = config.read_text()
  with pytest.raises(errors.UserError, match='parts/01 began'):
    _train(_config(cache), tmp_path / 'run')
  assert config.read_text() == before


def test_jobs_of_one_folder_are_of_one_text(cache, together, tmp_path):
  (tmp_path / 'run').mkdir()
  shutil.copy(together / 'config.json', tmp_path / 'run')
  (tmp_path / 'run/text.sha256').write_text('another')
  config = _config(cache, **{'strategy.part': 1, 'mesh.data': 1})
  with pytest.raises(errors.UserError, match='text is not the one that'):
    _train(config, tmp_path / 'run')
  assert not (tmp_path / 'run/parts/01/config.json').exists()


def test_parts_may_come_from_where_the_text_has_another_path(
  cache, together, tmp_path
):
  shutil.copytree(together, tmp_path / 'run')
  shutil.rmtree(tmp_path / 'run/parts/02')
  text = str(tmp_path / 'copy.xml.bz2')
  shutil.copy(next(cache.rglob('*.xml.bz2')), text)
  assert _train(_config(cache, **{'data.path': text}), tmp_path / 'run') == 0
  assert _vectors(tmp_path / 'run', 2) == _vectors(together, 2)


def test_what_cannot_be_merged_is_told_before_training(cache, tmp_path):
  more = {'strategy.num_parts': 100, 'model.dim': 300, 'mesh.data': 1}
  with pytest.raises(errors.UserError, match='cannot be merged at once'):
    _train(_config(cache, **more), tmp_path)
  assert not any(tmp_path.glob('parts/*/checkpoints'))


@pytest.mark.parametrize('how', ['cut', 'nan', 'gone'])
def test_vectors_that_are_damaged_are_named(cache, together, tmp_path, how):
  shutil.copytree(together, tmp_path / 'run')
  path = tmp_path / 'run/parts/01/export/vectors.npy'
  vectors = np.load(path)
  if how == 'nan':
    vectors[3] = np.nan
    np.save(path, vectors)
  elif how == 'cut':
    path.write_bytes(path.read_bytes()[:-50])
  else:
    path.unlink()
  with pytest.raises(errors.UserError) as caught:
    _train(_config(cache), tmp_path / 'run')
  told = str(caught.value)
  assert 'remove' in told and 'parts/01 and start again' in told
  assert '\n' not in told and '--skip-bad' not in told


def test_a_damaged_part_is_named(cache, tmp_path):
  config = _config(cache)
  folder = submodels.folder(config, tmp_path, 1)
  folder.mkdir(parents=True)
  (folder / 'part.json').write_text('{"part": 1')
  with pytest.raises(errors.UserError, match='parts/01/part.json is damaged'):
    submodels.figures(config, tmp_path, 1)
