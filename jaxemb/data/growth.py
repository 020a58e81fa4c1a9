"""Keys that grow: those of a run that is continued, and those of its data."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxemb.data import base
from jaxemb.storage import word2vec_format


class Earlier(NamedTuple):
  """What a run had counted, of names in other data and of keys beside."""

  counts: np.ndarray  # [names] int64; 0 = it did not know the name
  absent: list[str]  # its keys that the data lack
  absent_counts: np.ndarray  # [absent] int64


def earlier(known: base.Known, names: Sequence[str]) -> Earlier:
  """Returns what the run had counted; its keys are spelled as in exports."""
  counts = dict(zip(known.keys, known.counts.tolist(), strict=True))
  spelled, _ = word2vec_format.spell(names)
  of_names = np.array([counts.pop(x, 0) for x in spelled], np.int64)
  absent = list(counts)
  return Earlier(of_names, absent, np.array([*counts.values()], np.int64))


def absent_names(keys: Sequence[str], names: Sequence[str]) -> list[str]:
  """Returns the keys of a run that other data do not name."""
  spelled, _ = word2vec_format.spell(names)
  present = set(spelled)
  return [x for x in keys if x not in present]
