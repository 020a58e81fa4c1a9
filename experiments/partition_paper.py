"""Figures of Anand et al. 2019 that could be checked, for partition_merge.py.

"Asynchronous Training of Word Embeddings for Large Text Corpora" (WSDM 2019):
Wikipedia of 14 GB, 300,000 words, 500 dimensions, window 10, 5 epochs, one run
a cell. From the result files of the authors' repository (dist_w2v/results/*.csv
and, for ALiR, read from its plots to about .002); the paper's own tables were
not at hand. Columns have the names that the benchmark files have here.
"""

from typing import Any

_COLUMNS = (
  'ap', 'bless', 'battig', 'EN-MEN-TR-3k', 'EN-RG-65', 'EN-RW-STANFORD',
  'EN-SIMLEX-999', 'EN-WS-353-ALL', 'EN-WS-353-REL', 'EN-WS-353-SIM',
  'questions-words',
)  # fmt: skip
_ALIR_COLUMNS = (
  'EN-MEN-TR-3k', 'EN-RG-65', 'EN-RW-STANFORD', 'EN-WS-353-ALL',
  'questions-words', 'ap', 'battig',
)  # fmt: skip


def _row(*scores: float) -> dict[str, float]:
  return dict(zip(_COLUMNS, scores, strict=True))


def _alir(*scores: float) -> dict[str, float]:
  return dict(zip(_ALIR_COLUMNS, scores, strict=True))


# (way of dividing, number of sub-models, merge); rates are 1 / number.
SCORES: dict[tuple[str, int, str], dict[str, float]] = {
  ('single', 1, ''): _row(
    0.595, 0.820, 0.434, 0.736, 0.757, 0.299, 0.341, 0.611, 0.514, 0.754, 0.661
  ),
  ('shuffle', 10, 'concat'): _row(
    0.597, 0.820, 0.446, 0.755, 0.774, 0.346, 0.350, 0.691, 0.651, 0.743, 0.674
  ),
  ('shuffle', 10, 'pca'): _row(
    0.612, 0.795, 0.451, 0.747, 0.787, 0.365, 0.347, 0.681, 0.631, 0.747, 0.668
  ),
  ('shuffle', 5, 'concat'): _row(
    0.595, 0.845, 0.445, 0.755, 0.748, 0.339, 0.348, 0.687, 0.647, 0.742, 0.671
  ),
  ('shuffle', 5, 'pca'): _row(
    0.629, 0.795, 0.440, 0.748, 0.763, 0.357, 0.346, 0.678, 0.627, 0.741, 0.663
  ),
  ('shuffle', 10, 'alir'): _alir(
    0.710, 0.778, 0.331, 0.650, 0.655, 0.607, 0.450
  ),
  ('shuffle', 5, 'alir'): _alir(
    0.709, 0.763, 0.327, 0.652, 0.657, 0.607, 0.438
  ),
  ('shuffle', 3, 'alir'): _alir(
    0.721, 0.789, 0.321, 0.660, 0.651, 0.600, 0.437
  ),
}

# Nats, of the words of a part from those of the whole, by part of the corpus.
DIVERGENCES: dict[str, dict[float, float]] = {
  'sampling': {1e-3: 0.0608, 1e-2: 0.0167, 1e-1: 0.00084},
  'equal': {1e-3: 1.872, 1e-2: 1.033, 1e-1: 0.4289},
}

# Sampling at a rate of 1/10, an older program of the authors', PCA.
OF_NUMBERS: dict[str, dict[int, float]] = {
  'EN-MEN-TR-3k': {
    1: 0.726, 2: 0.730, 4: 0.735, 6: 0.737, 8: 0.738, 10: 0.740,
  },
  'questions-words': {
    1: 0.616, 2: 0.634, 4: 0.646, 6: 0.653, 8: 0.655, 10: 0.654,
  },
}  # fmt: skip

# Two sub-models at 1/10, 50 dimensions: a part of the benchmarks' words is
# taken from one and put back from the other.
REPAIRED: dict[str, dict[float, dict[str, float]]] = {
  'procrustes': {
    1.0: {
      'EN-MEN-TR-3k': 0.683, 'EN-RW-STANFORD': 0.287,
      'questions-words': 0.424, 'EN-WS-353-ALL': 0.606,
    },
    0.5: {
      'EN-MEN-TR-3k': 0.679, 'EN-RW-STANFORD': 0.291,
      'questions-words': 0.405, 'EN-WS-353-ALL': 0.601,
    },
  },
  'least squares': {
    1.0: {
      'EN-MEN-TR-3k': 0.678, 'EN-RW-STANFORD': 0.285,
      'questions-words': 0.166, 'EN-WS-353-ALL': 0.594,
    },
    0.5: {
      'EN-MEN-TR-3k': 0.675, 'EN-RW-STANFORD': 0.260,
      'questions-words': 0.249, 'EN-WS-353-ALL': 0.571,
    },
  },
  'zeros': {
    0.5: {
      'EN-MEN-TR-3k': 0.542, 'EN-RW-STANFORD': 0.135,
      'questions-words': 0.257, 'EN-WS-353-ALL': 0.401,
    },
  },
  'source': {
    0.0: {
      'EN-MEN-TR-3k': 0.683, 'EN-RW-STANFORD': 0.287,
      'questions-words': 0.381, 'EN-WS-353-ALL': 0.606,
    },
  },
}  # fmt: skip

# Of the benchmarks' words, those that a model has.
RECALL: dict[str, dict[str, float]] = {
  'single': {
    'EN-MEN-TR-3k': 1.0, 'EN-RW-STANFORD': 0.834, 'EN-WS-353-ALL': 0.995,
    'EN-SIMLEX-999': 0.997, 'questions-words': 0.985,
  },
  'sampling at 1/10, PCA': {
    'EN-MEN-TR-3k': 1.0, 'EN-RW-STANFORD': 0.786, 'EN-WS-353-ALL': 0.995,
    'EN-SIMLEX-999': 0.997, 'questions-words': 0.983,
  },
}  # fmt: skip

# Minutes; ten workers of ten cores at a rate of 1/10 against one machine.
TIMES: dict[str, Any] = {
  'single': 2150.0, 'sub-models at 1/10': 137.58, 'merge': 2.96,
}  # fmt: skip
