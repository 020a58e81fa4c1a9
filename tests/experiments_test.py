"""Experiments run in a small variant, and their numbers belong together."""

import importlib
import json
import os
import pathlib
import re
import sys

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


@pytest.mark.parametrize('name', _SCRIPTS)
def test_help(name, run, capsys):
  with pytest.raises(SystemExit, match='0'):
    run(name, '--help')
  assert '--output' in capsys.readouterr().out


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
def test_device_hour(run, text, tmp_path):
  sets = text[1].replace('--eval', '--sets')
  flags = '--quick', text[0], sets, f'--trace={tmp_path / "trace"}'
  found, shown = run('device_hour', *flags)
  assert not found['failed'] and not found['left_out']
  rows = found['rows']
  first, later = rows['text, first run'], rows['text, later run']
  parts = 'import', 'encode', 'compile', 'train', 'export'
  for x in first, later:
    secs = [x[f'{part}_secs'] for part in parts]
    assert min(secs) > -0.1 and sum(secs) < x['process_secs']
    assert -1 <= x['pairs'] <= 1
  assert rows['text, CPU'].keys() == {'words_per_sec', 'pairs'}
  assert {k for k in rows if k.startswith('embedded')} == {
    f'embedded, {x}' for x in importlib.import_module('device_hour')._MODELS
  }
  batches = rows['batches of 50,000 words']
  assert batches['words_per_sec'] > 0 and batches['host_secs'] < 1
  base = rows['steps, SGD, float32, dim 128']
  other = rows['steps, Adagrad']
  assert base['relative'] == 1
  ratio = other['words_per_sec'] / base['words_per_sec']
  assert other['relative'] == pytest.approx(ratio)
  assert rows['an epoch']['host_waits'] >= 1
  assert rows['clicks, 64 examples a step']['jaxemb_per_sec'] > 0
  assert rows['tests']['exit_code'] == 0 and 'passed' in shown
  assert list((tmp_path / 'trace').rglob('*.xplane.pb'))


def test_a_part_that_fails_or_has_no_time_does_not_end_the_rest(
  run, monkeypatch
):
  hour = importlib.import_module('device_hour')

  def fail(_):
    raise ValueError('no\nsuch device')

  def measure(hour):
    hour.row('steps', words_per_sec=2.0)

  parts = {
    'text': hour._Part(fail, 0),
    'clicks': hour._Part(measure, 1e9),
    'steps': hour._Part(measure, 0),
  }
  monkeypatch.setattr(hour, '_PARTS', parts)
  found, shown = run('device_hour', '--quick')
  assert found['failed'] == {'text': 'ValueError: no such device'}
  assert found['left_out'] == ['clicks'] and 'no time for clicks' in shown
  assert found['rows'] == {'steps': {'words_per_sec': 2}}


def test_tests_that_are_cut_short_are_counted():
  hour = importlib.import_module('device_hour')
  lines = ['bringing up nodes...', '..s.F [  5%]', '..']
  assert hour._ended(lines) == '5 passed, 1 failed, 1 skipped'
  assert hour._ended([]) == 'none ended'


@pytest.mark.parametrize(
  ('line', 'is_scalar', 'is_vector'),
  [
    ('RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2.64], R5 ;', True, False),
    ('ATOMG.E.ADD.F32.FTZ.RN.STRONG.GPU PT, RZ, [R2.64], R5 ;', True, False),
    ('REDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R4 ;', False, True),
    ('LDG.E.128.STRONG.GPU R4, desc[UR4][R2.64] ;', False, False),
  ],
)
def test_additions_in_machine_code(line, is_scalar, is_vector):
  hour = importlib.import_module('device_hour')
  assert bool(hour._SCALAR_ADDITION.search(line)) == is_scalar
  assert bool(hour._VECTOR_ADDITION.search(line)) == is_vector


# What the network carries.


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


# Training.


_PEER = f"""#!{sys.executable}
import sys, time
flags = dict(zip(sys.argv[-2::-2], sys.argv[::-2]))
words = sorted({{x for line in open('tokens') for x in line.split()}})
for percentage in '20.00', '70.00':
  print(f'Progress: {{percentage}}%  Words/sec: 1k', end='\\r', flush=True)
  time.sleep(0.4)
with open('vectors.bin' if '-train' in flags else 'vectors.vec', 'w') as file:
  print(len(words), 2, file=file)
  for number, word in enumerate(words):
    print(word, 1 + number, 2, file=file)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == 'nt', reason='a script as a program')
def test_reproduce(run, text, monkeypatch, tmp_path):
  import reproduce

  execute = reproduce._execute

  def in_fork(command, folder, **limits):  # with what is compiled
    if command[0] != sys.executable:
      return execute(command, folder, **limits)
    log, arguments = folder / 'log', [command[1:]]
    forks.call(forks.script, arguments, os.environ, log, folder=folder)
    return {'process_secs': 2.0, 'process_cpu_secs': 3.0, 'progress': []}

  monkeypatch.setattr(reproduce, '_execute', in_fork)
  peer = tmp_path / 'peer'
  peer.write_text(_PEER)
  peer.chmod(0o755)
  flags = (
    *text, '--seeds=1', '--rounds=1', '--epochs=1', '--speed_epochs=1',
    '--dim=8', '--config.optimizer.max_duplicates=4.0',
    f'--peers=gensim,pword2vec:{peer},fasttext:{peer}',
  )  # fmt: skip
  found, shown = run('reproduce', *flags, '--models=skip-gram')
  speed, process, quality = (
    {name: runs['text'][0] for name, runs in part['skip-gram'].items()}
    for part in found.values()
  )
  assert [*speed] == ['jaxemb', 'gensim', 'pword2vec', 'fasttext']
  # Half of the text in 0.4 s.
  rate = speed['fasttext']['words_per_sec']
  assert rate == pytest.approx(28_000 / 0.8, rel=0.3)
  ratio = speed['jaxemb']['words_per_sec'] / rate
  assert re.search(rf'M words/s in training .* \({ratio:.1f} x\)', shown)
  assert process['jaxemb']['process_secs'] == 2
  scores = [x['quality']['pairs'] for x in quality.values()]
  for score in scores[1:]:
    assert f'| {score:.3f} ({scores[0] - score:+.3f})' in shown
  # Results that are there stay, and CBOW is not pWord2Vec's.
  models = '--models=skip-gram,CBOW'
  more, shown = run('reproduce', *flags, '--parts=speed', models)
  assert 'pword2vec' not in more['speed'].pop('CBOW')
  assert more == found and 'CBOW: M words/s' in shown


def test_scores_of_the_table():
  import reproduce

  def runs(*scores):
    return [{'quality': {'men': x}} for x in scores]

  by_program = {
    'jaxemb': {'a': runs(0.5, 0.7), 'b': runs(0.4, 0.4)},
    'word2vec': {'a': runs(0.4, 0.4), 'b': runs(0.1, 0.2), 'c': runs(0.9)},
  }
  shown = reproduce.table({'quality': {'skip-gram': by_program}})
  # Texts that both have; errors of means of two: .1 and 0, 0 and .05.
  assert '| 0.500 |  |  | 0.275 (+0.225 ± 0.056) |  |' in shown


def test_speeds_of_the_table():
  import reproduce

  def runs(key, *values):
    return {'a': [{'process_cpu_secs': 1, key: x} for x in values]}

  rates = {
    'jaxemb': runs('words_per_sec', 9e6, 8e6, 1e6),
    'gensim': runs('words_per_sec', 2e6),
  }
  secs = {
    'jaxemb': runs('process_secs', 20), 'gensim': runs('process_secs', 90),
  }  # fmt: skip
  shown = reproduce.table({'speed': {'CBOW': rates}, 'process': {'CBOW': secs}})
  assert 'CBOW: M words/s in training | 8.00 | 2.00 (4.0 x) |' in shown
  assert 'first run, s | 20.0 | 90.0 (4.5 x) |' in shown


@pytest.mark.skipif(os.name == 'nt', reason='a script as a program')
def test_a_peer_is_stopped_once_its_speed_is_known(tmp_path):
  import reproduce

  lines = [f"print('Progress: {x}%', flush=True)" for x in (1, 2, 3)]
  waits = 'import time', *lines, 'time.sleep(60)'
  command = [sys.executable, '-c', '\ntime.sleep(0.3)\n'.join(waits)]
  found = reproduce._execute(command, tmp_path, tmp_path, progress_secs=0.5)
  assert [x for _, x in found['progress']] == [1, 3]
  assert found['process_secs'] < 30
  run = reproduce._Run('CBOW', reproduce._Text('', tmp_path, 1000), 5, 8, 1)
  rate = reproduce._words_per_sec(tmp_path, run, found['progress'])
  assert rate == pytest.approx(5000 * 0.02 / 0.6, rel=0.3)


def test_a_peer_that_fails_is_a_line(tmp_path):
  import reproduce

  command = [sys.executable, '-c', 'print("no such file"); exit(3)']
  with pytest.raises(errors.UserError, match=r'failed: no such file$'):
    reproduce._execute(command, tmp_path, tmp_path, progress_secs=1)


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ('--peers=gensim,glove:/bin/sh', 'glove'),
    ('--peers=word2vec:no/such/file', 'word2vec'),
    ('--config.model.dim=3', 'would change our side only'),
  ],
)
def test_reproduce_is_fair_and_finds_its_peers(flag, message, run, capsys):
  with pytest.raises(SystemExit, match='2'):
    run('reproduce', '--text=x', flag)
  assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='no threads per core')
def test_cores(run, monkeypatch):
  monkeypatch.setenv('NPROC', '')
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  flags = '--secs=0', '--threads=3', '--vocab=500', '--words=300000'
  small = '--config.model.dim=8', '--config.data.min_count=1'
  found, shown = run('cores', *flags, *small)
  assert all(x > 0 for x in found['line_secs'])
  (one,), (three,) = found['training'].values()
  assert 0 < one['outside'] < 1 and 0 < three['outside'] < 1
  ratio = three['rate'] / one['rate']
  (steps_one,), (steps_three,) = found['steps'].values()
  speed_up = steps_three['rate'] / steps_one['rate']
  assert re.search(rf'\n3 .* {speed_up:.2f} .* {ratio:.2f} ', shown)


@pytest.mark.slow
def test_bench(run, text, monkeypatch):
  import bench

  found, _ = run('bench', 'encode', text[0], '--runs=1')
  assert found['words'] == 28_000
  small = '--words=2000', '--dim=16'
  exact, _ = run('bench', 'merge', '--parts=3', '--noise=0', *small)
  noisy, _ = run('bench', 'merge', '--parts=3', *small)
  assert exact['union_words'] == noisy['union_words'] > 2000
  assert exact['cosine_error'] < 1e-4 < noisy['cosine_error'] < 0.6
  small = '--rows=900', '--dim=8', '--words=60000', '--secs=0', '--runs=1'
  long = '--cases=300,900', *small[:2], '--words=2000000', *small[3:]
  found, _ = run('bench', 'rows', *long)
  assert found['300']['centers_per_sec'] > 0
  found, shown = run(
    'bench', 'layouts', '--batch_words=64', '--cases=replicas,column', *small
  )
  ((one, two),) = found['column']
  assert f'{two / one / 2:.0%}' in shown
  monkeypatch.setattr(bench, '_in_process', bench.measure_store)
  found, _ = run(
    *('bench', 'stores', '--cases=device,memory:50%,disk:40%'),
    *('--rows=20000', *small[1:2], '--words=2000000', *small[3:]),
  )
  (device,), (memory,), (disk,) = found.values()
  assert disk['table_bytes'] < memory['table_bytes'] < device['table_bytes']
  assert memory['hit_rate'] > disk['hit_rate']


@pytest.mark.slow
def test_neighbors(run, tmp_path):
  pytest.importorskip('usearch', reason="needs usearch, of the extra 'ann'")
  folder = tmp_path / 'index'
  small = (
    '--rows=4000', '--dim=16', '--queries=20', '--expansion_search=64,99',
    f'--index={folder}',
  )  # fmt: skip
  found, shown = run('neighbors', *small)
  search = found['singles']['0 to 1,000']
  assert 0.9 < search['recall'][0] <= search['recall'][1] <= 1
  times = search['exact'] / search['index'][0]
  assert f'{search["recall"][0]:.3f}' in shown and f' {times:.0f}\n' in shown
  assert ' s to build' in shown and (folder / 'index.json').exists()
  assert found['batches']['index'][0] > 0
  found, shown = run('neighbors', *small)
  assert found['build_secs'] is None and ' s to build' not in shown


def test_what_starts_have_grown():
  import soak

  def start(number):
    sample = {'rss': 1e8 + 1e6 * number, 'anonymous': 1e8, 'peak': 1e8}
    sample |= {'open_files': 7 + number // 8, 'threads': 30}
    keys = (x for x, _ in soak._SHOWN.values() if x not in sample)
    return {
      'is_expected': number != 3, 'code': 75, 'end': 'a traceback',
      'resumed_after': 10 * number or None,
      'samples': {'5': sample} if number else {}, **dict.fromkeys(keys, 2),
    }  # fmt: skip

  lines = '\n'.join(soak._lines([start(i) for i in range(11)]))
  lines = re.sub(' +', ' ', lines)
  assert 'memory, MB 101.0 110.0 +8.91%' in lines
  assert 'open files 7.0 8.0 +14.29%' in lines and '75: a traceback' in lines
  assert '1 ended otherwise than asked, 0 went back; 100 words' in lines


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='needs wait4 in KiB')
def test_memory(run):
  found, shown = run('memory', '--scale=0.01', '--cases=interactions')
  (one,) = found.values()
  assert one['peak_bytes'] == pytest.approx(
    one['predicted_peak_bytes'], rel=0.3
  )
  assert f' {one["peak_bytes"] / one["predicted_peak_bytes"]:.2f}' in shown


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='needs /proc')
def test_soak(run):
  found, shown = run('soak', '--hours=0.005', '--every_secs=6')
  first, *_ = found['starts']
  assert first['is_expected'] and first['workdir_files'] > 10
  assert first['samples']['5']['rss'] > 1e8 and ' starts, memory' in shown


@pytest.mark.slow
def test_fasttext_files(run):
  pytest.importorskip('gensim')
  small = '--words=30000', '--buckets=5000', '--dim=20', '--runs=1'
  found, shown = run('fasttext_files', *small, '--gensim')
  unknown, cached = found['queries']
  assert (unknown['lengths'], cached['lengths']) == ('unknown', 'cached')
  assert all(x['neighbors_secs'] > 0 for x in found['queries'])
  assert max(found['gensim'].values()) < 1e-6 and 'as it is' in shown


@pytest.mark.slow
def test_consistency(run, text, tmp_path):
  plot = tmp_path / 'plot.svg'
  found, shown = run(
    'consistency', *text, '--epochs=1', '--replicas=2', f'--plot={plot}',
    '--cases=average:strategy.sync_every=512,'
    'bounded:then=1:train.epochs=50:train.log_every_secs=0',
    '--config.model.dim=8', '--config.data.min_count=1',
    '--config.data.sample=5e-3',
  )  # fmt: skip
  assert '</svg>' in plot.read_text()
  assert len(found) == 3
  sent = {k.split(' x ')[0]: x['1']['bytes_per_word'] for k, x in found.items()}
  # The last one has no one to meet after its restart.
  assert sent.pop('one') == sent.popitem()[1] == 0 < sent.popitem()[1]
  assert re.search(r'\none 1 [.\d]+ 0.0000 0 1.00 ', shown)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='semaphores')
def test_updates_are_as_late_as_on_so_many_cores(tmp_path, text):
  train = [
    '-m', 'jaxemb.main', '--config=wiki', '--config.train.epochs=3',
    '--config.model.dim=8', '--config.data.min_count=1',
    '--config.data.sample=5e-3',
    text[0].replace('--text', '--config.data.path'),
  ]  # fmt: skip
  late = [str(_FOLDER / 'late_updates.py'), str(tmp_path), '5']
  flags = f'--workdir={tmp_path / "run"}', '--config.train.threads=5'
  forks.call(
    forks.script, [[*late, *train, *flags]], os.environ, tmp_path / 'said.txt'
  )
  seen = json.loads((tmp_path / 'seen.json').read_text())
  assert seen == {'threads': 5, 'fewest': 4, 'most': 4, 'mean': 4}


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


@pytest.mark.slow
def test_partition_merge(run, tmp_path):
  work, plot = tmp_path / 'work', tmp_path / 'plot.svg'
  flags = ('--quick', f'--work={work}', f'--plot={plot}')
  stages = ['sweep', 'kl', 'removed']
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
  words = {(x['merge'], x['removed']): x['words'] for x in found['removed']}
  # What one lacks another has.
  assert words['alir', 0.5] > 0.9 * words['alir', 0.0]
  assert words['concat', 0.5] < words['concat', 0.0] == concat['words']
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


@pytest.mark.slow
def test_steps_are_those_of_torch(run, clicks):
  pytest.importorskip('torch')
  flags = '--optimizers=adagrad,adam', f'--peer_python={sys.executable}'
  more = '--config=ctr', '--config.model.batch_norm=True', *clicks
  found, _ = run('ctr_quality', *flags, '--epochs=2', *more)
  for sides in found.values():
    losses = [x['log_loss'] for x in sides.values()]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.slow
def test_graphsage_beside_peers(run):
  flags = '--nodes=500', '--edges=3000', '--batch=32', '--rounds=2'
  found, _ = run('graphsage', '--case=sampling', *flags)
  assert found.keys() == {'without replacement', 'with replacement'}
  assert all(x['jaxemb']['seeds_per_sec'] > 0 for x in found.values())


def test_rows_that_caches_save_are_bounded(run):
  found, _ = run(
    'cached_rows', '--rows=3000', '--fields=2', '--categories=300',
    '--workers=2', '--batch_examples=20', '--percent=20,100',
    '--staleness=0,5',
  )  # fmt: skip
  for bound in (0, 5):
    *rows, often, cold = found[f'20 {bound}']
    lfu, lru, perfect, no_limit = rows
    # Up to reads of rows that stay, which others have changed.
    assert max(lru, lfu) < perfect + 0.001 < no_limit < cold
    # With room for all, a worker reads and pushes each once.
    *rows, often, cold = found[f'100 {bound}']
    assert (rows[3], often) == (pytest.approx(cold), 1)
  # All are pushed, or not.
  assert found['20 0'][0] < 0.5 < found['20 5'][0]
