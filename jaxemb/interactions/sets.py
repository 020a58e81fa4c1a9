"""Sets of items, one for each user, as files and settings give them.

Rows of one user add up, over all files; an item counts once for each user.
"""

import collections
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.data import growth
from jaxemb.evaluation import ranking
from jaxemb.interactions import reading
from jaxemb.io import inputs, roles

# Of what is embedded: users, groups of items, and sizes of sets.
_NUM_USERS, _GROUPS, _GROUP_ITEMS = 3000, 100, 20
_TRAIN_ITEMS, _HELD_ITEMS, _NOISE = 20, 10, 0.1
_SPLITS = 'valid', 'test'
_SPLIT_STREAM = 0x5B11  # of random numbers

ItemsOf = reading.ItemsOf


class Interactions(NamedTuple):
  """Who has what: to learn from, and held out."""

  items: list[str]  # names, the most frequent first
  counts: np.ndarray  # [items] int64, users who have each
  users: list[str]  # names, in order of `train`
  train: ranking.Sets  # of each user that has any
  held: dict[str, ranking.Held]  # by split
  dropped: dict[str, int]
  inputs: Sequence[roles.Input] = ()
  # [items] int64, of the counts those of a run that is continued.
  earlier: np.ndarray | None = None

  def fingerprint(self) -> str:
    """Of all names and sets to learn from."""
    names = *self.items, '', *self.users
    digest = hashlib.sha256('\n'.join(names).encode())
    for x in self.train:
      digest.update(np.ascontiguousarray(x).tobytes())
    return digest.hexdigest()


def planted() -> tuple[ItemsOf, ItemsOf, ItemsOf]:
  """The embedded sets: to learn from, for validation, and for a test.

  Every user likes two groups of items, of which most of a set is; the rest is
  from anywhere. What is held out is of the two groups.
  """
  rng = np.random.default_rng(0)
  sets: tuple[ItemsOf, ItemsOf, ItemsOf] = {}, {}, {}
  for user in range(_NUM_USERS):
    groups = rng.choice(_GROUPS, 2, replace=False)
    liked = groups[:, None] * _GROUP_ITEMS + np.arange(_GROUP_ITEMS)
    train_items, *held_items = np.split(
      rng.permutation(liked.ravel()),
      [_TRAIN_ITEMS, _TRAIN_ITEMS + _HELD_ITEMS],
    )
    anything = rng.integers(0, _GROUPS * _GROUP_ITEMS, len(train_items))
    train_items = np.where(
      rng.random(len(train_items)) < _NOISE, anything, train_items
    )
    for items_of, items in zip(sets, (train_items, *held_items), strict=True):
      items_of[f'user{user}'] = [
        f'item{x // _GROUP_ITEMS}.{x % _GROUP_ITEMS}' for x in items
      ]
  return sets


def _hold_out(
  items_of: ItemsOf, share: float, is_last: bool, key: tuple[int, int]
) -> ItemsOf:
  """Takes a share out of each set, but never all of it."""
  held = {}
  for number, (user, items) in enumerate(items_of.items()):
    items = list(dict.fromkeys(items))
    num_kept = max(1, len(items) - round(share * len(items)))
    order = np.arange(len(items))
    if not is_last:
      order = np.random.default_rng((*key, number)).permutation(order)
    items_of[user] = [items[i] for i in np.sort(order[:num_kept])]
    held[user] = [items[i] for i in order[num_kept:]]
  return held


def make(
  settings: Mapping[str, Any],
  seed: int,
  known: data_base.Known | None = None,
) -> Interactions:
  """The interactions that settings under `config.data` name.

  Without a path they are the embedded ones. They have all items and users that
  a run has `known`. Raises a `UserError` for input that cannot be used.
  """
  if not settings['path']:
    if splits := list(filter(settings.get, _SPLITS)):
      raise errors.UserError(
        f'config.data.{splits[0]}={settings[splits[0]]} is not used with the '
        'embedded interactions, which have their own; remove it or set '
        'config.data.path'
      )
    items_of, *others = planted()
    held = dict(zip(_SPLITS, others, strict=True))
    return encode(items_of, held, settings['min_count'], known=known)
  settings = inputs.resolve(
    settings, 'file of interactions', is_other=reading.is_other
  )
  how = settings['columns'], settings['decimal']
  data, held = reading.read(settings['path'], *how), {}
  for name in filter(settings.get, _SPLITS):
    text = settings[name]
    refusal = (
      f'config.data.{name}={text} must be a file, or a share of each set '
      'between 0 and 1'
    )
    if share := data_base.held_out(text, refusal):
      key = seed, _SPLIT_STREAM + _SPLITS.index(name)
      held[name] = _hold_out(data.items_of, *share, key)
      continue
    try:
      held[name], dropped, shown = reading.read(text, *how)
    except errors.UserError as error:
      raise errors.UserError(f'config.data.{name}: {error}') from error
    data.dropped.update(dropped)
    data.inputs.extend(shown)
  encoded = encode(data.items_of, held, settings['min_count'], known=known)
  return encoded._replace(
    dropped={**encoded.dropped, **data.dropped}, inputs=data.inputs
  )


def _numbered(
  counted: Mapping[str, int], min_count: int, known: data_base.Known | None
) -> tuple[list[str], np.ndarray, np.ndarray | None]:
  """Items, the most frequent first, with counts, and the `earlier` ones."""
  names, here = list(counted), np.array([*counted.values()], np.int64)
  if known is None:
    before = np.zeros_like(here)
  else:
    before, absent, counts = growth.earlier(known, names)
    names += absent
    here = np.pad(here, (0, len(absent)))
    before = np.concatenate([before, counts])
  chosen = np.flatnonzero((here >= min_count) | (before > 0))
  order = chosen[np.argsort(-(here + before)[chosen], kind='stable')]
  items = [names[i] for i in order.tolist()]
  before = before[order]
  return items, here[order] + before, None if known is None else before


def encode(
  items_of: ItemsOf,
  held: Mapping[str, ItemsOf],
  min_count: int = 1,
  known: data_base.Known | None = None,
) -> Interactions:
  """Numbers users and items; items of fewer than `min_count` are dropped.

  Those `known` stay, behind the users of these data those that it lacks.
  Raises a `UserError` if no item is left, or no user of a split is known.
  """
  once = {user: list(dict.fromkeys(x)) for user, x in items_of.items()}
  counted = collections.Counter(itertools.chain.from_iterable(once.values()))
  items, counts, earlier = _numbered(counted, min_count, known)
  numbers = {x: i for i, x in enumerate(items)}
  sets = {
    user: [numbers[x] for x in names if x in numbers]
    for user, names in once.items()
  }
  sets = {user: x for user, x in sets.items() if x}
  if not sets:
    raise errors.UserError(
      f'no item has config.data.min_count={min_count} users; lower it'
    )
  listed = sum(map(len, items_of.values()))
  dropped = {
    'repeated_interactions': listed - counted.total(),
    'rare_interactions': counted.total() - sum(map(len, sets.values())),
    'users_without_items': len(items_of) - len(sets),
  }
  splits = {}
  for name, of_split in held.items():
    splits[name], counts_of_split = _split(
      name, of_split, sets, numbers=numbers
    )
    dropped |= counts_of_split
  if known:
    sets |= {x: [] for x in growth.absent_names(known.contexts, [*sets])}
  train = ranking.Sets.of(sets.values())
  return Interactions(
    items=items,
    counts=counts,
    users=[*sets],
    train=train,
    held=splits,
    dropped=dropped,
    earlier=earlier,
  )


def _split(name, sets, known, numbers):
  """A split, of the items of each user `known` to train on, and what is lost.

  `numbers` has the number of each item.
  """
  wanted = {user: list(dict.fromkeys(x)) for user, x in sets.items() if x}
  users = {user: i for i, user in enumerate(known)}
  kept = [user for user in wanted if user in users]
  pairs = [(user, item) for user in kept for item in wanted[user]]
  trained = {user: set(known[user]) for user in kept}
  num_unknown = sum(item not in numbers for _, item in pairs)
  num_trained = sum(numbers.get(x, -1) in trained[user] for user, x in pairs)
  if pairs and num_unknown + num_trained == len(pairs):
    raise errors.UserError(
      f'config.data.{name} has nothing to recommend: of {len(pairs):,} items '
      f'held out {num_trained:,} are in training for the same user, and the '
      'others no user has there'
    )
  if not kept:
    raise errors.UserError(
      f'config.data.{name} holds out nothing of the users that '
      'config.data.path has; give a file of theirs, or a larger share'
    )
  held = ranking.Held(
    np.array([users[x] for x in kept], np.int64),
    ranking.Sets.of(
      [numbers[x] for x in wanted[user] if x in numbers] for user in kept
    ),
    np.array([len(wanted[x]) for x in kept], np.int64),
  )
  return held, {
    f'{name}_users_unknown': len(wanted) - len(kept),
    f'{name}_items_unknown': num_unknown,
    f'{name}_items_in_training': num_trained,
  }
