"""Sub-models and single runs of partition_merge.py: trained, merged, scored.

What was trained or scored stays in the folder `args.work` and is not made
again; that folder belongs to the settings that it was begun with.
"""

import argparse
import dataclasses
import glob
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import partition_tables

from jaxemb import embeddings
from jaxemb.evaluation import benchmarks, words
from jaxemb.merging import merge as merge_lib
from jaxemb.merging import parts, senses
from jaxemb.storage import word2vec_format

_ROOT = pathlib.Path(__file__).resolve().parents[1]

# Settings that what lies in a folder was made with.
_FIXED = (
  'text', 'eval', 'analogies', 'epochs', 'dim', 'sample', 'min_count',
  'optimizer', 'learning_rate', 'restrict_vocab', 'config', 'override',
)  # fmt: skip

_PUBLISHED = merge_lib.Spec(
  'alir',
  start='random',
  weights='equal',
  normalize=True,
  restore=False,
  max_iterations=3,
)
# Rows of length 1, as the paper has them; what `jaxemb.merge` does, and does
# without bringing lengths back; and the paper's ALiR, of three iterations.
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


class Cell(NamedTuple):
  """Sub-models that are trained on the same text, or the single run."""

  divide: str  # 'single' = not divided
  num_parts: int
  seed: int
  num_files: int = 0  # of the text, the first ones; 0 = all

  @property
  def name(self) -> str:
    """Of its folder."""
    less = f'-files{self.num_files}' if self.num_files else ''
    return f'{self.divide}-{self.num_parts}-{self.seed}{less}'


def settings(args: argparse.Namespace) -> dict[str, Any]:
  """What all that lies in a folder has in common."""
  return {name: getattr(args, name) for name in _FIXED}


def claim(args: argparse.Namespace) -> None:
  """Ends the program if what lies in the folder had other settings."""
  args.work.mkdir(parents=True, exist_ok=True)
  path, mine = args.work / 'settings.json', settings(args)
  if not path.exists():
    if (args.work / 'runs').exists():
      sys.exit(f'{args.work} has runs of unknown settings; give another --work')
    path.write_text(json.dumps(mine, indent=1))
  theirs = json.loads(path.read_text())
  differing = [name for name in _FIXED if theirs.get(name) != mine[name]]
  if differing:
    sys.exit(
      f'{args.work} was begun with other settings of {", ".join(differing)}; '
      'give another --work'
    )


# Training.


def _text(args: argparse.Namespace, num_files: int) -> str:
  """The text, or a folder of its first files."""
  if not num_files:
    return args.text
  folder = args.work / f'text-{num_files}'
  folder.mkdir(parents=True, exist_ok=True)
  for path in sorted(glob.glob(args.text))[:num_files]:
    link = folder / pathlib.Path(path).name
    if not link.exists():
      link.symlink_to(pathlib.Path(path).resolve())
  return str(folder)


def _settings(args: argparse.Namespace, cell: Cell) -> list[str]:
  found = {
    'data.path': _text(args, cell.num_files),
    'data.sample': args.sample,
    'eval.paths': 'none',
    'model.dim': args.dim,
    'optimizer.name': args.optimizer,
    'optimizer.learning_rate': args.learning_rate,
    'seed': cell.seed,
    'train.epochs': args.epochs,
  }
  if cell.divide == 'single':
    found['strategy.name'] = 'sync'
  else:
    found |= {
      'strategy.name': 'partition',
      'strategy.num_parts': cell.num_parts,
      'strategy.divide': cell.divide,
      'strategy.merge': 'none',
    }
  given = [f'--config.{key}={value}' for key, value in found.items()]
  return [*given, *args.override]


def train(args: argparse.Namespace, cell: Cell) -> pathlib.Path:
  """The folder of a cell's run, which is trained unless it is there."""
  workdir = args.work / 'runs' / cell.name
  if not (workdir / 'report.json').exists():
    print(f'  training {cell.name}', file=sys.stderr, flush=True)
    command = [
      sys.executable, '-m', 'jaxemb.main', f'--config={args.config}',
      f'--workdir={workdir}', *_settings(args, cell),
    ]  # fmt: skip
    done = subprocess.run(
      command,
      cwd=_ROOT,
      env=os.environ | {'JAXEMB_CACHE': str(args.work / 'cache')},
      capture_output=True,
      text=True,
    )
    if done.returncode:
      raise RuntimeError(f'{cell.name} failed:\n{done.stderr[-2000:]}')
  # Vectors and words are all that is wanted: a sweep has hundreds of them.
  for pattern in ('checkpoints', 'export/projector', 'export/vectors.[bt]*'):
    for path in [*workdir.glob(pattern), *workdir.glob(f'parts/*/{pattern}')]:
      shutil.rmtree(path) if path.is_dir() else path.unlink()
  return workdir


def _report(workdir: pathlib.Path) -> dict[str, Any]:
  return json.loads((workdir / 'report.json').read_text())


def parts_of(workdir: pathlib.Path, num: int = 0) -> list[parts.Part]:
  """The first sub-models of a run; 0 = all."""
  folders = sorted((workdir / 'parts').iterdir())
  return [parts.open_part(folder) for folder in folders[: num or None]]


# Scores.


def evaluate(
  args: argparse.Namespace, vocabulary: Sequence[str], vectors: np.ndarray
) -> dict[str, Any]:
  """By benchmark `score`, `found` and `total`; `mean` and `words`."""
  found = words.evaluate(vocabulary, vectors, args.eval.split(','), 0)
  if args.analogies:
    paths = args.analogies.split(',')
    found |= words.evaluate(vocabulary, vectors, paths, args.restrict_vocab)
  kept = {
    name: {key: x[key] for key in ('score', 'found', 'total')}
    for name, x in found.items()
  }
  # The paper asks for words, not for pairs.
  has = set(vocabulary)
  for name, mine in args.benchmark_words.items():
    kept[name]['recall'] = len(mine & has) / max(len(mine), 1)
  chosen = [x for x in partition_tables.FIVE if x in kept] or list(kept)
  scores = [kept[name]['score'] or 0.0 for name in chosen]
  return {
    'benchmarks': kept,
    'mean': statistics.mean(scores),
    'words': len(vocabulary),
  }


def benchmark_words(args: argparse.Namespace) -> dict[str, set[str]]:
  """Words of each benchmark, in lower case."""
  found = {}
  paths = [*args.eval.split(','), *filter(None, args.analogies.split(','))]
  for each in benchmarks.find(paths)[0]:
    if isinstance(each, benchmarks.Pairs):
      mine = [word for pair in each.pairs for word in pair]
    elif isinstance(each, benchmarks.Analogies):
      mine = [w for x in each.sections.values() for four in x for w in four]
    else:
      mine = list(each.categories)
    found[each.name] = {word.lower() for word in mine}
  return found


def kept(
  args: argparse.Namespace,
  name: str,
  make: Callable[[], dict[str, Any]],
  how: str = '',
) -> dict[str, Any]:
  """What was found before under a name, and in this way, or is found now."""
  path = args.work / 'scores' / f'{name}.json'
  if path.exists():
    found = json.loads(path.read_text())
    if found.get('how', '') == how:
      return found
  print(f'  scoring {name}', file=sys.stderr, flush=True)
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_suffix('.tmp')
  temporary.write_text(json.dumps(make() | {'how': how}))
  temporary.rename(path)
  return json.loads(path.read_text())


def merged(
  args: argparse.Namespace,
  workdir: pathlib.Path,
  opened: Sequence[parts.Part],
  spec: merge_lib.Spec,
) -> dict[str, Any]:
  """Scores of sub-models that are merged, and what merging took."""
  start = time.perf_counter()
  found = senses.merge(opened, spec)
  merge_secs = time.perf_counter() - start
  # The most frequent of the text first.
  every, _ = word2vec_format.read_vocab(
    next((workdir / 'parts').glob('*/vocab.txt'))
  )
  rank = {word: i for i, word in enumerate(every)}
  order = np.argsort([rank[word] for word in found.words])
  names = [found.words[i] for i in order]
  result = evaluate(args, names, np.asarray(found.vectors)[order])
  return result | {
    'merge_secs': merge_secs,
    'dim': int(found.vectors.shape[1]),
    'displacements': found.report['displacements'],
    'residuals': [x['residual'] for x in found.report['parts']],
  }


def alone(args: argparse.Namespace, cell: Cell) -> dict[str, Any]:
  """The single run, and how long it took."""
  workdir = train(args, cell)

  def make() -> dict[str, Any]:
    loaded = embeddings.load(workdir)
    return evaluate(args, loaded.index_to_key, loaded.vectors)

  report = _report(workdir)
  figures = {key: report[key] for key in ('train_secs', 'corpus_words')}
  figures['words_read'] = report['corpus_words'] * args.epochs
  return kept(args, cell.name, make) | figures


def whole(
  args: argparse.Namespace, cell: Cell, workdir: pathlib.Path, merge: str
) -> dict[str, Any]:
  """All sub-models of a cell, merged."""
  return kept(
    args,
    f'{cell.name}-{merge.replace(", ", " ").replace(" ", "_")}',
    lambda: merged(args, workdir, parts_of(workdir), MERGES[merge]),
    repr(MERGES[merge]),
  )


def divided(
  args: argparse.Namespace, cell: Cell, merges: Sequence[str]
) -> dict[str, Any]:
  """A cell's sub-models, and what they are when merged."""
  workdir = train(args, cell)
  each = []
  for folder in sorted((workdir / 'parts').iterdir()):

    def make(folder=folder) -> dict[str, Any]:
      loaded = embeddings.load(folder)
      return evaluate(args, loaded.index_to_key, loaded.vectors)

    each.append(kept(args, f'{cell.name}-part{folder.name}', make))
  report = _report(workdir)
  told = report['parts']
  return {
    'mean_part': statistics.mean(x['mean'] for x in each),
    'parts': each,
    'train_secs': [x['train_secs'] for x in told],
    'words_read': [x['words'] for x in told],
    'words_seen': [x['words_seen'] for x in told],
    'merges': {name: whole(args, cell, workdir, name) for name in merges},
  }
