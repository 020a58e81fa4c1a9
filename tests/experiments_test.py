"""Experiments run in a small variant, and their numbers belong together."""

import argparse
import importlib
import json
import operator
import os
import pathlib
import re
import statistics
import sys
import time

import jax
import numpy as np
import pytest

from jaxemb import errors
from jaxemb.cli import train as jaxemb_main
from jaxemb.text.toywiki import toywiki
from tests import compiling, forks

_FOLDER = pathlib.Path(__file__).parents[1] / 'experiments'
_SCRIPTS = sorted(
  x.stem for x in _FOLDER.glob('*.py') if 'experiment.parser(' in x.read_text()
)
sys.path.append(str(_FOLDER))
import comm_volume  # noqa: E402
import experiment  # noqa: E402
import zipf  # noqa: E402


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
  """Calls an experiment here, and jaxemb where it would start a process.

  Other programs that it starts are forked. Returns its results, and what it
  shows, each run of blanks as one.
  """

  def call(command, cache=None):
    if command[1:3] != ['-m', 'jaxemb.main']:
      return fork([command])
    assert jaxemb_main.main(command[3:]) == 0

  def fork(commands):
    arguments = [x[1:] for x in commands]
    forks.call(forks.script, arguments, os.environ, tmp_path / 'said.txt')

  monkeypatch.setattr(experiment, 'call', call)
  monkeypatch.setattr(experiment, 'simulate_devices', lambda *_, **__: None)
  # The processes that experiments start compile as quickly as this one.
  for flag, value in compiling.environment().items():
    monkeypatch.setenv(flag, value)

  def run(name, *flags):
    output = tmp_path / 'found.json'
    monkeypatch.setattr(sys, 'argv', [name, *flags, f'--output={output}'])
    capsys.readouterr()
    experiment.main(importlib.import_module(name).main)
    shown = re.sub(' +', ' ', capsys.readouterr().out)
    return json.loads(output.read_text())['results'], shown

  return run


@pytest.fixture
def text(tmp_path):
  """Flags of a text and an evaluation set."""
  path, pairs = tmp_path / 'text.txt', tmp_path / 'pairs.txt'
  lines = [f'the {i % 7} birds of {i % 5} islands sing' for i in range(4000)]
  path.write_text('\n'.join(lines))
  pairs.write_text('birds\tislands\t9\nthe\tof\t5\nsing\tbirds\t7\n')
  return f'--text={path}', f'--eval={pairs}'


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
  """Flags of a text, and of questions on words in contexts."""
  folder = tmp_path_factory.mktemp('toy')
  made = toywiki.write(folder, corpus_words=60_000)
  questions = next(x for x in made.eval_paths if x.name == 'senses.txt')
  return f'--text={made.xml}', f'--scws={questions}'


# What experiments share.


@pytest.mark.slow
def test_rows_with_copies_move_seldom(run):
  flags = '--rows=2000', '--lookups=200', '--steps=100', '--shares=0.1,1'
  found, shown = run('het', *flags, '--exponents=1.05', '--policies=lru,lfu')
  assert 'staleness' in shown
  by_point = {(x['share'], x['policy'], x['staleness']): x for x in found}
  for (share, policy, staleness), x in by_point.items():
    assert 0 <= x['saved'] <= x['saved_of_lookups'] < 1
    if not staleness:
      assert x['pushed'] == 1
    else:
      fresher = by_point[share, policy, 10 if staleness == 100 else 0]
      assert x['saved'] > fresher['saved']
  # With room for all rows nothing leaves its line.
  assert by_point[1, 'lru', 100] | {'policy': 'lfu'} == by_point[1, 'lfu', 100]


@pytest.mark.parametrize('name', _SCRIPTS)
def test_help(name, run, capsys):
  with pytest.raises(SystemExit, match='0'):
    run(name, '--help')
  assert '--output' in capsys.readouterr().out


@pytest.mark.parametrize(
  ('name', 'flag', 'words'),
  [
    ('dmwe_scws', '--scws=nope', 'file or folder at nope'),
    ('planted_senses', '--config=nope', 'there is no config file'),
    ('planted_senses', '--seeds=0', '0 must be at least 1'),
    ('planted_senses', '--nope', 'unknown argument --nope'),
    ('low_precision', '--text=nope', 'nope does not exist'),
    ('low_precision', '--cases=nope', "argument --cases: there is no 'nope'"),
    ('low_precision', '--cases=int8 nearest', '--cases needs float32'),
  ],
)
def test_errors_of_users_are_one_line(
  name, flag, words, run, monkeypatch, capsys
):
  def call(command, cache=None):
    code = jaxemb_main.main(command[3:])
    raise errors.UserError(capsys.readouterr().err.strip() or code)

  monkeypatch.setattr(experiment, 'call', call)
  with pytest.raises(SystemExit, match='2'):
    run(name, flag)
  assert words in capsys.readouterr().err.splitlines()[-1]


def test_results(tmp_path, capsys):
  path = tmp_path / 'new' / 'found.json'

  def results(path=path, same=('dim', 'text'), **flags):
    flags = argparse.Namespace(output=path, **flags)
    return experiment.Results('x', flags, same)

  first = results(text='/data/a.txt,/data/b.txt', dim=8, seeds=1)
  first.found['a'] = 1
  first.finish('title')
  shown = capsys.readouterr().out.splitlines()
  content = json.loads(path.read_text())
  # No folder of this machine is in the file.
  assert content['arguments']['text'] == 'a.txt,b.txt'
  machine = content['machine']
  assert shown == [
    'title', experiment.describe(machine), f'all results: {path}'
  ]  # fmt: skip
  assert machine['devices'] == {f'cpu {jax.devices()[0].device_kind}': 8}
  assert results(text='a.txt,b.txt', dim=8, seeds=2).found == {'a': 1}
  with pytest.raises(errors.UserError, match='--dim=8, not 9'):
    results(text='a.txt,b.txt', dim=9, seeds=1)
  assert results(same=None, dim=9).found == {}
  default = _FOLDER / 'results' / f'x-{experiment.today()}.json'
  assert results(None).path == default


# On random ids.


def test_random_corpus():
  job = zipf.make({'model.dim': 8, 'strategy.name': 'sync'}, 50)
  assert job.counts[0] / job.counts[9] == pytest.approx(12.7 / 3.7)
  corpus = zipf.corpus(job.counts, 30_000)
  ids = corpus.ids
  words = ids[ids >= 0]
  assert len(words) == corpus.num_words == corpus.blocks.words.sum() == 30_000
  assert len(ids) - len(words) == pytest.approx(30_000 / 20, rel=0.05)
  expected = job.counts / job.counts.sum()
  found = np.bincount(words, minlength=50) / 30_000
  assert np.abs(found - expected).max() < 0.01


@pytest.mark.slow
def test_scaling(run, tmp_path, monkeypatch):
  import bench_scaling

  def measure(point, is_quick):
    return bench_scaling.measure(point, zipf.Effort(50_000, 2, 0.0))

  def obstacle(job):
    return 'needs 9 TB' * (job.config.strategy.name == 'sync')

  monkeypatch.setattr(zipf, 'obstacle', obstacle)
  monkeypatch.setattr(bench_scaling, '_in_process', measure)
  plot = tmp_path / 'plot.svg'
  axes, shown = run('bench_scaling', '--quick', f'--plot={plot}')
  assert '</svg>' in plot.read_text()
  assert list(axes) == ['vocab', 'dim', 'batch_words', 'corpus_words']
  points = [x for axis in axes.values() for x in axis['points']]
  (skipped,) = (x for x in points if 'skipped' in x)
  assert skipped['strategy'] == 'sync' and 'skipped: needs 9 TB' in shown
  for p in (x for x in points if 'skipped' not in x):
    low, high = p['min_centers_per_sec'], p['max_centers_per_sec']
    assert low <= p['centers_per_sec'] <= high
    step_words = p['step_secs'] * p['centers_per_sec']
    assert step_words == pytest.approx(p['devices'] * p['batch_words'])
    # Replicas keep what they were at the last exchange.
    copies = 1 if p['devices'] == 1 else 2 * p['devices']
    vectors_bytes = 2 * 4 * p['vocab'] * p['dim'] * copies
    assert 1 <= p['table_bytes'] / vectors_bytes < 1.2
  base, wide = axes['dim']['points']
  ratio = base['centers_per_sec'] / wide['centers_per_sec']
  assert (base['time_ratio'], wide['time_ratio']) == (1, pytest.approx(ratio))


@pytest.mark.slow
def test_roofline(run):
  (found,), shown = run('bench_roofline', '--quick', '--chunk=8')
  s, need, each = found['settings'], found['per_center'], found['ceilings']
  width = 8 + 2 * s['window'] + s['shared_negatives']
  assert need['table_bytes'] == 12 * (1 + width / 8) * s['dim']
  # What was timed is what a step needs.
  units = {'gather': 'rows', 'scatter': 'rows', 'products': 'flops'}
  for part, unit in units.items():
    done = each[f'{part}_{unit}_per_sec'] * each[f'{part}_secs']
    assert done == pytest.approx(need[unit] * s['batch_words'])
  parts = sum(each[f'{part}_secs'] for part in units)
  reached = f'{parts / found["step"]["step_secs"]:.0%}'
  assert re.search(rf'\(c\) .* {reached}\n', shown)


@pytest.mark.slow
def test_device_hour(run, tmp_path):
  found, shown = run('device_hour', '--quick', f'--trace={tmp_path / "trace"}')
  assert found['num_devices'] >= 1 and not found['left_out']
  for x in found['agreement'].values():
    assert 0 <= x['largest_difference'] < 1e-3 * x['largest_change']
  assert all(x['words_per_sec'] > 0 for x in found['rates'])
  assert 'differ by up to' in shown
  assert list((tmp_path / 'trace').rglob('*.xplane.pb'))


@pytest.mark.slow
def test_what_fails_on_a_device_ends_nothing_else(run, monkeypatch, tmp_path):
  import device_hour

  def fail(*args):
    raise FloatingPointError('training\ndiverged')

  # A file, where there is to be a folder.
  (tmp_path / 'trace').touch()
  monkeypatch.setattr(device_hour, 'agreement', fail)
  chips = iter([fail, lambda device: None, lambda device: None])
  monkeypatch.setattr(device_hour, '_chip', lambda x: next(chips)(x))
  found, shown = run('device_hour', '--quick', f'--trace={tmp_path / "trace"}')
  line = 'FloatingPointError: training diverged'
  assert found['agreement'] == {'obstacle': line}
  assert f'not measured: {line}' in shown
  assert found['rates'][0]['obstacle'] == line
  assert found['rates'][1]['words_per_sec'] > 0
  assert found['trace']['obstacle']


@pytest.mark.slow
def test_stored_tables(run, monkeypatch):
  import stored_tables

  monkeypatch.setattr(stored_tables, '_in_process', stored_tables.measure)
  found, shown = run(
    'stored_tables', '--rows=900', '--dim=8', '--words=60000', '--secs=0',
    '--runs=1', '--batch_words=64', '--warm_dispatches=1',
    '--cases=device,memory:50%,disk:40%',
  )  # fmt: skip
  assert '900 x 8, sgd' in shown
  (device,), (memory,), (disk,) = found.values()
  assert disk['table_bytes'] < memory['table_bytes'] < device['table_bytes']
  assert 0 < memory['bytes_per_step'] < disk['bytes_per_step']
  assert memory['hit_rate'] > disk['hit_rate']


@pytest.mark.slow
def test_weak_scaling(run):
  found, shown = run(
    'weak_scaling', '--vocab=300', '--dim=8', '--batch_words=64',
    '--words=30000', '--secs=0', '--runs=1', '--cases=replicas,column',
  )  # fmt: skip
  ((one, two),) = found['column']
  assert (
    f'\ncolumn {one / 1e6:.2f} {two / 1e6:.2f} {two / one / 2:.0%}' in shown
  )


# What the network carries.


@pytest.mark.slow
def test_compiled_programs_send_what_sizes_say(run):
  found, shown = run('comm_volume', '--quick')
  keys = operator.itemgetter('layout', 'data', 'table', 'dim')
  found = {keys(p): p for p in found['points']}
  for p in found.values():
    formula = p['formula_bytes_per_word']
    assert p['bytes_per_word'] == pytest.approx(formula, rel=1e-12)
    assert (p['bytes_per_word'] == 0) == (p['devices'] == 1)
    assert p['travels_with_vocabulary_axis'] == []
  row, narrow = found['row', 1, 4, 8], found['column', 1, 4, 8]
  # Six contexts, five negatives: (2 + 30) rows of 8, 36 products of 4 servers.
  for p, per_center in ((row, 32 * 8 * 4), (narrow, 36 * 4 * 4)):
    expected = per_center * p['kept_fraction']
    assert p['published_bytes_per_word'] == pytest.approx(expected)
  assert found['column', 1, 4, 24]['bytes_per_word'] == narrow['bytes_per_word']
  ratio = narrow['bytes_per_word'] / row['bytes_per_word']
  assert re.search(rf'\ncolumn 1 x 4 8 .* {ratio:.3f} 0 ', shown)


def test_columns_send_a_third_of_what_rows_do():
  def sent(layout, dim):
    point = comm_volume.Point(layout, 1, 8, dim)
    return comm_volume.closed_form(comm_volume.make(point, 100_000, 8192))

  assert sent('column', 512) <= sent('row', 512) / 3
  assert sent('column', 512) == sent('column', 64)


@pytest.mark.parametrize(
  ('layout', 'rows', 'travels'),
  [
    ('replicated', 500, True),
    ('replicated', 64, False),
    ('row', 2 * 128, True),  # 500 rows in two groups of 256, of two devices
    ('row', 64, False),
    ('column', 500, True),
  ],
)
def test_a_vocabulary_that_travels_is_seen(layout, rows, travels):
  shape = (2, 1) if layout == 'replicated' else (1, 2)
  job = comm_volume.make(comm_volume.Point(layout, *shape, 8), 500, 256)
  text = f"""HloModule jit_f, num_partitions=2
%body (a: f32[500,8]) -> f32[500,8] {{
  %a = f32[{rows},8]{{1,0}} parameter(0)
  ROOT %r = f32[{rows},8]{{1,0}} all-reduce(%a), replica_groups={{}}
}}
ENTRY %main (a: f32[500,8]) -> f32[500,8] {{
  ROOT %w = f32[500,8] while(%a), condition=%body, body=%body
}}
"""
  assert bool(comm_volume.traffic(job, text)[1]) == travels


@pytest.mark.slow
def test_two_processes_send_what_their_program_says(tmp_path):
  settings = {
    'strategy.name': 'sync', 'table.layout': 'column', 'mesh.data': 1,
    'mesh.table': 2, 'train.batch_words': 256, 'train.epochs': 1,
    'data.path': 'toywiki:60000', 'model.dim': 8, 'eval.paths': 'none',
  }  # fmt: skip
  flags = [f'--config.{key}={value}' for key, value in settings.items()]
  job = forks.start(['train', '--workdir=run', *flags], tmp_path / 'job', 2)
  codes, said = job.wait()
  assert codes == [0, 0], said
  report = experiment.read_report(tmp_path / 'job' / 'run')
  compiled = report['collectives']['bytes_per_word']['total']
  # Headers come on top, and what processes tell each other.
  sent_bytes = report['hosts'][0]['loopback_sent_bytes']
  assert 1 < sent_bytes / report['corpus_words'] / compiled < 2


# Training.


@pytest.mark.slow
def test_throughput(run, text, tmp_path, monkeypatch):
  import bench_throughput

  started = [sys.executable, '-c', 'raise SystemExit("so it is")']
  with pytest.raises(errors.UserError, match='failed: so it is'):
    bench_throughput._timed(started, tmp_path, None)
  secs = bench_throughput._timed([sys.executable, '-c', ''], tmp_path, None)
  assert min(secs.values()) > 0

  def timed(command, folder, isa):  # with what is compiled
    start, own = time.perf_counter(), experiment.environment(isa)
    forks.call(forks.script, [command[1:]], own, folder / 'log')
    return secs | {'process_secs': time.perf_counter() - start}

  monkeypatch.setattr(bench_throughput, '_timed', timed)
  kept = tmp_path / 'kept'
  flags = [text[0], '--runs=1', '--epochs=1', '--dim=8', f'--keep={kept}']
  found, shown = run(
    'bench_throughput', *flags, text[1],
    '--config.optimizer.max_duplicates=4.0',
  )  # fmt: skip
  (ours,), (theirs,) = found['text'].values()
  assert ours['config']['optimizer']['max_duplicates'] == 4
  assert ours['config']['model']['dim'] == 8
  assert ours['process_secs'] > ours['train_secs'] + ours['compile_secs']
  words = theirs['words_per_sec'] * theirs['train_secs']
  assert words == pytest.approx(28_000)  # of the text
  for side in (ours, theirs):
    assert 50e6 < side['peak_rss_bytes'] < 4e9
    assert side['quality'].keys() == {'pairs', 'mean of word similarity'}
  assert "by gensim's evaluator: the same" in shown
  # The five sets are known by their names; kept vectors take part again.
  sets = tmp_path / 'sets'
  sets.mkdir()
  for name in ('MEN-TR-3k', 'WS-353-ALL', 'WS-353-SIM', 'SIMLEX-999', 'RW'):
    (sets / f'EN-{name}.txt').write_text((tmp_path / 'pairs.txt').read_text())
  (sets / 'questions-words.txt').write_text(': x\nthe birds of islands\n')
  vectors = f'mine={kept}/jaxemb.{{text}}.{{seed}}.bin'
  found, shown = run(
    'bench_throughput', *flags, f'--eval={sets}', f'--vectors={vectors}',
    '--sides=gensim', '--model=cbow', '--isa=avx2',
  )  # fmt: skip
  assert '(avx2)' in shown
  (theirs,), (mine,) = found['text'].values()
  assert mine.keys() == {'quality'}
  one = mine['quality']['EN-RW']
  assert one == ours['quality']['pairs']
  five = (4 * one + mine['quality']['questions-words']) / 5
  assert mine['quality']['mean of the five'] == pytest.approx(five)
  assert 'lowest against mine: ' in shown


def test_throughput_tables(monkeypatch):
  import bench_throughput

  def runs(rates, *scores):
    return [
      {
        'words_per_sec': rate,
        'process_secs': 1.0,
        'config': {},
        'quality': {'a': x, 'b': x + 0.2, 'mean of the five': x + 0.1},
      }
      for rate, x in zip(rates, scores, strict=True)
    ]

  other = [{'quality': {'a': 0.2, 'b': 0.1, 'mean of the five': 0.15}}]
  tables = bench_throughput._tables(
    {
      'x': {
        'jaxemb': runs([8.0, 9.0], 0.3, 0.5),
        'gensim': runs([2.0, 3.0], 0.4, 0.6),
        'other': other,
      },
      'y': {
        'jaxemb': runs([4.0, 4.0], 0.3, 0.3),
        'gensim': runs([4.0, 2.0], 0.4, 0.4),
        'other': other,
      },
    }
  )
  x, x_speed, _, _, both, speed = (re.sub(' +', ' ', x) for x in tables)
  assert 'a 0.4000 (0.1000) 0.5000 (0.1000) -0.1000 (0.1414) 0.2000 +0.2' in x
  assert 'lowest against other: a +0.2000' in x
  assert 'words_per_sec 8.5 8 9 2.5 2 3 3.5' in x_speed
  assert 'b 0.5500 (0.0500) 0.6500 (0.0500) -0.1000 (0.0707) 0.1' in both
  assert 'words_per_sec 6 4 9 2.5 2 4 2.5' in speed


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--vectors=x=nope'], 'nope does not exist'),
    (['--vectors=x'], "'x' is not NAME=FILE"),
    (['--vectors=gensim=x'], "'gensim' is in --sides already"),
    (['--config.model.window=2'], 'would change our side only'),
    (['--text=a.txt,b.txt', '--vectors=x=y'], 'write {text} in its place'),
    (['--text=a/x.txt,b/x.txt'], 'two files of one name'),
    (['--cores=1000000'], '--cores=1000000: there are'),
  ],
)
def test_throughput_names_flags_that_cannot_be_used(
  flags, words, run, text, capsys
):
  with pytest.raises(SystemExit, match='2'):
    run('bench_throughput', *text, *flags)
  assert words in capsys.readouterr().err.splitlines()[-1]


def test_both_sides_have_the_same_instructions(monkeypatch):
  monkeypatch.setenv('OPENBLAS_CORETYPE', 'Haswell')
  monkeypatch.setenv('XLA_FLAGS', '--xla_x')
  free = experiment.environment(None)
  assert 'OPENBLAS_CORETYPE' not in free and free['XLA_FLAGS'] == '--xla_x'
  limited = experiment.environment('avx2')
  assert limited['OPENBLAS_CORETYPE'] == 'Haswell'
  assert limited['XLA_FLAGS'] == '--xla_x --xla_cpu_max_isa=AVX2'
  monkeypatch.setenv('XLA_FLAGS', '--xla_cpu_max_isa=AVX2')
  with pytest.raises(errors.UserError, match='limits one side only'):
    experiment.environment(None)


@pytest.mark.slow
def test_consistency(run, text, tmp_path):
  plot = tmp_path / 'plot.svg'
  found, shown = run(
    'consistency', *text, '--epochs=1', '--replicas=2', f'--plot={plot}',
    '--cases=average:strategy.sync_every=512,hot,never,'
    'bounded:then=1:train.epochs=50:train.log_every_secs=0',
    '--config.model.dim=8', '--config.data.min_count=1',
  )  # fmt: skip
  assert '</svg>' in plot.read_text()
  assert len(found) == 5
  sent = {k.split(' x ')[0]: x['1']['bytes_per_word'] for k, x in found.items()}
  # The last one has no one to meet after its restart.
  assert sent.pop('one') == sent.pop('never') == sent.popitem()[1] == 0
  assert min(sent.values()) > 0
  assert re.search(r'\none 1 [.\d]+ 0.0000 0 1.00 ', shown)


@pytest.mark.slow
def test_speed_of_cores(run, text, monkeypatch):
  monkeypatch.setenv('NPROC', '3')
  found, shown = run(
    'cores', *text, '--threads=1,3', '--runs=2', '--epochs=1', '--vocab=300',
    '--words=300000', '--secs=0', '--config.model.dim=8',
    '--config.data.min_count=1',
  )  # fmt: skip
  assert list(found) == ['1', '3']
  ones, threes = found.values()
  speed_up = statistics.median(
    three['words_per_sec'] / one['words_per_sec']
    for one, three in zip(ones, threes, strict=True)
  )
  cells = re.search(r'\n3 (.*)', shown)[1].split()
  assert cells[4] == f'{speed_up:.2f}' and len(cells) == 7
  assert cells[6] == f'{statistics.mean(x["quality"] for x in threes):.4f}'


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='semaphores')
def test_updates_are_as_late_as_on_so_many_cores(tmp_path, text):
  train = [
    '-m', 'jaxemb.main', '--config=wiki', '--config.train.epochs=1',
    '--config.model.dim=8', '--config.data.min_count=1',
    text[0].replace('--text', '--config.data.path'),
  ]  # fmt: skip
  late = [str(_FOLDER / 'late_updates.py'), str(tmp_path), '5']
  runs, losses = {1: train, 5: [*late, *train]}, {}
  for threads, command in runs.items():
    workdir = tmp_path / f'run{threads}'
    flags = f'--workdir={workdir}', f'--config.train.threads={threads}'
    forks.call(
      forks.script, [[*command, *flags]], os.environ, tmp_path / 'said.txt'
    )
    losses[threads] = experiment.read_report(workdir)['loss_per_example']
  seen = json.loads((tmp_path / 'seen.json').read_text())
  assert seen == {'threads': 5, 'fewest': 4, 'most': 4, 'mean': 4}
  assert losses[1] == pytest.approx(losses[5], rel=0.1) != losses[5]


@pytest.mark.slow
def test_low_precision(run, text, tmp_path):
  plot = tmp_path / 'plot.svg'
  flags = (
    *text, '--epochs=1', '--cases=float32,bfloat16 stochastic',
    f'--plot={plot}', '--rows=3000', '--dim=8', '--rounds=1', '--words=20000',
    '--config.model.dim=8', '--config.train.batch_words=256',
  )  # fmt: skip
  found, shown = run('low_precision', *flags)
  assert '</svg>' in plot.read_text()
  quality, speed = found.values()
  whole, half = (x['1'] for x in quality.values())
  assert half['vector_bytes'] == whole['vector_bytes'] / 2
  assert half['curve'][-1][0] == 28_000
  assert [*speed] == [*quality, 'bfloat16 stochastic without bits']
  ((name, score),) = whole['scores'].items()
  assert f'{name} {score:.4f} {half["scores"][name] - score:+.4f}' in shown
  # Nothing is trained again.
  again, _ = run('low_precision', *flags, '--stages=quality')
  assert again['quality'] == quality


@pytest.mark.slow
def test_bench_merge(run):
  run('bench_merge', '--quick', '--noise=0.0')
  (exact, noisy), shown = run('bench_merge', '--quick', '--format=bin')
  assert exact['union_words'] == noisy['union_words'] > 2000
  assert exact['cosine_error'] < 1e-4 < noisy['cosine_error'] < 0.6
  assert 'merging' in shown


@pytest.mark.slow
def test_partition_merge(run, tmp_path):
  work, plot = tmp_path / 'work', tmp_path / 'plot.svg'
  flags = ('--quick', f'--work={work}', f'--plot={plot}')
  stages = ['sweep', 'kl', 'numbers', 'removed', 'repaired']
  found, shown = run('partition_merge', *flags, f'--stages={",".join(stages)}')
  assert list(found) == stages and '</svg>' in plot.read_text()
  (cell,), alone = found['sweep']['cells'], found['sweep']['single']['1']
  # With what is drawn again; each of fewer words, together of nearly all.
  ratio = sum(cell['words_read']) / alone['words_read']
  assert ratio == pytest.approx(1.42, rel=0.05)
  alir, concat = (cell['merges'][name] for name in ('alir', 'concat'))
  most = max(part['words'] for part in cell['parts'])
  assert concat['words'] < most < alir['words'] <= alone['words']
  assert concat['dim'] == 3 * alir['dim'] == 24
  for x in found['kl']:
    assert x['divergence'] < 1.8 * x['floor']  # of few words
  for x in found['numbers']:
    assert x['taken'] == 1 and x['mean'] == cell['parts'][0]['mean']
  words = {(x['merge'], x['removed']): x['words'] for x in found['removed']}
  # What one lacks another has.
  assert words['alir', 0.5] > 0.9 * words['alir', 0.0]
  assert words['concat', 0.5] < words['concat', 0.0] == concat['words']
  repaired = {
    (x['map'], x['removed']): x['benchmarks']['similarity']['score']
    for x in found['repaired']
  }
  # All words are from one.
  source = repaired['source', 0.0]
  assert repaired['procrustes', 1.0] == pytest.approx(source, abs=1e-3)
  assert 'shuffle, 3: alir' in shown
  # Nothing is trained or scored again.
  before = {x: x.stat().st_mtime_ns for x in work.rglob('*.json')}
  run('partition_merge', *flags, '--stages=sweep')
  assert {x: x.stat().st_mtime_ns for x in work.rglob('*.json')} == before


# Several vectors per word.


def test_purity():
  import planted_senses

  # Learned senses 0 and 1 stand for 1 and 0; half of those of sense 1 err.
  votes = [(0, 1), (0, 1), (1, 0), (1, 0), (0, 1), (0, 1), (1, 0), (1, 1)]
  assert planted_senses.purity(votes) == 0.75


@pytest.mark.slow
def test_planted_senses(run):
  found, shown = run(
    'planted_senses', '--seeds=1', '--sentences=4', '--config.model.dim=16',
    '--config.data.path=toywiki:60000', '--config.senses.number=2',
    '--config.train.epochs=1',
  )  # fmt: skip
  # Too short to learn: models of senses are tested to do so in contracts_test.
  assert len(found['1']['words']) == 40
  assert found['1']['right'] == statistics.mean(found['1']['words'].values())
  assert f'{found["1"]["right"]:.3f} right' in shown


@pytest.mark.slow
def test_dmwe_scws(run, toy):
  flags = (
    *toy, '--dims=8', '--models=skip-gram, negatives:mixture, tree',
    '--seeds=1', '--epochs=1', '--sample=1e-3', '--config=mixture',
    '--config.data.min_count=2', '--config.senses.query_window=3',
  )  # fmt: skip
  found, shown = run('dmwe_scws', *flags)
  alone, mixture = (x['1']['scores'] for x in found.values())
  assert set(alone) == {'single'} < set(mixture)
  assert f'{mixture["AvgSimC"]:.4f}' in shown
  assert run('dmwe_scws', *flags)[0] == found


@pytest.mark.slow
def test_click_steps_are_timed(monkeypatch, capsys, tmp_path):
  ctr = importlib.import_module('ctr')
  monkeypatch.setattr(ctr, 'EXAMPLES', 64)
  monkeypatch.setattr(sys, 'argv', ['ctr', '--rows=2600', '--rounds=2'])
  ctr.main()
  assert 'jaxemb is 1.00 x as fast' in capsys.readouterr().out
  log = tmp_path / 'log.tsv'
  flags = '--rows=2600', f'--write_log={log}', '--examples=100'
  monkeypatch.setattr(sys, 'argv', ['ctr', *flags])
  ctr.main()
  lines = log.read_text().splitlines()
  assert [len(x.split('\t')) for x in lines] == [40] * 100


@pytest.fixture
def clicks(tmp_path):
  """Flags of a small log of clicks, with rows for validation."""
  rng = np.random.default_rng(0)
  rows = rng.integers(0, 9, (600, 2)), rng.exponential(9, 600), rng.random(600)
  lines = [
    f'{int(chance < 0.2 + 0.05 * site)},s{site},a{ad},{price:.9f}'  # all differ
    for (site, ad), price, chance in zip(*rows, strict=True)
  ]
  path = tmp_path / 'clicks.csv'
  path.write_text('\n'.join(['click,site,ad,price', *lines]))
  small = 'model.dim=4', 'model.hidden=8', 'train.batch_examples=128'
  return f'--config.data.path={path}', *(f'--config.{x}' for x in small)


@pytest.mark.slow
def test_click_models_beside_peers(run, clicks, tmp_path):
  flags = '--optimizers=adagrad,adam', '--models=deepfm', *clicks
  found, shown = run('ctr_quality', *flags, '--config=ctr')
  (own,) = found['deepfm adam'].values()
  assert f'{own["auc"]:.5f} {own["log_loss"]:.6f}' in shown
  assert found['deepfm adagrad']['jaxemb'] != own
  ctr_quality = importlib.import_module('ctr_quality')
  parts, given = ctr_quality._given([
    '--config=ctr', '--config.train.epochs=1', *clicks
  ])  # fmt: skip
  # What a peer gets: each row of an epoch once, and the first parameters.
  train = parts.source.train
  order = np.lexsort(given['numbers'].T), np.lexsort(train.numbers.T)
  for key in ('ids', 'numbers', 'labels'):
    ours, theirs = np.asarray(getattr(train, key)), given[key]
    assert np.array_equal(theirs[order[0]], ours[order[1]])
  settings = ctr_quality._peer_settings(parts, 'torch', 1)
  sizes = settings['sizes']
  assert given['vectors'].shape == (sum(sizes), settings['dim'])
  assert given['deep/layers/layer_0/kernel'].shape == (2 * 4 + 1, 8)


@pytest.mark.parametrize('optimizer', ['adagrad', 'adam'])
@pytest.mark.parametrize('norm', [False, True])
def test_steps_are_those_of_torch(run, clicks, optimizer, norm):
  pytest.importorskip('torch')
  flags = f'--optimizers={optimizer}', f'--peer_python={sys.executable}'
  more = '--config=ctr', f'--config.model.batch_norm={norm}', *clicks
  found, _ = run('ctr_quality', *flags, '--epochs=2', *more)
  for sides in found.values():
    losses = [x['log_loss'] for x in sides.values()]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.slow
def test_precision_of_click_models(run, clicks, monkeypatch):
  ctr = importlib.import_module('ctr')
  monkeypatch.setattr(ctr, 'EXAMPLES', 64)
  found, shown = run(
    'ctr_quality', '--case=precision', '--cases=float32,float16 stochastic',
    '--rows=2600', '--rounds=1', *clicks, '--config.train.epochs=1',
  )  # fmt: skip
  whole, half = (x['1'] for x in found['quality'].values())
  assert half['vector_bytes'] == whole['vector_bytes'] / 2
  assert f'{half["auc"]:.5f}' in shown
  assert 'float16 stochastic' in found['speed']
  with pytest.raises(SystemExit, match='2'):
    run('ctr_quality', '--case=precision', '--cases=int8 nearest')


@pytest.mark.slow
def test_graphsage_beside_peers(run):
  flags = '--nodes=500', '--edges=3000', '--batch=32', '--rounds=2'
  found, _ = run('graphsage', '--case=sampling', *flags)
  assert found.keys() == {'without replacement', 'with replacement'}
  assert all(x['jaxemb']['seeds_per_sec'] > 0 for x in found.values())
  flags = '--config.data.path=toygraph:2000', '--config.train.epochs=30'
  found, _ = run('graphsage', '--seeds=1', *flags)
  assert found['jaxemb']['mean'] > 0.9
