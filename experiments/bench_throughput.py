"""Speed and quality beside gensim, on the same tokens, in turn.

  pip install -e '.[bench]'
  python experiments/bench_throughput.py --text=FILE --eval=FILES_AND_FOLDERS

Each run is a process of its own. Ours is `python -m jaxemb.main`; gensim gets
the words of our vocabulary as a LineSentence file (with several workers its
corpus_file lets the learning rate decay only part of the way). Both train
skip-gram with equal settings, and gensim's evaluators score both.

A word here is a corpus word inside the vocabulary, before frequent-word
subsampling, times epochs. Seconds of training are without counting and
compilation; gensim's include reading its file, in a thread of its own.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from jaxemb.data import encode
from jaxemb.evaluation import benchmarks

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
      *args.override,
    ],
    folder,
    # The first run reads and encodes the text, the others find it encoded.
    str(folder / 'fresh') if run == 0 else '',
  )  # fmt: skip
  report = json.loads((workdir / 'report.json').read_text())
  return figures | {
    'train_secs': report['train_secs'],
    'compile_secs': report['compile_secs'],
    'words_per_sec': report['words_per_sec'],
    'vectors': str(workdir / 'export' / 'vectors.bin'),
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
      f'--seed={run + 1}',
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
  model = word2vec.Word2Vec(
    sg=1,
    vector_size=args.dim,
    window=_SETTINGS['window'],
    negative=_SETTINGS['negatives'],
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

  model = keyedvectors.KeyedVectors.load_word2vec_format(vectors, binary=True)
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
  scores['mean'] = statistics.mean(scores.values())
  return scores


def _table(results: dict[str, list[dict]]) -> str:
  """Medians and spread of all runs, and ratios run by run."""
  lines = []
  ours, theirs = results['jaxemb'], results['gensim']
  for key in ours[0]:
    if key in ('vectors', 'quality'):
      continue
    columns = [[run[key] for run in runs] for runs in (ours, theirs)]
    lines.append((key, *columns))
  for key in ours[0]['quality']:
    columns = [[run['quality'][key] for run in runs] for runs in (ours, theirs)]
    lines.append((key, *columns))
  text = [
    f'{"":24}{"jaxemb":>14}{"min":>14}{"max":>14}{"gensim":>14}'
    f'{"min":>14}{"max":>14}{"ours/theirs":>13}'
  ]
  for key, a, b in lines:
    cells = [f(x) for x in (a, b) for f in (statistics.median, min, max)]
    ratio = statistics.median(
      [x / y for x, y in zip(a, b, strict=True) if y] or [float('nan')]
    )
    shown = ''.join(
      f'{cell:14,.0f}' if abs(cell) > 1e4 else f'{cell:14.4g}' for cell in cells
    )
    text.append(f'{key:24}{shown}{ratio:13.3f}')
  return '\n'.join(text)


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--text', required=True, help='as config.data.path')
  parser.add_argument('--eval', default='', help='files with commas between')
  parser.add_argument('--config', default='configs/wiki.py')
  parser.add_argument('--dim', type=int, default=_SETTINGS['dim'])
  parser.add_argument('--epochs', type=int, default=5)
  parser.add_argument('--runs', type=int, default=3)
  parser.add_argument('--workers', type=int, default=os.cpu_count())
  parser.add_argument('--restrict_vocab', type=int, default=30_000)
  parser.add_argument('--json', default='', help='where results are written')
  parser.add_argument('--seed', type=int, default=1, help=argparse.SUPPRESS)
  parser.add_argument('--gensim_output', default='', help=argparse.SUPPRESS)
  args, override = parser.parse_known_args()
  args.override = override  # --config.key=value, for our side
  return args


def main() -> None:
  """Runs both sides in turn and prints the table."""
  args = _arguments()
  if args.gensim_output:
    _train_gensim(args)
    return
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    os.environ.setdefault('JAXEMB_CACHE', str(folder / 'cache'))
    corpus = encode.encode(
      args.text,
      encode.Settings('words', True, 5, 1_000_000, ''),
      pathlib.Path(os.environ['JAXEMB_CACHE']),
      lambda *progress: None,
    )
    _write_tokens(corpus, folder / 'tokens')
    words = corpus.num_words * args.epochs
    results: dict[str, list[dict]] = {'jaxemb': [], 'gensim': []}
    for run in range(args.runs):
      results['jaxemb'].append(_ours(args, folder, run))
      results['gensim'].append(_gensim(args, folder, run, words))
    for runs in results.values():
      for figures in runs:
        figures['quality'] = _quality(figures['vectors'], args)
  commit = subprocess.run(
    ['git', 'rev-parse', '--short', 'HEAD'], capture_output=True, text=True
  ).stdout.strip()
  print(_table(results))
  facts = {
    'date': datetime.date.today().isoformat(),
    'commit': commit,
    'command': ' '.join(sys.argv),
    'machine': f'{platform.platform()}, {os.cpu_count()} cores',
    'python': platform.python_version(),
    'words': words,
    'results': results,
  }
  if args.json:
    pathlib.Path(args.json).write_text(json.dumps(facts, indent=1))


if __name__ == '__main__':
  main()
