"""What all experiments share: flags, runs of jaxemb, and files of results.

An experiment is a script, `python experiments/NAME.py`. Its flags of the form
--config.SETTING=VALUE go to every run of jaxemb that it starts, after its own.
Results are JSON files that name the machine, the commit and the flags.
"""

import argparse
import datetime
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import psutil

from jaxemb import errors
from jaxemb.runtime import resources

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / 'experiments' / 'results'
# Flags of `add_run_flags` and of settings.
RUN_FLAGS = (
  'text', 'eval', 'config', 'sample', 'epochs', 'restrict_vocab', 'override',
)  # fmt: skip
# MEN, WordSim-353, SimLex-999, rare words, Google's analogies, by name.
_FIVE = (
  r'\bmen\b', r'(ws|wordsim)-?353(-all)?$', r'simlex', r'\brw\b|rare',
  r'questions-words',
)  # fmt: skip
# Variables that keep a program from instructions that the CPU has.
_LIMITS = (
  'MKL_ENABLE_INSTRUCTIONS', 'NUMBA_CPU_FEATURES', 'NUMBA_CPU_NAME',
  'OPENBLAS_CORETYPE', 'XLA_FLAGS',
)  # fmt: skip


# Flags.


def parser(description: str | None) -> argparse.ArgumentParser:
  """A parser whose help is the description of the script, with --output."""
  made = argparse.ArgumentParser(
    description=description, formatter_class=argparse.RawTextHelpFormatter
  )
  made.add_argument(
    '--output', type=pathlib.Path, help='default: results/NAME-DATE.json'
  )
  return made


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
  """Parses the flags; those of settings are the list `override`."""
  args, args.override = parser.parse_known_args()
  for flag in args.override:
    if not flag.startswith('--config.'):
      parser.error(f'unknown argument {flag}')
  return args


def count(text: str) -> int:
  """A flag that is a whole number, at least 1."""
  number = int(text)
  if number < 1:
    raise argparse.ArgumentTypeError(f'{number} must be at least 1')
  return number


def add_names(
  parser: argparse.ArgumentParser,
  flag: str,
  known: Iterable[str],
  separator: str = ',',
) -> None:
  """Adds a flag that lists some of the known names; all of them by default."""
  known = list(known)

  def parse_names(text: str) -> list[str]:
    names = text.split(separator)
    for name in names:
      if name not in known:
        raise argparse.ArgumentTypeError(f'there is no {name!r}')
    return names

  parser.add_argument(
    flag, type=parse_names, default=known, help=f'separated by {separator!r}'
  )


def numbers(text: str) -> list[int | float]:
  """The type of a flag that lists numbers."""
  return json.loads(f'[{text}]')


def add_run_flags(parser: argparse.ArgumentParser, **defaults: Any) -> None:
  """Adds the flags of a scored run, with other defaults where given."""
  add = parser.add_argument
  add('--text', default='', help='config.data.path; "" = the embedded corpus')
  add('--eval', default='', help='config.eval.paths')
  add('--config', default='wiki', help='name or file of a config')
  add('--sample', type=float, default=1e-4, help='config.data.sample')
  add('--epochs', type=count, default=5)
  add('--restrict_vocab', type=int, default=0, help='0 = all words')
  parser.set_defaults(**defaults)


def main(function: Callable[[], None]) -> None:
  """Runs an experiment; an error of its user is one line and exit code 2."""
  try:
    function()
  except errors.UserError as error:
    print(f'{pathlib.Path(sys.argv[0]).name}: {error}', file=sys.stderr)
    sys.exit(2)


# Runs.


def call(command: Sequence[str], cache: pathlib.Path | None = None) -> None:
  """Runs a command of jaxemb to its end.

  `cache` is the folder of encoded texts, compiled programs and kernels; None =
  as usual.

  Raises:
    UserError: its last line, about unusable input or diverging training.
    RuntimeError: if it fails in another way.
  """
  environment = dict(os.environ)
  if cache:
    environment['JAXEMB_CACHE'] = str(cache)
    environment['NUMBA_CACHE_DIR'] = str(cache / 'numba')
    environment.pop('JAX_COMPILATION_CACHE_DIR', None)
  done = subprocess.run(
    command, env=environment, capture_output=True, text=True
  )
  if done.returncode == 2:
    raise errors.UserError(' '.join(done.stderr.strip().splitlines()[-1:]))
  if done.returncode:
    raise RuntimeError(f'{" ".join(command)}:\n{done.stderr[-3000:]}')


def training_command(
  args: argparse.Namespace,
  workdir: pathlib.Path,
  settings: Mapping[str, Any],
  program: Sequence[str] = ('-m', 'jaxemb.main'),
) -> list[str]:
  """The command line of a run, by --config, settings and `override`.

  `program` is what Python runs: jaxemb, or a script that runs it.
  """
  flags = [f'--config.{name}={value}' for name, value in settings.items()]
  command = [sys.executable, *program, f'--config={args.config}']
  return [*command, f'--workdir={workdir}', *flags, *args.override]


def train(
  args: argparse.Namespace,
  workdir: pathlib.Path,
  settings: Mapping[str, Any],
  cache: pathlib.Path | None = None,
  **program: Any,
) -> dict[str, Any]:
  """Trains in a process of its own; returns report.json."""
  call(training_command(args, workdir, settings, **program), cache)
  return read_report(workdir)


def read_report(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns report.json of a run."""
  return json.loads((workdir / 'report.json').read_text())


def run_settings(args: argparse.Namespace, seed: int) -> dict[str, Any]:
  """The settings that the flags of `add_run_flags` stand for."""
  return {
    'data.path': args.text,
    'data.sample': args.sample,
    'eval.paths': args.eval,
    'eval.restrict_vocab': args.restrict_vocab,
    'train.epochs': args.epochs,
    'seed': seed,
  }


def score(
  args: argparse.Namespace,
  seed: int,
  workdir: pathlib.Path,
  settings: Mapping[str, Any],
  **program: Any,
) -> dict[str, Any]:
  """Trains and evaluates, by the flags of `add_run_flags` and `settings`.

  Returns:
    `words_per_sec`, `train_secs`, `epoch_secs`, `loss`, `scores` by benchmark,
    their `mean`; `commit` and `date`.
  """
  settings = run_settings(args, seed) | dict(settings)
  report = train(args, workdir, settings, **program)
  scores = {k: x['score'] for k, x in report['evaluation'].items()}
  return {
    'words_per_sec': report['words_per_sec'],
    'train_secs': report['train_secs'],
    'epoch_secs': report['corpus_words'] / report['words_per_sec'],
    'loss': report['loss_per_example'],
    'scores': scores,
    'mean': statistics.mean(x for x in scores.values() if x is not None),
    'commit': commit(),
    'date': today(),
  }


def mean_of_five(scores: Mapping[str, float | None]) -> float | None:
  """The mean of MEN, WordSim-353, SimLex-999, rare words and analogies.

  None unless `scores`, by the name of the set, have them all.
  """
  five = [
    next((s for k, s in scores.items() if re.search(x, k.lower())), None)
    for x in _FIVE
  ]
  return None if None in five else statistics.mean(five)


def in_turn(
  sides: Mapping[str, Callable[[int], Any]], runs: int
) -> dict[str, list[Any]]:
  """Calls all sides in each round, with its number: a drift hits all alike."""
  results = {name: [] for name in sides}
  for run in range(runs):
    for name, measure in sides.items():
      results[name].append(measure(run))
  return results


def add_runs(
  results: 'Results',
  found: dict[str, dict[str, Any]],
  names: Iterable[str],
  seeds: Iterable[int],
  run: Callable[[str, int, pathlib.Path], dict[str, Any]],
) -> None:
  """Makes the runs by name and seed that `found` in the results lacks."""
  for seed, name in itertools.product(seeds, names):
    runs = found.setdefault(name, {})
    if str(seed) not in runs:
      with tempfile.TemporaryDirectory() as folder:
        runs[str(seed)] = run(name, seed, pathlib.Path(folder))
      shown = {k: v for k, v in runs[str(seed)].items() if k != 'curve'}
      progress(name, seed, shown)
      results.save()


def write_tokens(
  ids: np.ndarray, words: Sequence[str], path: pathlib.Path
) -> None:
  """Writes an encoded text, a sentence per line; of ids, -1 ends a sentence."""
  lines = np.array([*words, '\n'], object)
  with path.open('w', encoding='utf-8') as file:
    for piece in np.array_split(ids, 1 + len(ids) // 1_000_000):
      file.write(' '.join(lines[piece]).replace('\n ', '\n') + ' ')


def progress(*texts: object) -> None:
  """Prints a line to stderr."""
  print(' ', *texts, file=sys.stderr, flush=True)


def simulate_devices(num: int, platforms: str = 'cpu') -> None:
  """Makes the CPU `num` devices, before JAX starts; '' = all platforms."""
  import jax

  if platforms:
    jax.config.update('jax_platforms', platforms)
  jax.config.update('jax_num_cpu_devices', num)


def _cpu_facts() -> dict[str, str]:
  """Family and model of the CPU, and its widest vector instructions.

  Virtual machines may hide the CPU's name. Other systems than Linux tell none.
  """
  try:
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
  except OSError:
    lines = []
  fields = {k.strip(): x for k, _, x in (line.partition(':') for line in lines)}
  flags = fields.get('flags', fields.get('Features', '')).split()
  names = {'avx512f': 'AVX-512', 'avx2': 'AVX2', 'asimd': 'NEON'}
  kind = [f'{x}{fields[x]}' for x in ('cpu family', 'model') if x in fields]
  return {
    'cpu_kind': ', '.join(kind),
    'isa': next((name for x, name in names.items() if x in flags), ''),
  }


def load() -> Callable[[], float]:
  """A function that returns the mean cores in use by others since this call."""
  start = resources.sample()

  def others_cores() -> float:
    used = resources.between(start, resources.sample())
    return max(0.0, used['host_busy_cores'] - used['cores'])

  return others_cores


# Results.


class Results:
  """A JSON file of results, `found` in it, saved as they come in."""

  def __init__(
    self,
    name: str,
    args: argparse.Namespace,
    same: Sequence[str] | None = None,
  ):
    """Opens the file that --output names, or NAME-DATE.json.

    Results in an existing file are replaced, or, unless `same` is None, added
    to, if those flags are the same.

    Raises:
      UserError: they differ.
    """
    self.path = args.output or RESULTS / f'{name}-{today()}.json'
    self.found: dict[str, Any] = {}
    self._arguments = _portable(vars(args))
    if same is None or not self.path.exists():
      return
    earlier = json.loads(self.path.read_text())
    for key in same:
      old, new = (x.get(key) for x in (earlier['arguments'], self._arguments))
      if old != new:
        raise errors.UserError(
          f'{self.path} has results of --{key}={old}, not {new}; give another '
          '--output'
        )
    self.found = earlier['results']

  def save(self, facts: Mapping[str, Any] | None = None) -> None:
    """Writes the file, with facts of the machine once they are known."""
    content = {'machine': facts} if facts else {}
    content |= {'arguments': self._arguments, 'results': self.found}
    self.path.parent.mkdir(parents=True, exist_ok=True)
    self.path.write_text(json.dumps(content, indent=1) + '\n')

  def finish(self, *texts: str) -> None:
    """Prints texts and a line on the machine, and writes the file.

    Starts JAX, which may take all memory of an accelerator: to be called when
    no other process needs it any more.
    """
    facts = machine()
    self.save(facts)
    print(*texts, describe(facts), f'all results: {self.path}', sep='\n')


def _portable(flags: Any) -> Any:
  """Flags as JSON has them, without the folders of this machine."""
  if isinstance(flags, Mapping):
    return {k: _portable(x) for k, x in flags.items()}
  if isinstance(flags, list | tuple):
    return [_portable(x) for x in flags]
  if not isinstance(flags, str | pathlib.Path):
    return flags
  paths = str(flags).split(',')
  return ','.join(os.path.basename(x) if x[:1] == '/' else x for x in paths)


def machine() -> dict[str, Any]:
  """Machine, JAX devices, versions, commit and date; starts JAX."""
  import jax

  kinds = [f'{d.platform} {d.device_kind}' for d in jax.local_devices()]
  return (
    resources.machine()
    | _cpu_facts()
    | {
      'cores': resources.usable_cores(),
      'limits': {x: os.environ[x] for x in _LIMITS if x in os.environ},
      'memory_bytes': psutil.virtual_memory().total,
      'devices': {kind: kinds.count(kind) for kind in kinds},
      'versions': resources.versions(),
      'commit': commit(),
      'is_modified': bool(_git('status', '--porcelain', '--', 'jaxemb')),
      'date': today(),
    }
  )


def describe(facts: Mapping[str, Any]) -> str:
  """What `machine` returned, in a line."""
  devices = ', '.join(f'{num} x {k}' for k, num in facts['devices'].items())
  versions = ' '.join(f'{k} {v}' for k, v in facts['versions'].items())
  changes = ' with changes' if facts['is_modified'] else ''
  limits = ''.join(f', {k}={x}' for k, x in facts['limits'].items())
  return (
    f'{facts["cpu"]} ({facts["cpu_kind"]}; {facts["isa"]}{limits}), '
    f'{facts["cores"]} cores, '
    f'{facts["memory_bytes"] / 2**30:.0f} GiB; {devices}; {versions}; commit '
    f'{facts["commit"][:12]}{changes}, {facts["date"]}'
  )


def commit() -> str:
  """The commit that is checked out, or 'unknown'."""
  return _git('rev-parse', 'HEAD') or 'unknown'


def today() -> str:
  """The date, as in names of files."""
  return datetime.date.today().isoformat()


def _git(*args: str) -> str:
  command = ['git', '-C', str(ROOT), '--no-optional-locks', *args]
  try:
    done = subprocess.run(command, capture_output=True, text=True)
  except OSError:  # no git
    return ''
  return done.stdout.strip() if done.returncode == 0 else ''


def table(
  head: Sequence[str] | Mapping[str, str], rows: Iterable[Sequence[Any]]
) -> str:
  """Lines of text with aligned columns, the first one to the left.

  `head` has the names of columns, perhaps with formats of their numbers; the
  usual one of floats is four digits. In cells None is empty.
  """
  formats = [*head.values()] if isinstance(head, Mapping) else [''] * len(head)

  def cell(x: Any, form: str) -> str:
    if x is None or isinstance(x, str):
      return x or ''
    return format(x, form or ('.4g' if isinstance(x, float) else ''))

  lines = [[*head]]
  for row in rows:
    padded = [*row, *[None] * (len(head) - len(row))]
    lines.append([*map(cell, padded, formats)])
  first, *others = (max(map(len, x)) for x in zip(*lines, strict=True))
  aligned = ([x[0].ljust(first), *map(str.rjust, x[1:], others)] for x in lines)
  return '\n'.join('  '.join(x).rstrip() for x in aligned)


def start_plot(columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
  """A matplotlib figure without a display, and its panels."""
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  figure, panels = pyplot.subplots(
    1, columns, figsize=size, layout='constrained', squeeze=False
  )
  for panel in panels[0]:
    panel.spines[['top', 'right']].set_visible(False)
  return figure, panels[0]
