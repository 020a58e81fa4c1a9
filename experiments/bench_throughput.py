"""Speed and quality next to gensim, on the same tokens, in turn.

  pip install -e '.[bench]'
  python experiments/bench_throughput.py --text=FILE --eval=FILES_AND_FOLDERS

Each run is a process of its own. Ours is `python -m jaxemb.main`, from the raw
text to the exported vectors; it evaluates nothing. gensim gets the words of our
vocabulary as a LineSentence file (with several workers its corpus_file lets the
learning rate decay only part of the way), counts them, trains and writes binary
vectors. Both train skip-gram with the same settings, or the tree with
--loss=hierarchical_softmax, ours by its default optimizer, row-wise Adagrad.
gensim's evaluators score both afterwards.

Words are corpus words inside the vocabulary, before frequent-word subsampling,
times epochs. Training seconds leave out counting and compilation; gensim's
include reading its file, in a thread of its own. numba compiles the readers on
the first run on a machine: a run on a few lines comes first.
"""

import argparse
import functools
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import experiment

from jaxemb import errors
from jaxemb.evaluation import benchmarks
from jaxemb.runtime import resources
from jaxemb.text import encode

_OPTIMIZERS = {'negative_sampling': 'sgd', 'hierarchical_softmax': 'adagrad'}
_WINDOW, _NEGATIVES, _SAMPLE = 5, 5, 1e-4
# Settings that would change one side only.
_FIXED = ('data.', 'model.dim', 'model.window', 'model.negatives', 'train.ep')


def _timed(
  command: list[str], log: pathlib.Path, cache: pathlib.Path
) -> dict[str, float]:
  """Runs a process; its seconds and CPU seconds."""
  environment = os.environ | {'JAXEMB_CACHE': str(cache)}
  start = time.perf_counter()
  with open(log, 'ab') as file:
    process = subprocess.Popen(
      command, stdout=file, stderr=file, env=environment
    )
    _, code, usage = os.wait4(process.pid, 0)
  if code:
    raise errors.UserError(f'{" ".join(command)} failed; see {log}')
  return {
    'process_secs': time.perf_counter() - start,
    'process_cpu_secs': usage.ru_utime + usage.ru_stime,
  }


def _ours(
  args: argparse.Namespace, folder: pathlib.Path, text: str, run: int
) -> dict[str, Any]:
  workdir = folder / f'ours{run}'
  settings = {
    'data.path': text,
    'data.sample': _SAMPLE,
    'eval.paths': 'none',
    'model.dim': args.dim,
    'model.loss': args.loss,
    'model.window': _WINDOW,
    'optimizer.name': _OPTIMIZERS[args.loss],
    'seed': run + 1,
    'train.epochs': args.epochs,
  }
  if args.loss == 'negative_sampling':
    settings['model.negatives'] = _NEGATIVES
  command = experiment.training_command(args, workdir, settings)
  found = _timed(command, folder / 'log', folder / f'cache{run}')
  report = experiment.read_report(workdir)
  names = (
    'peak_rss_bytes', 'train_secs', 'compile_secs', 'words_per_sec', 'config',
  )  # fmt: skip
  vectors = str(workdir / 'export' / 'vectors.bin')
  return found | {k: report[k] for k in names} | {'vectors': vectors}


def _gensim(
  args: argparse.Namespace, folder: pathlib.Path, words: int, run: int
) -> dict[str, Any]:
  vectors = folder / f'gensim{run}.bin'
  command = [
    sys.executable, __file__, f'--text={folder / "tokens"}',
    f'--gensim_output={vectors}', f'--dim={args.dim}', f'--loss={args.loss}',
    f'--epochs={args.epochs}', f'--workers={args.workers}', f'--seed={run + 1}',
  ]  # fmt: skip
  found = _timed(command, folder / 'log', folder)
  found |= json.loads(vectors.with_suffix('.json').read_text())
  rate = words / found['train_secs']
  return found | {
    'compile_secs': 0.0, 'words_per_sec': rate, 'vectors': str(vectors),
  }  # fmt: skip


def _train_gensim(args: argparse.Namespace) -> None:
  """The process of gensim."""
  from gensim.models import word2vec

  sentences = word2vec.LineSentence(args.text)
  is_tree = args.loss == 'hierarchical_softmax'
  model = word2vec.Word2Vec(
    sg=1,
    vector_size=args.dim,
    window=_WINDOW,
    negative=0 if is_tree else _NEGATIVES,
    hs=int(is_tree),
    sample=_SAMPLE,
    min_count=1,  # the file holds the words of the vocabulary only
    workers=args.workers,
    seed=args.seed,
  )
  model.build_vocab(sentences)
  start = time.perf_counter()
  model.train(sentences, total_examples=model.corpus_count, epochs=args.epochs)
  secs = time.perf_counter() - start
  model.wv.save_word2vec_format(args.gensim_output, binary=True)
  peak_bytes = resources.peak_rss_bytes()
  report = {'peak_rss_bytes': peak_bytes, 'train_secs': secs}
  args.gensim_output.with_suffix('.json').write_text(json.dumps(report))


def _quality(vectors: str, args: argparse.Namespace) -> dict[str, float]:
  """Scores by gensim's own evaluators."""
  from gensim.models import keyedvectors

  model = keyedvectors.KeyedVectors.load_word2vec_format(vectors, binary=True)
  scores = {}
  for path in args.eval.split(','):
    benchmark = benchmarks.read(pathlib.Path(path))
    if benchmark and benchmark.kind == 'similarity':
      result = model.evaluate_word_pairs(path, delimiter='\t')
      scores[benchmark.name] = float(result[1][0])
    elif benchmark and benchmark.kind == 'analogies':
      scores[benchmark.name] = model.evaluate_word_analogies(
        path, restrict_vocab=args.restrict_vocab
      )[0]
  return scores | {'mean': statistics.mean(scores.values())}


def _table(results: dict[str, list[dict]]) -> str:
  """Medians and extremes of all runs, and the median ratio of a round."""
  ours, theirs = (
    [run | run.get('quality', {}) for run in runs] for runs in results.values()
  )
  rows = []
  for key in (k for k, x in ours[0].items() if isinstance(x, int | float)):
    a, b = ([run[key] for run in runs] for runs in (ours, theirs))
    cells = [f(x) for x in (a, b) for f in (statistics.median, min, max)]
    ratios = [x / y for x, y in zip(a, b, strict=True) if y]
    cells.append(statistics.median(ratios) if ratios else None)
    rows.append([key, *(f'{x:,.0f}' if x and x > 1e4 else x for x in cells)])
  head = ('', 'jaxemb', 'min', 'max', 'gensim', 'min', 'max', 'ours/theirs')
  return experiment.table(head, rows)


def _run(args: argparse.Namespace, folder: pathlib.Path) -> dict:
  """All runs of both sides, with their quality."""
  settings = encode.Settings('words', True, 5, 1_000_000, '')
  corpus = encode.encode(args.text, settings, folder / 'cache', lambda *_: None)
  tokens, ids = folder / 'tokens', corpus.ids
  experiment.write_tokens(ids, corpus.words, tokens)
  words = corpus.num_words * args.epochs
  warm = folder / 'warm.txt'
  warm.write_text('some words to compile the readers with\n' * 2000)
  _ours(args, folder, str(warm), -1)
  sides = {
    'jaxemb': functools.partial(_ours, args, folder, args.text),
    'gensim': functools.partial(_gensim, args, folder, words),
  }
  results = experiment.in_turn(sides, args.runs)
  for run in itertools.chain(*results.values()) if args.eval else ():
    run['quality'] = _quality(run['vectors'], args)
  return results


def main() -> None:
  """Runs both sides in turn and prints the table."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--text', required=True, help='config.data.path')
  add('--eval', default='', help='files, separated by commas')
  add('--config', default='wiki')
  add('--dim', type=int, default=100)
  add('--epochs', type=experiment.count, default=5)
  add('--runs', type=experiment.count, default=3)
  add('--loss', choices=_OPTIMIZERS, default='negative_sampling')
  add('--workers', type=int, default=resources.usable_cores())
  add('--restrict_vocab', type=int, default=30_000)
  add('--seed', type=int, default=1, help=argparse.SUPPRESS)
  add('--gensim_output', type=pathlib.Path, help=argparse.SUPPRESS)
  args = experiment.parse(parser)
  for flag in args.override:
    if flag.removeprefix('--config.').startswith(_FIXED):
      parser.error(f'{flag} would change our side only')
  if args.gensim_output:
    _train_gensim(args)
    return
  kind = 'throughput' if args.loss == 'negative_sampling' else 'tree'
  name = f'{kind}-dim{args.dim}-epochs{args.epochs}'
  results = experiment.Results(name, args)
  with tempfile.TemporaryDirectory() as temporary:
    results.found = _run(args, pathlib.Path(temporary))
  results.finish(_table(results.found))


if __name__ == '__main__':
  experiment.main(main)
