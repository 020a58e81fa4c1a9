"""Graphs: node vectors from walks, edges and what neighbors have."""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import ml_collections

from jaxemb import errors
from jaxemb.config import schema
from jaxemb.run import kind

if TYPE_CHECKING:
  from jaxemb.graphs import edge_source, node_source
  from jaxemb.models import base as model_base
  from jaxemb.run import build


_HELP = {
  'data.columns': 'roles of columns of an edge list: source, target, weight, '
  'relation, time (ignored), as role:column, or all roles in the order of the '
  'columns, with - for ignored columns; source,targets = an adjacency list; '
  "'' = infer the roles from the header or the values",
  'data.path': 'file, folder or glob of a graph: an edge list, .npz, .mat or a '
  "published data set; '' = a synthetic graph",
  'data.valid': "validation edges: a file or a fraction; '' = none",
  'data.test': 'test edges, evaluated after training: a file or a fraction; '
  "'' = none",
}
_LISTS = kind.HELD_OUT | {'data.columns'}
_OF_WALKS = frozenset((
  'model.window', 'model.negatives', 'model.temperature',
))  # fmt: skip


class _Graphs(kind.Kind):
  embedded = 'toygraph:'
  settings = schema.read(pathlib.Path(__file__).with_name('settings.toml'))
  help = _HELP
  unit = 'examples'
  noun = 'node'


class Walks(_Graphs):
  """Random walks, and node vectors by skip-gram (DeepWalk, node2vec)."""

  source = 'graph'
  factory = 'jaxemb.graphs.walk_source:Walks'
  start = 'graph'
  uses = kind.WINDOWS | _LISTS | kind.STARTED | {'eval.k'}
  unit = 'words'

  def check(self, config: ml_collections.ConfigDict) -> Iterator[str]:
    """See `kind.Kind`."""
    yield from kind.tree_conflicts(config)

  def max_duplicates(self, limit: float, is_small_step: bool) -> float:
    """See `kind.Kind`.

    Walks come back to a node, also within a chunk, and those in a pair of nodes
    go nowhere else: more diverges on such graphs.
    """
    return 2.0 if is_small_step else limit

  def evaluate(
    self, parts: 'build.Parts', model: Any, is_last: bool = True
  ) -> dict[str, dict[str, Any]]:
    """See `kind.Kind`."""
    from jaxemb.run import vectors

    ks = schema.sizes('eval.k', parts.config.eval.k)
    return vectors.evaluate(parts, model, ks=ks)


class Nodes(_Graphs):
  """Nodes that aggregate what their neighbors have (GraphSAGE)."""

  source = 'nodes'
  factory = 'jaxemb.graphs.node_source:make'
  start = 'graphsage'
  uses = _LISTS | kind.DENSE | kind.MONITORED | {'optimizer.max_duplicates'}
  models = {'graphsage': 'jaxemb.graphs.graphsage:make'}
  losses = {}
  only_with = {'model.negatives': ''}
  help = _HELP | {
    'model.hidden': 'sizes of all layers but the last, separated by commas',
    'model.dropout': 'dropout rate of the inputs of layers',
    'data.valid': 'validation nodes: a fraction, or a number such as 500; '
    "'' = none",
    'data.test': 'test nodes, evaluated after training: the same choices as '
    'data.valid',
    'eval.monitor': 'metric on data.valid that selects the model to export '
    '(needs eval.every_epochs): score (accuracy or micro F1) or log_loss; with '
    'both, separated by a comma, the best model of the second is in '
    'export_<metric>; '
    "'' = score",
  }
  has_dense = True
  monitors = 'score', 'log_loss'
  exports_optimizer = False
  row_kernels = frozenset(('adagrad_full', 'adam_full'))
  undivided = {'partition': 'train models with dense parameters'}
  uncontinued = 'learns classes of one graph in layers'
  results = 'jaxemb.graphs.node_results'

  def used(self, config: ml_collections.ConfigDict) -> frozenset[str]:
    """See `kind.Kind`."""
    from_walks = config.data.targets == 'walks'
    return self.uses | (_OF_WALKS if from_walks else frozenset())

  def check(self, config: ml_collections.ConfigDict) -> Iterator[str]:
    """See `kind.Kind`."""
    if config.model.inputs == 'features':
      table, strategy = config.table, config.strategy.name
      for name, value, is_usable in (
        ('table.layout', table.layout, table.layout == 'replicated'),
        ('table.dtype', table.dtype, table.dtype == 'float32'),
        ('table.store', table.store, not table.store),
        ('strategy.name', strategy, strategy != 'replicas'),
      ):
        if not is_usable:
          yield (
            f'config.{name}={value} is for rows of a table, and nodes have '
            'none; set --config.model.inputs=rows or both, or leave it out'
          )
    schema.sizes('model.hidden', config.model.hidden)

  def chunk(self, config: ml_collections.ConfigDict) -> int:
    """See `kind.Kind`."""
    return 64 if config.data.targets == 'walks' else 1

  def make_model(
    self, corpus: 'model_base.Corpus', context: kind.Context
  ) -> 'model_base.Model':
    """See `kind.Kind`."""
    from jaxemb.graphs import graphsage

    config, tuning = context.config, context.tuning
    source = cast('node_source.NodeSource', corpus.source)
    m, o = config.model, config.optimizer
    hidden = schema.sizes('model.hidden', m.hidden)
    num_layers = len(source.fanouts)
    if len(hidden) != num_layers - 1:
      raise errors.UserError(
        f'config.model.hidden={m.hidden} must have {num_layers - 1} sizes, as '
        f'config.data.fanouts={config.data.fanouts} is of {num_layers} layers, '
        'of which the last has the outputs'
      )
    if m.inputs != 'rows' and source.features is None:
      raise errors.UserError(
        'the graph has no features of nodes; set --config.model.inputs=rows'
      )
    from_walks = config.data.targets == 'walks'
    spec = graphsage.SageSpec(
      fanouts=source.fanouts,
      num_nodes=len(corpus.counts),
      num_features=0 if m.inputs == 'rows' else source.features.shape[1],
      dim=0 if m.inputs == 'features' else m.dim,
      sizes=(*hidden, m.dim if from_walks else source.labels.num_classes),
      aggregator=m.aggregator,
      from_walks=from_walks,
      has_many=source.labels.has_many,
      dropout=m.dropout,
      negatives=float(m.negatives),
      chunk=tuning.chunk,
      temperature=m.temperature,
      step_examples=tuning.part_words * tuning.parts,
      optimizer=o.dense,
      dense_rate=kind.dense_rate(config),
      dense_decay=o.dense_decay,
      row_ops=context.row_ops,
      sums_by_kernel=tuning.row_sums,
    )
    return kind.bind_model(config, (spec, corpus))


class Edges(_Graphs):
  """Edges, with or without relations (LINE, PyTorch-BigGraph)."""

  source = 'edges'
  factory = 'jaxemb.graphs.edge_source:Edges'
  start = 'graph:relations'
  uses = (
    kind.PAIRS
    | _LISTS
    | kind.MONITORED
    | kind.STARTED
    | {'model.negatives', 'eval.k'}
  )
  alike = 'model.order', 'model.operator', 'model.score'
  monitors = ('mrr',)
  models = {
    'line': 'jaxemb.graphs.edge_models:line',
    'relations': 'jaxemb.graphs.edge_models:relations',
  }
  losses = {
    'negative_sampling': kind.Kind.losses['negative_sampling'],
    'softmax': 'jaxemb.interactions.factorization:softmax',
    'margin': 'jaxemb.graphs.edge_models:margin',
    'logistic': 'jaxemb.graphs.edge_models:logistic',
  }
  only_with = {
    'model.shared_negatives': '',
    'model.temperature': 'model.name=relations',
  }
  row_kernels = frozenset(('adagrad', 'adagrad_full', 'adam_full'))
  undivided = {x: 'divide edges' for x in ('partition', 'workers')}
  help = _HELP | {
    'eval.monitor': 'metric on data.valid that selects the model to export '
    "(needs eval.every_epochs): mrr; '' = mrr",
  }

  def check(self, config: ml_collections.ConfigDict) -> Iterator[str]:
    """See `kind.Kind`."""
    names = {
      'line': ('negative_sampling',),
      'relations': ('softmax', 'margin', 'logistic'),
    }.get(config.model.name)
    loss = config.model.loss
    if config.model.temperature and config.model.score != 'product':
      yield (
        f'config.model.temperature={config.model.temperature:g} is of cosines, '
        f'and config.model.score={config.model.score}; leave one of them out'
      )
    if names and ':' not in loss and loss not in names:
      yield (
        f'config.model.loss={loss} is no loss of {config.model.name}; choose '
        f'{" or ".join(names)}'
      )
    yield from kind.alone_conflicts(config)

  def chunk(self, config: ml_collections.ConfigDict) -> int:
    """See `kind.Kind`."""
    return config.model.chunk

  def make_model(
    self, corpus: 'model_base.Corpus', context: kind.Context
  ) -> 'model_base.Model':
    """See `kind.Kind`."""
    from jaxemb.kernels.cpu import updates
    from jaxemb.models import edge_scores

    config, threads = context.config, context.tuning.row_threads
    source = cast('edge_source.Edges', corpus.source)
    m, graph = config.model, source.graph
    is_asked = m.name == 'relations' and graph.relations is None
    if is_asked and graph.inputs and not config.data.columns:
      shown = graph.inputs[0]
      if m.operator != 'none' or 'source' in shown.columns:
        raise errors.UserError(
          f'no relation was found in {shown.line()}; give '
          '--config.data.columns=source,relation,target, or source,target if '
          'there is none, or --config.model.name=line'
        )
    loss_of = kind.bound_loss(
      config, ranks=m.name == 'relations', least=m.margin
    )
    measure = 'cosine' if m.temperature else m.score
    make_kernel = functools.partial(updates.edge_softmax, threads)
    return kind.bind_model(
      config,
      (kind.window_spec(corpus, context), corpus, loss_of),
      score=edge_scores.EdgeScore(m.operator, measure, m.temperature),
      n3=m.n3,
      order=m.order,
      make_kernel=make_kernel if threads else None,
    )

  def collect(
    self, parts: 'build.Parts', state: Any, workdir: pathlib.Path
  ) -> Any:
    """See `kind.Kind`: with what scores edges."""
    return self._with_scores(parts, super().collect(parts, state, workdir))

  def load(self, parts: 'build.Parts', folder: pathlib.Path) -> Any:
    """See `kind.Kind`."""
    return self._with_scores(parts, super().load(parts, folder))

  def _with_scores(self, parts, collected):
    import numpy as np

    from jaxemb.models import edge_scores
    from jaxemb.storage import export

    score = getattr(parts.trainable.model, 'score', edge_scores.PRODUCT)
    contexts = collected.others.get('context_vectors')
    relations = export.Relations(
      **dataclasses.asdict(score),
      names=[],
      rows=np.zeros((0, collected.rows.data.shape[-1]), np.float32),
    )
    if score.operator != 'none':
      rows = np.asarray(contexts, np.float32)
      names = collected.context_keys
      relations = relations._replace(names=names, rows=rows)
    elif contexts is not None and len(contexts) == len(collected.keys):
      relations = relations._replace(targets=contexts)
    return collected._replace(relations=relations)

  def evaluate(
    self, parts: 'build.Parts', model: Any, is_last: bool = True
  ) -> dict[str, dict[str, Any]]:
    """See `kind.Kind`."""
    from jaxemb.models import edge_scores
    from jaxemb.run import vectors

    score = getattr(parts.trainable.model, 'score', edge_scores.PRODUCT)
    ks = schema.sizes('eval.k', parts.config.eval.k)
    return vectors.evaluate(parts, model, is_last, score=score, ks=ks)


KINDS = Walks(), Nodes(), Edges()
