"""Words that one sub-model lacks, placed by another one that has them.

  python experiments/masked_words.py --text=FILES --eval=PATHS

The experiment behind `mask_benchmark.csv` of Anand et al. (2019): two
sub-models, each trained on a random tenth of the sentences. Half or all of the
words of the benchmarks are taken from the target, made again from the other
one, the source, and the benchmarks run on the repaired target.

  procrustes  source vectors turned by the rotation that fits the words that
              both have, as `python -m jaxemb.merge` finds it
  ols         mapped by linear regression instead
  zeros       words that were taken away stay zeros

If all benchmark words are the source's, word similarity cannot depend on the
rotation: Procrustes scores what the source scores. Analogies are searched among
all words, which are the target's.
"""

import argparse
import bz2
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import machine
import numpy as np

import jaxemb
from jaxemb import mesh
from jaxemb.evaluation import benchmarks, words
from jaxemb.merging import combine, parts

_RESULTS = pathlib.Path(__file__).resolve().parent / 'results'
_SETS = ('MEN', 'RW', 'Google', 'WS353')
# The authors' figures, of 14 GB of Wikipedia at 50 dimensions, one run.
EXPECTED = {
  'source': (0.683, 0.287, 0.381, 0.606),
  'procrustes 50 %': (0.679, 0.291, 0.405, 0.601),
  'ols 50 %': (0.675, 0.260, 0.249, 0.571),
  'zeros 50 %': (0.542, 0.135, 0.257, 0.401),
  'procrustes 100 %': (0.683, 0.287, 0.424, 0.606),
  'ols 100 %': (0.678, 0.285, 0.166, 0.594),
}


def _lines(paths: Sequence[str]) -> Any:
  for path in paths:
    opener = bz2.open if path.endswith('.bz2') else open
    with opener(path, 'rb') as file:
      yield from file


def _train(
  args: argparse.Namespace, seed: int, folder: pathlib.Path
) -> list[jaxemb.Embeddings]:
  """Two sub-models, each of a random tenth of the lines."""
  files = [folder / f'{seed}-{i}.txt' for i in range(2)]
  rng = np.random.default_rng(seed)
  outputs = [file.open('wb') for file in files]
  for line in _lines(args.text):
    for output, chance in zip(outputs, rng.random(2), strict=True):
      if chance < args.rate:
        output.write(line)
  models = []
  for i, (file, output) in enumerate(zip(files, outputs, strict=True)):
    output.close()
    workdir = folder / f'run-{seed}-{i}'
    command = [
      sys.executable, '-m', 'jaxemb.main', '--config=configs/wiki.py',
      f'--workdir={workdir}', f'--config.data.path={file}',
      f'--config.data.cache={folder / "cache"}', '--config.eval.paths=none',
      f'--config.model.dim={args.dim}', '--config.optimizer.name=adagrad',
      f'--config.train.epochs={args.epochs}', f'--config.seed={10 * seed + i}',
    ]  # fmt: skip
    root = pathlib.Path(__file__).resolve().parents[1]
    subprocess.run(command, check=True, cwd=root, stderr=subprocess.DEVNULL)
    models.append(jaxemb.load(workdir))
  return models


def _scores(
  model_words: Sequence[str], vectors: np.ndarray, paths: Sequence[str]
) -> dict[str, float]:
  found = words.evaluate(model_words, vectors, paths)
  names = {'men': 'MEN', 'rw': 'RW', 'questions': 'Google', 'ws-353': 'WS353'}
  scores = {}
  for name, result in found.items():
    for key, title in names.items():
      if key in name.lower() and (title != 'WS353' or 'all' in name.lower()):
        scores[title] = result['score']
  return scores


def _benchmark_words(paths: Sequence[str]) -> set[str]:
  return {
    str(word).lower()
    for benchmark in benchmarks.find(paths)[0]
    for word in _all_words(benchmark)
  }


def _all_words(benchmark: Any) -> list[str]:
  if isinstance(benchmark, benchmarks.Pairs):
    return [w for pair in benchmark.pairs for w in pair[:2]]
  if isinstance(benchmark, benchmarks.Analogies):
    return [
      w for rows in benchmark.sections.values() for row in rows for w in row
    ]
  return list(benchmark.categories)


def _rotation(target: parts.Part, source: parts.Part) -> np.ndarray:
  """[dim, dim], from the source's space into the target's, by a merge."""
  spec = combine.Spec(weights='equal', tolerance=1e-6)
  merged = combine.merge([target, source], spec, mesh.make(mesh.Shape(1, 1)))
  into_target, from_source = merged.rotations
  return from_source @ into_target.T


def _repaired(
  target: jaxemb.Embeddings,
  source: jaxemb.Embeddings,
  masked: set[str],
  method: str,
) -> np.ndarray:
  """The target's vectors with those of masked words made again."""
  vectors = np.array(target.vectors)
  rows = np.array([target.key_to_index[w] for w in masked])
  theirs = source.vectors[[source.key_to_index[w] for w in masked]]
  if method == 'zeros':
    vectors[rows] = 0
    return vectors
  left = [w for w in target.index_to_key if w not in masked]
  kept = vectors[[target.key_to_index[w] for w in left]]
  if method == 'procrustes':
    turn = _rotation(
      parts.Part('target', left, parts.of_array(kept)),
      parts.Part('source', source.index_to_key, parts.of_array(source.vectors)),
    )
  else:
    both = [w for w in left if w in source]
    x = source.vectors[[source.key_to_index[w] for w in both]]
    y = vectors[[target.key_to_index[w] for w in both]]
    turn = np.linalg.lstsq(x.astype(np.float64), y, rcond=None)[0]
  vectors[rows] = theirs @ turn
  return vectors


def _measure(
  args: argparse.Namespace, seed: int, folder: pathlib.Path
) -> dict[str, dict[str, float]]:
  target, source = _train(args, seed, folder)
  # Both have the words of the source, so that all score the same questions.
  common = [w for w in target.index_to_key if w in source]
  target, source = (
    jaxemb.Embeddings(
      common, np.array(m.vectors[[m.key_to_index[w] for w in common]])
    )
    for m in (target, source)
  )
  known = sorted(_benchmark_words(args.eval) & set(common))
  found = {
    'source': _scores(common, source.vectors, args.eval),
    'target': _scores(common, target.vectors, args.eval),
  }
  rng = np.random.default_rng(seed)
  for share in (0.5, 1.0):
    masked = rng.permutation(known)[: round(share * len(known))]
    for method in ('procrustes', 'ols', 'zeros'):
      vectors = _repaired(target, source, set(masked.tolist()), method)
      title = f'{method} {share:.0%}'.replace('%', ' %')
      if title != 'zeros 100 %':  # nothing is left to score
        found[title] = _scores(common, vectors, args.eval)
  return found


def _table(runs: Sequence[dict[str, dict[str, float]]]) -> str:
  """Means over the seeds, their spread, and the authors' figures."""
  lines = [f'{"":<18}' + ''.join(f'{name:>20}' for name in _SETS)]
  lines.append(f'{"":<18}' + f'{"ours    theirs":>20}' * len(_SETS))
  for title in runs[0]:
    line = f'{title:<18}'
    for i, name in enumerate(_SETS):
      values = [run[title][name] for run in runs if name in run[title]]
      if not values:
        line += f'{"":>20}'
        continue
      theirs = f'{EXPECTED[title][i]:.3f}' if title in EXPECTED else '     '
      line += f'{np.mean(values):9.3f} +-{np.std(values):.3f} {theirs}'[-20:]
    lines.append(line)
  return '\n'.join(lines)


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--text', nargs='+', required=True, help='files, plain or .bz2')
  add('--eval', nargs='+', required=True, help='benchmark files or folders')
  add('--rate', type=float, default=0.1, help='of the lines')
  add('--dim', type=int, default=50)
  add('--epochs', type=int, default=5)
  add('--seeds', type=int, default=3)
  add('--folder', help='for samples and runs; default: temporary')
  add('--output', type=pathlib.Path, help='default: results/masked-DATE.json')
  return parser.parse_args()


def main() -> None:
  """Trains, repairs, prints the table and writes the file."""
  args = _arguments()
  runs = []
  for seed in range(1, args.seeds + 1):
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
      runs.append(_measure(args, seed, pathlib.Path(folder)))
    print(f'seed {seed} done', file=sys.stderr, flush=True)
  print(_table(runs))
  facts = machine.describe()
  print(machine.line(facts))
  output = args.output or _RESULTS / f'masked-{machine.today()}.json'
  output.parent.mkdir(parents=True, exist_ok=True)
  settings = {k: getattr(args, k) for k in ('rate', 'dim', 'epochs', 'seeds')}
  result = {'machine': facts, 'settings': settings, 'runs': runs}
  output.write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
  main()
