"""The arrays of a state that kernels of whole steps change in place."""

from collections.abc import Sequence

import jax

from jaxemb.strategies import base as strategy_base


def arrays(
  state: strategy_base.TrainState, names: Sequence[str]
) -> list[jax.Array]:
  """Returns the vectors of these tables, then the optimizer state of each.

  Of a table [vocab, dim] in its dtype; [vocab] or [1] float32.
  """
  tables = [state.tables[name] for name in names]
  states = (jax.tree.leaves(x.opt_state)[0] for x in tables)
  return [*(x.vectors for x in tables), *states]


def replaced(
  state: strategy_base.TrainState,
  names: Sequence[str],
  new: Sequence[jax.Array],
) -> strategy_base.TrainState:
  """Returns the state with other `arrays`."""
  tables = dict(state.tables)
  for i, name in enumerate(names):
    table = tables[name]
    tree = jax.tree.structure(table.opt_state)
    opt_state = jax.tree.unflatten(tree, [new[len(names) + i]])
    tables[name] = table._replace(vectors=new[i], opt_state=opt_state)
  return state._replace(tables=tables)
