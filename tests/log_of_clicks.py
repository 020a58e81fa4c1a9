"""What tests of clicks share: fields, and random examples."""

import types

import numpy as np

from jaxemb.data import examples
from jaxemb.models import base

# Two fields of one category, lists with a mean and a sum, two numbers.
FIELDS = examples.Fields(
  (
    examples.IdField('site', 0, 60, 0),
    examples.IdField('ad', 60, 40, 1),
    examples.IdField('words', 100, 40, 2, 3, 'mean'),
    examples.IdField('tags', 140, 20, 5, 2, 'sum'),
  ),
  ('age', 'price'),
)
_LOOKUPS = np.concatenate([np.full(x.num_ids, 1 / x.num_ids)
                           for x in FIELDS.ids])  # fmt: skip
CORPUS = base.Corpus(
  [str(i) for i in range(FIELDS.vocab)],
  np.full(FIELDS.vocab, 100),
  _LOOKUPS,
  types.SimpleNamespace(fields=FIELDS),
)


def random_ids(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
  """[..., columns] int32; lists are filled up with padding."""
  ids = np.full((*shape, FIELDS.num_columns), examples.PADDING, np.int32)
  for field in FIELDS.ids:
    here = slice(field.first_column, field.first_column + field.num_columns)
    some = rng.integers(0, field.num_ids, (*shape, field.num_columns))
    if field.pooling:
      num = rng.integers(0, field.num_columns + 1, (*shape, 1))
      is_value = np.arange(field.num_columns) < num
      ids[..., here] = np.where(
        is_value, field.first_id + some, examples.PADDING
      )
    else:
      ids[..., here] = field.first_id + some
  return ids


def batch(num_parts: int, size: int, num: int, seed: int = 0) -> examples.Batch:
  """`num` examples in all, the last ones of parts with `size` missing."""
  rng = np.random.default_rng(seed)
  shape = num_parts, size
  ids = random_ids(shape, rng)
  numbers = rng.normal(size=(*shape, 2)).astype(np.float32)
  # What can be learned: sites and a product.
  odds = (ids[..., 0] % 3 - 1.0) + numbers[..., 0] * (ids[..., 1] % 2 * 2 - 1)
  labels = (rng.random(shape) < 1 / (1 + np.exp(-3 * odds))).astype(np.float32)
  each = np.full(num_parts, num // num_parts)
  each[: num % num_parts] += 1
  labels[np.arange(size)[None] >= each[:, None]] = -1
  steps = np.full(num_parts, 0, np.int32)
  return examples.Batch(ids, numbers, labels, steps, each.astype(np.int32))


def step_batch(num: int, rng: np.random.Generator) -> examples.StepBatch:
  """A step, one of whose examples does not count."""
  weights = np.ones(num, np.float32)
  weights[num // 2] = 0
  return examples.StepBatch(
    random_ids((num,), rng),
    rng.normal(size=(num, 2)).astype(np.float32),
    rng.integers(0, 2, num).astype(np.float32),
    weights,
    np.arange(num, dtype=np.uint32),
  )
