"""Speed and memory of counting and encoding text.

  python experiments/bench_encode.py --text=FILE_FOLDER_OR_GLOB

From the raw text to ids: reading, parsing, counting, choosing the
vocabulary, encoding. numba compiles on a few bytes first.
"""

import pathlib
import statistics
import tempfile
import time

import experiment

from jaxemb.runtime import resources
from jaxemb.text import encode


def main() -> None:
  """Prints megabytes of text per second and the peak memory of the process."""
  parser = experiment.parser(__doc__)
  parser.add_argument('--text', required=True, help='config.data.path')
  parser.add_argument('--runs', type=experiment.count, default=5)
  parser.add_argument('--max_vocab', type=int, default=1_000_000)
  args = parser.parse_args()
  settings = encode.Settings('words', True, 5, args.max_vocab, '')
  rates = []
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    warm = folder / 'warm.txt'
    warm.write_text('some words to compile with\n' * 99)
    for i, text in enumerate([str(warm)] + args.runs * [args.text]):
      start = time.perf_counter()
      corpus = encode.encode(text, settings, folder / str(i), lambda *_: None)
      secs = time.perf_counter() - start
      rates.append(corpus.manifest['text_bytes'] / secs / 1e6)
  results = experiment.Results('encode', args)
  results.found = found = {
    'text_bytes': corpus.manifest['text_bytes'],
    'words': corpus.num_words,
    'vocab_words': len(corpus.words),
    'megabytes_per_sec': rates[1:],
    'peak_rss_bytes': resources.peak_rss_bytes(),
    'dropped': corpus.manifest['dropped'],
  }
  results.finish(
    f'{found["text_bytes"] / 1e6:,.1f} MB of text, {found["words"]:,} words, '
    f'vocabulary {found["vocab_words"]:,}',
    f'{statistics.median(rates[1:]):.1f} MB/s, median of {args.runs} '
    f'({min(rates[1:]):.1f} to {max(rates[1:]):.1f}); peak memory '
    f'{found["peak_rss_bytes"] / 1e6:,.0f} MB',
    f'dropped: {found["dropped"]}',
  )


if __name__ == '__main__':
  experiment.main(main)
