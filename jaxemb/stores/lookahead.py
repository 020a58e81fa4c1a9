"""The steps to come of training on tables in a store, and ids they look up."""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxemb.stores import cache as cache_lib
from jaxemb.strategies import base

_LOOK_AHEAD = 16  # steps


class Block(NamedTuple):
  """Steps of a dispatch, whose ids were computed at once."""

  batch: Any
  schedule: base.Schedule
  first: int  # step
  # Ids as on the device, [steps, ...] by table, count and examples.
  computed: Any
  count: int = 0  # steps of the dispatch
  ids: Mapping[str, np.ndarray] = {}  # [steps, n] int32, on the host
  examples: np.ndarray | None = None  # [steps] float32

  def on_host(self, names: Iterable[str]) -> 'Block':
    """Waits for the ids and returns them on the host, too."""
    ids, count, examples = jax.device_get(self.computed)
    count = int(count)
    ids = {k: ids[k].reshape(len(ids[k]), -1) for k in names}
    ids = {k: x[: max(0, count - self.first)] for k, x in ids.items()}
    return self._replace(
      computed=self.computed[0], count=count, ids=ids, examples=examples
    )

  @property
  def stop(self) -> int:
    """The step behind the last."""
    return self.first + len(next(iter(self.ids.values())))


class Stretch(NamedTuple):
  """Steps that run at once, and the rows that they need."""

  block: Block
  first: int  # step
  num_steps: int
  caches: Sequence[cache_lib.Cache]
  moves: list[cache_lib.Moves]  # of each cache
  # By table, `Cached.views`, if rows may move beside steps; and what waits
  # until the stretch before the one that runs has ended.
  views: Mapping[str, list[np.ndarray]]
  wait: Callable[[], Any]

  @property
  def stop(self) -> int:
    """The step behind the last."""
    return self.first + self.num_steps

  @property
  def lookups(self) -> dict[str, np.ndarray]:
    """By table, [num_steps, n] int32 ids, with repetitions."""
    ids = self.block.ids.items()
    return {k: x[self._slice] for k, x in ids}

  @property
  def examples(self) -> float:
    """Of all its steps, if they are shared."""
    return float(self.block.examples[self._slice].sum())

  @property
  def _slice(self):
    return slice(self.first - self.block.first, self.stop - self.block.first)

  @property
  def has_late(self) -> bool:
    """Whether rows move between the stretch before and this one."""
    return any(
      len(cache_rows)
      for moves in self.moves
      for cache_rows, _ in (*moves.out.values(), *moves.into.values())
    )


class Steps:
  """The steps to come, in order; caches foresee those whose ids are known."""

  def __init__(
    self,
    compute_ids: Callable[..., Any],
    names: Iterable[str],
    caches: Sequence[cache_lib.Cache],
  ):
    """`compute_ids` has (constants, batch, schedule, first step)."""
    self._compute_ids, self._names, self._caches = compute_ids, names, caches
    # Batches, schedules and first steps whose ids are not asked for.
    self._batches: collections.deque = collections.deque()
    self._computing: Block | None = None
    self._blocks: collections.deque[Block] = collections.deque()
    self.first = 0  # step of the next stretch
    self.last_batch: Any = None

  def append(self, batch: Any, schedule: base.Schedule) -> None:
    """Adds a dispatch, unless it was the last that was added."""
    if batch is not self.last_batch:
      self._batches.append((batch, schedule, 0))
      self.last_batch = batch

  @property
  def block(self) -> Block:
    """The block of the next stretch, after `look`."""
    return self._blocks[0]

  def look(self, constants: Any) -> None:
    """Has caches foresee as many steps as are known, or enough."""
    self._compute_next(constants)
    while self._computing and (
      not self._blocks or self._blocks[-1].stop - self.first < _LOOK_AHEAD
    ):
      block, self._computing = self._computing.on_host(self._names), None
      self._blocks.append(block)
      for cache in self._caches:
        ids = (block.ids[name] for name in cache.names)
        cache.foresee(list(zip(*ids, strict=True)))
      if block.stop < block.count:
        self._batches.appendleft((block.batch, block.schedule, block.stop))
      self._compute_next(constants)

  def _compute_next(self, constants):
    """Has ids of the next steps computed, while others are used."""
    if self._computing is None and self._batches:
      batch, schedule, first = self._batches.popleft()
      computed = self._compute_ids(constants, batch, schedule, np.int32(first))
      self._computing = Block(
        batch=batch, schedule=schedule, first=first, computed=computed
      )

  def advance(self, num_steps: int) -> None:
    """Goes on behind a stretch of so many steps."""
    block, self.first = self.block, self.first + num_steps
    if self.first == block.stop:
      self._blocks.popleft()
      if self.first == block.count:
        self.first = 0
