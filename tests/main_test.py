"""The command line as a user meets it: help, bad input, exit codes."""

import pathlib
import subprocess
import sys

import pytest

import jaxemb.__main__ as jaxemb_command
from jaxemb import config as config_lib
from jaxemb import errors, main

ROOT = pathlib.Path(__file__).parents[1]
SYNC = '--config.strategy.name=sync'
PARTITION = '--config.strategy.name=partition'
MIXTURE = '--config.model.name=mixture'
TREE = '--config.model.loss=hierarchical_softmax'

# Flags, and what the one line about them says.
BAD_INPUT = [
  ('--config=configs/nope.py', 'no config file configs/nope.py'),
  ('--config=nope', 'comes with jaxemb: mixture, wiki'),
  ('--config=configs', 'no config file configs'),
  ('--config=wiki:nope', "no variant 'nope'; choose simple or en"),
  ('--config=mixture:nope', 'choose simple or dmwe'),
  ('--confg=x', 'did you mean --config?'),
  ('words.txt', "'words.txt' is not understood"),
  ('--num_processes=2', 'need --coordinator=HOST:PORT'),
  ('--num_processes=two', "invalid int value: 'two'"),
  ('--workdir= --distributed', 'give all the same --workdir'),
  ('--config.model.dmi=3', 'did you mean --config.model.dim?'),
  ('--config.dim=3', 'did you mean --config.model.dim?'),
  ('--config.optimiser.learning_rate=1', '--config.optimizer.learning_rate?'),
  ('--config.train.epoch=1', 'did you mean --config.train.epochs?'),
  ('--config.model.dim', 'expected one argument'),
  ('--config.model.dim=1.5', "invalid int value: '1.5'"),
  ('--config.model.dim=0', 'config.model.dim=0 must be at least 1'),
  ('--config.data.lowercase=perhaps', "true or false, not 'perhaps'"),
  ('--config.data.path=/no/such/text', '/no/such/text does not exist'),
  ('--config.data.path=toywiki:5', '20000 words or more'),
  ('--config.data.sample=1.5', 'at most 1'),
  ('--config.model.window=-1', 'at least 1'),
  ('--config.optimizer.learning_rate=nan', 'at least 0'),
  ('--config.mesh.table=5000', 'at most 4,096'),
  ('--config.model.name=glove', "'skipgram' or 'cbow'"),
  ('--config.model.loss=softmax', "loss='softmax' is not available"),
  ('--config.table.dtype=int4', 'not available'),
  (f'{PARTITION} --config.strategy.divide=random', "'shuffle' or 'sampling'"),
  (
    '--config.strategy.num_parts=3',
    'config.strategy.num_parts=3 is only used when config.strategy.name is '
    'partition; remove it or set --config.strategy.name=partition',
  ),
  ('--config.table.layout=row', 'set --config.strategy.name=sync'),
  ('--config.table.rounding=nearest', 'set --config.table.dtype=bfloat16'),
  (
    f'{PARTITION} --config.table.exchange_dtype=bfloat16',
    'only used when config.strategy.name is replicas or sync',
  ),
  ('--config.optimizer.beta1=.5', 'set --config.optimizer.name=adam'),
  ('--config.optimizer.epsilon=1', 'optimizer.name is adagrad or adam'),
  (f'{TREE} --config.model.negatives=3', 'loss=negative_sampling'),
  ('--config.senses.number=3', 'set --config.model.name=mixture'),
  (MIXTURE, 'no ambiguous words; set --config.senses.top_ratio'),
  (f'{TREE} --config.train.init_from=x', 'loss=hierarchical_softmax needs'),
  (
    f'{MIXTURE} --config.senses.number=1 --config.train.init_from=x',
    'config.model.name=mixture needs other tables',
  ),
  ('--config.mesh.table=2', 'set --config.mesh.data instead'),
  (f'{SYNC} --config.table.layout=row --config.mesh.table=3', 'divide 256'),
  (f'{PARTITION} --config.strategy.part=10', 'must be 0..9 or -1'),
  (f'{PARTITION} --config.mesh.data=11', 'sub-models to train, 10'),
  (
    f'{PARTITION} --config.strategy.part=1 --config.mesh.data=2',
    'sub-models to train, 1',
  ),
  ('--config.train.batch_words=100', 'must be a multiple of 16'),
]


@pytest.mark.parametrize(
  ('flags', 'words'), BAD_INPUT, ids=[flags for flags, _ in BAD_INPUT]
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, capsys, flags, words):
  common = ['--config=wiki:smoke', f'--workdir={tmp_path / "run"}']
  assert main.main([*common, *flags.split()]) == 2
  line = capsys.readouterr().err.strip().splitlines()[-1]
  assert line.startswith('jaxemb: ') and words in line
  name = flags.split()[-1].partition('=')[0].removeprefix('--config.')
  if name in {x.name for x in config_lib.SETTINGS}:
    assert name in line


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('def get_config(: pass', 'invalid syntax'),
    ('import no_such_module', "No module named 'no_such_module'"),
    ('x = 1', 'get_config'),
    ('config.model.dmi = 3', 'no setting config.model.dmi'),
    ('config.model.dim = "x"', 'config'),
    ('del config.model.dim', 'config.model.dim is missing'),
    ('config.train.epochs = 0', 'epochs=0 must be at least 1'),
  ],
)
def test_a_bad_config_file_is_one_line(tmp_path, text, words):
  if 'config.' in text:
    text = (
      'from jaxemb import config as c\n'
      f'def get_config():\n  config = c.default()\n  {text}\n  return config'
    )
  path = tmp_path / 'mine.py'
  path.write_text(text)
  with pytest.raises(errors.UserError) as caught:
    main.load(str(path))
  assert words in str(caught.value) and '\n' not in str(caught.value)


def test_a_command_line_is_a_config_file_with_values_set():
  config, workdir, job = main.parse([
    '--config=configs/wiki.py:smoke', '--config.model.dim=8', '--config.seed',
    '7', '--config.data.path=', '--config.data.lowercase=false',
    '--config.optimizer.learning_rate=1', '--workdir=x',
    '--coordinator=h:1', '--num_processes=2', '--process_id=1',
  ])  # fmt: skip
  assert (config.model.dim, config.seed, config.data.path) == (8, 7, '')
  assert config.data.lowercase is False
  assert isinstance(config.optimizer.learning_rate, float)
  assert workdir == pathlib.Path('x')
  assert job == {
    'coordinator': 'h:1',
    'num_processes': 2,
    'process_id': 1,
    'detects': False,
  }


def test_configs_are_found_by_name_from_anywhere(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  names = ['mixture', 'mixture:simple', 'mixture:smoke', 'mixture:dmwe']
  for name in ['wiki', 'wiki:simple', 'wiki:en', 'wiki:smoke', *names]:
    # mixture:dmwe asks for a list of words.
    values = {'senses.words': 'words.txt'} if 'dmwe' in name else {}
    file, colon, variant = name.partition(':')
    path = f'{ROOT}/configs/{file}.py{colon}{variant}'
    assert main.load(name, values) == main.load(path, values)
  config, workdir, _ = main.parse(['--config.data.path=x'])
  assert str(workdir).startswith('runs/wiki-') and config.data.path == 'x'


@pytest.mark.parametrize('command', ['jaxemb.main', 'jaxemb', 'jaxemb train'])
def test_help_has_a_line_for_each_setting_and_is_quick(command):
  module, *rest = command.split()
  result = subprocess.run(
    [sys.executable, '-X', 'importtime', '-m', module, *rest, '--help'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  modules = {line.split()[-1] for line in result.stderr.splitlines()}
  assert not {'jax', 'numpy'} & modules
  if command == 'jaxemb':
    assert 'evaluate' in result.stdout
    return
  settings = result.stdout.split('Most used\n')[1]
  names = [x.split('=')[0].strip() for x in settings.splitlines() if '=' in x]
  assert sorted(names) == sorted(x.name for x in config_lib.SETTINGS)
  assert names.index('model.dim') < 10


def test_commands_are_handed_their_arguments(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'path', ['/usr/lib'])
  assert jaxemb_command.main(['train', '--config=nope']) == 2
  assert 'no config file nope' in capsys.readouterr().err
  assert sys.path[-1] == str(pathlib.Path.cwd())
  for command in ('merge', 'query', 'evaluate'):
    with pytest.raises(SystemExit):
      jaxemb_command.main([command, '--help'])
    assert 'usage' in capsys.readouterr().out
  assert jaxemb_command.main(['trian']) == 2
  assert 'choose train, merge, query, evaluate' in capsys.readouterr().err
