"""Measures jaxemb beside its peers and prints the README's table.

  pip install -e '.[bench]'
  python experiments/reproduce.py --text=FILES --eval=SETS --peers=PEERS

FILES are texts, SETS files and folders of similarity and analogy sets, PEERS
gensim, pword2vec:PATH, word2vec:PATH and fasttext:PATH, separated by commas.
gensim is the installed one. PATH is a program that you compile from its public
source, with all instructions of this CPU:

  pword2vec  github.com/IntelLabs/pWord2Vec, with `pip install mkl-devel` in V:
             g++ -std=c++11 -O3 -march=native -fopenmp -DUSE_MKL -include cstdio
             -include immintrin.h -I V/include pWord2Vec.cpp -L V/lib
             -Wl,-rpath,V/lib -l:libmkl_intel_lp64.so.3
             -l:libmkl_sequential.so.3 -l:libmkl_core.so.3
  word2vec   github.com/tmikolov/word2vec: gcc -Ofast -march=native
             -funroll-loops word2vec.c -lm -pthread
  fasttext   github.com/facebookresearch/fastText: make fasttext CXXFLAGS=
             '-std=c++17 -Ofast -march=native -funroll-loops -pthread -DNDEBUG'

The models are skip-gram and CBOW with negative sampling, and skip-gram with
hierarchical softmax, which pWord2Vec lacks, as it lacks CBOW; `subwords` is
skip-gram with n-grams of 3 to 6 characters in 2 M buckets, beside gensim's
FastText and fastText, which is without subwords in the others. All programs
have the same settings and as many threads as cores, but each its usual learning
rate. Each run is a process of its own, and the
programs of a round take turns, so that a drift hits all alike. jaxemb reads raw
text, its peers the tokens that it cuts, a sentence per line. word2vec.c and
pWord2Vec have no seed: their runs differ by races of threads.

  speed    words/s in training on the first text, medians of --rounds; in
           brackets how many times as fast jaxemb is
  process  seconds from start to exported vectors on the first text, jaxemb with
           all caches empty, as on a new machine; medians of --first_runs
  quality  scores of all words by jaxemb's evaluation: means over texts of means
           over seeds 1, 2, ... --seeds; in brackets what jaxemb has more, and
           the standard error of that

Words are corpus words inside the vocabulary, before frequent-word subsampling,
times epochs. Training seconds leave out counting and compilation; those of
gensim include reading its file, in a thread of its own (its corpus_file lets
the learning rate decay only part of the way). The C and C++ programs are timed
by the progress that they show, from the first number to the last, and of speed
only for 20 s. A file given as --output gets what it lacks: parts and models may
be measured one by one.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import itertools
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import experiment

from jaxemb import errors
from jaxemb.evaluation import benchmarks, words
from jaxemb.runtime import resources
from jaxemb.storage import export
from jaxemb.text import encode

_WINDOW, _NEGATIVES, _SAMPLE = 5, 5, 1e-4
_SKIPGRAM, _CBOW, _TREE, _SUBWORDS = _MODELS = (
  'skip-gram', 'CBOW', 'hierarchical softmax', 'subwords',
)  # fmt: skip
_CHARS, _BUCKETS = (3, 6), 2_000_000  # of n-grams
_SPEED_SECS = 20.0  # of a peer's progress, enough to tell its speed
_PARTS = 'speed', 'process', 'quality'
# Settings that would change one side only.
_FIXED = (
  'data.', 'model.dim', 'model.window', 'model.negatives', 'model.name',
  'model.loss', 'train.ep', 'train.threads', 'seed',
)  # fmt: skip
# Flags that results in one file share.
_SAME = 'text', 'eval', 'config', 'dim', 'epochs', 'speed_epochs', 'cores'
_FIVE, _SIMILAR = 'mean of the five', 'mean of the similarity sets'
# By program and text.
_Runs = Mapping[str, Mapping[str, Sequence[dict[str, Any]]]]
_PROGRESS = re.compile(rb'Progress:\s*([\d.]+)%')


class _Text(NamedTuple):
  path: str
  tokens: pathlib.Path
  num_words: int


class _Run(NamedTuple):
  """What a program is to train."""

  model: str
  text: _Text
  epochs: int
  dim: int
  seed: int


# Command lines. A program works in a folder that has the `tokens`.


def _jaxemb(run: _Run, flags: argparse.Namespace, path: str) -> list[str]:
  del path
  settings = {
    'data.path': run.text.path,
    'data.sample': _SAMPLE,
    'eval.paths': 'none',
    'model.dim': run.dim,
    'model.loss': 'negative_sampling',
    'model.name': 'cbow' if run.model == _CBOW else 'skipgram',
    'model.window': _WINDOW,
    'seed': run.seed,
    'train.epochs': run.epochs,
  }
  if run.model == _TREE:
    settings['model.loss'] = 'hierarchical_softmax'
  else:
    settings['model.negatives'] = _NEGATIVES
  if run.model == _SUBWORDS:
    settings['model.subwords'] = '-'.join(map(str, _CHARS))
    settings['model.buckets'] = _BUCKETS
  return experiment.training_command(flags, pathlib.Path('run'), settings)


def _gensim(run: _Run, flags: argparse.Namespace, path: str) -> list[str]:
  del flags, path
  settings = {
    'sg': int(run.model != _CBOW),
    'vector_size': run.dim,
    'window': _WINDOW,
    'negative': 0 if run.model == _TREE else _NEGATIVES,
    'hs': int(run.model == _TREE),
    'sample': _SAMPLE,
    'min_count': 1,  # the file has the words of the vocabulary only
    'workers': resources.usable_cores(),
    'seed': run.seed,
    'epochs': run.epochs,
  }
  if run.model == _SUBWORDS:
    settings['min_n'], settings['max_n'] = _CHARS
    settings['bucket'] = _BUCKETS
  script = pathlib.Path(__file__).with_name('train_gensim.py')
  files = str(script), 'tokens', 'vectors.bin'
  return [sys.executable, *files, json.dumps(settings)]


def _word2vec(run: _Run, flags: argparse.Namespace, path: str) -> list[str]:
  """Also of pWord2Vec, which has no -cbow and -hs and ignores them."""
  del flags
  settings = {
    'train': 'tokens',
    'output': 'vectors.bin',
    'binary': 1,
    'cbow': int(run.model == _CBOW),
    'hs': int(run.model == _TREE),
    'size': run.dim,
    'window': _WINDOW,
    'negative': 0 if run.model == _TREE else _NEGATIVES,
    'sample': _SAMPLE,
    'min-count': 1,
    'threads': resources.usable_cores(),
    'iter': run.epochs,
  }
  return [path, *_flags(settings)]


def _fasttext(run: _Run, flags: argparse.Namespace, path: str) -> list[str]:
  del flags
  shortest, longest = _CHARS if run.model == _SUBWORDS else (0, 0)
  settings = {
    'input': 'tokens',
    'output': 'vectors',
    'minn': shortest,
    'maxn': longest,
    'bucket': _BUCKETS,
    'loss': 'hs' if run.model == _TREE else 'ns',
    'dim': run.dim,
    'ws': _WINDOW,
    'neg': _NEGATIVES,
    't': _SAMPLE,
    'minCount': 1,
    'thread': resources.usable_cores(),
    'epoch': run.epochs,
    'seed': run.seed,
  }
  model = 'cbow' if run.model == _CBOW else 'skipgram'
  return [path, model, *_flags(settings)]


def _flags(settings: Mapping[str, Any]) -> list[str]:
  return [str(x) for k, v in settings.items() for x in (f'-{k}', v)]


class _Program(NamedTuple):
  title: str
  command: Callable[[_Run, argparse.Namespace, str], list[str]]
  vectors: str = 'vectors.bin'
  models: Sequence[str] = _MODELS


_PROGRAMS = {
  'jaxemb': _Program('jaxemb', _jaxemb, 'run/export/vectors.bin'),
  'gensim': _Program('gensim', _gensim),
  'pword2vec': _Program('pWord2Vec', _word2vec, models=(_SKIPGRAM,)),
  'word2vec': _Program(
    'word2vec.c', _word2vec, models=(_SKIPGRAM, _CBOW, _TREE)
  ),
  'fasttext': _Program('fastText', _fasttext, 'vectors.vec'),
}


# Runs.


def _execute(
  command: list[str],
  folder: pathlib.Path,
  cache: pathlib.Path,
  progress_secs: float,
) -> dict[str, Any]:
  """Runs a process; returns its seconds, CPU seconds and progress.

  `cache` is where jaxemb keeps what it encodes and compiles. `progress` has the
  time and the percentage that the process showed first and last, if any; it is
  stopped after `progress_secs` between these.
  """
  environment = dict(os.environ) | {
    'JAXEMB_CACHE': str(cache),
    'NUMBA_CACHE_DIR': str(cache / 'numba'),
    'PYTHONPATH': str(experiment.ROOT),
  }
  environment.pop('JAX_COMPILATION_CACHE_DIR', None)
  start, progress, tail = time.perf_counter(), [], b''
  is_stopped = False
  process = subprocess.Popen(
    command,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    env=environment,
    cwd=folder,
  )
  while shown := process.stdout.read1():
    tail = (tail + shown)[-4096:]
    if percentages := _PROGRESS.findall(shown):
      now = time.perf_counter() - start, float(percentages[-1])
      progress = [*progress[:1], now]
      if is_stopped := now[0] - progress[0][0] > progress_secs:
        process.kill()
        break
  _, code, usage = os.wait4(process.pid, 0)
  process.stdout.close()
  process.returncode = os.waitstatus_to_exitcode(code)
  if process.returncode and not is_stopped:
    last = tail.decode(errors='replace').strip().splitlines()[-1:]
    raise errors.UserError(f'{" ".join(command)} failed: {" ".join(last)}')
  return {
    'process_secs': time.perf_counter() - start,
    'process_cpu_secs': usage.ru_utime + usage.ru_stime,
    'progress': progress,
  }


def _words_per_sec(
  folder: pathlib.Path, run: _Run, progress: Sequence[tuple[float, float]]
) -> float:
  """Words/s in training, by what the program wrote or has shown."""
  if (folder / 'run').exists():
    return experiment.read_report(folder / 'run')['words_per_sec']
  num_words = run.text.num_words * run.epochs
  if (folder / 'vectors.json').exists():  # of train_gensim.py
    report = json.loads((folder / 'vectors.json').read_text())
    return num_words / report['train_secs']
  if len(progress) < 2:
    raise errors.UserError('a peer showed no progress; train on a longer text')
  (start, first), (end, last) = progress
  return num_words * (last - first) / 100 / (end - start)


def _measure(
  name: str,
  run: _Run,
  args: argparse.Namespace,
  part: str,
  cache: pathlib.Path,
  sets: Sequence[benchmarks.Benchmark],
) -> dict[str, Any]:
  """Trains with a program, for a part of the results."""
  program = _PROGRAMS[name]
  with tempfile.TemporaryDirectory() as made:
    folder = pathlib.Path(made)
    # word2vec.c and pWord2Vec have room for 100 characters of a path.
    (folder / 'tokens').symlink_to(run.text.tokens)
    result = _execute(
      program.command(run, args, args.peers.get(name, '')),
      folder=folder,
      cache=folder / 'cache' if part == 'process' else cache,
      progress_secs=_SPEED_SECS if part == 'speed' else math.inf,
    )
    rate = _words_per_sec(folder, run, result.pop('progress'))
    result = {'words_per_sec': rate} | result
    if part == 'quality':
      result['quality'] = _score(folder / program.vectors, sets)
  return result


def _score(
  path: pathlib.Path, sets: Sequence[benchmarks.Benchmark]
) -> dict[str, float]:
  """Means of scores, and scores by set."""
  vectors = export.read(path)
  results = words.evaluate(vectors.words, vectors.vectors, sets, 0)
  scores = {k: x['score'] for k, x in results.items() if x['score'] is not None}
  similar = [x for k, x in scores.items() if results[k]['kind'] == 'similarity']
  five = experiment.mean_of_five(scores)
  means = {} if five is None else {_FIVE: five}
  if similar:
    means[_SIMILAR] = statistics.mean(similar)
  return means | scores


def _encode(path: str, folder: pathlib.Path) -> _Text:
  """Writes the tokens of a text."""
  settings = encode.Settings('words', True, 5, 1_000_000, '')
  corpus = encode.encode(path, settings, folder / 'cache', lambda *_: None)
  tokens = folder / pathlib.Path(path).stem
  experiment.write_tokens(corpus.ids, corpus.words, tokens)
  return _Text(os.path.abspath(path), tokens, corpus.num_words)


def _train(
  args: argparse.Namespace,
  texts: Sequence[_Text],
  folder: pathlib.Path,
  results: experiment.Results,
) -> None:
  """Adds the runs that results lack, by part, model, program and text."""
  sets = benchmarks.find(args.eval.split(',')) if args.eval else []
  sets = [x for x in sets if x.kind != 'categorization']
  plans = {  # rounds, epochs, texts
    'speed': (args.rounds, args.speed_epochs, texts[:1]),
    'process': (args.first_runs, args.epochs, texts[:1]),
    'quality': (args.seeds, args.epochs, texts),
  }
  for part, model in itertools.product(args.parts, args.models):
    num_rounds, epochs, part_texts = plans[part]
    programs = ['jaxemb', *args.peers]
    programs = [x for x in programs if model in _PROGRAMS[x].models]
    found = results.found.setdefault(part, {}).setdefault(model, {})
    rounds = itertools.product(range(num_rounds), part_texts, programs)
    for number, text, name in rounds:
      label = pathlib.Path(text.path).stem
      runs = found.setdefault(name, {}).setdefault(label, [])
      if len(runs) > number:
        continue
      run = _Run(model, text, epochs, args.dim, number + 1)
      runs.append(
        _measure(name, run, args, part=part, cache=folder / 'cache', sets=sets)
      )
      results.save()
      rate = f'{runs[-1]["words_per_sec"]:,.0f} words/s'
      experiment.progress(part, model, label, name, number + 1, rate)


# The table.


def _estimate(by_text: Sequence[Sequence[float]]) -> tuple[float, float]:
  """The mean over texts of means over seeds, and its standard error."""
  means = [statistics.mean(x) for x in by_text]
  variances = [
    statistics.variance(x) / len(x) if len(x) > 1 else math.nan for x in by_text
  ]
  return statistics.mean(means), math.sqrt(sum(variances)) / len(by_text)


def _row(
  name: str,
  values: Mapping[str, Any],
  show: Callable[[Any], str],
  compare: Callable[[Any, Any], str],
) -> str:
  """A line of values by program, where `compare` gets ours and theirs."""
  cells = [name]
  for program in _PROGRAMS:
    cell = show(values[program]) if program in values else ''
    if cell and program != 'jaxemb' and 'jaxemb' in values:
      cell += f' ({compare(values["jaxemb"], values[program])})'
    cells.append(cell)
  return f'| {" | ".join(cells)} |'


def _speed_rows(model: str, part: str, found: _Runs) -> Iterator[str]:
  """Lines of medians."""
  rows = {
    'speed': [('M words/s in training', 'words_per_sec', 1e6)],
    'process': [
      ('whole process, first run, s', 'process_secs', 1),
      ('CPU seconds of it', 'process_cpu_secs', 1),
    ],
  }
  for name, key, unit in rows[part]:
    values = {
      program: statistics.median(x[key] / unit for x in sum(runs.values(), []))
      for program, runs in found.items()
    }
    sign = 1 if part == 'speed' else -1  # less of a second is better
    yield _row(
      f'{model}: {name}',
      values,
      lambda x, unit=unit: f'{x:.{1 if unit == 1 else 2}f}',
      lambda x, y, sign=sign: f'{(x / y) ** sign:.1f} x',
    )


def _quality_rows(model: str, found: _Runs) -> Iterator[str]:
  """Lines of scores on the texts that all programs have; means first."""
  texts = set.intersection(*map(set, found.values()))
  scores = {
    program: [[x['quality'] for x in runs[text]] for text in texts]
    for program, runs in found.items()
  }
  every = [x for by_text in scores.values() for runs in by_text for x in runs]

  def compare(ours, theirs):
    error = math.hypot(ours[1], theirs[1])
    error = '' if math.isnan(error) else f' ± {error:.3f}'
    return f'{ours[0] - theirs[0]:+.3f}{error}'

  for name in every[0] if every else ():
    is_all = model in (_SKIPGRAM, _SUBWORDS)
    is_shown = is_all or name in (_FIVE, _SIMILAR)
    if is_shown and all(name in x for x in every):
      values = {
        program: _estimate([[x[name] for x in runs] for runs in by_text])
        for program, by_text in scores.items()
      }
      yield _row(f'{model}: {name}', values, lambda x: f'{x[0]:.3f}', compare)


def table(found: Mapping[str, Mapping[str, _Runs]]) -> str:
  """The README's table, in Markdown, of runs by part and model."""
  titles = [x.title for x in _PROGRAMS.values()]
  with contextlib.suppress(importlib.metadata.PackageNotFoundError):
    titles[1] += f' {importlib.metadata.version("gensim")}'
  lines = [f'| | {" | ".join(titles)} |', '|---' * (len(titles) + 1) + '|']
  for model, part in itertools.product(_MODELS, _PARTS):
    runs = found.get(part, {}).get(model)
    if runs and part == 'quality':
      lines += _quality_rows(model, runs)
    elif runs:
      lines += _speed_rows(model, part, runs)
  return '\n'.join(lines)


def _peers(text: str) -> dict[str, str]:
  """The type of --peers: paths by name, of gensim ''."""
  peers = {}
  for peer in filter(None, text.split(',')):
    name, _, path = peer.partition(':')
    if name == 'gensim' and not path:
      if importlib.util.find_spec('gensim') is None:
        raise argparse.ArgumentTypeError('gensim is not installed')
    elif name not in _PROGRAMS or not os.access(path, os.X_OK):
      raise argparse.ArgumentTypeError(
        f'{peer!r} is not gensim, or another peer and its program'
      )
    peers[name] = path and os.path.abspath(path)
  return peers


def _use_cores(num: int) -> None:
  """Keeps this process, and those that it starts, to so many cores."""
  if not hasattr(os, 'sched_setaffinity'):
    raise errors.UserError('--cores needs Linux')
  cores = sorted(os.sched_getaffinity(0))
  if num > len(cores):
    raise errors.UserError(f'--cores={num}: there are {len(cores)}')
  os.sched_setaffinity(0, cores[:num])


def main() -> None:
  """Trains with all programs and prints the table."""
  parser = experiment.parser(__doc__)
  parser.set_defaults(config='wiki')
  add = parser.add_argument
  add('--text', required=True, help='FILE,...')
  add('--eval', default='', help='files and folders, separated by commas')
  add('--peers', type=_peers, default='gensim', help='default: gensim')
  experiment.add_names(parser, '--parts', _PARTS)
  experiment.add_names(parser, '--models', _MODELS)
  add('--dim', type=int, default=100)
  add('--epochs', type=experiment.count, default=5)
  add('--seeds', type=experiment.count, default=3)
  add('--rounds', type=experiment.count, default=5, help='of speed')
  add('--speed_epochs', type=experiment.count, default=2)
  add('--first_runs', type=experiment.count, default=1, help='of process')
  add('--cores', type=experiment.count, help='of each side; default: all')
  args = experiment.parse(parser)
  for flag in args.override:
    if flag.removeprefix('--config.').startswith(_FIXED):
      parser.error(f'{flag} would change our side only')
  paths = args.text.split(',')
  if len({pathlib.Path(x).stem for x in paths}) < len(paths):
    parser.error('--text: two files of one name')
  if args.cores:
    _use_cores(args.cores)
  results = experiment.Results('readme', args, _SAME)
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    texts = [_encode(x, folder) for x in paths]
    _train(args, texts, folder, results)
  results.finish(table(results.found))


if __name__ == '__main__':
  experiment.main(main)
