"""Topics of documents: jaxemb against gensim's Doc2Vec.

  pip install -e '.[bench]'
  python experiments/topics.py

Two sets of documents: with 20 planted topics, words of a topic among common
words, both with Zipf's frequencies; and the articles of the embedded corpus
that are of a noun, whose topic is its class, such as bird. Both programs train
on the same tokens with the same epochs, dimensions, negatives and threads, in
turns, a seed for each round; learning rates and subsampling are those that
their users get. Both infer vectors of documents that they have not seen.

Purity is how many of the ten nearest documents, by cosine, have the topic of a
document; of clusters, how many documents have the topic of most of their
cluster, of as many as there are topics, by the best of many runs of k-means.
"""

import functools
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import experiment
import numpy as np
from scipy.cluster import vq

import jaxemb
from jaxemb.documents import loader
from jaxemb.text.toywiki import toywiki

NEAREST, SAMPLED, NEW = 10, 4000, 2000
# Of k-means, which ends in one of many minima: the same vectors have .82 by the
# best of ten starts, and .96 by that of 60.
STARTS = 30
_SCRIPT = pathlib.Path(__file__).with_name('train_doc2vec.py')
_ASPECT = re.compile(r'^.* of | \(.*\)$')


class Texts(NamedTuple):
  """Documents and their topics, without those that are to be inferred."""

  documents: list[str]
  topics: np.ndarray  # [documents + new] int
  new: list[str]


def planted(num: int, num_topics: int = 20, share: float = 0.15) -> Texts:
  """Documents of 20 to 100 words, of which a share is of their topic."""
  rng, vocab, num_special = np.random.default_rng(1), 5000, 500
  common, special = (1 / np.arange(1, x + 1) for x in (vocab, num_special))
  words = [rng.permutation(vocab)[:num_special] for _ in range(num_topics)]
  topics, documents = rng.integers(0, num_topics, num), []
  for topic in topics:
    size = rng.integers(20, 100)
    general = rng.choice(vocab, size, p=common / common.sum())
    numbers = rng.choice(num_special, size, p=special / special.sum())
    of_topic = words[topic][numbers]
    chosen = np.where(rng.random(size) < share, of_topic, general)
    documents.append(' '.join(f'w{x}' for x in chosen))
  return _divided(documents, topics)


def articles(cache: pathlib.Path, num_words: int) -> Texts:
  """Articles of the embedded corpus whose nouns have a class."""
  families = toywiki.build_world().families
  classes = {x.title: x.taxonomy[0] for x in families if x.kind == 'noun'}
  names = sorted({*classes.values()})
  documents, topics = [], []
  path = str(toywiki.write(cache, num_words).xml)
  for text, title in loader.read(path):
    topic = classes.get(title) or classes.get(title.partition(' of ')[2])
    topic = topic or classes.get(_ASPECT.sub('', title))
    if topic:
      documents.append(' '.join(re.findall(r'[^\W_]+', text.lower())))
      topics.append(names.index(topic))
  return _divided(documents, np.array(topics))


def _divided(documents: Sequence[str], topics: np.ndarray) -> Texts:
  num = len(documents) - min(NEW, len(documents) // 10)
  return Texts(list(documents[:num]), topics, list(documents[num:]))


def purity(
  vectors: np.ndarray,
  topics: np.ndarray,
  candidates: np.ndarray,
  candidate_topics: np.ndarray,
) -> float:
  """How many of the nearest candidates have a document's topic."""
  rows = np.random.default_rng(0).permutation(len(vectors))[:SAMPLED]
  scores = _units(vectors[rows]) @ _units(candidates).T
  if candidates is vectors:
    scores[np.arange(len(rows)), rows] = -2
  near = np.argpartition(-scores, NEAREST, 1)[:, :NEAREST]
  return float((candidate_topics[near] == topics[rows, None]).mean())


def cluster_purity(vectors: np.ndarray, topics: np.ndarray) -> float:
  """How many documents have the topic of most of their cluster."""
  rows = np.random.default_rng(0).permutation(len(vectors))[:SAMPLED]
  units, topics = _units(vectors[rows]), topics[rows]
  num, best = topics.max() + 1, (np.inf, 0.0)
  for seed in range(STARTS):
    means, clusters = vq.kmeans2(units, num, minit='++', rng=seed)
    votes = np.zeros((num, num))
    np.add.at(votes, (clusters, topics), 1)
    distance = float(np.square(units - means[clusters]).sum())
    best = min(best, (distance, float(votes.max(1).sum() / len(topics))))
  return best[1]


def _units(vectors: np.ndarray) -> np.ndarray:
  lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
  return vectors / np.maximum(lengths, 1e-9)


def _scores(
  vectors: np.ndarray, new: np.ndarray, topics: np.ndarray, **speeds: float
) -> dict[str, float]:
  known, unseen = topics[: len(vectors)], topics[len(vectors) :]
  return {
    'purity': purity(vectors, known, vectors, candidate_topics=known),
    'clusters': cluster_purity(vectors, known),
    'inferred': purity(new, unseen, vectors, candidate_topics=known),
    **speeds,
  }


def _train_jaxemb(
  args: Any, folder: pathlib.Path, texts: Texts, model: str, seed: int
) -> dict[str, float]:
  args.config = 'documents:dm' if model == 'dm' else 'documents'
  settings = {
    'data.path': folder / 'documents.txt', 'data.tokens': 'whitespace',
    'data.lowercase': False, 'train.epochs': args.epochs,
    'train.threads': args.threads, 'seed': seed,
  }  # fmt: skip
  workdir = pathlib.Path(tempfile.mkdtemp(dir=folder))
  report = experiment.train(args, workdir, settings)
  trained = jaxemb.load(workdir)
  new = [x.split() for x in texts.new]
  trained.infer(new[:9])  # compiles
  start = time.perf_counter()
  inferred = trained.infer(new)
  secs = time.perf_counter() - start
  words = report['corpus_words'] * args.epochs
  return _scores(
    np.asarray(trained.dv.vectors),
    inferred,
    texts.topics,
    words_per_sec=report['words_per_sec'],
    words_per_cpu_sec=words
    / sum(x['secs'] * x['mean_cores'] for x in report['hosts']),
    inferred_per_sec=len(new) / secs,
  )


def _train_gensim(
  args: Any, folder: pathlib.Path, texts: Texts, model: str, seed: int
) -> dict[str, float]:
  options = {
    'dm': int(model == 'dm'), 'vector_size': 100, 'window': 5, 'negative': 5,
    'min_count': 5, 'epochs': args.epochs, 'workers': args.threads,
    'seed': seed,
  }  # fmt: skip
  output = folder / 'gensim.npy'
  files = folder / 'documents.txt', folder / 'new.txt', output
  command = [sys.executable, str(_SCRIPT), *map(str, files)]
  subprocess.run([*command, json.dumps(options)], check=True)
  report = json.loads(output.with_suffix('.json').read_text())
  new = np.load(output.with_suffix('.new.npy'))
  return _scores(np.load(output), new, texts.topics, **report)


def main() -> None:
  """Trains in turns and prints the medians."""
  parser = experiment.parser(__doc__)
  add, count = parser.add_argument, experiment.count
  add('--documents', type=count, default=20_000, help='with planted topics')
  add('--words', type=count, default=2_000_000, help='of the embedded corpus')
  add('--epochs', type=count, default=20)
  add('--threads', type=count, default=2)
  add('--runs', type=count, default=3)
  experiment.add_names(parser, '--models', ['dbow', 'dm'])
  experiment.add_names(parser, '--sets', ['planted', 'articles'])
  experiment.add_names(parser, '--programs', ['jaxemb', 'gensim'])
  args = experiment.parse(parser)
  results = experiment.Results('topics', args)
  for name in args.sets:
    with tempfile.TemporaryDirectory() as folder:
      _compare(args, name, pathlib.Path(folder), results=results)
  lines = [
    f'{name}: ' + ', '.join(f'{k} {x:.4g}' for k, x in medians.items())
    for name, medians in results.found.items()
  ]
  results.finish(*lines)


def _compare(
  args: Any, name: str, folder: pathlib.Path, results: experiment.Results
) -> None:
  """Trains on a set in turns, and adds the medians to the results."""
  if name == 'articles':
    texts = articles(folder, args.words)
  else:
    texts = planted(args.documents)
  (folder / 'documents.txt').write_text('\n'.join(texts.documents) + '\n')
  (folder / 'new.txt').write_text('\n'.join(texts.new) + '\n')
  programs = {'jaxemb': _train_jaxemb, 'gensim': _train_gensim}
  for model in args.models:
    sides = {
      x: functools.partial(programs[x], args, folder, texts, model)
      for x in args.programs
    }
    for program, runs in experiment.in_turn(sides, args.runs).items():
      medians = {k: statistics.median(x[k] for x in runs) for k in runs[0]}
      results.found[f'{name} {model} {program}'] = medians
      experiment.progress(name, model, program, medians)
      results.save()


if __name__ == '__main__':
  experiment.main(main)
