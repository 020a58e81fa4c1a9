"""The benchmarks run, and their figures belong together; no speed is tested."""

import json
import pathlib
import subprocess
import sys

import pytest

from jaxemb.toywiki import toywiki
from tests import compiling

_ROOT = pathlib.Path(__file__).parents[1]
_BENCHMARKS = sorted((_ROOT / 'experiments').glob('b*_*.py'))


def _run(name, *args, cwd=_ROOT):
  result = subprocess.run(
    [sys.executable, str(_ROOT / 'experiments' / name), *args],
    cwd=cwd,
    env=compiling.environment(),
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert result.returncode == 0, result.stderr[-2000:]
  return result.stdout


def _check_machine(facts):
  assert facts['memory_bytes'] > 2**28 and facts['cores'] >= 1
  assert {'jax', 'jaxlib', 'numpy'} <= set(facts['versions'])
  assert facts['devices'] and facts['devices'][0]['count'] >= 1
  assert facts['commit'] == 'unknown' or len(facts['commit']) == 40
  assert len(facts['date']) == 10


@pytest.mark.parametrize('path', _BENCHMARKS, ids=lambda path: path.stem)
def test_help(path):
  assert 'usage:' in _run(path.name, '--help')


@pytest.mark.parametrize(
  ('name', 'args', 'words'),
  [
    ('dmwe_scws.py', ['--scws=nope'], 'cannot read nope: '),
    ('pseudo_words.py', ['--text=nope'], 'nope does not exist'),
    ('planted_senses.py', ['--config=nope'], 'there is no config file'),
    ('planted_senses.py', ['--seeds=0'], '0 must be at least 1'),
    ('low_precision.py', ['--text=nope'], 'nope does not exist'),
    ('low_precision.py', ['--cases=nope'], "there is no case 'nope'"),
  ],
)
def test_what_a_user_got_wrong_is_one_line(tmp_path, name, args, words):
  command = [sys.executable, str(_ROOT / 'experiments' / name), *args]
  command += [f'--output={tmp_path / "out.json"}']
  done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
  assert done.returncode == 2
  assert words in done.stderr.splitlines()[-1]
  assert 'Traceback' not in done.stderr


def test_scaling(tmp_path):
  output, plot = tmp_path / 'scaling.json', tmp_path / 'scaling.svg'
  # What was measured before and is not measured again stays.
  earlier = {'points': [], 'commit': 'earlier'}
  output.write_text(json.dumps({'axes': {'earlier': earlier}}))
  shown = _run(
    'bench_scaling.py', '--quick', f'--output={output}', f'--plot={plot}'
  )
  result = json.loads(output.read_text())
  _check_machine(result['machine'])
  assert '</svg>' in plot.read_text()
  axes = result['axes']
  assert axes.pop('earlier') == earlier
  assert list(axes) == ['vocab', 'dim', 'batch_words', 'corpus_words']
  points = []
  for axis, found in axes.items():
    assert f'{axis:>13}' in shown
    assert found['commit'] == result['machine']['commit']
    points += found['points']
  skipped = [p for p in points if 'skipped' in p]
  assert [p['dim'] for p in skipped] == [65_536]
  assert 'GB are available' in skipped[0]['skipped']
  assert skipped[0]['skipped'] in shown
  for p in points:
    if p in skipped:
      continue
    low, high = p['min_centers_per_sec'], p['max_centers_per_sec']
    assert 0 < low <= p['centers_per_sec'] <= high
    assert p['step_secs'] * p['centers_per_sec'] == pytest.approx(
      p['devices'] * p['batch_words']
    )
    # Zipf's law has frequent words, of which some are dropped.
    assert 0.1 < p['kept_share'] < 1
    assert p['raw_words_per_sec'] > p['centers_per_sec']
    # Vectors and the optimizer's numbers; replicas keep what they exchanged.
    copies = 1 if p['devices'] == 1 else 2 * p['devices']
    vectors_bytes = 2 * 4 * p['vocab'] * p['dim'] * copies
    assert 1 <= p['table_bytes'] / vectors_bytes < 1.2
    assert p['peak_rss_bytes'] > p['table_bytes']
  base = axes['vocab']['points'][0]
  assert base['time_ratio'] == 1
  larger = axes['dim']['points'][1]
  assert larger['time_ratio'] == pytest.approx(
    base['centers_per_sec'] / larger['centers_per_sec']
  )
  alone = next(p for p in points if p['strategy'] == 'sync')
  assert alone['devices'] == 1 and alone['time_ratio'] == 1


def test_roofline(tmp_path):
  output = tmp_path / 'roofline.json'
  shown = _run('bench_roofline.py', '--quick', f'--output={output}')
  for line in ('copy, GB/s', 'scatter-add, M rows/s', '(a)', '(b)', '(c)'):
    assert line in shown
  result = json.loads(output.read_text())
  _check_machine(result['machine'])
  (run,) = result['runs']
  s, need, each = run['settings'], run['per_center'], run['ceilings']
  width = s['chunk'] + 2 * s['window'] + s['shared_negatives']
  assert need['rows'] == 1 + width / s['chunk']
  assert need['table_bytes'] == 12 * need['rows'] * s['dim']
  assert need['flops'] == 6 * width * s['dim']
  # What was timed is what a step needs.
  for part in ('gather', 'scatter'):
    rows = each[f'{part}_rows_per_sec'] * each[f'{part}_secs']
    assert rows == pytest.approx(need['rows'] * s['batch_words'])
  flops = each['products_flops_per_sec'] * each['products_secs']
  assert flops == pytest.approx(need['flops'] * s['batch_words'])
  assert run['ceilings_alone'].keys() == each.keys()
  assert min(each.values()) > 0
  for key, secs in run['predicted_secs'].items():
    reached = secs / run['step']['step_secs']
    assert run['reached'][key] == pytest.approx(reached) and reached > 0
  parts = sum(each[f'{x}_secs'] for x in ('gather', 'products', 'scatter'))
  assert run['predicted_secs']['gather_products_scatter'] == pytest.approx(
    parts
  )


def _text(folder):
  path = folder / 'text.txt'
  lines = [f'the {i % 7} birds of {i % 5} islands sing' for i in range(4000)]
  path.write_text('\n'.join(lines))
  pairs = folder / 'pairs.txt'
  pairs.write_text('birds\tislands\t9\nthe\tof\t5\nsing\tbirds\t7\n')
  return path, pairs


def test_throughput(tmp_path):
  pytest.importorskip('gensim')
  text, pairs = _text(tmp_path)
  output = tmp_path / 'found.json'
  peer = tmp_path / 'peer.txt'
  peer.write_text('4 2\nbirds 1 0\nislands 1 1\nsing 0 1\nthe 1 2\n')
  shown = _run(
    'bench_throughput.py', f'--text={text}', f'--eval={pairs}', '--runs=1',
    '--epochs=1', '--dim=8', f'--output={output}', '--workers=1',
    f'--peer-vectors=other={peer},2.5', '--config.optimizer.max_duplicates=4',
  )  # fmt: skip
  result = json.loads(output.read_text())
  _check_machine(result)
  ours, theirs, other = (
    result['results'][name][0] for name in ('jaxemb', 'gensim', 'other')
  )
  assert ours['config']['optimizer']['max_duplicates'] == 4
  assert ours['config']['model']['dim'] == 8
  assert ours['process_secs'] > ours['train_secs'] + ours['compile_secs']
  # 28,000 words of the text, once.
  for run in (theirs, other):
    words = run['words_per_sec'] * run['train_secs']
    assert words == pytest.approx(28_000)
  for run in (ours, theirs, other):
    assert run['quality'].keys() == {'pairs', 'mean'}
  assert 'ours/theirs' in shown and 'other' in shown


def test_batch_scaling(tmp_path):
  text, pairs = _text(tmp_path)
  output = tmp_path / 'found.json'
  shown = _run(
    'batch_scaling.py', f'--text={text}', f'--eval={pairs}', '--epochs=1',
    '--recipes=1024,256:adagrad:0.1:0', f'--output={output}',
    '--config.model.dim=8',
  )  # fmt: skip
  result = json.loads(output.read_text())
  _check_machine(result)
  assert [x['recipe']['optimizer'] for x in result['results']] == [
    'sgd', 'adagrad',
  ]  # fmt: skip
  for found in result['results']:
    (run,) = found['runs']
    assert run['words_per_sec'] > 0 and 'error' not in run
  assert '1,024' in shown and '256' in shown


def test_dmwe_scws(tmp_path):
  made = toywiki.write(tmp_path, corpus_words=60_000)
  questions = next(x for x in made.eval_paths if x.name == 'senses.txt')
  output = tmp_path / 'found.json'
  args = (
    'dmwe_scws.py', f'--text={made.xml}', f'--scws={questions}', '--dims=8',
    '--models=skip-gram, negatives:mixture, tree', '--seeds=1', '--epochs=1',
    '--sample=1e-3', f'--output={output}', '--config.data.min_count=2',
    '--config=configs/mixture.py', '--config.senses.query_window=3',
    '--config.model.window=2', '--config.model.dynamic_window',
  )  # fmt: skip
  shown = _run(*args)
  result = json.loads(output.read_text())
  _check_machine(result)
  alone, mixture = (x['1'] for x in result['results'].values())
  assert set(alone['scores']) == {'single'}
  assert {'MaxSimC', 'AvgSimC', 'single'} <= set(mixture['scores'])
  assert mixture['epoch_secs'] > 0 and mixture['words_per_sec'] > 0
  assert 'DMWE, mixture, tree' in shown
  before = output.read_text()
  _run(*args)
  assert output.read_text() == before


def test_partition_merge(tmp_path):
  work, output = tmp_path / 'work', tmp_path / 'found.json'
  args = (
    'partition_merge.py', '--quick', f'--work={work}', f'--output={output}',
    f'--plot={tmp_path / "plot.svg"}',
  )  # fmt: skip
  shown = _run(*args, '--stages=sweep,kl,numbers,removed,repaired')
  result = json.loads(output.read_text())
  _check_machine(result['machine'])
  assert '</svg>' in (tmp_path / 'plot.svg').read_text()
  (cell,) = result['sweep']['cells']
  alone = result['sweep']['single']['1']
  assert len(cell['parts']) == len(cell['words_read']) == 3
  # With what is drawn again; each of fewer words, together of nearly all.
  assert sum(cell['words_read']) / alone['words_read'] == pytest.approx(
    1.42, rel=0.05
  )
  alir, concat = (cell['merges'][name] for name in ('alir', 'concat'))
  most = max(part['words'] for part in cell['parts'])
  assert concat['words'] < most < alir['words'] <= alone['words']
  assert concat['dim'] == 3 * alir['dim'] == 24
  for found in (alone, alir, concat, *cell['parts']):
    for x in found['benchmarks'].values():
      assert 0 <= x['found'] <= x['total'] and 0 < x['recall'] <= 1
  recalls = [
    sum(x['recall'] for x in found['benchmarks'].values())
    for found in (concat, alir, alone)
  ]
  assert recalls == sorted(recalls)
  for x in result['kl']:
    assert x['times_floor'] == pytest.approx(x['divergence'] / x['floor'])
    assert x['divergence'] < 1.8 * x['floor']  # of few words
  for x in result['numbers']:
    assert x['taken'] == 1 and x['mean'] == cell['parts'][0]['mean']
  for x in result['removed']:
    if not x['removed']:
      assert x['mean'] == cell['merges'][x['merge']]['mean']
    elif x['merge'] == 'alir':  # what one lacks another has
      assert x['words'] > 0.9 * alir['words']
    else:
      assert x['words'] < concat['words']
  by_map = {(x['map'], x['removed']): x for x in result['repaired']}
  source = by_map['source', 0.0]['benchmarks']
  turned = by_map['procrustes', 1.0]['benchmarks']
  for name in ('similarity', 'scws'):  # all words are from one: turned as one
    assert turned[name]['score'] == pytest.approx(
      source[name]['score'], abs=1e-3
    )
  assert 'published' in shown and 'shuffle, 3: alir' in shown
  # A sweep that was stopped goes on: nothing is trained or scored again.
  for path in (work / 'runs').iterdir():
    (path / 'report.json').touch()
  before = {path: path.stat().st_mtime_ns for path in work.rglob('*.json')}
  _run(*args, '--stages=sweep')
  assert {p: p.stat().st_mtime_ns for p in work.rglob('*.json')} == before
  assert not list(work.rglob('checkpoints'))
  command = [sys.executable, 'experiments/partition_merge.py', *args[1:]]
  other = subprocess.run(
    [*command, '--sample=0.1'], cwd=_ROOT, capture_output=True, text=True
  )
  assert other.returncode == 1
  assert other.stderr.strip().endswith(
    'other settings of sample; give another --work'
  )
  assert set(result['arguments']) == set(
    ('sweep', 'kl', 'numbers', 'removed', 'repaired')
  )
  (work / 'settings.json').unlink()
  lost = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
  assert 'runs of unknown settings' in lost.stderr


def test_table_memory(tmp_path):
  output = tmp_path / 'found.json'
  shown = _run(
    'table_memory.py', '--rows=5120', '--dim=8', '--devices=2',
    '--layouts=replicated,column', f'--output={output}',
  )  # fmt: skip
  replicated, column = json.loads(output.read_text())
  # Two tables of vectors, and Adagrad's number of each row.
  whole = replicated['tables_per_device_bytes']
  assert whole == 2 * 4 * 5120 * (8 + 1) == replicated['tables_bytes']
  # Each device has the numbers of half of the rows.
  assert column['tables_per_device_bytes'] == whole / 2
  assert column['layout'] in shown


def test_weak_scaling(tmp_path):
  output = tmp_path / 'found.json'
  shown = _run(
    'weak_scaling.py', '--vocab=300', '--dim=8', '--batch_words=64',
    '--words=30000', '--secs=0', '--runs=1', '--cases=replicas,column',
    f'--output={output}',
  )  # fmt: skip
  result = json.loads(output.read_text())
  _check_machine(result)
  assert list(result['results']) == ['replicas', 'column']
  for name, ((one, two),) in result['results'].items():
    assert one > 0 and two > 0 and name in shown


def test_low_precision(tmp_path):
  text, pairs = _text(tmp_path)
  output, plot = tmp_path / 'found.json', tmp_path / 'plot.svg'
  args = (
    'low_precision.py', f'--text={text}', f'--eval={pairs}', '--epochs=1',
    '--cases=float32,bfloat16 stochastic', f'--output={output}',
    f'--plot={plot}', '--rows=3000', '--dim=8', '--rounds=1',
    '--words=20000', '--config.model.dim=8',
  )  # fmt: skip
  shown = _run(*args)
  result = json.loads(output.read_text())
  _check_machine(result['machine'])
  assert '</svg>' in plot.read_text()
  whole, half = (x['1'] for x in result['quality'].values())
  assert half['vector_bytes'] == whole['vector_bytes'] / 2
  assert half['curve'] and half['loss'] > 0
  assert all(x['cpu_secs'] > 0 for x in result['speed'].values())
  assert 'bfloat16 stochastic without bits' in shown
  name, score = next(iter(whole['scores'].items()))
  beside = half['scores'][name] - score
  assert [name, f'{score:.4f}', f'{beside:+.4f}'] in map(
    str.split, shown.splitlines()
  )
  # What is there is not trained again.
  before = result['quality']
  _run(*args, '--stages=quality')
  assert json.loads(output.read_text())['quality'] == before
  # Nor are figures of other settings mixed with it.
  command = [sys.executable, str(_ROOT / 'experiments' / args[0]), *args[1:]]
  done = subprocess.run(
    [*command, '--epochs=2'], cwd=_ROOT, capture_output=True, text=True
  )
  assert done.returncode == 2
  assert 'figures of --epochs=1, not 2' in done.stderr


def test_planted_senses(tmp_path):
  output = tmp_path / 'found.json'
  shown = _run(
    'planted_senses.py', '--seeds=1', '--sentences=4', f'--output={output}',
    '--config=configs/mixture.py:smoke', '--config.senses.number=2',
    cwd=tmp_path,  # it finds the config of the checkout from elsewhere
  )  # fmt: skip
  result = json.loads(output.read_text())
  _check_machine(result)
  (run,) = result['results'].values()
  assert len(run['words']) == 40
  assert all(0 <= x <= 1 for x in run['words'].values())
  assert f'{run["right"]:.3f} right' in shown


def test_bench_mixture(tmp_path):
  made = toywiki.write(tmp_path / 'text', 0, 60_000)
  questions = next(x for x in made.eval_paths if x.name == 'senses.txt')
  output = tmp_path / 'found.json'
  shown = _run(
    'bench_mixture.py', f'--scws={questions}', '--runs=1', '--senses=2',
    f'--output={output}', '--config.data.path=toywiki:60000',
    '--config.model.dim=8', '--config.model.window=2',
    '--config.model.dynamic_window', '--models=contexts:likelihoods',
  )  # fmt: skip
  result = json.loads(output.read_text())
  _check_machine(result)
  names = ['contexts', 'likelihoods']
  assert list(result['results']) == names
  assert all(x[0]['words_per_sec'] > 0 for x in result['results'].values())
  assert 'senses MaxSimC' in result['results']['contexts'][0]['scores']
  assert all(name in shown for name in names)


def test_pseudo_words(tmp_path):
  output = tmp_path / 'found.json'
  shown = _run(
    'pseudo_words.py', '--quick', '--ceiling', f'--output={output}',
    '--config.train.epochs=1',
  )  # fmt: skip
  result = json.loads(output.read_text())
  _check_machine(result)
  (run,) = result['results'].values()
  assert run['pairs'].keys() == run['ceilings'].keys()
  assert len(run['pairs']) == 8
  names = [word for name in run['pairs'] for word in name.split('_')]
  assert len(set(names)) == 16
  assert all(0 < x <= 1 for x in run['pairs'].values())
  # Two words' own vectors tell them apart, after an epoch of a small text.
  assert run['ceiling'] > 0.6
  assert f'purity {run["purity"]:.3f}' in shown
  assert f'ceiling {run["ceiling"]:.3f}' in shown
