"""Speed and quality beside gensim, on the same tokens, in turn.

  pip install -e '.[bench]'
  python experiments/bench_throughput.py --text=FILE --eval=FILES_AND_FOLDERS

Each run is a process of its own. Ours is `python -m jaxemb.main`, from the raw
text to the exported vectors: it counts and encodes the text anew and compiles
its program anew in every run, and evaluates nothing. gensim gets the words of
our vocabulary, lower-cased, as a LineSentence file (with several workers its
corpus_file lets the learning rate decay only part of the way), counts them,
trains and writes binary vectors. Both train skip-gram with equal settings, and
gensim's evaluators score both, afterwards. With `--loss=hierarchical_softmax`
both train that; ours by row-wise Adagrad then, as the default wants it.

Another tool's result stands beside them:
`--peer-vectors NAME=FILE,SECONDS`, vectors in word2vec format and the seconds
that it trained, for as many epochs of the same text.

A word here is a corpus word inside the vocabulary, before frequent-word
subsampling, times epochs. Seconds of training are without counting and
compilation; gensim's include reading its file, in a thread of its own. Numba
keeps what it compiled of the readers beside the package: the first run on a
machine, which takes some seconds more, is on a few lines and not counted.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import machine
import numpy as np

from jaxemb.evaluation import benchmarks
from jaxemb.text import encode

_OPTIMIZERS = {'negative_sampling': 'sgd', 'hierarchical_softmax': 'adagrad'}
_SETTINGS = {'dim': 100, 'window': 5, 'negatives': 5, 'sample': 1e-4}


def _write_tokens(corpus: encode.Encoded, path: pathlib.Path) -> None:
  """One sentence per line, words of the vocabulary only."""
  words = np.array([*corpus.vocabulary.words, '\n'], dtype=object)
  with open(path, 'w', encoding='utf-8') as file:
    for shard in corpus.shards:
      for first in range(0, len(shard), 1 << 20):
        text = ' '.join(words[shard[first : first + (1 << 20)]])
        file.write(text.replace('\n ', '\n') + ' ')


def _timed(
  command: list[str], folder: pathlib.Path, cache: str = ''
) -> dict[str, float]:
  """Runs a process; seconds, CPU seconds and peak memory of the whole."""
  env = os.environ | ({'JAXEMB_CACHE': cache} if cache else {})
  start = time.perf_counter()
  peak_bytes = 0
  with open(folder / 'log', 'ab') as log:
    process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
    # The process's own figure, read while it runs: what wait4 tells includes
    # the memory of this process, from which it was forked.
    status = pathlib.Path(f'/proc/{process.pid}/status')
    while True:
      pid, code, usage = os.wait4(process.pid, os.WNOHANG)
      if pid:
        break
      for line in status.read_text().splitlines():
        if line.startswith('VmHWM:'):
          peak_bytes = max(peak_bytes, 1024 * int(line.split()[1]))
      time.sleep(0.05)
  if code:
    sys.exit(f'{" ".join(command)} failed; see {folder / "log"}')
  return {
    'process_secs': time.perf_counter() - start,
    'process_cpu_secs': usage.ru_utime + usage.ru_stime,
    'peak_rss_bytes': peak_bytes,
  }


def _ours(args: argparse.Namespace, folder: pathlib.Path, run: int) -> dict:
  workdir = folder / f'ours{run}'
  figures = _timed(
    [
      sys.executable, '-m', 'jaxemb.main', f'--config={args.config}',
      f'--workdir={workdir}', f'--config.data.path={args.text}',
      f'--config.model.dim={args.dim}', f'--config.train.epochs={args.epochs}',
      f'--config.data.sample={_SETTINGS["sample"]}', f'--config.seed={run + 1}',
      f'--config.model.window={_SETTINGS["window"]}',
      f'--config.model.negatives={_SETTINGS["negatives"]}',
      f'--config.model.loss={args.loss}',
      f'--config.optimizer.name={_OPTIMIZERS[args.loss]}',
      '--config.eval.paths=none', *args.override,
    ],
    folder,
    str(folder / f'cache{run}'),
  )  # fmt: skip
  report = json.loads((workdir / 'report.json').read_text())
  return figures | {
    'train_secs': report['train_secs'],
    'compile_secs': report['compile_secs'],
    'words_per_sec': report['words_per_sec'],
    'vectors': str(workdir / 'export' / 'vectors.bin'),
    'config': report['config'],
  }


def _gensim(
  args: argparse.Namespace, folder: pathlib.Path, run: int, words: int
) -> dict:
  vectors = folder / f'gensim{run}.bin'
  figures = _timed(
    [
      sys.executable, __file__, f'--text={folder / "tokens"}',
      f'--gensim_output={vectors}', f'--dim={args.dim}',
      f'--epochs={args.epochs}', f'--workers={args.workers}',
      f'--seed={run + 1}', f'--loss={args.loss}',
    ],
    folder,
  )  # fmt: skip
  timing = json.loads(vectors.with_suffix('.json').read_text())
  return figures | {
    'train_secs': timing['train_secs'],
    'compile_secs': 0.0,
    'words_per_sec': words / timing['train_secs'],
    'vectors': str(vectors),
  }


def _train_gensim(args: argparse.Namespace) -> None:
  """What the gensim process does."""
  from gensim.models import word2vec

  sentences = word2vec.LineSentence(args.text)
  is_tree = args.loss == 'hierarchical_softmax'
  model = word2vec.Word2Vec(
    sg=1,
    vector_size=args.dim,
    window=_SETTINGS['window'],
    negative=0 if is_tree else _SETTINGS['negatives'],
    hs=int(is_tree),
    sample=_SETTINGS['sample'],
    min_count=1,  # the file holds the words of the vocabulary only
    workers=args.workers,
    seed=args.seed,
  )
  model.build_vocab(sentences)
  start = time.perf_counter()
  model.train(sentences, total_examples=model.corpus_count, epochs=args.epochs)
  secs = time.perf_counter() - start
  output = pathlib.Path(args.gensim_output)
  model.wv.save_word2vec_format(output, binary=True)
  output.with_suffix('.json').write_text(json.dumps({'train_secs': secs}))


def _quality(vectors: str, args: argparse.Namespace) -> dict[str, float]:
  """Scores by gensim's own evaluators."""
  from gensim.models import keyedvectors

  with open(vectors, 'rb') as file:
    file.readline()
    # A line of text ends with a number; floats are no text.
    line = file.readline(1 << 12)
  is_binary = not re.search(rb' [-+.0-9eE]+ ?\r?\n$', line)
  model = keyedvectors.KeyedVectors.load_word2vec_format(
    vectors, binary=is_binary, unicode_errors='replace'
  )
  scores = {}
  for path in args.eval.split(','):
    benchmark = benchmarks.read(pathlib.Path(path))
    if isinstance(benchmark, benchmarks.Pairs):
      result = model.evaluate_word_pairs(path, delimiter='\t')
      scores[benchmark.name] = float(result[1][0])
    elif isinstance(benchmark, benchmarks.Analogies):
      scores[benchmark.name] = model.evaluate_word_analogies(
        path, restrict_vocab=args.restrict_vocab
      )[0]
  return scores | {'mean': statistics.mean(scores.values())}


def _figures(run: dict) -> dict[str, float]:
  """What is shown of a run."""
  shown = {k: v for k, v in run.items() if isinstance(v, int | float)}
  return shown | run.get('quality', {})


def _cell(value: float) -> str:
  return f'{value:14,.0f}' if abs(value) > 1e4 else f'{value:14.4g}'


def _table(results: dict[str, list[dict]]) -> str:
  """Medians and spread of all runs, and ratios run by run."""
  ours, theirs = (
    [_figures(run) for run in results[name]] for name in ('jaxemb', 'gensim')
  )
  peers = {
    name: _figures(runs[0])
    for name, runs in results.items()
    if name not in ('jaxemb', 'gensim')
  }
  heads = ['jaxemb', 'min', 'max', 'gensim', 'min', 'max', 'ours/theirs']
  text = [' ' * 18 + ''.join(f'{head:>14}' for head in [*heads, *peers])]
  for key in ours[0]:
    a, b = ([run[key] for run in runs] for runs in (ours, theirs))
    cells = [f(x) for x in (a, b) for f in (statistics.median, min, max)]
    ratios = [x / y for x, y in zip(a, b, strict=True) if y]
    cells.append(statistics.median(ratios) if ratios else float('nan'))
    cells += [peer.get(key, float('nan')) for peer in peers.values()]
    text.append(f'{key:18}' + ''.join(map(_cell, cells)))
  return '\n'.join(text)


def _peers(args: argparse.Namespace, words: int) -> dict[str, list[dict]]:
  """Rows of results that others made."""
  found = {}
  for peer in args.peer_vectors:
    name, _, rest = peer.partition('=')
    vectors, _, secs = rest.rpartition(',')
    try:
      train_secs = float(secs)
    except ValueError:
      sys.exit(f'--peer-vectors={peer} must be NAME=FILE,SECONDS')
    if not os.path.exists(vectors):
      sys.exit(f'--peer-vectors={peer}: there is no file {vectors}')
    found[name] = [
      {
        'train_secs': train_secs,
        'words_per_sec': words / train_secs,
        'vectors': vectors,
      }
    ]
  return found


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--text', required=True, help='as config.data.path')
  parser.add_argument('--eval', default='', help='files with commas between')
  parser.add_argument('--config', default='configs/wiki.py')
  parser.add_argument('--dim', type=int, default=_SETTINGS['dim'])
  parser.add_argument('--epochs', type=machine.count, default=5)
  parser.add_argument('--runs', type=machine.count, default=3)
  parser.add_argument(
    '--loss', choices=_OPTIMIZERS, default='negative_sampling'
  )
  parser.add_argument('--workers', type=int, default=machine.cores())
  parser.add_argument('--restrict_vocab', type=int, default=30_000)
  parser.add_argument('--peer-vectors', action='append', default=[])
  parser.add_argument(
    '--output', default='', help='JSON file; "" = in experiments/results'
  )
  parser.add_argument('--seed', type=int, default=1, help=argparse.SUPPRESS)
  parser.add_argument('--gensim_output', default='', help=argparse.SUPPRESS)
  args = machine.parse(parser)
  unequal = (
    'data.',
    'model.dim',
    'model.window',
    'model.negatives',
    'train.ep',
  )
  for text in args.override:
    if text.startswith(tuple(f'--config.{key}' for key in unequal)):
      parser.error(f'{text} would change our side only')
  return args


def _run(args: argparse.Namespace, folder: pathlib.Path) -> dict:
  """All runs of both sides, in turn, with their quality."""
  corpus = encode.encode(
    args.text,
    encode.Settings('words', True, 5, 1_000_000, ''),
    folder / 'cache',
    lambda *progress: None,
  )
  _write_tokens(corpus, folder / 'tokens')
  words = corpus.num_words * args.epochs
  warm = folder / 'warm.txt'
  warm.write_text('some words to compile the readers with\n' * 2000)
  _ours(argparse.Namespace(**vars(args) | {'text': warm}), folder, -1)
  results: dict[str, list[dict]] = {'jaxemb': [], 'gensim': []}
  for run in range(args.runs):
    results['jaxemb'].append(_ours(args, folder, run))
    results['gensim'].append(_gensim(args, folder, run, words))
    for name, runs in results.items():
      shown = {k: round(v, 3) for k, v in _figures(runs[-1]).items()}
      print(name, shown, file=sys.stderr, flush=True)
  results |= _peers(args, words)
  for runs in results.values():
    for figures in runs:
      if args.eval:
        figures['quality'] = _quality(figures['vectors'], args)
  return results


def main() -> None:
  """Runs both sides in turn and prints the table."""
  args = _arguments()
  if args.gensim_output:
    _train_gensim(args)
    return
  with tempfile.TemporaryDirectory() as temporary:
    results = _run(args, pathlib.Path(temporary))
  facts = machine.describe()
  print(machine.line(facts))
  print(_table(results))
  kind = 'throughput' if args.loss == 'negative_sampling' else 'tree'
  name = f'{kind}-dim{args.dim}-epochs{args.epochs}-{facts["date"]}.json'
  output = pathlib.Path(
    args.output or pathlib.Path(__file__).parent / 'results' / name
  )
  machine.write(output, facts, args, results)
  print(f'all figures in {output}')


if __name__ == '__main__':
  machine.run(main)
