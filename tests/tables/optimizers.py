"""Row optimizers, each beside its loop over occurrences and rows."""

import functools
from collections.abc import Callable
from typing import Any

from jaxemb.tables import row_optimizers as rowopt
from tests import oracle


def with_oracle(
  name: str, **constants: float
) -> tuple[rowopt.RowOptimizer, Callable[..., Any]]:
  """An optimizer, and the oracle of the same constants."""
  expected = functools.partial(getattr(oracle, name), **constants)
  return getattr(rowopt, name)(**constants), expected


SGD_LIMITED = with_oracle('sgd', max_duplicates=2.5)
ADAGRAD = with_oracle('adagrad', epsilon=1e-6)
ADAM = with_oracle('adam', beta1=0.9, beta2=0.999, epsilon=1e-6)
