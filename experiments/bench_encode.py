"""Speed and memory of counting and encoding text.

  python experiments/bench_encode.py --text=FILE_FOLDER_OR_GLOB

From start to id shards, everything included: reading, parsing, counting, the
choice of the vocabulary, encoding. Compiled byte loops are warmed up on a few
bytes first; the first run on a machine compiles them once (some seconds).
"""

import argparse
import os
import pathlib
import resource
import statistics
import tempfile
import time

import machine

from jaxemb.text import encode


def _encode(text: str, cache: pathlib.Path, max_vocab: int) -> encode.Encoded:
  settings = encode.Settings('words', True, 5, max_vocab, '')
  return encode.encode(text, settings, cache, lambda *progress: None)


def main() -> None:
  """Prints megabytes of text per second and the process's peak memory."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--text', required=True, help='as config.data.path')
  parser.add_argument('--runs', type=machine.count, default=5)
  parser.add_argument('--max_vocab', type=int, default=1_000_000)
  args = parser.parse_args()
  secs = []
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    (folder / 'warm').write_text('some words to compile with\n' * 99)
    _encode(str(folder / 'warm'), folder / 'warm-cache', args.max_vocab)
    for run in range(args.runs):
      start = time.perf_counter()
      corpus = _encode(args.text, folder / str(run), args.max_vocab)
      secs.append(time.perf_counter() - start)
    text_bytes = corpus.manifest['text_bytes']
    rates = sorted(text_bytes / s / 1e6 for s in secs)
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
      f'{text_bytes / 1e6:,.1f} MB of text, {corpus.num_words:,} words, '
      f'vocabulary {len(corpus.vocabulary.words):,}, {os.cpu_count()} cores\n'
      f'{statistics.median(rates):.1f} MB/s (median of {args.runs}, '
      f'{rates[0]:.1f} to {rates[-1]:.1f}), '
      f'peak memory {peak_bytes / 1e6:,.0f} MB'
    )
    print('left out:', corpus.manifest['dropped'])


if __name__ == '__main__':
  machine.run(main)
