"""Speed and quality next to gensim, on the same tokens, in turn.

  pip install -e '.[bench]'
  python experiments/bench_throughput.py --text=FILE --eval=FILES_AND_FOLDERS

Each run is a process of its own. Ours is `python -m jaxemb.main`, from the raw
text to the exported vectors: every run counts and encodes the text, compiles
its program, and evaluates nothing. gensim gets the words of our vocabulary,
lowercased, as a LineSentence file (with several workers its corpus_file lets
the learning rate decay only part of the way), counts them, trains and writes
binary vectors. Both train skip-gram with the same settings; gensim's evaluators
score both afterwards. With --loss=hierarchical_softmax both train that, ours by
its default optimizer, row-wise Adagrad.

--peer-vectors=NAME=FILE,SECONDS adds the vectors of another tool in word2vec
format, and the seconds it trained for the same epochs of the same text.

Words are corpus words inside the vocabulary, before frequent-word subsampling,
times epochs. Training seconds leave out counting and compilation; gensim's
include reading its file, in a thread of its own. numba compiles the readers on
the first run on a machine: a run on a few lines comes first.
"""

import argparse
import functools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import experiment
import numpy as np

from jaxemb import errors
from jaxemb.evaluation import benchmarks
from jaxemb.runtime import resources
from jaxemb.text import encode

_OPTIMIZERS = {'negative_sampling': 'sgd', 'hierarchical_softmax': 'adagrad'}
_WINDOW, _NEGATIVES, _SAMPLE = 5, 5, 1e-4
# Settings that would change one side only.
_FIXED = ('data.', 'model.dim', 'model.window', 'model.negatives', 'train.ep')


def _write_tokens(corpus: encode.Encoded, path: pathlib.Path) -> None:
  """One sentence per line, words of the vocabulary only."""
  words = np.array([*corpus.vocabulary.words, '\n'], dtype=object)
  with open(path, 'w', encoding='utf-8') as file:
    for shard in corpus.shards:
      for first in range(0, len(shard), 1 << 20):
        text = ' '.join(words[shard[first : first + (1 << 20)]])
        file.write(text.replace('\n ', '\n') + ' ')


def timed(
  command: list[str], log: pathlib.Path, cache: pathlib.Path
) -> dict[str, float]:
  """Runs a process; its seconds, CPU seconds and peak memory."""
  environment = os.environ | {'JAXEMB_CACHE': str(cache)}
  start, peak_bytes = time.perf_counter(), 0
  with open(log, 'ab') as file:
    process = subprocess.Popen(
      command, stdout=file, stderr=file, env=environment
    )
    # Read while it runs: what wait4 reports includes the memory of this
    # process, from which it was forked.
    status = pathlib.Path(f'/proc/{process.pid}/status')
    while True:
      pid, code, usage = os.wait4(process.pid, os.WNOHANG)
      if pid:
        break
      if peak := re.search(r'^VmHWM:\s*(\d+) kB', status.read_text(), re.M):
        peak_bytes = max(peak_bytes, 1024 * int(peak[1]))
      time.sleep(0.05)
  if code:
    raise errors.UserError(f'{" ".join(command)} failed; see {log}')
  return {
    'process_secs': time.perf_counter() - start,
    'process_cpu_secs': usage.ru_utime + usage.ru_stime,
    'peak_rss_bytes': peak_bytes,
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
  command = experiment.training_command(
    args.config, workdir, settings, args.override
  )
  found = timed(command, folder / 'log', folder / f'cache{run}')
  report = experiment.read_report(workdir)
  names = ('train_secs', 'compile_secs', 'words_per_sec', 'config')
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
  found = timed(command, folder / 'log', folder)
  train_secs = json.loads(vectors.with_suffix('.json').read_text())
  return found | _peer(str(vectors), train_secs, words) | {'compile_secs': 0.0}


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
  args.gensim_output.with_suffix('.json').write_text(json.dumps(secs))


def _peer(vectors: str, train_secs: float, words: int) -> dict[str, Any]:
  rate = words / train_secs
  return {'train_secs': train_secs, 'words_per_sec': rate, 'vectors': vectors}


def _quality(vectors: str, args: argparse.Namespace) -> dict[str, float]:
  """Scores by gensim's own evaluators."""
  from gensim.models import keyedvectors

  with open(vectors, 'rb') as file:
    file.readline()
    line = file.readline(1 << 12)
  is_text = re.search(rb' [-+.0-9eE]+ ?\r?\n$', line)  # it ends with a number
  model = keyedvectors.KeyedVectors.load_word2vec_format(
    vectors, binary=not is_text, unicode_errors='replace'
  )
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


def _measured(run: dict) -> dict[str, float]:
  """The numbers of a run, with its quality."""
  shown = {k: v for k, v in run.items() if isinstance(v, int | float)}
  return shown | run.get('quality', {})


def _table(results: dict[str, list[dict]]) -> str:
  """Medians and extremes of all runs, and the median ratio of a round."""
  ours, theirs, *peers = (
    [_measured(run) for run in runs] for runs in results.values()
  )
  rows = []
  for key in ours[0]:
    a, b = ([run[key] for run in runs] for runs in (ours, theirs))
    cells = [f(x) for x in (a, b) for f in (statistics.median, min, max)]
    ratios = [x / y for x, y in zip(a, b, strict=True) if y]
    cells.append(statistics.median(ratios) if ratios else None)
    cells += [peer[0].get(key) for peer in peers]
    large = '{:,.0f}'.format
    rows.append([key, *(large(x) if x and x > 1e4 else x for x in cells)])
  head = ('', 'jaxemb', 'min', 'max', 'gensim', 'min', 'max', 'ours/theirs')
  return experiment.table([*head, *list(results)[2:]], rows)


def _peer_flag(text: str) -> tuple[str, str, float]:
  name, _, rest = text.partition('=')
  vectors, _, secs = rest.rpartition(',')
  if not os.path.exists(vectors):
    raise argparse.ArgumentTypeError(f'there is no file {vectors!r}')
  return name, vectors, float(secs)


def _arguments() -> argparse.Namespace:
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
  add('--peer-vectors', type=_peer_flag, action='append', default=[])
  add('--seed', type=int, default=1, help=argparse.SUPPRESS)
  add('--gensim_output', type=pathlib.Path, help=argparse.SUPPRESS)
  args = experiment.parse(parser)
  for flag in args.override:
    if flag.removeprefix('--config.').startswith(_FIXED):
      parser.error(f'{flag} would change our side only')
  return args


def _run(args: argparse.Namespace, folder: pathlib.Path) -> dict:
  """All runs of both sides, with their quality."""
  settings = encode.Settings('words', True, 5, 1_000_000, '')
  corpus = encode.encode(args.text, settings, folder / 'cache', lambda *_: None)
  _write_tokens(corpus, folder / 'tokens')
  words = corpus.num_words * args.epochs
  warm = folder / 'warm.txt'
  warm.write_text('some words to compile the readers with\n' * 2000)
  _ours(args, folder, str(warm), -1)
  sides = {
    'jaxemb': functools.partial(_ours, args, folder, args.text),
    'gensim': functools.partial(_gensim, args, folder, words),
  }
  results = experiment.in_turn(sides, args.runs)
  for name, vectors, secs in args.peer_vectors:
    results[name] = [_peer(vectors, secs, words)]
  for run in (run for runs in results.values() for run in runs):
    if args.eval:
      run['quality'] = _quality(run['vectors'], args)
  return results


def main() -> None:
  """Runs both sides in turn and prints the table."""
  args = _arguments()
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
