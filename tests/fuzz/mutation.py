"""Changes to inputs that parsers are known to trip over.

Bytes, numbers in text and in binary, pieces that are repeated, moved, dropped
or taken from another input, and ends that are cut off.
"""

import random
import re
import struct
from collections.abc import Sequence

MAX_BYTES = 1 << 16
_NUM_CHANGES = 1, 1, 1, 2, 4
_NUMBER = re.compile(rb'[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?')
_TEXT_NUMBERS = (
  b'0', b'-1', b'1', b'255', b'256', b'65536', b'2147483647', b'2147483648',
  b'-2147483649', b'4294967295', b'9223372036854775807',
  b'9223372036854775808', b'18446744073709551616', b'1e400', b'-1e400', b'nan',
  b'inf', b'1e-400', b'1_000', b'0x10', b'.5', b'1,5', b'9' * 400, b'',
  b'1' * 5000,
)  # fmt: skip
_BINARY_NUMBERS = (
  0, 1, -1, 2, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF,
  -0x80000000, 1 << 31, 1 << 32, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
_TOKENS = (
  b'\0', b'\n', b'\r', b'\r\n', b'\t', b' ', b'  ', b',', b';', b'"', b"'",
  b'{', b'}', b'[', b']', b':', b'null', b'true', b'{}', b'[]', b'""', b'<',
  b'>', b'&', b'#', b'%', b'\\', b'\xff', b'\xef\xbb\xbf', b'\xff\xfe',
  b'\xc3', b'\xed\xa0\x80', '\u2028'.encode(), '\u3000'.encode(), b'\x1a',
  b'\x7f', b'\x1f\x8b\x08', b'BZh9', b'\xfd7zXZ\0', b'\x28\xb5\x2f\xfd',
  b'PK\x03\x04', b'[' * 5000, b'{"a":' * 5000,
)  # fmt: skip


def mutated(
  data: bytes,
  random_state: random.Random,
  others: Sequence[bytes] = (),
  max_bytes: int = MAX_BYTES,
) -> bytes:
  """Returns an input with one to four changes, or a few bytes of it."""
  for _ in range(random_state.choice(_NUM_CHANGES)):
    change = random_state.choice(_CHANGES)
    data = change(data, random_state, others)[:max_bytes]
  return data


def _position(data, random_state):
  return random_state.randint(0, len(data))


def _stretch(data, random_state):
  """Returns the bounds of a piece, mostly a short one."""
  start = _position(data, random_state)
  most = random_state.choice((1, 4, 16, 256, len(data)))
  return start, min(len(data), start + random_state.randint(0, most))


def _flip(data, random_state, _):
  if not data:
    return data
  changed = bytearray(data)
  changed[random_state.randrange(len(data))] ^= 1 << random_state.randrange(8)
  return bytes(changed)


def _set_byte(data, random_state, _):
  start = _position(data, random_state)
  return data[:start] + random_state.randbytes(1) + data[start + 1 :]


def _drop(data, random_state, _):
  start, stop = _stretch(data, random_state)
  return data[:start] + data[stop:]


def _cut(data, random_state, _):
  return data[: _position(data, random_state)]


def _repeat(data, random_state, _):
  start, stop = _stretch(data, random_state)
  times = random_state.choice((2, 2, 3, 64))
  return data[:start] + data[start:stop] * times + data[stop:]


def _move(data, random_state, _):
  start, stop = _stretch(data, random_state)
  piece, rest = data[start:stop], data[:start] + data[stop:]
  place = _position(rest, random_state)
  return rest[:place] + piece + rest[place:]


def _insert_token(data, random_state, _):
  start = _position(data, random_state)
  stop = start + random_state.choice((0, 1))
  return data[:start] + random_state.choice(_TOKENS) + data[stop:]


def _insert_bytes(data, random_state, _):
  start = _position(data, random_state)
  return data[:start] + random_state.randbytes(8) + data[start:]


def _set_text_number(data, random_state, _):
  """Replaces a number that stands in text."""
  numbers = [*_NUMBER.finditer(data)]
  if not numbers:
    return data
  # Those of headers matter more than those of many rows.
  chosen = random_state.choice((numbers, numbers[:4]))
  start, stop = random_state.choice(chosen).span()
  return data[:start] + random_state.choice(_TEXT_NUMBERS) + data[stop:]


def _set_binary_number(data, random_state, _):
  """Replaces bytes by a number of 1 to 8 bytes, mostly a little-endian one."""
  size = random_state.choice((1, 2, 4, 8))
  start = random_state.choice((_position(data, random_state), 0, 4, 8, 16))
  number = random_state.choice(_BINARY_NUMBERS) & ((1 << 8 * size) - 1)
  order = random_state.choice(('little', 'little', 'big'))
  return data[:start] + number.to_bytes(size, order) + data[start + size :]


def _set_float(data, random_state, _):
  start = _position(data, random_state) & ~3
  value = random_state.choice((float('nan'), float('inf'), 3e38, 1e-45, -0.0))
  return data[:start] + struct.pack('<f', value) + data[start + 4 :]


def _splice(data, random_state, others):
  """Replaces a piece by one of another input."""
  if not others:
    return data
  other = random_state.choice(others)
  start, stop = _stretch(data, random_state)
  first, last = _stretch(other, random_state)
  return data[:start] + other[first:last] + data[stop:]


_CHANGES = (
  _flip, _set_byte, _drop, _cut, _repeat, _move, _insert_token, _insert_bytes,
  _set_text_number, _set_text_number, _set_binary_number, _set_binary_number,
  _set_float, _splice, _splice,
)  # fmt: skip
