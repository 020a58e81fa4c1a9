"""The command line as a user meets it: help, bad input, exit codes."""

import pathlib
import subprocess
import sys
import threading
import time

import pytest

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.cli import train as main
from jaxemb.runtime import mesh

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('config.model.dmi = 3', 'no setting config.model.dmi'),
    ('del config.model.dim', 'config.model.dim is missing'),
  ],
)
def test_a_bad_config_file_is_one_line(tmp_path, text, words):
  text = (
    'from jaxemb import config as c\n'
    f'def get_config():\n  config = c.default()\n  {text}\n  return config'
  )
  path = tmp_path / 'mine.py'
  path.write_text(text)
  with pytest.raises(errors.UserError) as caught:
    config_lib.load(str(path))
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
  assert workdir == pathlib.Path('x') and job == ('h:1', 2, 1, False)


def test_configs_are_found_by_name_from_anywhere(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  names = ['mixture', 'mixture:simple', 'mixture:smoke', 'mixture:dmwe']
  for name in ['wiki', 'wiki:simple', 'wiki:en', 'wiki:smoke', *names]:
    # mixture:dmwe asks for a list of words.
    values = {'senses.words': 'words.txt'} if 'dmwe' in name else {}
    file, colon, variant = name.partition(':')
    path = f'{ROOT}/configs/{file}.py{colon}{variant}'
    assert config_lib.load(name, values) == config_lib.load(path, values)
  config, workdir, _ = main.parse(['--config.data.path=x'])
  assert str(workdir).startswith('runs/wiki-') and config.data.path == 'x'


@pytest.mark.slow
@pytest.mark.parametrize('command', ['jaxemb.main', 'jaxemb', 'jaxemb train'])
def test_help_has_a_line_for_each_setting_and_is_quick(command):
  flags = [sys.executable, '-X', 'importtime', '-m', *command.split(), '--help']
  result = subprocess.run(
    flags, cwd=ROOT, capture_output=True, text=True, check=True
  )
  modules = {line.split()[-1] for line in result.stderr.splitlines()}
  assert not {'jax', 'numpy'} & modules
  if command == 'jaxemb':
    assert 'evaluate' in result.stdout
    return
  settings = result.stdout.split('Most used\n')[1].split('Further')[0]
  names = [x.split('=')[0].strip() for x in settings.splitlines() if '=' in x]
  assert len(names) == len(set(names)) and set(names) < {*config_lib.settings()}
  assert len(names) <= 55 and 'data.hash_size' not in names
  assert names.index('model.dim') < 10


def test_help_shows_the_values_of_the_config():
  config, *_ = main.parse(['--config=ctr'], checks_settings=False)
  assert '\n  model.name=deepfm ' in main.describe(config)


def test_the_error_for_an_unknown_loss_names_the_form_of_own_ones():
  with pytest.raises(errors.UserError, match='module:attribute of your own'):
    main.parse(['--config.model.loss=hinge'])


@pytest.mark.parametrize(
  ('flags', 'wanted'),
  [
    (['--config.mesh.data=2'], ((2, 0), False)),
    (['--config.table.store=memory', '--config.mesh.data=1'], ((1, 1), False)),
    (
      ['--config.table.layout=row', '--config.strategy.name=sync'],
      ((0, 0), True),
    ),
    # Which devices a run goes on with is known only from its folder.
    (['--workdir=gs://bucket/run'], None),
  ],
)
def test_accelerators_start_while_modules_are_imported(
  monkeypatch, flags, wanted
):
  calls = []

  def start(*args):
    calls.append(args)
    raise errors.UserError('no such devices')  # which the run says later

  monkeypatch.setattr(mesh, 'start', start)
  monkeypatch.setattr(threading, 'excepthook', calls.append)
  # One that can be found.
  monkeypatch.setattr(main, '_ACCELERATORS', ('json',))
  config, workdir, _ = main.parse(flags)
  before = threading.active_count()
  for has_accelerator in (False, True):
    monkeypatch.setenv('JAX_PLATFORMS', '' if has_accelerator else 'cpu')
    main._start_devices(config, workdir)
    while threading.active_count() > before:
      time.sleep(0.01)
    assert calls == ([wanted] if wanted and has_accelerator else [])
