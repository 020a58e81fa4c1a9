"""Interactions: users and their items, as pairs or as sets."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import ml_collections

from jaxemb import errors
from jaxemb.config import schema
from jaxemb.run import kind

if TYPE_CHECKING:
  from jaxemb.models import base as model_base
  from jaxemb.run import build


_UNDIVIDED = {x: 'divide users' for x in ('partition', 'workers')}
_HELP = {
  'data.path': 'file, folder or glob of a table of users and items, or of '
  "lines `user item item ...`; '' = synthetic data",
  'data.columns': 'roles of columns: user, item, rating, count, label and '
  'time, as role:column, such as user:userId,rating:stars>=4 (role:- = no '
  'column has this role), or all roles in the order of the columns; user,items '
  "= lines `user item item ...`; '' = infer the roles from the column names",
  'data.min_count': 'smallest count: rarer items are dropped',
}
_OPTIONAL = (
  kind.HELD_OUT
  | kind.MONITORED
  | kind.STARTED
  | {'data.min_count', 'data.columns', 'data.decimal', 'eval.k'}
)


class _Interactions(kind.Kind):
  help = _HELP | {
    'eval.monitor': 'metric on data.valid that selects the model to export '
    '(needs eval.every_epochs): ndcg or score (recall), at the first k of '
    'eval.k; with both, separated by a comma, the best model of the second is '
    'in export_<metric>; '
    "'' = ndcg",
  }
  undivided = _UNDIVIDED
  monitors = 'ndcg', 'score'
  noun = 'item'

  def check(self, config: ml_collections.ConfigDict) -> Iterator[str]:
    """See `kind.Kind`."""
    yield from kind.alone_conflicts(config)

  def evaluate(
    self,
    parts: 'build.Parts',
    model: Any,
    is_last: bool = True,
    **options: Any,
  ) -> dict[str, dict[str, Any]]:
    """See `kind.Kind`; `options` go to the source."""
    from jaxemb.run import vectors

    ks = schema.sizes('eval.k', parts.config.eval.k)
    return vectors.evaluate(parts, model, is_last, ks=ks, **options)


class Pairs(_Interactions):
  """Pairs of user and item, and factorizations of their matrix."""

  source = 'interactions'
  factory = 'jaxemb.interactions.sources:Interactions'
  start = 'rec'
  uses = kind.PAIRS | _OPTIONAL
  models = {'factorization': 'jaxemb.interactions.factorization:make'}
  losses = {
    'bpr': 'jaxemb.interactions.factorization:bpr',
    'softmax': 'jaxemb.interactions.factorization:softmax',
  }
  only_with = {'model.shared_negatives': ''}
  unit = 'examples'

  def chunk(self, config: ml_collections.ConfigDict) -> int:
    """See `kind.Kind`."""
    return 64

  def make_model(
    self, corpus: 'model_base.Corpus', context: kind.Context
  ) -> 'model_base.Model':
    """See `kind.Kind`."""
    config = context.config
    loss_of = kind.bound_loss(config, ranks=True)
    return kind.bind_model(
      config,
      (kind.window_spec(corpus, context), corpus, loss_of),
      temperature=config.model.temperature,
    )

  def evaluate(
    self,
    parts: 'build.Parts',
    model: Any,
    is_last: bool = True,
    **options: Any,
  ) -> dict[str, dict[str, Any]]:
    """See `kind.Kind`."""
    is_cosine = getattr(parts.trainable.model, 'is_cosine', False)
    return super().evaluate(
      parts, model, is_last, is_cosine=is_cosine, **options
    )


class Sets(_Interactions):
  """Sets of items, and skip-gram on them (Item2Vec)."""

  source = 'item_sets'
  factory = 'jaxemb.interactions.sources:ItemSets'
  start = 'rec:item2vec'
  uses = kind.WINDOWS | _OPTIONAL
  losses = {'negative_sampling': kind.Kind.losses['negative_sampling']}

  def check_trained(self, counters: Mapping[str, float]) -> None:
    """See `kind.Kind`."""
    if counters.get('pairs') == 0:
      raise errors.UserError(
        'nothing was learned: no item has another one in its window; give '
        'users with several items on a line, or raise --config.data.sample'
      )


KINDS = Pairs(), Sets()
