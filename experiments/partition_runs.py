"""Sub-models and single runs of partition_merge.py: trained, merged, scored.

What was trained or scored stays in --work, in a folder of its own for the flags
that it depends on, and is not made again.
"""

import argparse
import dataclasses
import glob
import hashlib
import json
import pathlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import experiment
import numpy as np

from jaxemb import embeddings
from jaxemb.evaluation import benchmarks, words
from jaxemb.merging import merge as merge_lib
from jaxemb.merging import multivectors as senses
from jaxemb.merging import parts
from jaxemb.storage import atomic, word2vec_format

# Flags that runs and scores depend on.
FLAGS = (*experiment.RUN_FLAGS, 'analogies', 'dim', 'min_count')

_PUBLISHED = merge_lib.Spec(
  'alir',
  start='random',
  weights='equal',
  normalize=True,
  restore=False,
  max_iterations=3,
)
# Rows of length 1, as in the paper; what `jaxemb.merge` does, and does without
# correcting lengths; and the paper's ALiR, of three iterations.
MERGES = {
  'concat': merge_lib.Spec('concat', normalize=True),
  'pca': merge_lib.Spec('pca', normalize=True),
  'alir': merge_lib.Spec('alir'),
  'alir, averaged': merge_lib.Spec('alir', restore=False),
  'alir, power .75': merge_lib.Spec('alir', power=0.75),
  'concat, power .75': merge_lib.Spec('concat', power=0.75),
  'alir from random': _PUBLISHED,
  'alir from pca': dataclasses.replace(_PUBLISHED, start='pca'),
}
# Benchmarks whose mean is shown, and their short names.
FIVE = {
  'EN-MEN-TR-3k': 'MEN',
  'EN-WS-353-ALL': 'WS-353',
  'EN-SIMLEX-999': 'SimLex',
  'EN-RW-STANFORD': 'RW',
  'questions-words': 'Google',
}


class Cell(NamedTuple):
  """Sub-models that are trained on the same text, or the single run."""

  divide: str  # 'single' = not divided
  num_parts: int
  seed: int
  num_files: int = 0  # of the text, the first ones; 0 = all

  @property
  def name(self) -> str:
    """Of its folder."""
    files = f'-files{self.num_files}' if self.num_files else ''
    return f'{self.divide}-{self.num_parts}-{self.seed}{files}'


class Runs:
  """Runs and scores for the flags of partition_merge.py."""

  def __init__(self, args: argparse.Namespace):
    """Names their folder by the flags that they depend on."""
    given = {name: getattr(args, name) for name in FLAGS}
    text = json.dumps([given, repr(MERGES)], default=str, sort_keys=True)
    self.args = args
    self.folder = args.work / hashlib.sha256(text.encode()).hexdigest()[:12]

  def train(self, cell: Cell) -> pathlib.Path:
    """Returns the folder of a cell's run; trains unless it is there."""
    workdir, args = self.folder / 'runs' / cell.name, self.args
    if (workdir / 'report.json').exists():
      return workdir
    experiment.progress('training', cell.name)
    settings = {
      'data.path': self._text(cell.num_files),
      'data.sample': args.sample,
      'data.min_count': args.min_count,
      'eval.paths': 'none',
      'model.dim': args.dim,
      'optimizer.name': 'adagrad',
      'optimizer.learning_rate': 0.2,
      'seed': cell.seed,
      'strategy.name': 'sync',
      'train.epochs': args.epochs,
    }
    if cell.divide != 'single':
      settings |= {
        'strategy.name': 'partition',
        'strategy.num_parts': cell.num_parts,
        'strategy.divide': cell.divide,
        'strategy.merge': 'none',
      }
    experiment.train(args, workdir, settings, args.work / 'cache')
    # Only vectors and words are needed: a sweep has hundreds of them.
    for pattern in ('checkpoints', 'export/projector', 'export/vectors.[bt]*'):
      for path in [*workdir.glob(pattern), *workdir.glob(f'parts/*/{pattern}')]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return workdir

  def _text(self, num_files: int) -> str:
    """The text, or a folder of its first files."""
    if not num_files:
      return self.args.text
    files = self.args.work / f'text-{num_files}'
    files.mkdir(parents=True, exist_ok=True)
    for path in sorted(glob.glob(self.args.text))[:num_files]:
      link = files / pathlib.Path(path).name
      if not link.exists():
        link.symlink_to(pathlib.Path(path).resolve())
    return str(files)

  def part_folders(self, cell: Cell) -> list[pathlib.Path]:
    """Of the sub-models, which are trained if need be."""
    return sorted((self.train(cell) / 'parts').iterdir())

  def open_parts(self, cell: Cell, num: int | None = None) -> list[parts.Part]:
    """The first sub-models of a cell; None = all."""
    return [parts.open_part(path) for path in self.part_folders(cell)[:num]]

  def words_asked(self) -> dict[str, set[str]]:
    """Words of each benchmark, in lower case."""
    args = self.args
    paths = [*args.eval.split(','), *filter(None, args.analogies.split(','))]
    return {
      each.name: {word.lower() for words in each.words for word in words}
      for each in benchmarks.find(paths)
    }

  def evaluate(
    self, vocabulary: Sequence[str], vectors: np.ndarray
  ) -> dict[str, Any]:
    """By benchmark `score`, `found`, `total` and `recall`; `mean`, `words`."""
    args = self.args
    pairs = benchmarks.find(args.eval.split(','))
    found = words.evaluate(vocabulary, vectors, pairs, 0)
    if args.analogies:
      asked = benchmarks.find(args.analogies.split(','))
      found |= words.evaluate(vocabulary, vectors, asked, args.restrict_vocab)
    known, scores = set(vocabulary), {}
    for name, asked in self.words_asked().items():
      scores[name] = {k: found[name][k] for k in ('score', 'found', 'total')}
      # The paper counts words, not pairs.
      scores[name]['recall'] = len(asked & known) / max(len(asked), 1)
    mean = statistics.mean(
      scores[name]['score'] or 0.0 for name in shown(scores)
    )
    return {'benchmarks': scores, 'mean': mean, 'words': len(vocabulary)}

  def saved(
    self, name: str, make: Callable[[], dict[str, Any]]
  ) -> dict[str, Any]:
    """Scores of that name, made unless they are there."""
    name = name.replace(',', '').replace(' ', '_')
    path = self.folder / 'scores' / f'{name}.json'
    if not path.exists():
      experiment.progress('scoring', name)
      found = json.dumps(make()).encode()
      with atomic.write(path) as file:
        file.write(found)
    return json.loads(path.read_text())

  def merged(
    self, cell: Cell, opened: Sequence[parts.Part], merge: str
  ) -> dict[str, Any]:
    """Merges sub-models of a cell, and scores the result."""
    start = time.perf_counter()
    found = senses.merge(opened, MERGES[merge])
    merge_secs = time.perf_counter() - start
    # The most frequent words of the text first.
    file = self.part_folders(cell)[0] / 'vocab.txt'
    rank = {w: i for i, w in enumerate(word2vec_format.read_vocab(file)[0])}
    order = np.argsort([rank[word] for word in found.words])
    names = [found.words[i] for i in order]
    return self.evaluate(names, np.asarray(found.vectors)[order]) | {
      'merge_secs': merge_secs,
      'dim': int(found.vectors.shape[1]),
      'displacements': found.report['displacements'],
      'residuals': [x['residual'] for x in found.report['parts']],
    }

  def _exported(self, path: pathlib.Path) -> dict[str, Any]:
    loaded = embeddings.load_vectors(path)
    return self.evaluate(loaded.index_to_key, loaded.vectors)

  def single(self, cell: Cell) -> dict[str, Any]:
    """The single run: scores, and seconds."""
    workdir = self.train(cell)
    report = experiment.read_report(workdir)
    return self.saved(cell.name, lambda: self._exported(workdir)) | {
      'train_secs': report['train_secs'],
      'corpus_words': report['corpus_words'],
      'words_read': report['corpus_words'] * self.args.epochs,
    }

  def whole(self, cell: Cell, merge: str) -> dict[str, Any]:
    """All sub-models of a cell, merged."""
    return self.saved(
      f'{cell.name}-{merge}',
      lambda: self.merged(cell, self.open_parts(cell), merge),
    )

  def part_scores(self, cell: Cell) -> list[dict[str, Any]]:
    """Each sub-model of a cell."""
    return [
      self.saved(
        f'{cell.name}-part{path.name}', lambda p=path: self._exported(p)
      )
      for path in self.part_folders(cell)
    ]

  def divided(self, cell: Cell, merges: Sequence[str]) -> dict[str, Any]:
    """A cell's sub-models, each and merged."""
    each = self.part_scores(cell)
    reports = experiment.read_report(self.train(cell))['parts']
    return {
      'mean_part': statistics.mean(x['mean'] for x in each),
      'parts': each,
      'train_secs': [x['train_secs'] for x in reports],
      'words_read': [x['words'] for x in reports],
      'words_seen': [x['words_seen'] for x in reports],
      'merges': {name: self.whole(cell, name) for name in merges},
    }


def shown(scores: Iterable[str]) -> list[str]:
  """Benchmarks whose mean is shown."""
  return [name for name in FIVE if name in scores] or list(scores)
