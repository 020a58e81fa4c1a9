"""Batches that the threads of a kernel make, against plain loops."""

import jax
import numpy as np
import pytest

from jaxemb.data import packing, sentences
from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import batches
from tests import corpora

_END, _VOCAB = sentences.END, 40
_MASK = 2**64 - 1


def _blocks(texts, num_blocks, positions, keys, highest):
  """`packing.Blocks` of texts [parts][blocks], and of none."""
  num_parts = len(texts)
  flat = [np.concatenate([*x, [_END] * 3]) for x in texts]
  ids = np.full((num_parts, max(map(len, flat))), _END, np.int32)
  starts, lengths = np.zeros((2, num_parts, num_blocks), np.int32)
  for i, blocks in enumerate(texts):
    ids[i, : len(flat[i])] = flat[i]
    lengths[i, : len(blocks)] = [len(x) for x in blocks]
    starts[i] = np.cumsum(lengths[i]) - lengths[i]
  return packing.Blocks(
    ids=ids,
    starts=starts,
    lengths=lengths,
    positions=packing.halves(positions),
    stops=np.cumsum(packing.num_groups(lengths), 1, dtype=np.int32),
    key=packing.halves(keys),
    highest_kept=np.tile(highest, (num_parts, 1)),
  )


def _centers(ids, position, key, highest, reaches):
  """[[id, left, right]] of the words of a block that are kept."""
  centers, sentence, (shortest, longest) = [], [], reaches
  for i, word in enumerate([*ids, _END]):
    if word == _END:
      last = len(sentence) - 1
      for k, (kept, reach) in enumerate(sentence):
        centers.append([kept, min(reach, k), min(reach, last - k)])
      sentence = []
      continue
    bits = corpora.splitmix64((key ^ (position + i)) & _MASK)
    if bits >> 32 <= highest[word]:
      more = (bits & 0xFFFF) * (longest + 1 - shortest) >> 16
      sentence.append((int(word), shortest + more))
  return centers


def _texts(rng, lengths):
  """Blocks of so many ids, with ends at their edges and next to each other."""
  blocks = [rng.integers(0, _VOCAB, n).astype(np.int32) for n in lengths]
  for ids in blocks:
    ids[rng.random(len(ids)) < 0.1] = _END
  for ids in blocks[::2]:
    ids[:1] = ids[-2:] = _END
  return blocks


_LENGTHS = 1, 0, 2, 31, 32, 33, 63, 0, 0, 64, 255, 256, 257, 600, 1100, 0
_HIGHEST = {
  'all': np.full(_VOCAB, 2**32 - 1, np.uint32),
  'none': np.zeros(_VOCAB, np.uint32),
  'some': np.linspace(0, 2**32 - 1, _VOCAB).astype(np.uint32),
}


@pytest.mark.parametrize('num_threads', [1, 2, 5, 12])
@pytest.mark.parametrize(
  ('num_parts', 'kept', 'reaches', 'room'),
  [
    (1, 'some', (1, 5), 5000),
    (3, 'all', (5, 5), 2703),
    (2, 'some', (3, 255), 9000),
    (2, 'none', (1, 1), 64),
  ],
)
def test_threads_pack_blocks_as_plain_loops_do(
  num_threads, num_parts, kept, reaches, room
):
  rng, num_blocks = np.random.default_rng(num_parts), len(_LENGTHS) + 2
  texts = [
    _texts(rng, rng.permutation(_LENGTHS)[: len(_LENGTHS) - 3 * i])
    for i in range(num_parts)
  ]
  shape = num_parts, num_blocks
  positions = rng.integers(0, 2**64, shape, np.uint64)
  positions[:, 0] = 2**32 - 5  # which carry
  keys = [int(x) for x in rng.integers(0, 2**64, num_parts, np.uint64)]
  made = _blocks(texts, num_blocks, positions, keys, _HIGHEST[kept])
  shortest, longest = reaches
  steps = packing.Steps(
    part_words=50,
    num_parts=num_parts,
    window=longest,
    chunk=10,
    shortest_window=shortest,
    num_groups=int(made.stops[:, -1].max()),
    num_words=room,
  )
  batch = jax.device_get(
    jax.jit(batches.steps(steps, num_threads).prepare)(made)
  )
  expected = [
    np.array(
      [
        center
        for ids, position in zip(blocks, positions[i].tolist(), strict=False)
        for center in _centers(ids, position, keys[i], _HIGHEST[kept], reaches)
      ],
      int,
    ).reshape(-1, 3)
    for i, blocks in enumerate(texts)
  ]
  assert all(len(x) <= room for x in expected)
  for i, centers in enumerate(expected):
    padded = np.pad(centers, ((0, room - len(centers)), (0, 0)))
    around = [_VOCAB] * longest
    words = [
      *around,
      *centers[:, 0],
      *[_VOCAB] * (room - len(centers)),
      *around,
    ]
    assert batch.ids[i].tolist() == words
    assert batch.left[i].tolist() == padded[:, 1].tolist()
    assert batch.right[i].tolist() == padded[:, 2].tolist()
    assert batch.kept_words[i] == len(centers)
    assert batch.num_steps[i] == -(-len(centers) // 50)
    assert batch.pairs[i] == centers[:, 1:].sum()
  assert [x.dtype for x in batch] == [
    np.int32, np.uint8, np.uint8, *[np.int32] * 3
  ]  # fmt: skip


@pytest.mark.parametrize('failing', [0, 1])
def test_a_batch_that_fails_has_no_steps(failing):
  texts = [[np.arange(30, dtype=np.int32)]]
  made = _blocks(texts, 1, [[7]], [3], _HIGHEST['all'])
  steps = packing.Steps(
    part_words=16,
    num_parts=1,
    window=2,
    chunk=1,
    shortest_window=1,
    num_groups=1,
    num_words=32,
  )
  steps = batches.steps(steps, 2)
  assert int(steps.prepare(made).num_steps[0]) == 2
  numbers = list(steps.numbers)
  numbers[failing] = ffi.MOST_FUNCTIONS - 1  # no kernel has it
  broken = batches.Steps(**{**vars(steps), 'numbers': tuple(numbers)})
  batch = broken.prepare(made)
  for name in ('num_steps', 'kept_words', 'pairs'):
    assert getattr(batch, name).tolist() == [0]
