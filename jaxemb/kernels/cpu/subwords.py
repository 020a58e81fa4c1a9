"""Words that are sums or means of their input row and rows of n-grams.

A chunk's words are composed once, in its buffers; what they learn is added to
all of their rows (`models.subwords`). Threads have copies of rows of frequent
n-grams (`rows.LocalRows`), which all of them would change all the time.
"""

from typing import NamedTuple

import numba
import numpy as np

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import arguments, rows, tiles, turns

# Rows of n-grams of which a thread has copies: so many at most, and one for 5
# centers of a call. With two cores that share no cache 2.6 us of CPU a center
# become 1.8.
_LOCAL_ROWS, _LOCAL_CENTERS = 4096, 5


class Words(NamedTuple):
  """Both tables that words have rows in, and buffers for a chunk."""

  inputs: rows.Table
  ngrams: rows.Table
  starts: np.ndarray  # [vocab + 2] int32, of each word in `rows`
  rows: np.ndarray  # int32, of its n-grams
  # Of all rows of the words of a chunk, one word behind the other:
  addresses: np.ndarray  # uint64
  rates: np.ndarray  # float32
  owners: np.ndarray  # int32, of n-grams, number of the word in the chunk
  awaited: np.ndarray  # rows of the next chunk, as of `rows.await_rows`
  local: rows.LocalRows  # of n-grams
  merge_uses: int  # of a copy, before it is merged


class Bags(NamedTuple):
  """The n-grams of the words of a chunk, one word behind the other."""

  firsts: np.ndarray  # [words + 1] int64, of each word in `ids`
  ids: np.ndarray  # int32, rows


def local_rows(num_centers: int) -> int:
  """Returns the rows that a thread of so many centers has copies of."""
  return min(_LOCAL_ROWS, num_centers // _LOCAL_CENTERS)


def num_scratch(num_words: int, longest: int, num_local: int, dim: int) -> int:
  """Returns floats for the words of a chunk, of at most `longest` n-grams.

  And for copies of `num_local` rows of n-grams.
  """
  num = num_words * (longest + 1)
  of_copies = num_local * (2 * (dim + tiles.LANES) + 2)
  # Addresses here and awaited, rates, owners, and ids of two chunks, which
  # take eight bytes each (`rows.take_vector`).
  return (12 * num + 4 * num_words + of_copies + 576) // 16 * 16


@numba.njit(**rows.INLINE)
def take(frame, kind, scratch, inputs, num_words):
  """`Words`, two `Bags`, and the address after them."""
  integers = ffi.vector(frame, ffi.ARGUMENTS, arguments.INTEGERS, np.int32)
  longest, num_local = np.int64(integers[12]), np.int64(integers[11])
  num_ids = num_words * longest
  num_rows = num_ids + num_words
  addresses, rest = rows.take_vector(scratch, num_rows, np.uint64)
  awaited, rest = rows.take_vector(rest, num_ids + 2, np.uint64)
  rates, rest = rows.take_vector(rest, num_rows, np.float32)
  owners, rest = rows.take_vector(rest, num_ids, np.int32)
  firsts, rest = rows.take_vector(rest, num_words + 1, np.int64)
  ids, rest = rows.take_vector(rest, num_ids, np.int32)
  later_firsts, rest = rows.take_vector(rest, num_words + 1, np.int64)
  later_ids, rest = rows.take_vector(rest, num_ids, np.int32)
  ngrams = arguments.table(frame, arguments.NGRAMS, kind)
  num_local = min(num_local, ngrams.vectors.shape[0])
  local, rest = rows.take_local(rest, num_local, ngrams.vectors.shape[1])
  words = Words(
    inputs,
    ngrams,
    ffi.vector(frame, ffi.ARGUMENTS, arguments.MORE + 1, np.int32),
    ffi.vector(frame, ffi.ARGUMENTS, arguments.MORE + 2, np.int32),
    addresses,
    rates,
    owners,
    awaited,
    local,
    np.int64(integers[10]),
  )
  return words, Bags(firsts, ids), Bags(later_firsts, later_ids), rest


@numba.njit(**rows.INLINE)
def begin(words, is_last, result):
  """Begins a turn; merges copies of rows in the last one, of no chunks."""
  if words.local.uses.size:
    if is_last:
      rows.merge_local(words.ngrams.vectors, words.local)
    else:
      turns.keep_open(result)


@numba.njit(**rows.JIT)
def _find(starts, ngrams, tokens, first, num, firsts, ids):
  vocab, total = starts.size - 2, 0
  for j in range(num):
    firsts[j] = total
    token = tokens[first + j]
    if token < vocab:
      for k in range(starts[token], starts[token + 1]):
        ids[total] = ngrams[k]
        total += 1
  for j in range(num, firsts.size):
    firsts[j] = total


@numba.njit(**rows.INLINE)
def find(words, tokens, first, num, bags):
  """Takes the n-grams of `num` tokens from `first` on."""
  _find(words.starts, words.rows, tokens, first, num, bags.firsts, bags.ids)


@numba.njit(**rows.INLINE)
def await_bags(words, bags, first):
  """Awaits rows of the n-grams of words from `first` on."""
  start, stop = bags.firsts[first], bags.firsts[bags.firsts.size - 1]
  _await(
    words.ngrams.vectors, words.local, words.merge_uses, bags.ids[start:stop],
    words.awaited,
  )  # fmt: skip


@numba.njit(**rows.JIT)
def _await(table, local, merge_uses, ids, out):
  """As `rows.await_rows`, from out[2] on, or of copies that will be used."""
  start, size = np.uint64(table.ctypes.data), np.uint64(table.strides[0])
  local_start = np.uint64(local.values.ctypes.data)
  local_size = np.uint64(local.values.strides[0])
  for k in range(ids.size):
    id_ = np.uint64(ids[k])
    address = start + id_ * size
    if ids[k] < local.uses.size and 0 < local.uses[id_] < merge_uses:
      address = local_start + id_ * local_size
    out[2 + k] = address
  out[0], out[1] = ids.size, size


@numba.njit(**rows.JIT)
def _locate(
  inputs, ngrams, ids, firsts, bag_ids, local, merge_uses, addresses
):  # fmt: skip
  """Writes addresses of all rows of words, of which padding has none.

  Those of rows of n-grams may be of copies.
  """
  start, size = np.uint64(inputs.ctypes.data), np.uint64(inputs.strides[0])
  ngrams_start = np.uint64(ngrams.ctypes.data)
  for j in range(ids.size):
    addresses[firsts[j] + j] = start + np.uint64(ids[j]) * size
    for k in range(firsts[j], firsts[j + 1]):
      id_ = bag_ids[k]
      address = ngrams_start + np.uint64(id_) * size
      if id_ < local.uses.size:
        address = rows.use_local(ngrams, id_, merge_uses, local, address)
      addresses[k + j + 1] = address


@numba.njit(**rows.JIT)
def _add_widened(stored, out):
  for k in range(stored.size):
    out[k] += rows.widened(stored[k])


@numba.njit(**rows.JIT)
def _compose(
  inputs, ngrams, ids, bags, local, merge_uses, addresses, awaited, is_mean,
  values,
):  # fmt: skip
  firsts, bag_ids = bags
  if inputs.itemsize == 4:
    _locate(inputs, ngrams, ids, firsts, bag_ids, local, merge_uses, addresses)
  for j in range(ids.size):
    num, row = firsts[j + 1] - firsts[j], values[j]
    if ids[j] >= inputs.shape[0]:
      for k in range(row.size):
        row[k] = 0
      continue
    scale = np.float32(1) / np.float32(num + 1) if is_mean else np.float32(1)
    if inputs.itemsize == 4:
      tiles.sum_rows(
        addresses, firsts[j] + j, num + 1, scale, np.uintp(row.ctypes.data),
        inputs.shape[1],
      )  # fmt: skip
    else:
      for k in range(row.size):
        row[k] = 0
      _add_widened(inputs[ids[j]], row)
      for k in range(firsts[j], firsts[j + 1]):
        _add_widened(ngrams[bag_ids[k]], row)
      for k in range(row.size):
        row[k] *= scale
    # While rows are summed, as many as that.
    rows.prefetch_some(awaited, num)


@numba.njit(**rows.INLINE)
def compose(words, chunk, bags, is_mean):
  """Writes the means, or sums, of the rows of words to a chunk's `Rows`.

  Rows that are awaited are asked for meanwhile.
  """
  _compose(
    words.inputs.vectors, words.ngrams.vectors, chunk.ids, bags, words.local,
    words.merge_uses, words.addresses, words.awaited, is_mean, chunk.values,
  )  # fmt: skip
  rows.prefetch_some(words.awaited, words.awaited.size)


@numba.njit(**rows.INLINE)
def clear_gradients(chunk):
  """Clears the buffers that gradients of words are added up in."""
  rows.clear(chunk.grads, chunk.ids.size)


@numba.njit(**rows.JIT)
def _set_rates(inputs, ngrams, ids, bags, out):
  """Writes by what gradients of all rows are multiplied."""
  firsts, bag_ids = bags
  bag_ids = bag_ids[: firsts[ids.size]]
  rate, duplicates, brakes = inputs
  ngrams_rate, ngrams_duplicates, ngrams_brakes = ngrams
  for j in range(ids.size):
    out[firsts[j] + j] = rows.rate(rate, duplicates, brakes, ids, j)
    for k in range(firsts[j], firsts[j + 1]):
      out[k + j + 1] = rows.rate(
        ngrams_rate, ngrams_duplicates, ngrams_brakes, bag_ids, k
      )


@numba.njit(**rows.JIT)
def _add(ids, vocab, firsts, grads, addresses, rates, dim):
  for j in range(ids.size):
    if ids[j] < vocab:
      num = firsts[j + 1] - firsts[j] + 1
      source = np.uintp(grads[j].ctypes.data)
      tiles.add_to_rows(source, addresses, rates, firsts[j] + j, num, dim)


@numba.njit(**rows.JIT)
def _set_owners(firsts, num_words, owners):
  for j in range(num_words):
    for k in range(firsts[j], firsts[j + 1]):
      owners[k] = j


@numba.njit(**rows.INLINE)
def descend(words, chunk, bags, number):
  """Changes all rows of words by the gradients that were added up for these.

  `number` tells changes of a call apart.
  """
  inputs, ngrams, ids = words.inputs, words.ngrams, chunk.ids
  if inputs.descent:
    rows.descend(inputs, chunk, ids, number)
    _set_owners(bags.firsts, ids.size, words.owners)
    rows.descend_by(
      ngrams, chunk, bags.ids, bags.firsts[ids.size], number, words.owners
    )
  else:
    _set_rates(
      (inputs.learning_rate, inputs.parameter, inputs.brakes),
      (ngrams.learning_rate, ngrams.parameter, ngrams.brakes),
      ids,
      bags,
      words.rates,
    )
    _add(
      ids, inputs.vectors.shape[0], bags.firsts, chunk.grads, words.addresses,
      words.rates, inputs.vectors.shape[1],
    )  # fmt: skip


@numba.njit(**rows.JIT)
def set_fractions(left, right, window, ids, vocab, firsts, scale, has_context):
  """Writes what each row of a center's contexts is of their mean.

  And whether there is a context.
  """
  for x in range(left.size):
    total = 0
    for y in range(window + x - left[x], window + x + right[x] + 1):
      if y != window + x and ids[y] < vocab:
        total += 1 + firsts[y + 1] - firsts[y]
    scale[x] = np.float32(1) / np.float32(max(total, 1))
    has_context[x] = np.float32(np.int64(left[x]) + np.int64(right[x]) > 0)


@numba.njit(**rows.JIT)
def count_once(scale):
  """Sets the scale of contexts to 1: rows get all of a mean's gradient."""
  for x in range(scale.size):
    scale[x] = 1
