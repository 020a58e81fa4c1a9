"""Sub-models that never meet, merged: the tables of Anand et al. 2019 here.

  python experiments/partition_merge.py --text='enwiki*.bz2' \
    --eval=MEN,WS353,... --analogies=questions-words.txt --work=FOLDER

Text is divided in three ways among 10, 5 and 3 sub-models, each of which gets a
share of one over their number; each is trained by `jaxemb.main` and merged in
several ways, and set beside a single run of the same epochs and optimizer.
Stages, all of them unless named:

  sweep     the table: ways of dividing, rates and merges
  kl        how far the words of a part are from those of the whole
  numbers   merging some of ten sub-models
  removed   10 % and 50 % of the benchmarks' words taken from every sub-model
  repaired  taken from one sub-model, and put back from another
  sizes     ten sub-models of less text

What was trained or scored stays in --work, so that a sweep that was stopped goes
on, and parts of it can be run alone (--divide, --numbers, --seeds, --stages).
Starved sub-models want Adagrad; the single run has it too.
"""

import argparse
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

import machine
import numpy as np
import partition_paper

from jaxemb import embeddings
from jaxemb.data import encode, shares, toywiki
from jaxemb.evaluation import benchmarks, words
from jaxemb.merging import combine, parts, sources
from jaxemb.storage import word2vec_format

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / 'experiments' / 'results'

EXPECTED = partition_paper.SCORES
STAGES = ('sweep', 'kl', 'numbers', 'removed', 'repaired', 'sizes')
# Rows of length 1, as the paper has them; what `jaxemb.merge` does; and the
# paper's ALiR, of three iterations from random rows.
MERGES = {
  'concat': combine.Spec('concat', normalize=True),
  'pca': combine.Spec('pca', normalize=True),
  'alir': combine.Spec('alir'),
  'alir, rows of length 1': combine.Spec('alir', normalize=True),
  'alir from random': combine.Spec(
    'alir', start='random', weights='equal', normalize=True, max_iterations=3
  ),
  'alir from pca': combine.Spec(
    'alir', start='pca', weights='equal', normalize=True, max_iterations=3
  ),
}
# Benchmarks whose mean is told, and their short names.
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
    less = f'-files{self.num_files}' if self.num_files else ''
    return f'{self.divide}-{self.num_parts}-{self.seed}{less}'


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
    'data.cache': args.work / 'cache',
    'data.sample': args.sample,
    'eval.paths': 'none',
    'model.dim': args.dim,
    'optimizer.name': args.optimizer,
    'optimizer.learning_rate': args.learning_rate,
    'seed': cell.seed,
    'train.epochs': args.epochs,
    'train.checkpoints_to_keep': 1,
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
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    if done.returncode:
      raise RuntimeError(f'{cell.name} failed:\n{done.stderr[-2000:]}')
  # Vectors and words are all that is wanted: a sweep has hundreds of them.
  for pattern in ('checkpoints', 'export/projector', 'export/vectors.[bt]*'):
    for path in [*workdir.glob(pattern), *workdir.glob(f'parts/*/{pattern}')]:
      shutil.rmtree(path) if path.is_dir() else path.unlink()
  return workdir


def _report(workdir: pathlib.Path) -> dict[str, Any]:
  return json.loads((workdir / 'report.json').read_text())


def _parts(workdir: pathlib.Path, num: int = 0) -> list[parts.Part]:
  """The first sub-models of a run; 0 = all."""
  folders = sorted((workdir / 'parts').iterdir())
  return [
    sources.open_part(x, None, with_tables=False)
    for x in folders[: num or None]
  ]


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
  chosen = [x for x in FIVE if x in kept] or list(kept)
  scores = [kept[name]['score'] or 0.0 for name in chosen]
  return {
    'benchmarks': kept,
    'mean': statistics.mean(scores),
    'words': len(vocabulary),
  }


def _benchmark_words(args: argparse.Namespace) -> dict[str, set[str]]:
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


def _kept(
  args: argparse.Namespace, name: str, make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
  """What was found before under a name, or is found now."""
  path = args.work / 'scores' / f'{name}.json'
  if not path.exists():
    print(f'  scoring {name}', file=sys.stderr, flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = make()
    temporary = path.with_suffix('.tmp')
    temporary.write_text(json.dumps(found))
    temporary.rename(path)
  return json.loads(path.read_text())


def merged(
  args: argparse.Namespace,
  workdir: pathlib.Path,
  opened: Sequence[parts.Part],
  spec: combine.Spec,
) -> dict[str, Any]:
  """Scores of sub-models that are merged, and what merging took."""
  import jax

  from jaxemb import mesh

  start = time.perf_counter()
  devices = mesh.make(mesh.Shape(len(jax.devices()), 1))
  found = combine.merge(opened, spec, devices)
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


def _alone(args: argparse.Namespace, cell: Cell) -> dict[str, Any]:
  """The single run, and how long it took."""
  workdir = train(args, cell)

  def make() -> dict[str, Any]:
    loaded = embeddings.load(workdir)
    return evaluate(args, loaded.index_to_key, loaded.vectors)

  report = _report(workdir)
  figures = {key: report[key] for key in ('train_secs', 'corpus_words')}
  figures['words_read'] = report['corpus_words'] * args.epochs
  return _kept(args, cell.name, make) | figures


def _divided(
  args: argparse.Namespace, cell: Cell, merges: Sequence[str]
) -> dict[str, Any]:
  """A cell's sub-models, and what they are when merged."""
  workdir = train(args, cell)
  each = []
  for folder in sorted((workdir / 'parts').iterdir()):

    def make(folder=folder) -> dict[str, Any]:
      loaded = embeddings.load(folder)
      return evaluate(args, loaded.index_to_key, loaded.vectors)

    each.append(_kept(args, f'{cell.name}-part{folder.name}', make))
  report = _report(workdir)
  told = report['parts']
  return {
    'mean_part': statistics.mean(x['mean'] for x in each),
    'parts': each,
    'train_secs': [x['train_secs'] for x in told],
    'words_read': [x['words'] for x in told],
    'words_seen': [x['words_seen'] for x in told],
    'merges': {
      name: _kept(
        args,
        f'{cell.name}-{name.replace(", ", " ").replace(" ", "_")}',
        lambda name=name: merged(args, workdir, _parts(workdir), MERGES[name]),
      )
      for name in merges
    },
  }


# Stages.


def _sweep(args: argparse.Namespace) -> dict[str, Any]:
  return {
    'single': {
      seed: _alone(args, Cell('single', 1, seed)) for seed in args.seeds
    },
    'cells': [
      {
        'divide': divide,
        'num_parts': num,
        'seed': seed,
        **_divided(args, Cell(divide, num, seed), args.merges),
      }
      for seed in args.seeds
      for num in args.numbers
      for divide in args.divide
    ],
  }


def _divergences(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Of the words of parts from those of the whole text, nats."""
  corpus = encode.encode(
    args.text,
    encode.Settings('words', True, args.min_count, 1_000_000, ''),
    args.work / 'cache',
    lambda *_: None,
  )
  text, counts = shares.text(corpus), corpus.vocabulary.counts
  whole = counts / counts.sum()
  found = []
  for way in args.divide:
    for rate in (1 / 3, 1 / 5, 1 / 10, 1 / 100, 1 / 1000):
      num = round(1 / rate)
      each = []
      for part in range(0, num, max(1, num // 10)):
        share = shares.Share(way, num, rate, part, args.seeds[0])
        seen = shares.census(text, share, 1).seen
        mine = seen[seen > 0] / seen.sum()
        each.append(
          (
            float(np.sum(mine * np.log(mine / whole[seen > 0]))),
            (len(counts) - 1) / 2 / int(seen.sum()),
            int(seen.sum()) / corpus.num_words,
          )
        )
      divergence, floor, read = (
        statistics.mean(x) for x in zip(*each, strict=True)
      )
      found.append(
        {
          'divide': way, 'rate': rate, 'divergence': divergence,
          'floor': floor, 'times_floor': divergence / floor, 'read': read,
          'published': partition_paper.DIVERGENCES.get(way, {}).get(rate),
        }
      )  # fmt: skip
  return found


def _numbers(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Some of the sub-models of the finest division."""
  num, found = max(args.numbers), []
  cell = Cell('shuffle', num, args.seeds[0])
  workdir = train(args, cell)
  for taken in sorted({1, 2, 4, 6, 8, num} & set(range(1, num + 1))):
    for name in ('pca', 'alir'):
      if taken == 1:
        opened = _parts(workdir, 1)[0]
        scores = _kept(
          args,
          f'{cell.name}-part00',
          lambda x=opened: evaluate(args, x.words, x.vectors.open()),
        )
      else:
        scores = _kept(
          args,
          f'{cell.name}-first{taken}-{name}',
          lambda taken=taken, name=name: merged(
            args, workdir, _parts(workdir, taken), MERGES[name]
          ),
        )
      found.append({'taken': taken, 'merge': name, **scores})
  return found


def _without(part: parts.Part, gone: set[str]) -> parts.Part:
  """A sub-model that lacks some words."""
  keep = np.array([word not in gone for word in part.words])
  return part._replace(
    words=[part.words[i] for i in np.flatnonzero(keep)],
    vectors=parts.of_array(np.ascontiguousarray(part.vectors.open()[keep])),
    counts=part.counts[keep],
  )


def _some(args: argparse.Namespace, share: float, seed: int) -> set[str]:
  """So many of the benchmarks' words, at random."""
  every = sorted(set().union(*args.benchmark_words.values()))
  rng = np.random.default_rng(seed)
  return set(rng.choice(every, round(share * len(every)), replace=False))


def _removed(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Merges of sub-models each of which lacks other words."""
  num, found = max(args.numbers), []
  cell = Cell('shuffle', num, args.seeds[0])
  workdir = train(args, cell)
  for share in (0.0, 0.1, 0.5):
    for name in args.merges:

      def make(share=share, name=name) -> dict[str, Any]:
        opened = [
          _without(part, _some(args, share, i))
          for i, part in enumerate(_parts(workdir))
        ]
        return merged(args, workdir, opened, MERGES[name])

      scores = _kept(args, f'{cell.name}-without{share}-{name}', make)
      found.append({'removed': share, 'merge': name, **scores})
  return found


def _repaired(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Words of one sub-model from another, turned into its space."""
  cell = Cell('shuffle', max(args.numbers), args.seeds[0])
  source, target = (
    (part.words, _units(part.vectors.open()))
    for part in _parts(train(args, cell), 2)
  )
  places = {word: i for i, word in enumerate(source[0])}
  common = [i for i, word in enumerate(target[0]) if word in places]
  theirs = np.array([places[target[0][i]] for i in common])
  names = [target[0][i] for i in common]
  a, b = source[1][theirs], target[1][common]
  found = []
  for share in (0.0, 0.5, 1.0):
    gone = np.isin(names, list(_some(args, share, 0)))
    maps = {'source': None}
    if share:
      product = a[~gone].T @ b[~gone]
      left, _, right = np.linalg.svd(product.astype(np.float64))
      maps = {
        'procrustes': left @ right,
        'least squares': np.linalg.lstsq(a[~gone], b[~gone], rcond=None)[0],
      }
    for name, turn in maps.items():
      repaired = a
      if turn is not None:
        repaired = np.where(gone[:, None], a @ turn.astype(np.float32), b)
      scores = evaluate(args, names, repaired)
      found.append({'removed': share, 'map': name, **scores})
  return found


def _units(vectors: np.ndarray) -> np.ndarray:
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _sizes(args: argparse.Namespace) -> list[dict[str, Any]]:
  """The finest division of the first files of the text, and of all."""
  num_files, found = len(glob.glob(args.text)), []
  num, seed = max(args.numbers), args.seeds[0]
  for n in range(1, num_files + 1):
    files = 0 if n == num_files else n
    single = _alone(args, Cell('single', 1, seed, files))
    mine = _divided(args, Cell('shuffle', num, seed, files), ['alir', 'concat'])
    found.append({'files': n, 'single': single, **mine})
  return found


# What is shown.


def _scores(x: dict[str, Any]) -> dict[str, float]:
  """The scores that are shown."""
  kept = x['benchmarks']
  names = [name for name in FIVE if name in kept] or list(kept)
  return {name: kept[name]['score'] or 0.0 for name in names}


def _head(x: dict[str, Any]) -> str:
  names = [FIVE.get(name, name[:8]) for name in _scores(x)]
  return ''.join(f'{name:>9}' for name in [*names, 'mean'])


def _line(label: str, runs: Sequence[dict[str, Any]]) -> str:
  """Means over seeds, and the spread of the mean."""
  every = [[*_scores(x).values(), x['mean']] for x in runs]
  cells = [f'{statistics.mean(x):9.4f}' for x in zip(*every, strict=True)]
  spread = max(x[-1] for x in every) - min(x[-1] for x in every)
  return f'{label:<44}{"".join(cells)}{spread:8.4f}'


def _published(key: tuple[str, int, str], like: dict[str, Any]) -> str:
  found = EXPECTED.get(key)
  if not found:
    return ''
  cells = [
    f'{found[name]:9.3f}' if name in found else f'{"":9}'
    for name in _scores(like)
  ]
  return f'{"    published":<44}{"".join(cells)}'


def _sweep_table(found: dict[str, Any], args: argparse.Namespace) -> str:
  single = list(found['single'].values())
  lines = [
    f'{"way, sub-models, merge":<44}{_head(single[0])}{"spread":>8}'
    f'{"/single":>9}{"words":>9}{"merge s":>9}',
    f'{_line("single run", single)}{1:9.3f}{single[0]["words"]:9,}',
    _published(('single', 1, ''), single[0]),
  ]
  alone = statistics.mean(x['mean'] for x in single)
  groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
  for cell in found['cells']:
    groups.setdefault((cell['divide'], cell['num_parts']), []).append(cell)
  for (divide, num), cells in groups.items():
    each = [part for cell in cells for part in cell['parts']]
    mean = statistics.mean(x['mean'] for x in each)
    lines.append(
      f'{_line(f"{divide}, {num}: mean sub-model", each)}{mean / alone:9.3f}'
      f'{statistics.mean(x["words"] for x in each):9,.0f}'
    )
    for name in cells[0]['merges']:
      runs = [cell['merges'][name] for cell in cells]
      mean = statistics.mean(x['mean'] for x in runs)
      secs = statistics.mean(x['merge_secs'] for x in runs)
      lines.append(
        f'{_line(f"{divide}, {num}: {name}", runs)}{mean / alone:9.3f}'
        f'{runs[0]["words"]:9,}{secs:9.2f}'
      )
      lines.append(_published((divide, num, name), runs[0]))
  lines += ['', *_times(single, groups)]
  return '\n'.join(line for line in lines if line is not None and line.strip())


def _times(
  single: Sequence[dict[str, Any]],
  groups: dict[tuple[str, int], list[dict[str, Any]]],
) -> list[str]:
  """Of training a sub-model against the single run, and of merging."""
  lines = [
    f'{"of the single run: words of a sub-model":<44}'
    f'{"words":>9}{"secs":>9}{"merging":>9}'
  ]
  secs = statistics.mean(x['train_secs'] for x in single)
  read = statistics.mean(x['words_read'] for x in single)
  for (divide, num), cells in groups.items():
    mine = statistics.mean(t for x in cells for t in x['train_secs'])
    mine_read = statistics.mean(n for x in cells for n in x['words_read'])
    merging = (
      statistics.mean(
        x['merges'][name]['merge_secs']
        for x in cells
        for name in x['merges']
        if name == 'alir'
      )
      if 'alir' in cells[0]['merges']
      else float('nan')
    )
    lines.append(
      f'{f"{divide}, {num}":<44}{mine_read / read:9.4f}{mine / secs:9.4f}'
      f'{merging / secs:9.4f}'
    )
  paper = partition_paper.TIMES
  share = paper['sub-models at 1/10'] / paper['single']
  lines.append(
    f'{"    published, shuffle, 10":<44}{"":9}{share:9.4f}'
    f'{paper["merge"] / paper["single"]:9.4f}'
  )
  return lines


def _kl_table(found: Sequence[dict[str, Any]]) -> str:
  lines = [
    f'{"words of a part from the whole, nats":<40}{"rate":>8}{"read":>8}'
    f'{"KL":>10}{"floor":>10}{"times":>8}{"published":>11}'
  ]
  for x in found:
    told = '' if x['published'] is None else f'{x["published"]:11.5f}'
    lines.append(
      f'{x["divide"]:<40}{x["rate"]:8.4f}{x["read"]:8.4f}'
      f'{x["divergence"]:10.5f}{x["floor"]:10.5f}{x["times_floor"]:8.2f}{told}'
    )
  return '\n'.join(lines)


def _rows_table(title: str, rows: Sequence[tuple[str, dict[str, Any]]]) -> str:
  head = f'{title:<44}{_head(rows[0][1])}'
  return '\n'.join([head, *(_line(label, [x])[:-8] for label, x in rows)])


def _tables(result: dict[str, Any], args: argparse.Namespace) -> str:
  """All that was found, for people."""
  found = []
  if 'sweep' in result:
    found.append(_sweep_table(result['sweep'], args))
  if 'kl' in result:
    found.append(_kl_table(result['kl']))
  if 'numbers' in result:
    rows = [(f'first {x["taken"]}, {x["merge"]}', x) for x in result['numbers']]
    found.append(_rows_table('some of the sub-models', rows))
    found.append(f'  published: {partition_paper.OF_NUMBERS}')
  if 'removed' in result:
    rows = [
      (f'{x["removed"]:.0%} removed, {x["merge"]}', x)
      for x in result['removed']
    ]
    found.append(_rows_table('words taken from every sub-model', rows))
  if 'repaired' in result:
    rows = [
      (f'{x["removed"]:.0%} of one, {x["map"]}', x) for x in result['repaired']
    ]
    found.append(_rows_table('words put back from another sub-model', rows))
    found.append(f'  published: {partition_paper.REPAIRED}')
  for x in result.get('sizes', ()):
    rows = [('single run', x['single'])]
    rows += [(name, scores) for name, scores in x['merges'].items()]
    title = f'{x["single"]["corpus_words"]:,} words of text'
    found.append(_rows_table(title, rows))
  return '\n\n'.join(found)


def _plot(result: dict[str, Any], path: pathlib.Path) -> None:
  """Merged against the single run, by way and number of sub-models."""
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  sweep = result['sweep']
  alone = statistics.mean(x['mean'] for x in sweep['single'].values())
  figure, panel = pyplot.subplots(figsize=(5, 3), layout='constrained')
  colors = {'shuffle': '#1f5fa8', 'sampling': '#3d9970', 'equal': '#b5651d'}
  for way, color in colors.items():
    cells = [x for x in sweep['cells'] if x['divide'] == way]
    numbers = sorted({x['num_parts'] for x in cells})

    def means(read, cells=cells, numbers=numbers):
      return [
        statistics.mean(read(x) for x in cells if x['num_parts'] == n) / alone
        for n in numbers
      ]

    if not cells:
      continue
    for name, style in (('alir', '-'), ('concat', '--')):
      if name in cells[0]['merges']:
        values = means(lambda x, name=name: x['merges'][name]['mean'])
        label = f'{way}, {name}'
        panel.plot(numbers, values, style, color=color, marker='o', label=label)
    values = means(lambda x: x['mean_part'])
    panel.plot(numbers, values, ':', color=color, label=f'{way}, mean part')
  panel.axhline(1, color='#777777', lw=0.8)
  panel.set(xlabel='sub-models, each of one over their number of the text')
  panel.set(ylabel='mean of benchmarks / single run')
  panel.spines[['top', 'right']].set_visible(False)
  panel.legend(fontsize=6, frameon=False)
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=200)


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--text', help='file, folder or quoted glob')
  add('--eval', help='similarity and category files, with commas')
  add('--analogies', default='', help='analogy files, with commas')
  add('--work', type=pathlib.Path, help='folder that keeps what was trained')
  add('--stages', default=','.join(STAGES))
  add('--divide', default=','.join(shares.WAYS[::-1]))
  add('--numbers', default='10,5,3', help='of sub-models')
  add('--merges', default=':'.join(MERGES), help='with colons between')
  add('--seeds', default='1,2,3')
  add('--epochs', type=int, default=5)
  add('--dim', type=int, default=100)
  add('--sample', type=float, default=1e-4)
  add('--min_count', type=int, default=5)
  add('--optimizer', default='adagrad')
  add('--learning_rate', type=float, default=0.2)
  add('--restrict_vocab', type=int, default=30_000, help='of analogies')
  add('--config', default='configs/wiki.py')
  add('--output', type=pathlib.Path, help='results/partition-merge-DATE.json')
  add('--plot', type=pathlib.Path, help='file .svg or .png')
  add('--quick', action='store_true', help='tiny, for tests; needs --work')
  args, args.override = parser.parse_known_args()
  for flag in args.override:
    if not flag.startswith('--config.'):
      parser.error(f'{flag} is not understood')
  args.override.append(f'--config.data.min_count={args.min_count}')
  if args.quick:
    _make_quick(args)
  if not (args.text and args.eval and args.work):
    parser.error('give --text, --eval and --work')
  args.stages = args.stages.split(',')
  args.divide = args.divide.split(',')
  args.merges = args.merges.split(':')
  args.numbers = [int(x) for x in args.numbers.split(',')]
  args.seeds = [int(x) for x in args.seeds.split(',')]
  args.work = args.work.absolute()
  return args


def _make_quick(args: argparse.Namespace) -> None:
  made = toywiki.write(args.work / 'toywiki', corpus_words=60_000)
  paths = {path.name: str(path) for path in map(pathlib.Path, made.eval_paths)}
  args.text, args.eval = str(made.xml), ','.join(paths.values())
  args.epochs, args.dim, args.numbers, args.seeds = 2, 8, '3', '1'
  args.divide, args.merges = 'shuffle', 'concat:pca:alir'
  args.restrict_vocab = 0


def main() -> None:
  """Trains and scores what is not there yet, prints tables, writes figures."""
  args = _arguments()
  args.benchmark_words = _benchmark_words(args)
  output = args.output or _RESULTS / f'partition-merge-{machine.today()}.json'
  result = json.loads(output.read_text()) if output.exists() else {}
  stages = {
    'sweep': _sweep,
    'kl': _divergences,
    'numbers': _numbers,
    'removed': _removed,
    'repaired': _repaired,
    'sizes': _sizes,
  }
  for stage in args.stages:
    found = stages[stage](args)
    # As it will be read again.
    result[stage] = json.loads(json.dumps(found))
  shown = {
    key: value
    for key, value in vars(args).items()
    if key not in ('benchmark_words', 'work', 'output', 'plot')
  }
  shown['text'] = ', '.join(map(os.path.basename, glob.glob(args.text)))
  for key in ('eval', 'analogies'):
    shown[key] = ', '.join(map(os.path.basename, shown[key].split(',')))
  result |= {'machine': machine.describe(), 'arguments': shown}
  text = _tables(result, args)
  print(text, machine.line(result['machine']), sep='\n\n')
  output.parent.mkdir(parents=True, exist_ok=True)
  output.write_text(json.dumps(result, indent=1) + '\n')
  output.with_suffix('.txt').write_text(text + '\n')
  if args.plot and 'sweep' in result:
    _plot(result, args.plot)


if __name__ == '__main__':
  main()
