"""Speed and quality next to gensim and others, on the same tokens, in turn.

  pip install -e '.[bench]'
  python experiments/bench_throughput.py --text=FILES --eval=FILES_AND_FOLDERS

Each run is a process of its own. Ours is `python -m jaxemb.main`, from the raw
text to the exported vectors; it evaluates nothing. gensim gets the words of our
vocabulary as a LineSentence file (with several workers its corpus_file lets the
learning rate decay only part of the way), counts them, trains and writes binary
vectors. Both have the same settings, and the number of the run as seed.

Every run of ours is the first of a machine: the caches of texts, of compiled
programs and of numba are empty. What `pip install` leaves, Python's bytecode,
is there, and files are in the memory of the system, for both sides.

Words are corpus words inside the vocabulary, before frequent-word subsampling,
times epochs. Training seconds leave out counting and compilation; gensim's
include reading its file, in a thread of its own.

Vectors of other programs stand in the same table of scores. --tokens=FOLDER
writes the tokens of each text, TEXT.txt, for these programs to train on, and
ends. --vectors='NAME=FILE,...' then names what they wrote, in any format that
jaxemb reads. In FILE, {text} stands for the name of a text without its suffix
and {seed} for 1, 2, ... up to --runs. So do the vectors that --keep has kept:

  --tokens=made
  --runs=3 --vectors='word2vec.c=made/{text}.bin,mine=made/{text}.{seed}.bin'
  --runs=3 --keep=kept
  --runs=3 --sides=jaxemb --vectors='gensim=kept/gensim.{text}.{seed}.bin'

All vectors are scored by jaxemb.evaluation, over all their words, in any case;
gensim's own evaluator scores one set as a check. Scores are means
over seeds, with their standard errors in brackets: of all texts, that of the
mean over these texts. Differences are ours less theirs.
"""

import argparse
import functools
import json
import math
import os
import pathlib
import shutil
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
from jaxemb.storage import export, word2vec_format
from jaxemb.text import encode

_WINDOW, _NEGATIVES, _SAMPLE = 5, 5, 1e-4
_TREE = 'hierarchical_softmax'
# Settings that would change one side only.
_FIXED = (
  'data.', 'model.dim', 'model.window', 'model.negatives', 'model.name',
  'train.ep', 'seed',
)  # fmt: skip
_MEANS = ('mean of the five', 'mean of word similarity')
# [mean over seeds, its standard error or nan].
_Estimate = tuple[float, float]


# Runs.


def _timed(command: list[str], folder: pathlib.Path, isa: str) -> dict:
  """Runs a process with empty caches; its seconds and CPU seconds."""
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


def _ours(
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
  found = _timed(command, folder, args.isa)
  report = experiment.read_report(folder)
  names = (
    'words_per_sec', 'train_secs', 'compile_secs', 'peak_rss_bytes', 'config',
  )  # fmt: skip
  return found | {k: report[k] for k in names}


def _gensim(
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
    'min_count': 1,  # the file holds the words of the vocabulary only
    'workers': resources.usable_cores(),
    'seed': seed,
    'epochs': args.epochs,
  }
  script = pathlib.Path(__file__).with_name('train_gensim.py')
  vectors = folder / 'vectors.bin'
  command = [sys.executable, *map(str, (script, tokens, vectors))]
  found = _timed([*command, json.dumps(settings)], folder, args.isa)
  found |= json.loads(vectors.with_suffix('.json').read_text())
  rate = num_words * args.epochs / found['train_secs']
  return {'words_per_sec': rate, 'compile_secs': 0.0} | found


def _measure_text(
  args: argparse.Namespace,
  text: str,
  others: Mapping[str, Sequence[pathlib.Path]],
  sets: Sequence[benchmarks.Benchmark],
) -> dict[str, list[dict]]:
  """The runs of all sides on a text, and the scores of others' vectors."""
  with tempfile.TemporaryDirectory() as temporary:
    tokens = pathlib.Path(temporary, 'tokens')
    corpus = _write_tokens(text, tokens)
    scored = {
      name: [_score_other(path, corpus.words, text, sets) for path in paths]
      for name, paths in others.items()
    }
    trainers = {
      'jaxemb': functools.partial(_ours, args, text),
      'gensim': functools.partial(_gensim, args, tokens, corpus.num_words),
    }

    def measure(side: str, run: int) -> dict[str, Any]:
      with tempfile.TemporaryDirectory(dir=temporary) as made:
        folder, seed = pathlib.Path(made), run + 1
        found = trainers[side](folder, seed)
        path = next(folder.rglob('vectors.bin'))
        vectors = export.read(path)
        if args.keep:
          kept = args.keep / f'{side}.{_name(text)}.{seed}.bin'
          shutil.copyfile(path, kept)
      found['quality'] = _score(vectors, sets)
      if side == 'gensim' and not run:
        found['check'] = _check(vectors, sets, found['quality'])
      experiment.progress(
        _name(text), side, seed, f'{found["words_per_sec"]:,.0f} words/s'
      )
      return found

    sides = {side: functools.partial(measure, side) for side in args.sides}
    return experiment.in_turn(sides, args.runs) | scored


def _write_tokens(text: str, path: pathlib.Path) -> encode.Encoded:
  """Writes the words of our vocabulary, a sentence per line."""
  settings = encode.Settings('words', True, 5, 1_000_000, '')
  with tempfile.TemporaryDirectory() as cache:
    corpus = encode.encode(text, settings, pathlib.Path(cache), lambda *_: None)
    experiment.write_tokens(corpus.ids, corpus.words, path)
  return corpus


# Scores.


def _score(
  vectors: word2vec_format.Vectors, sets: Sequence[benchmarks.Benchmark]
) -> dict[str, float]:
  """Scores by set, and their means."""
  found = words.evaluate(vectors.words, vectors.vectors, sets, 0)
  scores = {k: x['score'] for k, x in found.items() if x['score'] is not None}
  similar = [s for k, s in scores.items() if found[k]['kind'] == 'similarity']
  means = experiment.mean_of_five(scores), similar and statistics.mean(similar)
  means = dict(zip(_MEANS, means, strict=True))
  return scores | {k: x for k, x in means.items() if x}


def _score_other(
  path: pathlib.Path,
  vocabulary: Sequence[str],
  text: str,
  sets: Sequence[benchmarks.Benchmark],
) -> dict[str, Any]:
  vectors = export.read(path)
  num_unknown = len(set(vocabulary).difference(vectors.words))
  # word2vec.c and its kin cut the longest words.
  if num_unknown > len(vocabulary) / 1000:
    raise errors.UserError(
      f'{path} lacks {num_unknown:,} of the {len(vocabulary):,} words of '
      f'{text}; train on its tokens, which --tokens writes, with min-count 5'
    )
  return {'quality': _score(vectors, sets)}


def _check(
  vectors: word2vec_format.Vectors,
  sets: Sequence[benchmarks.Benchmark],
  scores: Mapping[str, float],
) -> list:
  """[set, its score by jaxemb, and by gensim's evaluator] of the largest."""
  from gensim.models import keyedvectors

  pairs = [x for x in sets if x.layout == 'pairs' and x.name in scores]
  if not pairs:
    return []
  asked = max(pairs, key=lambda x: len(x.words))
  model = keyedvectors.KeyedVectors(vectors.vectors.shape[1])
  model.add_vectors(vectors.words, vectors.vectors)
  with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:
    for (a, b), rating in zip(asked.words, asked.labels, strict=True):
      file.write(f'{a}\t{b}\t{rating}\n')
    file.flush()
    found = model.evaluate_word_pairs(file.name, restrict_vocab=len(model))
  return [asked.name, scores[asked.name], float(found[1][0])]


# Tables.


def _estimate(values: Sequence[float]) -> _Estimate:
  num = len(values)
  error = statistics.stdev(values) / math.sqrt(num) if num > 1 else math.nan
  return statistics.mean(values), error


def _less(a: _Estimate, b: _Estimate) -> _Estimate:
  return a[0] - b[0], math.hypot(a[1], b[1])


def _cell(x: _Estimate, form: str = '.4f') -> str:
  error = '' if math.isnan(x[1]) else f' ({x[1]:.4f})'
  return f'{x[0]:{form}}{error}'


def _quality_table(
  title: str, scores: Mapping[str, Mapping[str, _Estimate]]
) -> str:
  """Scores [side][set], differences, and the largest deficit of one set."""
  (first, ours), *others = scores.items()
  head, worst = [title, first], []
  rows = {name: [name, _cell(x)] for name, x in ours.items()}
  for side, theirs in others:
    head += [side, 'difference']
    less = {k: _less(x, theirs[k]) for k, x in ours.items()}
    for name, row in rows.items():
      row += [_cell(theirs[name]), _cell(less[name], '+.4f')]
    name = min(less.keys() - _MEANS, key=lambda x: less[x][0])
    worst.append(f'lowest against {side}: {name} {_cell(less[name], "+.4f")}')
  return '\n'.join([experiment.table(head, rows.values()), *worst])


def _speed_table(title: str, runs: Mapping[str, Sequence[dict]]) -> str:
  """Medians and extremes of all runs, and the median ratio of a round."""
  head = [title]
  for side in runs:
    head += [side, 'min', 'max']
  first, *others = runs.values()
  rows = []
  for key in (k for k, x in first[0].items() if isinstance(x, int | float)):
    columns = [[run[key] for run in side] for side in (first, *others)]
    cells = [f(x) for x in columns for f in (statistics.median, min, max)]
    for other in columns[1:]:
      ratios = [x / y for x, y in zip(columns[0], other, strict=True) if y]
      cells.append(statistics.median(ratios) if ratios else None)
    rows.append([key, *(f'{x:,.0f}' if x and x > 1e4 else x for x in cells)])
  return experiment.table([*head, *['ratio'] * len(others)], rows)


def _tables(found: Mapping[str, Mapping[str, Sequence[dict]]]) -> list[str]:
  """Tables of each text, and of all of them, from [text][side] lists of runs.

  A score counts where all sides and texts have it.
  """
  everyone = [x for sides in found.values() for x in sides.values()]
  names = [
    name
    for name in everyone[0][0]['quality']
    if all(name in run['quality'] for runs in everyone for run in runs)
  ]
  estimates = {
    text: {
      side: {k: _estimate([x['quality'][k] for x in runs]) for k in names}
      for side, runs in sides.items()
    }
    for text, sides in found.items()
  }
  timed = {
    text: {k: runs for k, runs in sides.items() if 'process_secs' in runs[0]}
    for text, sides in found.items()
  }
  if len(found) > 1:
    sides = next(iter(found.values()))
    estimates['all texts'] = {
      side: {k: _mean([x[side][k] for x in estimates.values()]) for k in names}
      for side in sides
    }
    timed['all texts'] = {
      side: [run for x in timed.values() for run in x[side]]
      for side in timed[next(iter(found))]
    }
  made = []
  for text, scores in estimates.items():
    if names:
      made.append(_quality_table(text, scores))
    made.append(_speed_table(text, timed[text]))
  for text, sides in found.items():
    if check := sides.get('gensim', [{}])[0].get('check'):
      name, ours, theirs = check
      is_same = 'the same' if abs(ours - theirs) < 1e-3 else 'DIFFERENT'
      made.append(
        f'{text}, vectors of gensim, {name}: {ours:.4f} here, {theirs:.4f} by '
        f"gensim's evaluator: {is_same}"
      )
  return [f'{x}\n' for x in made]


def _mean(estimates: Sequence[_Estimate]) -> _Estimate:
  num = len(estimates)
  means, standard_errors = zip(*estimates, strict=True)
  return statistics.mean(means), math.hypot(*standard_errors) / num


# Flags.


def _name(text: str) -> str:
  """The name of a text, without its last suffix."""
  return pathlib.Path(text).stem


def _patterns(text: str) -> dict[str, str]:
  """The type of --vectors: files by the name of their program."""
  found = {}
  for item in text.split(','):
    name, _, found[name] = item.partition('=')
    if not found[name]:
      raise argparse.ArgumentTypeError(f'{item!r} is not NAME=FILE')
  return found


def _files_of_others(
  args: argparse.Namespace, text: str
) -> dict[str, list[pathlib.Path]]:
  """Files of --vectors on a text, by the name of their program."""
  found = {}
  for name, pattern in args.vectors.items():
    if name in args.sides:
      raise errors.UserError(f'--vectors: {name!r} is in --sides already')
    if len(args.text) > 1 and '{text}' not in pattern:
      raise errors.UserError(
        f'--vectors: {pattern} is of one text; write {{text}} in its place'
      )
    path = pattern.replace('{text}', _name(text))
    seeds = range(1, args.runs + 1) if '{seed}' in path else [1]
    found[name] = [pathlib.Path(path.replace('{seed}', f'{x}')) for x in seeds]
    for file in found[name]:
      if not file.exists():
        raise errors.UserError(f'--vectors: {file} does not exist')
  return found


def _use_cores(num: int) -> None:
  """Keeps this process, and those that it starts, to so many cores."""
  if not hasattr(os, 'sched_setaffinity'):
    raise errors.UserError('--cores needs Linux')
  cores = sorted(os.sched_getaffinity(0))
  if num > len(cores):
    raise errors.UserError(f'--cores={num}: there are {len(cores)}')
  os.sched_setaffinity(0, cores[:num])


def main() -> None:
  """Runs the sides in turn and prints the tables."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--text', required=True, type=lambda x: x.split(','), help='FILE,...')
  add('--eval', default='', help='files and folders, separated by commas')
  add('--config', default='wiki')
  add('--dim', type=int, default=100)
  add('--epochs', type=experiment.count, default=5)
  add('--runs', type=experiment.count, default=3)
  add('--model', choices=('skipgram', 'cbow'), default='skipgram')
  add(
    '--loss', choices=('negative_sampling', _TREE), default='negative_sampling'
  )
  add('--cores', type=experiment.count, help='of each side; default: all')
  add('--isa', choices=('avx2',), help='limits all sides; default: the CPU')
  add('--vectors', type=_patterns, default={}, help='NAME=FILE,... of others')
  add('--tokens', type=pathlib.Path, help='only writes tokens, in this folder')
  add('--keep', type=pathlib.Path, help='folder for the vectors of all runs')
  experiment.add_names(parser, '--sides', ('jaxemb', 'gensim'))
  args = experiment.parse(parser)
  for flag in args.override:
    if flag.removeprefix('--config.').startswith(_FIXED):
      parser.error(f'{flag} would change our side only')
  if len({*map(_name, args.text)}) < len(args.text):
    parser.error('--text: two files of one name')
  for folder in filter(None, (args.tokens, args.keep)):
    folder.mkdir(parents=True, exist_ok=True)
  if args.tokens:
    for text in args.text:
      _write_tokens(text, args.tokens / f'{_name(text)}.txt')
    return
  if args.cores:
    _use_cores(args.cores)
  others = {text: _files_of_others(args, text) for text in args.text}
  found = benchmarks.find(args.eval.split(',')) if args.eval else []
  sets = [x for x in found if x.kind != 'categorization']
  kind = 'tree' if args.loss == _TREE else 'throughput'
  words_of_name = [
    kind, *[args.model] * (args.model == 'cbow'), f'dim{args.dim}',
    f'epochs{args.epochs}', *filter(None, [args.isa]),
  ]  # fmt: skip
  results = experiment.Results('-'.join(words_of_name), args)
  for text in args.text:
    results.found[_name(text)] = _measure_text(args, text, others[text], sets)
    results.save()
  results.finish(*_tables(results.found), isa=args.isa)


if __name__ == '__main__':
  experiment.main(main)
