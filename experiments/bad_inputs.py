"""What users get wrong, a case a line: the command, its exit code, its words.

  python experiments/bad_inputs.py [--only=WORDS]

Every case runs `jaxemb` in a folder with the files of `write_files`: in this
process where it can, in a shell where streams, limits or the environment are
what is wrong. It passes if the exit code is the stated one, the line has the
stated words, and no traceback is seen. All cases are in the tests.
"""

import contextlib
import gzip
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from typing import NamedTuple

import experiment
import numpy as np

from jaxemb import __main__ as jaxemb


class Case(NamedTuple):
  """A command that is wrong, and what it should answer."""

  command: str  # what follows `jaxemb`; in a shell, $JAXEMB is the program
  says: str  # words of its output
  code: int = 2
  in_shell: bool = False


_SMALL = (
  'train --config=wiki --config.data.min_count=1 --config.model.dim=8 '
  '--config.train.epochs=1 --config.eval.paths=none --config.train.threads=1 '
  '--config.mesh.data=1 --workdir={}'
)


def _text(name: str, says: str, more: str = '') -> Case:
  return Case(
    f'{_SMALL.format("bad")} --config.data.path={name} {more}'.strip(), says
  )


def _set(setting: str, says: str, path: str = 'text.txt') -> Case:
  return _text(path, says, f'--config.{setting}')


def _shell(command: str, says: str, code: int = 2) -> Case:
  return Case(command, says, code, True)


def _train(path: str = 'text.txt', workdir: str = 'bad') -> str:
  return f'$JAXEMB {_SMALL.format(workdir)} --config.data.path={path}'


_TEXTS = (
  _text('absent.txt', 'does not exist'),
  _text("'no*.txt'", 'matches no file'),
  _text('empty.txt', 'only empty files'),
  _text('empty', 'no files'),
  _text('punctuation.txt', 'only punctuation'),
  _text('chinese.txt', 'segment it first'),
  _text('latin.txt', '--config.data.encoding=cp1252'),
  _text('cyrillic.txt', '--config.data.encoding=cp1251'),
  _text('utf16.txt', '--config.data.encoding=utf-16'),
  _text('binary.txt', 'binary, not text'),
  _text('packed.txt', 'give it the suffix .gz'),
  _text('archive.txt', 'unpack it first'),
  _text('plain.gz', 'rename it, without .gz'),
  _text('cut.gz', 'copy or download it again'),
  _text('cut.xml', 'no word'),
  _text('link.txt', 'mend or remove the link'),
  _text('links', 'mend or remove the link'),
  _text('/dev/null', 'not a regular file'),
  _text('one_word.txt', 'give more text'),
  _text('toywiki:5', '20000 words or more'),
  _text('text.txt', 'cannot read', '--config.data.counts=absent'),
  _text('text.txt', 'line 1', '--config.data.counts=text.txt'),
  _text('text.txt', 'occurs in the text', '--config.data.counts=other.txt'),
  _text('text.txt', 'lower --config.data.min_count',
        '--config.data.min_count=9999'),
)  # fmt: skip
_SETTINGS = (
  _set('data.max_vocab=1', 'config.data.max_vocab=1 leaves one word'),
  _set('data.encoding=klingon', 'unknown encoding'),
  _set('data.encoding=ascii', 'not ASCII', 'latin.txt'),
  _set('data.tokens=letters', "choose 'words' or 'whitespace'"),
  _set('data.min_count=0', 'at least 1'),
  _set('data.sample=2', 'at most 1'),
  _set('data.sample=nan', 'at least 0'),
  _set('data.lowercase=perhaps', 'expected true or false'),
  _set('data.min_cuont=5', 'did you mean'),
  _set('model.dim=0', 'at least 1'),
  _set('model.dim=ten', 'invalid int value'),
  _set('model.dim=1.5', 'invalid int value'),
  _set('model.window=0', 'at least 1'),
  _set('model.negatives=-1', 'at least'),
  _set('model.name=word2vec', 'choose'),
  _set('model.loss=softmax', 'set --config.data.source=interactions'),
  _set('model.name=deepfm', 'is a model of clicks'),
  _set('model.name=no:where', 'no'),
  _set('optimizer.name=lion', 'choose'),
  _set('optimizer.learning_rate=-1', 'at least'),
  _set('optimizer.learning_rate=1000', 'learning rate 1000'),
  _set('optimizer.final_learning_rate=5', 'is above'),
  _set('train.batch_words=17', 'must be a multiple of'),
  _set('train.batch_words=16777216', 'more than the text has'),
  _set('train.epochs=-1', 'at least'),
  _set('train.init_from=absent', 'does not exist'),
  _set('mesh.table=2', ''),
  _set('mesh.data=4096', 'devices and there are'),
  _set('table.layout=diagonal', 'choose'),
  _set('table.dtype=float8', 'choose'),
  _set('table.device_bytes=many', 'no size'),
  _set('strategy.name=hope', 'choose'),
  _set('strategy.policy=hope', 'choose'),
  _set('eval.paths=absent', 'no benchmark file or folder'),
  _set('eval.paths=text.txt', 'no benchmark recognised'),
  _set('seed=-1', 'at least'),
  _set('data.source=clicks', 'not used with clicks'),
)
_COMMANDS = (
  Case('trian', 'there is no command'),
  Case('train --config=absent', 'there is no config file'),
  Case('train --config=wiki:latin', 'no variant'),
  Case('train --config=raises.py', 'line 2: KeyError'),
  Case('train --config=exits.py', 'line 1: SystemExit'),
  Case('train --config=junk.py', 'cannot read the config'),
  Case('train --config=nothing.py', 'cannot read the config'),
  Case('train --confg=wiki', 'did you mean --config?'),
  Case('train --config.data.path', 'expected one argument'),
  Case('train text.txt', 'not understood'),
  Case('train --coordinator=localhost --workdir=bad', 'must be HOST:PORT'),
  Case('train --coordinator=localhost:1', 'the same --workdir'),
  Case('train --num_processes=2', 'need --coordinator'),
  Case('train --workdir=text.txt', 'as the folder of a run'),
  Case('train --config=wiki --workdir=run', 'other settings'),
  Case('train --workdir=of_junk', 'does not hold the settings of a run'),
  Case('query --vectors=absent king', 'absent'),
  Case('query --vectors=text.txt king', 'it is no word2vec file'),
  Case('query --vectors=cut.bin king', 'promises'),
  Case('query --vectors=ten.bin a', 'has another number of them'),
  Case('query --vectors=header.txt a', 'holds no vectors'),
  Case('query --vectors=run aa0 - aa0', 'vector of zeros'),
  Case('query --vectors=run', 'expected words'),
  Case('query --vectors=run nowhere', 'no vector for'),
  Case('query --vectors=run aa0 + + aa1', 'expected words'),
  Case('query --vectors=run --sense=7 aa0', 'has 1 senses'),
  Case('query --vectors=run --sense=0 aa0 aa1', 'that of one word'),
  Case('query --vectors=run --senses aa0', '--config=mixture', 0),
  Case('query --vectors=run --senses aa0 aa1', 'of one word'),
  Case('query --vectors=run --position=9 aa0', 'outside the sentence'),
  Case('query --vectors=run --topn=0 aa0', '1 or more'),
  Case('query aa0', 'required: --vectors'),
  Case('evaluate --vectors=run --eval=absent', 'absent'),
  Case('merge run --output=run', 'is one of the parts'),
  Case('merge run run --output=merged', 'given twice'),
  Case('merge run absent --output=merged', 'absent'),
  Case('merge run --output=text.txt', 'cannot write'),
  Case('merge run --output=merged --method=mean', 'invalid choice'),
  Case('merge run', 'required: --output'),
  Case('predict --model=absent --data=absent --output=x.csv', 'absent'),
)
_SHELL = (
  _shell(f'JAX_PLATFORMS=cuda {_train()}', "JAX_PLATFORMS='cuda'"),
  # JAX's own line and code.
  _shell(f'XLA_FLAGS=--xla_absent=1 {_train()}', 'Unknown flag', 1),
  _shell('$JAXEMB query --vectors=run aa0 > /dev/full', 'cannot write the out'),
  _shell('$JAXEMB query --vectors=run aa0 >&- 2>&-', '', 0),
  _shell(f'{_train(workdir="closed")} >&- 2>&- && cat closed/log.txt',
         'vectors in closed', 0),
  _shell('PYTHONIOENCODING=ascii $JAXEMB query --vectors=run größe', r'gr\xf6'),
  _shell('PYTHONIOENCODING=ascii $JAXEMB query --vectors=umlaut.txt ab',
         r'gr\xf6', 0),
  _shell(f"{_train(workdir='x')} --workdir=$(printf 'y\\xff')", 'in UTF-8'),
  _shell(f"{_train(path='x')} --config.data.path=$(printf 'y\\xff')",
         'does not exist'),
  _shell(f'ulimit -f 20; {_train(workdir="large")}', 'File too large'),
  _shell(f'ulimit -v 1500000; {_train()}', 'ulimit -v'),
)  # fmt: skip
# Files of a run, what is written over them, and what then happens to it.
_DAMAGED = (
  ('metrics.jsonl', b'\xff\x00junk', 'resuming', 0),
  ('metrics.jsonl', b'', 'resuming', 0),
  ('config.json', b'\xff\x00junk', 'does not hold the settings', 2),
  ('config.json', b'[]', 'does not hold the settings', 2),
  ('log.txt', b'\xff\x00junk', 'resuming', 0),
)
CASES = (*_TEXTS, *_SETTINGS, *_COMMANDS)
IN_SHELL = _SHELL


def write_files(folder: pathlib.Path) -> None:
  """Writes what the cases name, and trains one small run there."""
  rng = np.random.default_rng(0)
  words = [f'aa{i}' for i in range(60)]
  lines = [' '.join(rng.choice(words, 12)) for _ in range(400)]
  text = '\n'.join(lines).encode() + b'\n'
  german = 'die größe der straße über dem fluss\n' * 200
  packed = gzip.compress(text)
  archive = io.BytesIO()
  with tarfile.open(fileobj=archive, mode='w') as tar:
    info = tarfile.TarInfo('text.txt')
    info.size = len(text)
    tar.addfile(info, io.BytesIO(text))
  rows = np.ones((4, 20), '<f4')
  pairs = [b'%c %b\n' % (97 + i, x.tobytes()) for i, x in enumerate(rows)]
  files = {
    'text.txt': text,
    'empty.txt': b'',
    'punctuation.txt': b'... !? --\n' * 100,
    'chinese.txt': '這是一個沒有空格的句子\n'.encode() * 50,
    'latin.txt': german.encode('latin-1'),
    'cyrillic.txt': ('мама мыла раму\n' * 200).encode('cp1251'),
    'utf16.txt': german.encode('utf-16'),
    'binary.txt': rng.bytes(5000),
    'packed.txt': packed,
    'archive.txt': archive.getvalue(),
    'plain.gz': text,
    'cut.gz': packed[: len(packed) // 2],
    'cut.xml': b'<mediawiki><page><title>x</title>\n' + text[:300],
    'one_word.txt': b'word ' * 100,
    'other.txt': b'elsewhere 7\nnowhere 5\n',
    'raises.py': b'\nraise KeyError(3)\n',
    'exits.py': b'import sys; sys.exit(3)\n',
    'junk.py': rng.bytes(100),
    'nothing.py': b'',
    'cut.bin': b'9 20\n' + b''.join(pairs),
    'ten.bin': b'4 10\n' + b''.join(pairs),
    'header.txt': b'0 5\n',
    'umlaut.txt': 'ab 1 2\ngröße 1 1\n'.encode(),
    'of_junk/config.json': b'\xff\x00junk',
  }
  for name, data in files.items():
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
  (folder / 'empty').mkdir()
  (folder / 'links').mkdir()
  for name in ('link.txt', 'links/to.txt'):
    (folder / name).symlink_to('nowhere')
  code, said = run(_good('run'), folder)
  if code:
    raise AssertionError(said)


def _good(workdir: str) -> Case:
  return Case(f'{_SMALL.format(workdir)} --config.data.path=text.txt', '', 0)


def run(case: Case, folder: pathlib.Path) -> tuple[int, str]:
  """The exit code of a case in a folder, and what it has said."""
  shutil.rmtree(folder / 'bad', ignore_errors=True)  # of the case before
  if case.in_shell:
    program = f'{sys.executable} -m jaxemb'
    path = os.pathsep.join([str(experiment.ROOT), *sys.path])
    environment = {'JAXEMB': program, 'PYTHONPATH': path}
    environment['JAX_PLATFORMS'] = 'cpu'
    done = subprocess.run(
      ['bash', '-c', case.command],
      cwd=folder,
      env=os.environ | environment,
      capture_output=True,
      timeout=120,
    )
    said = (done.stdout + done.stderr).decode(errors='replace')
    return done.returncode, said
  output = io.StringIO()
  with (
    contextlib.chdir(folder),
    contextlib.redirect_stdout(output),
    contextlib.redirect_stderr(output),
  ):
    arguments = [x.strip("'") for x in case.command.split()]
    try:
      code = jaxemb.main(arguments)
    except SystemExit as end:  # of argparse
      code = end.code
  return code, output.getvalue()


def problem(case: Case, code: int, said: str) -> str:
  """What is wrong with an answer, or ''."""
  if 'Traceback' in said:
    return 'a traceback'
  if code != case.code:
    return f'exit code {code}, not {case.code}'
  if case.says not in re.sub(r'\s+', ' ', said):
    return f'no {case.says!r}'
  lines = re.findall('^jaxemb: (?!warning:)', said, re.M)
  return 'several lines of its own' if len(lines) > 1 else ''


def damaged(folder: pathlib.Path) -> list[Case]:
  """A copy of the run with a damaged file for each case; its next starts."""
  cases = []
  for i, (name, data, says, code) in enumerate(_DAMAGED):
    shutil.copytree(folder / 'run', folder / f'run{i}')
    (folder / f'run{i}' / name).write_bytes(data)
    cases.append(_good(f'run{i}')._replace(says=says, code=code))
  return cases


def main() -> None:
  """Runs the cases, and prints those that fail."""
  parser = experiment.parser(__doc__)
  parser.add_argument('--only', default='', help='words of the commands')
  args = experiment.parse(parser)
  with tempfile.TemporaryDirectory() as name:
    folder, failed = pathlib.Path(name), []
    write_files(folder)
    cases = [*CASES, *IN_SHELL, *damaged(folder)]
    cases = [x for x in cases if args.only in x.command]
    for case in cases:
      try:
        code, said = run(case, folder)
        why = problem(case, code, said)
      except Exception as error:
        why, said = repr(error), ''
      if why:
        failed.append({'command': case.command, 'why': why})
        last = ' '.join(said.split('\n')[-3:])[-300:]
        print(f'{why}: {case.command}\n    {last}', flush=True)
  print(f'{len(cases) - len(failed)} of {len(cases)} as stated')
  if args.output:
    args.output.write_text(json.dumps({'cases': len(cases), 'failed': failed}))


if __name__ == '__main__':
  experiment.main(main)
