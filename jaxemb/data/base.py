"""What a source of training data is to the loop and to a strategy.

`Source.items` yields one `Item` for each dispatch, a pure function of the
position: a run that was killed repeats exactly what it lost. On the device,
`Steps` cuts its batch into steps. Neither loop nor strategy looks into a batch.
"""

import collections
import math
import pathlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from jaxemb import errors

_T = TypeVar('_T')
Array = np.ndarray | jax.Array  # of a batch, on the host or in a program


def held_out(text: str, refusal: str) -> tuple[float, bool] | None:
  """Parses '0.1' or 'last:0.1' into (fraction, whether of the last ones).

  Returns None for other text, a path. Raises a `UserError` with the `refusal`
  for a fraction that is not between 0 and 1.
  """
  try:
    fraction = float(text.removeprefix('last:'))
  except ValueError:
    return None
  if not 0 < fraction < 1:
    raise errors.UserError(refusal)
  return fraction, text.startswith('last:')


class Share(NamedTuple):
  """Which of a step's examples a device takes: a split of some parts each."""

  before: jax.Array | int  # parts of the data before those in its batch
  first_part: jax.Array | int  # of those in its batch
  num_parts: int
  split: jax.Array | int  # which of `num_splits` equal ones
  num_splits: int


def share(
  num_parts: int, num_devices: int, before: jax.Array, device: jax.Array
) -> Share:
  """Returns the share of one of the devices that have a batch of `num_parts`.

  int32 `before` is the number of parts of the data before those of the batch.
  """
  # Whole parts as far as they go, then splits of them.
  groups = math.gcd(num_parts, num_devices)
  parts_per_group, splits = num_parts // groups, num_devices // groups
  return Share(
    before=before,
    first_part=parts_per_group * (device // splits),
    num_parts=parts_per_group,
    split=device % splits,
    num_splits=splits,
  )


class Steps(Protocol):
  """Cuts batches into steps, inside a compiled program; hashable."""

  def num_steps(self, batch: Any) -> Array:
    """Returns [P] int32, steps of each part; the rest of a batch is padding."""

  def step(
    self, batch: Any, index: jax.Array, share: Share, progress: jax.Array
  ) -> Any:
    """Returns what a model gets: a device's share of step int32 `index`.

    The leaves of the batch are [P, ...], of an item or a device's parts of it;
    float32 `progress` is the fraction of training done.
    """

  def pad(self, step_batch: Any, is_step: jax.Array) -> Any:
    """Returns padding, which changes no row, unless `is_step`."""

  def counters(self, batch: Any) -> Mapping[str, jax.Array]:
    """Returns int32 counts for the report, summed over the batch."""


class PreparingSteps(Steps, Protocol):
  """Steps of items that hold what batches are made of."""

  def prepare(self, batch: Any) -> Any:
    """Returns the batch that the other methods get, made once a dispatch."""


class Readers(NamedTuple):
  """The processes that read the data together, seen from one of them."""

  local_parts: range  # of the data, read by this process
  process: int
  num_processes: int
  # The bytes that each process passes, by process; all take part.
  gather: Callable[[bytes], list[bytes]]


ALONE = Readers(
  local_parts=range(1), process=0, num_processes=1, gather=lambda data: [data]
)


class Known(NamedTuple):
  """What a run had keys for, from which training goes on with new data.

  The run may be a model of fastText.
  """

  path: str  # of the run
  keys: Sequence[str]
  counts: np.ndarray  # [keys] int64, how often it saw each
  fingerprint: str  # of keys, counts and vectors
  contexts: Sequence[str] = ()  # what it had further rows for, such as users
  folder: pathlib.Path = pathlib.Path()  # of its export; or the model's file
  # `ops.huffman.Links` of its tree, if it has one.
  tree: tuple[np.ndarray, np.ndarray] | None = None


class SourceSpec(NamedTuple):
  """What a source is made from; what `path` means is up to the source."""

  path: str
  seed: int
  epochs: int
  num_parts: int  # P, parts of the data that are read side by side
  part_words: int  # L', examples of each part in a step
  window: int  # W
  chunk: int  # c, examples that share draws
  shortest_window: int  # windows are drawn from this one up
  settings: Mapping[str, Any]  # all of `config.data`
  readers: Readers
  cache: pathlib.Path  # for what is fetched or encoded
  # (stage, done, total): called now and then
  progress: Callable[[str, int, int], None]
  # Units of a batch that a device makes (`data.packing`), over all parts; 0 =
  # the host makes batches.
  device_words: int = 0
  # Epochs that such a batch may have: evaluations run between two.
  batch_epochs: float = 1.0
  # Keys that the source has whatever the data; its `counts` include these.
  known: Known | None = None
  has_windows: bool = True  # whether the model reads them


class Item(NamedTuple):
  """One dispatch: a batch and what the loop needs to know about it."""

  # Pytree of arrays [P, ...], one entry for each part of the data. A read-only
  # one that is that of the item before as well is copied to devices once.
  batch: Any
  # Grows over all epochs.
  index: int  # type: ignore[assignment]  # hides tuple.index, which none calls
  position: Any  # JSON-ready; where reading goes on behind this batch
  done_before: int  # units of progress, such as corpus words
  done_after: int
  # Of these, those in parts that this process reads; None = all.
  own: int | None = None
  part: int = 0  # of the data, the first one in the batch

  @property
  def own_units(self) -> int:
    """Returns the units of progress in parts that this process reads."""
    return self.done_after - self.done_before if self.own is None else self.own


class Source(Protocol):
  """A source of training data."""

  @property
  def unit(self) -> str:
    """Returns the unit of progress, such as 'words'."""

  @property
  def units_per_epoch(self) -> float:
    """Returns the number of units per epoch, or its mean if epochs differ."""

  @property
  def epochs(self) -> int:
    """Returns the number of epochs."""

  @property
  def num_parts(self) -> int:
    """Returns the number of parts of the data that are read in parallel."""

  @property
  def steps(self) -> Steps:
    """Returns the object that cuts batches into steps."""

  @property
  def keys(self) -> Sequence[str]:
    """Returns the names of the exported vectors, in the order of ids."""

  @property
  def counts(self) -> np.ndarray:
    """Returns the count of each key, [keys] int."""

  @property
  def frequencies(self) -> np.ndarray:
    """Returns, for each key, the probability that an example has it, [keys]."""

  @property
  def fingerprint(self) -> str:
    """Returns a fingerprint of the data and of its encoding."""

  @property
  def dropped(self) -> Mapping[str, Any]:
    """Returns counts of data that were left out, by reason."""

  def eval_paths(self) -> Sequence[str]:
    """Returns paths of benchmarks to use if `config.eval.paths` is empty."""

  def describe(self) -> Sequence[str]:
    """Returns lines for the log that describe the data."""

  def items(self, position: Any, done: int) -> Iterator[Item]:
    """Yields an `Item` per dispatch, from a position to the end of training.

    An `Item` has a batch, its position and the progress before and after it.

    Args:
      position: an `Item.position`; None = the start.
      done: units of progress before this position.
    """


class MoreOfSource(Protocol):
  """What a source may have beside, which is looked for by name."""

  # What was read of which files, for log and report: `io.roles.Input`s.
  inputs: Sequence[Any]

  # The contexts, in order of rows, where these are not keys; and of words of
  # documents, which negatives are drawn from, the chance of each.
  context_keys: Sequence[str]
  word_frequencies: np.ndarray | None

  # Of a run that is continued: of the counts [keys] those in its own data, and
  # how often each of `context_keys` was there.
  earlier: np.ndarray | None
  earlier_contexts: np.ndarray | None

  # Where devices make batches: (bytes, whether devices share the memory of the
  # process) -> bytes that the data, which all later items hold, take in device
  # memory, no more than those, or shared; 0 = it is not held.
  reside: Callable[[int, bool], int] | None

  # Where the source holds data out: (vectors, contexts) -> scores by name, with
  # the options of its kind of data.
  evaluate: Callable[..., Mapping[str, Mapping[str, Any]]] | None


def scored_splits(held: Mapping[str, Any], is_last: bool) -> dict[str, Any]:
  """What is scored of splits that are held out.

  While training goes on that is the validation split alone, if there is one.
  """
  names = held if is_last or 'valid' not in held else ('valid',)
  return {name: held[name] for name in names}


def prefetch(items: Iterator[_T], depth: int = 2) -> Generator[_T, None, None]:
  """Computes items, none of them None, in a thread, `depth` ahead of use.

  It begins at once; close the generator, even if it was not used.
  """
  ahead = _computed_ahead(items, depth)
  next(ahead)
  return ahead


def _computed_ahead(
  items: Iterator[Any], depth: int
) -> Generator[Any, None, None]:
  pool = futures.ThreadPoolExecutor(1, 'prefetch')
  try:
    waiting = collections.deque(
      pool.submit(next, items, None) for _ in range(depth)
    )
    yield  # the thread has begun
    while (item := waiting.popleft().result()) is not None:
      waiting.append(pool.submit(next, items, None))
      yield item
  finally:
    pool.shutdown(cancel_futures=True)
