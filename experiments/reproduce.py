"""Measures jaxemb beside gensim and prints the README's table.

  pip install -e '.[bench]'
  python experiments/reproduce.py readme --text=FILES --eval=FILES_AND_FOLDERS

FILES are texts, separated by commas; --eval has similarity and analogy sets.
Both sides train on each text with seeds 1, 2, ... --seeds, alternating, with
the same settings. Each run is a process of its own. Ours is `python -m
jaxemb.main`, from the raw text to the exported vectors, with all caches empty,
as on a new machine. gensim reads the words of our vocabulary from a
LineSentence file (with several workers its corpus_file lets the learning rate
decay only part of the way), counts them, trains and writes binary vectors.

Words are corpus words inside the vocabulary, before frequent-word subsampling,
times epochs. Training seconds leave out counting and compilation; gensim's
include reading its file, in a thread of its own. Speeds and seconds are
medians. Scores are of all words, by jaxemb's evaluation: means over seeds and
texts, and in brackets the standard error of the difference.
"""

import argparse
import functools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import experiment

from jaxemb import errors
from jaxemb.evaluation import benchmarks, words
from jaxemb.runtime import resources
from jaxemb.storage import export
from jaxemb.text import encode

_WINDOW, _NEGATIVES, _SAMPLE = 5, 5, 1e-4
_TREE = 'hierarchical_softmax'
# Settings that would change one side only.
_FIXED = (
  'data.', 'model.dim', 'model.window', 'model.negatives', 'model.name',
  'train.ep', 'seed',
)  # fmt: skip
_FIVE, _SIMILAR = 'mean of the five', 'mean of the similarity sets'


# Runs.


def _timed(
  command: list[str], folder: pathlib.Path, isa: str | None
) -> dict[str, float]:
  """Runs a process with empty caches; returns its seconds and CPU seconds."""
  environment = experiment.environment(isa) | {
    'JAXEMB_CACHE': str(folder / 'cache'),
    'NUMBA_CACHE_DIR': str(folder / 'numba'),
  }
  environment.pop('JAX_COMPILATION_CACHE_DIR', None)
  log = folder / 'log'
  start = time.perf_counter()
  with log.open('wb') as file:
    process = subprocess.Popen(
      command, stdout=file, stderr=file, env=environment
    )
    _, code, usage = os.wait4(process.pid, 0)
  process.returncode = os.waitstatus_to_exitcode(code)
  if code:
    tail = log.read_text(errors='replace').strip().splitlines()[-1:]
    raise errors.UserError(f'{" ".join(command)} failed: {" ".join(tail)}')
  return {
    'process_secs': time.perf_counter() - start,
    'process_cpu_secs': usage.ru_utime + usage.ru_stime,
  }


def _train_jaxemb(
  args: argparse.Namespace, text: str, folder: pathlib.Path, seed: int
) -> dict[str, Any]:
  settings = {
    'data.path': text,
    'data.sample': _SAMPLE,
    'eval.paths': 'none',
    'model.dim': args.dim,
    'model.loss': args.loss,
    'model.name': args.model,
    'model.window': _WINDOW,
    'seed': seed,
    'train.epochs': args.epochs,
  }
  if args.loss != _TREE:
    settings['model.negatives'] = _NEGATIVES
  command = experiment.training_command(args, folder, settings)
  run = _timed(command, folder, args.isa)
  report = experiment.read_report(folder)
  names = 'words_per_sec', 'train_secs', 'peak_rss_bytes', 'config'
  return run | {k: report[k] for k in names}


def _train_gensim(
  args: argparse.Namespace,
  tokens: pathlib.Path,
  num_words: int,
  folder: pathlib.Path,
  seed: int,
) -> dict[str, Any]:
  is_tree = args.loss == _TREE
  settings = {
    'sg': int(args.model == 'skipgram'),
    'vector_size': args.dim,
    'window': _WINDOW,
    'negative': 0 if is_tree else _NEGATIVES,
    'hs': int(is_tree),
    'sample': _SAMPLE,
    'min_count': 1,  # the file has the words of the vocabulary only
    'workers': resources.usable_cores(),
    'seed': seed,
    'epochs': args.epochs,
  }
  script = pathlib.Path(__file__).with_name('train_gensim.py')
  vectors = folder / 'vectors.bin'
  command = [sys.executable, *map(str, (script, tokens, vectors))]
  run = _timed([*command, json.dumps(settings)], folder, args.isa)
  run |= json.loads(vectors.with_suffix('.json').read_text())
  rate = num_words * args.epochs / run['train_secs']
  return {'words_per_sec': rate} | run


def _measure_text(
  args: argparse.Namespace, text: str, sets: Sequence[benchmarks.Benchmark]
) -> dict[str, list[dict[str, Any]]]:
  """Trains both sides on a text in turn."""
  with tempfile.TemporaryDirectory() as temporary:
    tokens = pathlib.Path(temporary, 'tokens')
    settings = encode.Settings('words', True, 5, 1_000_000, '')
    cache = pathlib.Path(temporary, 'cache')
    corpus = encode.encode(text, settings, cache, lambda *_: None)
    experiment.write_tokens(corpus.ids, corpus.words, tokens)
    trainers = {
      'jaxemb': functools.partial(_train_jaxemb, args, text),
      'gensim': functools.partial(
        _train_gensim, args, tokens, corpus.num_words
      ),
    }

    def measure(side: str, number: int) -> dict[str, Any]:
      with tempfile.TemporaryDirectory(dir=temporary) as made:
        folder = pathlib.Path(made)
        run = trainers[side](folder=folder, seed=number + 1)
        run['quality'] = _score(next(folder.rglob('vectors.bin')), sets)
      rate = f'{run["words_per_sec"]:,.0f} words/s'
      experiment.progress(pathlib.Path(text).stem, side, number + 1, rate)
      return run

    sides = {side: functools.partial(measure, side) for side in trainers}
    return experiment.in_turn(sides, args.seeds)


def _score(
  path: pathlib.Path, sets: Sequence[benchmarks.Benchmark]
) -> dict[str, float]:
  """Scores by set, and their means."""
  vectors = export.read(path)
  results = words.evaluate(vectors.words, vectors.vectors, sets, 0)
  scores = {k: x['score'] for k, x in results.items() if x['score'] is not None}
  similar = [x for k, x in scores.items() if results[k]['kind'] == 'similarity']
  five = experiment.mean_of_five(scores)
  means = {} if five is None else {_FIVE: five}
  if similar:
    means[_SIMILAR] = statistics.mean(similar)
  return scores | means


# The table.


def _estimate(by_text: Sequence[Sequence[float]]) -> tuple[float, float]:
  """The mean over texts of means over seeds, and its standard error."""
  means = [statistics.mean(x) for x in by_text]
  variances = [
    statistics.variance(x) / len(x) if len(x) > 1 else math.nan for x in by_text
  ]
  return statistics.mean(means), math.sqrt(sum(variances)) / len(by_text)


def table(found: Mapping[str, Mapping[str, Sequence[dict[str, Any]]]]) -> str:
  """The README's table, in Markdown, of runs by text and side."""
  lines = ['| | jaxemb | gensim | |', '|---|---|---|---|']
  sides = {
    side: [runs[side] for runs in found.values()]
    for side in ('jaxemb', 'gensim')
  }
  for name, key, form in (
    ('words/s in training', 'words_per_sec', ',.0f'),
    ('whole process, first run of a machine, s', 'process_secs', '.1f'),
    ('CPU seconds', 'process_cpu_secs', '.1f'),
    ('peak memory, bytes', 'peak_rss_bytes', ',.0f'),
  ):
    each = [[x[key] for runs in side for x in runs] for side in sides.values()]
    ours, theirs = map(statistics.median, each)
    ratio = ours / theirs if key == 'words_per_sec' else theirs / ours
    lines.append(
      f'| {name} | {ours:{form}} | {theirs:{form}} | {ratio:.1f} x |'
    )
  everything = [x for side in sides.values() for runs in side for x in runs]
  for name in everything[0]['quality']:
    if all(name in x['quality'] for x in everything):
      ours, theirs = (
        _estimate([[x['quality'][name] for x in runs] for runs in side])
        for side in sides.values()
      )
      error = math.hypot(ours[1], theirs[1])
      error = '' if math.isnan(error) else f' ({error:.3f})'
      lines.append(
        f'| {name} | {ours[0]:.3f} | {theirs[0]:.3f} | '
        f'{ours[0] - theirs[0]:+.3f}{error} |'
      )
  return '\n'.join(lines)


def _use_cores(num: int) -> None:
  """Keeps this process, and those that it starts, to so many cores."""
  if not hasattr(os, 'sched_setaffinity'):
    raise errors.UserError('--cores needs Linux')
  cores = sorted(os.sched_getaffinity(0))
  if num > len(cores):
    raise errors.UserError(f'--cores={num}: there are {len(cores)}')
  os.sched_setaffinity(0, cores[:num])


def main() -> None:
  """Trains both sides on all texts and prints the table."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('what', choices=('readme',))
  add('--text', required=True, type=lambda x: x.split(','), help='FILE,...')
  add('--eval', default='', help='files and folders, separated by commas')
  add('--config', default='wiki')
  add('--dim', type=int, default=100)
  add('--epochs', type=experiment.count, default=5)
  add('--seeds', type=experiment.count, default=3)
  add('--model', choices=('skipgram', 'cbow'), default='skipgram')
  add(
    '--loss', choices=('negative_sampling', _TREE), default='negative_sampling'
  )
  add('--cores', type=experiment.count, help='of each side; default: all')
  add('--isa', choices=('avx2',), help='limits both sides; default: the CPU')
  args = experiment.parse(parser)
  for flag in args.override:
    if flag.removeprefix('--config.').startswith(_FIXED):
      parser.error(f'{flag} would change our side only')
  if len({pathlib.Path(x).stem for x in args.text}) < len(args.text):
    parser.error('--text: two files of one name')
  if args.cores:
    _use_cores(args.cores)
  sets = benchmarks.find(args.eval.split(',')) if args.eval else []
  sets = [x for x in sets if x.kind != 'categorization']
  results = experiment.Results('readme', args)
  for text in args.text:
    name = pathlib.Path(text).stem
    results.found[name] = _measure_text(args, text, sets)
    results.save()
  results.finish(table(results.found), isa=args.isa)


if __name__ == '__main__':
  experiment.main(main)
