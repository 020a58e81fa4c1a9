"""Time and memory of loading a model of fastText, and what other readers read.

  python experiments/fasttext_files.py
  python experiments/fasttext_files.py --model=FILE.bin

Makes a .bin of random rows, 2 M words and 2 M buckets x 300 by default (7.2
GB), or takes one. A process of its own loads it, reads the vectors of a known
and an unseen word, and searches the neighbors of the first: once with lengths
of all vectors unknown, and once with those that are cached then. The file is
in the page cache; the compiled functions of numba are cached by a first run.

With --gensim vectors of 10,000 words and 1,000 unseen ones are compared with
those that gensim reads of the file, and of a copy that jaxemb has written.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import experiment
import numpy as np

import jaxemb
from jaxemb.storage import export, fasttext_format

_BLOCK_ROWS = 1 << 14
_QUERY = """
import time
start = time.perf_counter()
import jaxemb
vectors = jaxemb.load({path!r})
loaded = time.perf_counter()
word = vectors.index_to_key[len(vectors) // 2]
vectors[word], vectors[word + 'ish']
read = time.perf_counter()
vectors.most_similar(word)
searched = time.perf_counter()
vectors.most_similar(word + 'ish')
ended = time.perf_counter()
from jaxemb.runtime import resources
times = start, loaded, read, searched, ended
print(*[y - x for x, y in zip(times, times[1:])], resources.peak_rss_bytes())
"""
_COLUMNS = {
  'lengths': '',
  'load_secs': '.2f',
  'vectors_secs': '.2f',
  'neighbors_secs': '.2f',
  'neighbors_again_secs': '.2f',
  'peak_rss_bytes': ',.0f',
}


def _words(num: int) -> list[str]:
  """Returns different words of 4 to 13 letters."""
  rng = np.random.default_rng(0)
  letters = rng.integers(97, 123, (num, 9), np.uint8).tobytes().decode()
  sizes = rng.integers(0, 10, num).tolist()
  # A number in base 26 makes them different.
  numbers = (np.arange(num)[:, None] // 26 ** np.arange(5) % 26 + 97).astype(
    'u1'
  )
  heads = numbers.tobytes().decode()
  return [
    heads[5 * i : 5 * i + 5] + letters[9 * i : 9 * i + size]
    for i, size in enumerate(sizes)
  ]


def _blocks(num_rows: int, dim: int) -> Iterator[np.ndarray]:
  rng = np.random.default_rng(1)
  block = rng.standard_normal((min(num_rows, _BLOCK_ROWS), dim), np.float32)
  for first in range(0, num_rows, _BLOCK_ROWS):
    yield np.roll(block, first // _BLOCK_ROWS, axis=1)[: num_rows - first]


def _make(path: pathlib.Path, args: argparse.Namespace) -> None:
  words = _words(args.words)
  settings = fasttext_format.Settings(
    args.dim, buckets=args.buckets, min_chars=5, max_chars=5
  )
  shape = args.words, args.dim
  fasttext_format.write(
    path,
    settings=settings,
    words=words,
    counts=np.arange(args.words)[::-1] + 1,
    inputs=_blocks(args.words + args.buckets, args.dim),
    outputs=export.OnDemand(
      lambda ids: np.zeros((len(ids), args.dim), np.float32),
      shape,
      np.dtype(np.float32),
    ),
  )


def _query(path: pathlib.Path, cache: pathlib.Path) -> list[float]:
  """Returns the numbers of `_COLUMNS` of a process."""
  done = subprocess.run(
    [sys.executable, '-c', _QUERY.format(path=str(path))],
    env={**os.environ, 'JAXEMB_CACHE': str(cache)},
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  return [float(x) for x in done.stdout.split()]


def _compare(path: pathlib.Path, copy: pathlib.Path) -> dict[str, float]:
  """Returns the largest difference from gensim's vectors of each file."""
  from gensim.models import fasttext

  vectors = jaxemb.load(path)
  words = [x for x in vectors.index_to_key if x != '</s>'][:10_000]
  joined = [x + y for x, y in zip(words, words[1:], strict=False)]
  unseen = [x for x in joined if not vectors.has_index_for(x)][:1000]
  vectors.in_memory().save_fasttext(copy)
  ours, differences = vectors[words + unseen], {}
  for name, file in ('as it is', path), ('written by jaxemb', copy):
    theirs = fasttext.load_facebook_vectors(str(file))
    rows = np.stack([theirs[x] for x in words + unseen])
    differences[name] = float(np.abs(ours - rows).max())
  return differences


def main() -> None:
  """Makes or takes a file, and measures."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--model', type=pathlib.Path, help='a .bin; by default one is made')
  add('--words', type=experiment.count, default=2_000_000)
  add('--buckets', type=experiment.count, default=2_000_000)
  add('--dim', type=experiment.count, default=300)
  add('--runs', type=experiment.count, default=3)
  add('--gensim', action='store_true')
  args = experiment.parse(parser)
  results = experiment.Results('fasttext-files', args)
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    path = args.model or folder / 'model.bin'
    if args.model is None:
      _make(path, args)
    _query(path, folder / 'warm')  # numba compiles, files are cached
    rows = []
    for i in range(args.runs):
      for name in ('unknown', 'cached'):
        rows.append([name, *_query(path, folder / f'{i}')])
    results.found['queries'] = [
      dict(zip(_COLUMNS, row, strict=True)) for row in rows
    ]
    tables = [experiment.table(_COLUMNS, rows)]
    if args.gensim:
      found = results.found['gensim'] = _compare(path, folder / 'copy.bin')
      head = {'file': '', 'largest difference': '.1e'}
      tables.append(experiment.table(head, [[*x] for x in found.items()]))
  results.finish(*tables)


if __name__ == '__main__':
  experiment.main(main)
