"""From sets of items to batches: pairs of user and item, or windows of items.

The source `interactions` gives pairs, from which the matrix of users and items
is factorized. With `item_sets` the items of a user are a sentence, in a new
order in every epoch, for skip-gram (Item2Vec, Barkan and Koenigstein 2016):
sets have no order, and in the end every item of a set is a context of every
other.

The order of an epoch is a function of (seed, epoch): (epoch, next place) is the
reader's whole state.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.data import base, examples, subsampling, windows
from jaxemb.evaluation import geometry, ranking
from jaxemb.interactions import sets as sets_lib

_DISPATCH = 1 << 16  # interactions, or one step if that has more
_K = 20  # items that are recommended
# Of the product and of log count in the score of an item for a user: as
# learned, with more weight on the product, and without counts.
_WEIGHTS = (1.0, 0.75), (2.5, 0.75), (6.0, 0.75), (1.0, 0.0)
_NUM_CHOOSING = 5000  # users, by whom weights are chosen


class Interactions:
  """Pairs of user and item as a `data.base.Source`: ids [..., 2] of examples.

  Progress is in interactions.
  """

  unit = 'interactions'

  def __init__(self, spec: base.SourceSpec):
    self.spec, self.num_parts, self.epochs = spec, spec.num_parts, spec.epochs
    self.data = data = sets_lib.make(spec.settings, spec.seed, spec.known)
    self.keys, self.counts, self.held = data.items, data.counts, data.held
    self.context_keys: Sequence[str] = data.users
    self.units_per_epoch = num = len(data.train.ids)
    self.fingerprint, self.dropped = data.fingerprint(), data.dropped
    self.inputs = data.inputs
    self.step_size = spec.part_words * spec.num_parts
    self.num_steps = max(1, min(_DISPATCH, num) // self.step_size)
    self.earlier = data.earlier
    # [items] int64, of the counts those of these data.
    self.seen = self.counts - (0 if data.earlier is None else data.earlier)
    self.frequencies = self.seen / num
    self.earlier_contexts: np.ndarray | None = None
    if data.earlier is not None:  # of users, whom a run has not counted
      self.earlier_contexts = np.zeros(len(data.users), np.int64)
    # [users] float64, chance that an example is of each.
    self.user_frequencies = data.train.sizes() / num
    self.steps: base.Steps
    self.steps = examples.Steps(spec.part_words, spec.num_parts)

  def eval_paths(self) -> list[str]:
    """None: what is held out is not of words."""
    return []

  def describe(self) -> list[str]:
    """What was read, for the log."""
    held = ''.join(
      f', {x.sizes.sum():,} of {len(x.users):,} users for {name}'
      for name, x in self.held.items()
    )
    return [
      f'interactions: {self.units_per_epoch:,} of {len(self.data.train):,} '
      f'users with {len(self.keys):,} items{held}'
    ]

  def evaluate(
    self,
    vectors: np.ndarray,
    contexts: np.ndarray,
    ks: Sequence[int] = (),
    is_last: bool = True,
    is_cosine: bool = False,
  ) -> dict[str, dict[str, Any]]:
    """Scores by split, of vectors of items [items, d] and users [users, d].

    `ks` are lengths of lists of recommended items, 20 by default. While
    training goes on only the validation split is scored, if there is one.
    `is_cosine`: lengths of items have no meaning.
    """
    vectors, contexts = np.asarray(vectors), np.asarray(contexts)
    items = geometry.unit(vectors) if is_cosine else vectors
    return self._ranked(
      contexts, items, ks, held=base.scored_splits(self.held, is_last)
    )

  def _ranked(self, users, items, ks, held, biases=0.0):
    ks = ks or (min(_K, len(items)),)
    return ranking.evaluate(
      users, items, self.data.train, held=held, ks=ks, biases=biases
    )

  def items(
    self, position: Sequence[int] | None, done: int
  ) -> Iterator[base.Item]:
    """Batches from a position, [epoch, next place], to the last epoch's end."""
    order = functools.lru_cache(1)(self._order)

    def fill(epoch, places, ids, numbers, labels):
      some = slice(places.start, places.stop)
      ids[:, 0], ids[:, 1] = (x[some] for x in order(epoch))
      labels[:] = 1

    yield from examples.items(
      self.spec,
      num=self.units_per_epoch,
      most_steps=self.num_steps,
      widths=(2, 0),
      fill=fill,
      position=position,
      done=done,
    )

  def _order(self, epoch: int) -> tuple[np.ndarray, ...]:
    """Users and items [n] in the order of an epoch."""
    rng = np.random.default_rng((self.spec.seed, epoch))
    order = rng.permutation(self.units_per_epoch)
    return self._owners[order], self.data.train.ids[order]

  @functools.cached_property
  def _owners(self):
    return self.data.train.owners().astype(np.int32)


class ItemSets(Interactions):
  """The same as a source of windows over random orders of each set."""

  def __init__(self, spec: base.SourceSpec):
    super().__init__(spec)
    self.context_keys, self.earlier_contexts = (), None  # which are items too
    sample = spec.settings['sample']
    self.keep = subsampling.keep_probabilities(self.counts, sample)
    self.frequencies = subsampling.center_probabilities(
      self.counts, sample, self.seen
    )
    self.steps = windows.Steps.of(spec)

  def evaluate(
    self,
    vectors: np.ndarray,
    contexts: np.ndarray,
    ks: Sequence[int] = (),
    is_last: bool = True,
    is_cosine: bool = False,
  ) -> dict[str, dict[str, Any]]:
    """Scores by split: those of items beside the mean of a user's items.

    A product of a vector with a context is the logarithm of how much more
    likely the context is there than among negatives, which are drawn by
    count^0.75. With the logarithm of that it tells what is likely in a set, as
    far as one item of a set tells as much as all of them. Dense sets tell more:
    the weights of the two are those of the best NDCG of the validation split.
    """
    del is_cosine  # products are what skip-gram learns
    vectors, contexts = np.asarray(vectors), np.asarray(contexts)
    means = ranking.means(vectors, self.data.train)
    ranked = functools.partial(self._weighted, means, contexts, ks=ks)
    weights = _WEIGHTS[0]
    if 'valid' in self.held:
      some = {'valid': _some_users(self.held['valid'])}
      ndcg = [ranked(x, held=some)['valid']['ndcg'] for x in _WEIGHTS]
      weights = _WEIGHTS[int(np.argmax(ndcg))]
    named = dict(zip(('product_weight', 'count_weight'), weights, strict=True))
    scores = ranked(weights, held=base.scored_splits(self.held, is_last))
    return {k: x | named for k, x in scores.items()}

  def _weighted(self, means, contexts, weights, ks, held):
    """Scores by split with weights of products and of log counts."""
    of_products, of_counts = weights
    biases = (of_counts * np.log(self.counts)).astype(np.float32)
    users = np.float32(of_products) * means
    return self._ranked(users, contexts, ks, held=held, biases=biases)

  def describe(self) -> list[str]:
    """What was read, for the log."""
    lines = super().describe()
    if self.held and 'valid' not in self.held:
      lines.append(
        'items are scored by product + 0.75 log count; weights are chosen '
        'where there is --config.data.valid'
      )
    return lines

  def items(
    self, position: Sequence[int] | None, done: int
  ) -> Iterator[base.Item]:
    """Batches from a position, [epoch, next place], to the last epoch's end."""
    num, size = self.units_per_epoch, self.num_steps * self.step_size
    epoch, first = position or (0, 0)
    while epoch < self.epochs:
      order = self._order(epoch)
      num_places = len(order[0])  # fewer, where frequent items are left out
      while first < num_places:
        stop = min(first + size, num_places)
        index = epoch * -(-num // size) + first // size
        batch, num_own = self._batch(order, first, stop)
        after = epoch * num + num * stop // num_places
        own = (after - done) * num_own // (stop - first)
        position = [epoch, stop] if stop < num_places else [epoch + 1, 0]
        yield base.Item(
          batch=batch,
          index=index,
          position=position,
          done_before=done,
          done_after=after,
          own=own,
        )
        done, first = after, stop
      epoch, first = epoch + 1, 0

  def _order(self, epoch: int) -> tuple[np.ndarray, ...]:
    """Items [n], and uint8 of their contexts before and after them."""
    rng = np.random.default_rng((self.spec.seed, epoch))
    ids = self.data.train.ids
    ranks = rng.permutation(len(self.data.train))[self._owners]
    order = np.argsort(ranks + rng.random(len(ids)))
    order = order[rng.random(len(ids)) < self.keep[ids[order]]]
    if not len(order):
      raise errors.UserError(
        f'config.data.sample={self.spec.settings["sample"]} leaves no item; '
        'raise it'
      )
    ids, ranks = ids[order], ranks[order]
    starts = np.flatnonzero(np.diff(ranks, prepend=-1))
    sizes = np.diff(starts, append=len(ids))
    before = np.arange(len(ids)) - np.repeat(starts, sizes)
    after = np.repeat(sizes, sizes) - 1 - before
    low, high = self.spec.shortest_window, self.spec.window
    reach = rng.integers(low, high + 1, len(ids))
    reaches = (np.minimum(x, reach) for x in (before, after))
    return ids, *(x.astype(np.uint8) for x in reaches)

  def _batch(self, order, first, stop) -> tuple[windows.Batch, int]:
    """The batch of places of an order; how many are in parts read here.

    Parts are stretches, with their neighbours on both sides.
    """
    ids, *reaches = order
    size = self.num_steps * self.spec.part_words
    halo, room = self.spec.window, self.num_steps * self.step_size
    ids = np.pad(ids, (halo, halo + room), constant_values=len(self.keys))
    starts = size * np.arange(self.num_parts)
    places = first + starts[:, None] + np.arange(size + 2 * halo)
    counts = np.clip(stop - first - starts, 0, size).astype(np.int32)
    left, right = np.zeros((2, room), np.uint8)
    for out, reach in zip((left, right), reaches, strict=True):
      out[: stop - first] = reach[first:stop]
    left, right = (x.reshape(self.num_parts, size) for x in (left, right))
    batch = windows.Batch(
      ids=ids[places],
      left=left,
      right=right,
      num_steps=-(-counts // np.int32(self.spec.part_words)),
      kept_words=counts,
      pairs=left.sum(1, dtype=np.int32) + right.sum(1, dtype=np.int32),
    )
    return batch, int(counts[list(self.spec.readers.local_parts)].sum())


def _some_users(held: ranking.Held) -> ranking.Held:
  """Held-out items of `_NUM_CHOOSING` users, or of all if they are fewer."""
  num = len(held.users)
  if num <= _NUM_CHOOSING:
    return held
  rng = np.random.default_rng(0)
  some = np.sort(rng.choice(num, _NUM_CHOOSING, replace=False))
  return ranking.Held(
    held.users[some], held.sets.select(some), held.sizes[some]
  )
