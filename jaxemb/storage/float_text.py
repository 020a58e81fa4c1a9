"""The shortest decimals of float32 numbers, compiled.

As NumPy's `str` of a float32: the fewest digits that round back to the same
number, and of those the closest. Rounding to 9 digits always comes back; fewer
are tried while they do. Powers of ten up to 1e22 and integers below 2**53 are
exact in float64, so that digits / power is rounded once, just as a reader
rounds the text. Numbers beyond that range are left to NumPy.
"""

import numba
import numpy as np

_MAX_CHARS = 24
_MAX_DIGITS = 9
_MIN_VALUE = 1e-13
_MAX_VALUE = 1e6
_MINUS, _PLUS, _POINT, _ZERO, _EXPONENT, _SPACE, _NEWLINE = b'-+.0e \n'
_POWERS = 10.0 ** np.arange(23)


def format_rows(block: np.ndarray) -> list[bytes]:
  """Each row as its numbers separated by spaces, ended by a newline.

  Args:
    block: [rows, dim] float32.

  Returns:
    [rows] lines.
  """
  block = np.ascontiguousarray(block, np.float32)
  if not block.size:
    return [b'\n'] * len(block)
  chars = np.empty((len(block), block.shape[1] * _MAX_CHARS), np.uint8)
  ends = _format_block(block, chars, _POWERS)
  data, width = chars.tobytes(), chars.shape[1]
  return [
    data[i * width : i * width + end] if end else _format_slowly(block[i])
    for i, end in enumerate(ends.tolist())
  ]


def _format_slowly(row: np.ndarray) -> bytes:
  return b'%b\n' % ' '.join(map(str, row)).encode()


@numba.njit(nogil=True, cache=True)
def _format_block(block, chars, powers):
  """Fills `chars`; [rows] ends, 0 where a number is out of range."""
  ends = np.zeros(len(block), np.int64)
  for i in range(len(block)):
    end = 0
    for j in range(block.shape[1]):
      value = np.float64(abs(block[i, j]))
      if value != 0 and not _MIN_VALUE <= value < _MAX_VALUE:
        end = 0
        break
      if np.signbit(block[i, j]):
        chars[i, end] = _MINUS
        end += 1
      end = _put_number(chars[i], end, value, powers)
      chars[i, end] = _SPACE
      end += 1
    if end:
      chars[i, end - 1] = _NEWLINE
    ends[i] = end
  return ends


@numba.njit(nogil=True, cache=True)
def _put_number(line, end, value, powers):
  digits, num_digits, exponent = _shortest(value, powers)
  if value != 0 and value < 1e-4:
    end = _put_digits(line, end, digits, num_digits, 0)
    line[end] = _EXPONENT
    line[end + 1] = _MINUS
    line[end + 2] = _ZERO + -exponent // 10
    line[end + 3] = _ZERO + -exponent % 10
    return end + 4
  if exponent < 0:
    line[end] = _ZERO
    line[end + 1] = _POINT
    end += 2
    for _ in range(-exponent - 1):
      line[end] = _ZERO
      end += 1
    return _put_digits(line, end, digits, num_digits, num_digits)
  while num_digits < exponent + 2:
    digits *= 10
    num_digits += 1
  return _put_digits(line, end, digits, num_digits, exponent)


@numba.njit(nogil=True, cache=True)
def _put_digits(line, end, digits, num_digits, point):
  """Writes digits, with a point behind the digit `point` if more follow."""
  has_point = point < num_digits - 1
  last = end + num_digits + has_point
  position = last - 1
  for i in range(num_digits - 1, -1, -1):
    line[position] = _ZERO + digits % 10
    digits //= 10
    position -= 1
    if has_point and i == point + 1:
      line[position] = _POINT
      position -= 1
  return last


@numba.njit(nogil=True, cache=True)
def _shortest(value, powers):
  """Digits, their number, and the decimal exponent of the first digit."""
  if value == 0:
    return 0, 1, 0
  exponent = np.int64(np.floor(np.log10(value)))
  best = np.int64(0)
  num_best = 0
  for num_digits in range(_MAX_DIGITS, 0, -1):
    scale = num_digits - 1 - exponent
    if scale >= 0:
      digits = np.rint(value * powers[scale])
      back = digits / powers[scale]
    else:
      digits = np.rint(value / powers[-scale])
      back = digits * powers[-scale]
    if np.float32(back) != np.float32(value):
      break
    best, num_best = np.int64(digits), num_digits
  # Rounding up, or the logarithm, may have put one digit more in front.
  if best >= powers[num_best]:
    exponent += 1
    num_best += 1
  while num_best > 1 and best % 10 == 0:
    best //= 10
    num_best -= 1
  return best, num_best, exponent
