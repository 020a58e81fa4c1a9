r"""ComplEx by PyKEEN for some seconds, and its ranks of test triples.

  python experiments/train_pykeen.py wn18rr --secs=670

Each head and relation has a softmax over all nodes (PyKEEN's local closed world
assumption), with 256 numbers a node and reciprocal relations, as
`experiments/edges.py relations --operators=complex` has. It runs in a Python
with PyKEEN. Triples of nodes that are not in training are left out, as in
jaxemb's `known_mrr`.
"""

import argparse
import pathlib
import time

import torch
from pykeen import evaluation, losses, models, training, triples
from pykeen.training import callbacks

_RANKS = (
  'both.realistic.inverse_harmonic_mean_rank',
  'both.realistic.hits_at_10',
)


class _Over(Exception):
  """The seconds are over."""


class _Limit(callbacks.TrainingCallback):
  """Ends training so many seconds after its first batch."""

  def __init__(self, secs: float):
    super().__init__()
    self.secs, self.start, self.batches = secs, None, 0

  def on_batch(self, *unused, **also_unused):
    self.batches += 1
    self.start = self.start or time.monotonic()
    if time.monotonic() - self.start > self.secs:
      raise _Over


def _main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument(
    'folder', type=pathlib.Path, help='train, valid, test.txt'
  )
  parser.add_argument('--secs', type=float, default=670.0)
  parser.add_argument('--batch', type=int, default=256)
  parser.add_argument('--learning_rate', type=float, default=0.1)
  args = parser.parse_args()
  read = triples.TriplesFactory.from_path
  train = read(args.folder / 'train.txt', create_inverse_triples=True)
  ids = {
    'entity_to_id': train.entity_to_id,
    'relation_to_id': train.relation_to_id,
  }
  valid, test = (
    read(args.folder / f'{x}.txt', **ids) for x in ('valid', 'test')
  )
  model = models.ComplEx(
    triples_factory=train,
    embedding_dim=128,  # complex numbers
    random_seed=1,
    loss=losses.CrossEntropyLoss(),
  )
  loop = training.LCWATrainingLoop(
    model=model,
    triples_factory=train,
    optimizer=torch.optim.Adagrad(model.parameters(), lr=args.learning_rate),
  )
  limit = _Limit(args.secs)
  try:
    loop.train(
      triples_factory=train,
      num_epochs=1000,
      batch_size=args.batch,
      callbacks=[limit],
      use_tqdm=False,
    )
  except _Over:
    print(f'{args.secs:.0f} s: {limit.batches:,} batches of {args.batch}')
  found = evaluation.RankBasedEvaluator().evaluate(
    model,
    test.mapped_triples,
    additional_filter_triples=[train.mapped_triples, valid.mapped_triples],
    batch_size=64,
    use_tqdm=False,
  )
  print(', '.join(f'{x} {found.get_metric(x):.4f}' for x in _RANKS))


if __name__ == '__main__':
  _main()
