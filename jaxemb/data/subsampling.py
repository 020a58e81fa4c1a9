"""Subsampling of frequent tokens (Mikolov et al. 2013b)."""

import numpy as np


def keep_probabilities(counts: np.ndarray, sample: float) -> np.ndarray:
  """Returns [vocab] float64: chance that a token survives subsampling.

  Mikolov et al. 2013b as word2vec.c computes it; `sample` 0 keeps all.
  """
  if not sample:
    return np.ones(len(counts))
  ratio = sample * counts.sum() / np.maximum(counts, 1)
  return np.minimum(1.0, np.sqrt(ratio) + ratio)


def kept_fraction(counts: np.ndarray, sample: float) -> float:
  """Returns the fraction of a text's tokens that survives on average."""
  return float(counts @ keep_probabilities(counts, sample) / counts.sum())


def keep_thresholds(counts: np.ndarray, sample: float) -> np.ndarray:
  """Returns [vocab] uint64: a token survives if its 32-bit hash is below."""
  keep = keep_probabilities(counts, sample)
  return np.ceil(keep * 2.0**32).astype(np.uint64)


def center_probabilities(
  counts: np.ndarray, sample: float, occurring: np.ndarray | None = None
) -> np.ndarray:
  """Returns [vocab] float64: distribution of the tokens that survive.

  Of tokens `occurring` [vocab] times in the data, where `counts` are also of
  what was learned before.
  """
  occurring = counts if occurring is None else occurring
  kept_counts = occurring * keep_probabilities(counts, sample)
  return kept_counts / kept_counts.sum()
