"""The variants of `windows.cu`: macros, threads and shared memory of each."""

import dataclasses
import pathlib

SOURCE = pathlib.Path(__file__).parent / 'windows.cu'
MODELS = 'skipgram', 'cbow', 'hierarchical'
MOST_AROUND = 64  # tokens of a chunk, each a bit of a word
_MOST_CHUNK = 32  # centers, each of a lane
_MOST_WARPS, _FEW_WARPS = 20, 16
_LEAST_WARPS = 4
_UNIT = 16  # columns, or rows, of a product


def _padded(number: int, multiple: int) -> int:
  return -(-number // multiple) * multiple


@dataclasses.dataclass(frozen=True)
class Variant:
  """One compiled form of the kernel."""

  model: str  # of `MODELS`
  dim: int
  chunk: int  # centers; of hierarchical softmax 1
  window: int
  dtype: str = 'float32'  # or 'bfloat16'
  stochastic: bool = False  # rounding
  adagrad: bool = False
  limited: bool = False  # how often a row counts in a chunk
  draws: int = 1  # N
  averages: bool = False  # hierarchical softmax of means
  firsts: int = 1  # the longest path of first nodes, and of others
  deep: int = 1

  @property
  def is_tree(self) -> bool:
    """Whether outputs are nodes of a tree."""
    return self.model == 'hierarchical'

  @property
  def _units(self) -> int:
    return -(-self.dim // _UNIT)

  @property
  def warps(self) -> int:
    """Warps of a block, which have as many columns each as can be."""
    if 2 * self._units <= _FEW_WARPS:
      return max(_LEAST_WARPS, 2 * self._units)
    turns = -(-self._units // _MOST_WARPS)
    return max(_LEAST_WARPS, -(-self._units // turns))

  @property
  def threads(self) -> int:
    """Threads of a block."""
    return 32 * self.warps

  def macros(self) -> dict[str, int]:
    """Returns what the source is compiled with, by name."""
    return {
      'MODEL': MODELS.index(self.model),
      'AVERAGES': int(self.averages),
      'DIM': self.dim,
      'CHUNK': self.chunk,
      'WINDOW': self.window,
      'DRAWS': self.draws,
      'FIRSTS': self.firsts,
      'DEEP': self.deep,
      'WARPS': self.warps,
      'BFLOAT16': int(self.dtype == 'bfloat16'),
      'STOCHASTIC': int(self.stochastic),
      'ADAGRAD': int(self.adagrad),
      'LIMITED': int(self.limited),
    }

  @property
  def shared_bytes(self) -> int:
    """Shared memory of a block: `Shared` in the source, which says what for."""
    around = self.chunk + 2 * self.window
    means = self.model == 'cbow' or self.averages
    inputs = self.chunk if self.model == 'skipgram' else around
    targets = around if self.model == 'skipgram' else self.chunk
    outputs = targets + self.draws
    if self.is_tree:
      outputs = self.firsts + self.deep
    left = around if self.is_tree and not means else self.chunk
    left, right = _padded(left, _UNIT), _padded(outputs, _UNIT)
    rows, stride = inputs + outputs, _padded(self.dim, _UNIT) + 8
    num_rows = _padded(inputs, _UNIT) + right
    has_changes = self.adagrad or self.warps >= 2 * self._units
    num_rows += left * (1 + has_changes) if means else 0
    total = 4 * (num_rows * stride + right * (left + 4))
    total += 4 * (means and not has_changes)
    chunk = _padded(12 * rows, 8) + 8 * self.chunk + _padded(4 * self.chunk, 8)
    chunk = _padded(chunk + 12, 16) + 4 * left * (right + 4)
    chunk += 8 * rows * (self.dtype == 'bfloat16') + 4 * rows * self.adagrad
    total = _padded(total, 16) + 2 * _padded(chunk, 16)
    if self.adagrad:
      total += 4 * rows * (self._units + 2)
    return _padded(total, 16)

  def refusal(self, shared_bytes: int) -> str:
    """Returns why a device with so much shared memory has no kernel, or ''."""
    if self.chunk > _MOST_CHUNK or self.chunk + 2 * self.window > MOST_AROUND:
      return (
        f'chunks of {self.chunk} centers with windows of {self.window} have '
        f'more than {MOST_AROUND} tokens'
      )
    if self.dtype == 'bfloat16' and self.dim % 2:
      return f'bfloat16 rows of an odd dim, {self.dim}'
    if self.shared_bytes > shared_bytes:
      return (
        f'{self.shared_bytes:,} bytes of shared memory for a chunk of rows, '
        f'and the device has {shared_bytes:,}'
      )
    return ''
