"""A process that compiles a kernel while JAX is imported and the text is read.

numba compiles one function at a time in each process. As neither JAX nor numba
is needed here, that process can start before all else.
"""

import functools
import importlib.metadata
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxemb.kernels import sources
from jaxemb.runtime import background

# Models of which another kernel takes steps, where nothing but itself has to
# change rows.
PARAGRAPHS = 'dbow', 'dm'


class Choice(NamedTuple):
  """What chooses a kernel: names in the settings."""

  model: str
  loss: str
  dtype: str  # of the tables
  optimizer: str
  has_subwords: bool

  @property
  def kernel(self) -> str:
    """The name of the kernel, without the type of its tables."""
    if self.loss == 'hierarchical_softmax':
      return 'hierarchical'
    return self.model + '_subwords' * self.has_subwords


def choice_of(config: Any) -> Choice:
  """Returns what of all settings, as attributes, chooses a kernel."""
  return Choice(
    model=config.model.name,
    loss=config.model.loss,
    dtype=config.table.dtype,
    optimizer=config.optimizer.name,
    has_subwords=bool(config.model.subwords),
  )


def takes_steps(choice: Choice) -> bool:
  """Whether a kernel takes whole steps; XLA does for a user's own loss."""
  is_plain = not needs_descent(choice.dtype, choice.optimizer)
  if choice.model in PARAGRAPHS:
    return choice.loss == 'negative_sampling' and is_plain
  return (
    choice.model in ('skipgram', 'cbow')
    and choice.loss in ('negative_sampling', 'hierarchical_softmax')
    and choice.dtype in ('float32', 'bfloat16')
    and choice.optimizer in ('sgd', 'adagrad')
  )


@functools.cache
def source() -> str:
  """Returns a digest of the source of kernels, of the compiler and the CPU."""
  folder = pathlib.Path(__file__).parent
  ops = folder.parents[1] / 'ops'
  # A kernel is made of several files, of which three are not in this folder.
  others = folder.parent / 'ffi.py', ops / 'memory.py', ops / 'hashing.py'
  return sources.digest((*sorted(folder.glob('*.py')), *others))


def needs_descent(dtype: str, optimizer: str) -> bool:
  """Whether tables are changed by `descent`, rather than by a kernel itself."""
  return (dtype, optimizer) != ('float32', 'sgd')


class Compiling(NamedTuple):
  """A process that compiles functions, by name."""

  process: subprocess.Popen
  names: Sequence[str]


@functools.cache  # a later call waits for the same process
def compiling(choice: Choice, cache: pathlib.Path) -> Compiling | None:
  """Starts a process that compiles what takes steps; None = it is compiled.

  The `cache` keeps a mark of what was compiled.
  """
  kernel, dtype, optimizer = choice.kernel, choice.dtype, choice.optimizer
  names = [f'{kernel}-{dtype}', 'subsample-int32', 'pack-int32']
  if needs_descent(dtype, optimizer):
    names.insert(0, f'descent-{dtype}')
  try:
    name = f'{kernel}-{dtype}-{optimizer}-{source()[:16]}'
    mark = cache / 'programs' / name
    if mark.exists():
      return None
    return Compiling(compile(*names, mark=mark), names)
  except (OSError, importlib.metadata.PackageNotFoundError):
    return None  # the run itself compiles it, or says why it cannot


def compile(*names: str, mark: pathlib.Path | None = None) -> subprocess.Popen:
  """Starts a process that compiles functions by name, and leaves a mark."""
  return background.start(f'{__package__}.handlers', mark or '', *names)
