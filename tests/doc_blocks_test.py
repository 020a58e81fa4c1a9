"""Code blocks of all pages: parsed, and run wherever their data can be had.

A page is run from top to bottom in an empty folder with the files of
`doc_files`; Python of a page shares one namespace. What is not run is named
below with its reason.
"""

import argparse
import ast
import contextlib
import json
import pathlib
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import jaxemb
import jaxemb.__main__ as jaxemb_command
from jaxemb.cli import plan, train
from jaxemb.runtime import launch
from tests import doc_blocks, doc_files

_ROOT = doc_blocks.ROOT
_EXTRAS = tomllib.loads((_ROOT / 'pyproject.toml').read_text())['project'][
  'optional-dependencies'
]
every_page = pytest.mark.parametrize(
  'page', doc_blocks.PAGES, ids=doc_blocks.name
)
# Programs that are not ours, whose blocks only Bash parses.
_FOREIGN = {
  'git', 'cd', '.', 'export', 'chmod', 'scp', 'ray', 'gcloud', 'openssl', 'for',
  'done', 'sudo', 'echo', 'sh', 'ssh', 'wget', 'curl', 'tar', 'unzip', 'mkdir',
  'tensorboard',
}  # fmt: skip
_CLUSTER = 'needs a cluster'
_RAY = 'starts Ray; tests/run/workers_test.py does'
# By page: what commands have in them, or blocks of other languages begin with.
_NOT_RUN = {
  'README.md': {'--distributed': _CLUSTER},
  'design/index.md': {"b' = b": 'a formula', 'g = (': 'a formula'},
  'guides/clusters.md': {
    'launch': 'several processes; tests/runtime/launch_test.py starts some',
    '--vectors=runs/two': 'of the run above',
    '/shared': _CLUSTER,
  },
  'guides/devices.md': {
    'plan ': 'needs a compiler for GPUs; see tests/cli/plan_test.py',
  },
  'guides/report.md': {'training  42%': 'a line of progress'},
  'guides/from_gensim.md': {'import fasttext': 'has no wheels'},
  'guides/graphs.md': {'x = torch_geometric': 'downloads a graph'},
  'guides/memory.md': {'store=remote': _RAY},
  'guides/partition.md': {'strategy.part=': _CLUSTER},
  'guides/tpus.md': {
    'plan ': 'needs the compiler for TPUs; see tests/cli/plan_test.py',
    'train ': 'needs a TPU',
  },
  'guides/workers.md': {'train ': _RAY},
  'security.md': {'train ': _CLUSTER},
}
# Packages of extras that are not in `dev`, by text of the blocks that need one.
_NEEDED = {'onnxruntime': 'onnxruntime', "'clicks.onnx'": 'jax2onnx'}


class _Files(NamedTuple):
  """What a page begins with, and where its first run without workdir is."""

  write: Callable[[], Any] = dict
  workdir: str = 'run'


def _text(*names: str) -> Callable[[], None]:
  return lambda: doc_files.text(*names)


_FILES = {
  'README.md': _Files(doc_files.readme, 'runs/wiki-...'),
  'index.md': _Files(_text('TEXT.txt')),
  'guides/clicks.md': _Files(doc_files.clicks),
  'guides/devices.md': _Files(_text('TEXT')),
  'guides/documents.md': _Files(doc_files.documents, 'RUN'),
  'guides/from_gensim.md': _Files(doc_files.texts_of_gensim),
  'guides/graphs.md': _Files(doc_files.graphs),
  'guides/graphsage.md': _Files(doc_files.nodes),
  'guides/items.md': _Files(doc_files.ratings),
  'guides/memory.md': _Files(doc_files.many_words),
  'guides/merging.md': _Files(doc_files.models_to_merge),
  'guides/partition.md': _Files(_text('TEXT')),
  'guides/precision.md': _Files(_text('TEXT')),
  'guides/senses.md': _Files(doc_files.senses, 'RUN'),
  'guides/text.md': _Files(doc_files.texts),
  'reference/formats.md': _Files(doc_files.formats),
  'reference/settings.md': _Files(_text('TEXT')),
}
# Smaller choices, which follow the flags of each command.
_SMALL = {'model.dim': 8, 'train.epochs': 1}
_OF_TEXT = {'eval.paths': 'none', 'data.sample': 0.0}
_OF_CONFIG = {
  'wiki': _SMALL | _OF_TEXT,
  'mixture': _SMALL | _OF_TEXT | {'senses.top_ratio': 1.0},
  'documents': _SMALL,
  'graph': _SMALL,
  'graphsage': {'train.epochs': 2},
  'rec': _SMALL,
  'ctr': {'train.epochs': 1},
}
# Of commands that have a setting.
_IF_SET = {
  'strategy.num_parts': {'strategy.num_parts': 2},
  'model.subwords': {'model.buckets': 1000},
}


class _Parsed(BaseException):
  """The arguments were parsed, by a parser that left some."""


def _blocks(page: pathlib.Path) -> Iterator[tuple[doc_blocks.Block, str]]:
  """Yields blocks, with why one is not run, or ''."""
  reasons = _NOT_RUN.get(doc_blocks.name(page), {})
  for block in doc_blocks.of_page(page):
    found = [y for x, y in reasons.items() if block.text.startswith(x)]
    yield block, next(iter(found), '')


def _commands(
  page: pathlib.Path, block: doc_blocks.Block
) -> Iterator[list[str]]:
  """Yields the commands of a block; settings alone get the page's config."""
  config = '--config=wiki'
  configs = re.findall(r'--config=[\w:]+', page.read_text())
  for tokens in doc_blocks.commands(block.text):
    if tokens[0] == 'python' and tokens[1:3] == ['-m', 'jaxemb.main']:
      tokens = ['jaxemb', 'train', *tokens[3:]]
    elif tokens[0] == 'python' and tokens[1:3] == ['-m', 'jaxemb']:
      tokens = ['jaxemb', *tokens[3:]]
    if block.text.startswith('--config.'):
      tokens.insert(2, next(iter(configs), config))
    yield tokens


def _parsed(function: Callable[[], object], patch: pytest.MonkeyPatch) -> list:
  """Calls a program up to its parsed arguments; returns those that it left."""
  parse = argparse.ArgumentParser.parse_known_args

  def parse_and_stop(self, args=None, namespace=None):
    raise _Parsed(parse(self, args, namespace)[1])

  patch.setattr(argparse.ArgumentParser, 'parse_known_args', parse_and_stop)
  with pytest.raises(_Parsed) as caught:
    function()
  return caught.value.args[0]


def _stop(*_: object, **unused: object) -> None:
  raise _Parsed([])


def _check_command(command: str, *rest: str) -> None:
  """Parses the arguments of a command of jaxemb as it does."""
  assert command in jaxemb_command.COMMANDS
  with pytest.MonkeyPatch.context() as patch:
    if command == 'train' and '...' in rest:  # flags are left out
      flags = [re.sub(r'\$\w+', '0', x) for x in rest if x != '...']
      train.parse(['--workdir=run', *flags], checks_settings=False)
    elif command == 'train':
      train.parse(rest)
    elif command == 'plan':
      known = plan.topologies.known()
      patch.setattr(plan.topologies, 'topology', known.index)
      patch.setattr(plan.plan, 'prepare', _stop)
      with pytest.raises(_Parsed):
        jaxemb_command.main(['plan', *rest])
    elif command == 'launch':
      patch.setattr(launch, 'run', _stop)
      with pytest.raises(_Parsed):
        jaxemb_command.main(['launch', *rest])
      train.parse(rest[rest.index('--') + 1 :])
    else:
      left = _parsed(lambda: jaxemb_command.main([command, *rest]), patch)
      has_words = command == 'query'
      assert not [x for x in left if x.startswith('--') or not has_words], left


def _check_experiment(script: str, *rest: str) -> None:
  """Parses the arguments of a script as it does."""
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str((_ROOT / script).parent))
    patch.setattr(sys, 'argv', [script, *rest])
    left = _parsed(
      lambda: runpy.run_path(str(_ROOT / script), run_name='__main__'), patch
    )
  if left:  # settings
    train.parse([*(x for x in rest if x.startswith('--config=')), *left])


def _installed(tokens: list[str]) -> None:
  """Checks the extras of a line of pip."""
  for extras in re.findall(r'(?:^\.|jaxemb)\[(.*?)\]', ' '.join(tokens)):
    assert {*extras.split(',')} <= {*_EXTRAS}, tokens
  assert tokens[1] == 'install'


def _check(tokens: list[str], has_experiments: bool) -> None:
  """Parses a command; of experiments and others only where that is asked."""
  match tokens:
    case ['python', '-m', 'venv' | 'pytest', *_]:
      pass
    case ['python', '-m', module, *rest] if module.startswith('experiments.'):
      _check(
        ['python', module.replace('.', '/') + '.py', *rest], has_experiments
      )
    case ['python', script, *rest] if script.startswith('experiments/'):
      if has_experiments:
        _check_experiment(script, *rest)
    case ['python', script, *_] if script.startswith('docs/gallery/'):
      assert (_ROOT / script).is_file()  # tests/gallery_test.py runs it
    case ['jaxemb', command, *rest]:
      if not has_experiments:
        _check_command(command, *rest)
    case ['pip', *_]:
      _installed(tokens)
    case [program, *_]:
      assert program in _FOREIGN, tokens


def _parse_page(page: pathlib.Path, has_experiments: bool) -> None:
  for block, reason in _blocks(page):
    if block.language == doc_blocks.SHELL:
      subprocess.run(['bash', '-n'], input=block.text, text=True, check=True)
      for tokens in _commands(page, block):
        _check(tokens, has_experiments)
    elif file := re.match(r'--8<-- "(.*)"', block.text):
      assert (_ROOT / 'docs' / file[1]).is_file(), block
    elif block.language == 'python':
      ast.parse(block.text)
    elif block.language == 'toml':
      tomllib.loads(block.text)
    elif block.language == 'json':
      json.loads(block.text)
    else:
      assert reason, f'{block}: neither run nor named in _NOT_RUN'


@every_page
def test_blocks_are_parsed(page, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('configs').symlink_to(_ROOT / 'configs')
  _parse_page(page, has_experiments=False)


@pytest.mark.slow
@pytest.mark.parametrize(
  'page',
  [x for x in doc_blocks.PAGES if 'experiments/' in x.read_text()],
  ids=doc_blocks.name,
)
def test_experiments_know_their_flags(page, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('PATH').touch(0o755)  # a program that a flag names
  _parse_page(page, has_experiments=True)


def test_what_is_not_run_is_there():
  for name, reasons in _NOT_RUN.items():
    page = next(x for x in doc_blocks.PAGES if doc_blocks.name(x) == name)
    blocks = doc_blocks.of_page(page)
    lines = [x.text for x in blocks if x.language != doc_blocks.SHELL]
    shell = [x for x in blocks if x.language == doc_blocks.SHELL]
    commands = [' '.join(y) for x in shell for y in _commands(page, x)]
    for text in reasons:
      is_known = any(x.startswith(text) for x in lines)
      assert is_known or any(text in x for x in commands), (name, text)


def _run_python(block: doc_blocks.Block, names: dict[str, Any]) -> None:
  """Runs Python; a module that names itself is written beside it."""
  code = block.text.replace('/home/me', str(pathlib.Path.cwd()))
  if module := re.match(r'# (\w+\.py):', code):
    pathlib.Path(module[1]).write_text(code)
    names = {'__name__': module[1].removesuffix('.py')}
  exec(compile(code, str(block), 'exec'), names)


def _small(tokens: list[str], workdir: str) -> list[str]:
  """Returns the arguments of a command, of a run with smaller choices."""
  arguments = tokens[1:]
  if arguments[0] != 'train':
    return arguments
  (config,) = [x for x in arguments if x.startswith('--config=')]
  name = pathlib.PurePath(config.partition('=')[2].partition(':')[0]).stem
  flags = dict(_OF_CONFIG[name])
  for setting, values in _IF_SET.items():
    if any(x.startswith(f'--config.{setting}=') for x in arguments):
      flags |= values
  if not any(x.startswith('--config.data.path=') for x in arguments):
    doc_files.text('embedded.txt')
    flags['data.path'] = 'embedded.txt'
  if not any(x.startswith('--workdir=') for x in arguments):
    arguments = [*arguments, f'--workdir={workdir}']
  return [*arguments, *(f'--config.{k}={x}' for k, x in flags.items())]


def _run_page(page: pathlib.Path, names: dict[str, Any]) -> None:
  """Runs the blocks of a page in this folder."""
  name = doc_blocks.name(page)
  reasons, num_runs = _NOT_RUN.get(name, {}), 0
  for block, reason in _blocks(page):
    if block.language == 'python' and not reason:
      if any(
        x in block.text and not _has_package(y) for x, y in _NEEDED.items()
      ):
        continue
      _run_python(block, names)
    is_settings = block.text.startswith('--config.')
    if block.language != doc_blocks.SHELL or is_settings:
      continue
    for tokens in _commands(page, block):
      line = ' '.join(tokens)
      if tokens[0] != 'jaxemb' or any(x in line for x in reasons):
        continue
      workdir = _FILES.get(name, _Files()).workdir
      workdir += f'-{num_runs}' if num_runs else ''
      arguments = _small(tokens, workdir)
      num_runs += f'--workdir={workdir}' in arguments
      arguments = [y for x in arguments for y in _globbed(x)]
      assert jaxemb_command.main(arguments) == 0, f'{block}: {line}'


def _globbed(argument: str) -> list[str]:
  """Returns the files that a shell finds."""
  has_pattern = '*' in argument and not argument.startswith('-')
  paths = sorted(map(str, pathlib.Path().glob(argument))) if has_pattern else []
  return paths or [argument]


def _has_package(name: str) -> bool:
  with contextlib.suppress(ImportError):
    __import__(name)
    return True
  return False


def _check_readme(names: dict[str, Any]) -> None:
  vectors = jaxemb.load('runs/wiki-...')
  np.testing.assert_array_equal(names['arrays']['vectors'], vectors.vectors)


def _check_formats(names: dict[str, Any]) -> None:
  expected = doc_files.words()
  np.testing.assert_array_equal(names['vectors'].vectors, expected.vectors)
  vectors = jaxemb.Embeddings(expected.index_to_key, names['index'].vectors)
  nearest = vectors.most_similar('king', indexer=names['index'])
  assert {*dict(nearest)} == {*expected.index_to_key} - {'king'}
  near = expected.most_similar('king', topn=1)
  assert names['vectors'].most_similar('king', topn=1) == near
  if 'chances' in names:  # of jax2onnx
    chances = jaxemb.load('runs/ctr-...').predict(names['data'])
    np.testing.assert_allclose(names['chances'], chances, atol=1e-6)


def _check_keyed_vectors(names: dict[str, Any]) -> None:
  assert names['ours'].index_to_key == ['sea', 'king', 'queen', 'island']


def _check_documents(names: dict[str, Any]) -> None:
  model = names['model']
  assert model.dv.vectors.shape == (180, 20) and 'cow' in model.wv


def _check_text(names: dict[str, Any]) -> None:
  assert 'king' in jaxemb.load('runs/more')
  vectors = jaxemb.load('kings.bin')
  np.testing.assert_allclose(
    vectors['kingly'], names['vectors']['kingly'], 1e-5, 1e-7
  )


_CHECKS = {
  'README.md': _check_readme,
  'guides/documents.md': _check_documents,
  'guides/keyed_vectors.md': _check_keyed_vectors,
  'guides/text.md': _check_text,
  'reference/formats.md': _check_formats,
}


def _has_something_to_run(page: pathlib.Path) -> bool:
  if page.parent.name == 'benchmarks':  # which take hours, on their data
    return False
  return any(
    x.language in ('python', doc_blocks.SHELL) for x in doc_blocks.of_page(page)
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'page',
  [x for x in doc_blocks.PAGES if _has_something_to_run(x)],
  ids=doc_blocks.name,
)
def test_blocks_run(page, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  before = {*sys.modules}
  name = doc_blocks.name(page)
  names = _FILES.get(name, _Files()).write() or {}
  _run_page(page, names)
  _CHECKS.get(name, len)(names)
  for module in {*sys.modules} - before:
    if module.startswith('my_'):
      del sys.modules[module]
