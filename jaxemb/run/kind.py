"""What a kind of data is to the core.

Everything about clicks is in `clicks/`, and the core knows it as one object, a
`Kind`: it declares settings, makes source and model, and says how a trained
model is evaluated and written. What has a body here is a default: that of
vectors of keys, such as words, which are trained by windows.

A module with kinds imports neither JAX nor what reads the data: the command
line asks kinds for their settings first.
"""

import functools
import importlib
import pathlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxemb import errors
from jaxemb.config import kinds, schema

if TYPE_CHECKING:
  import ml_collections

  from jaxemb import config as config_lib
  from jaxemb.data import base as data_base
  from jaxemb.models import base as model_base
  from jaxemb.models import columns
  from jaxemb.report import pages
  from jaxemb.run import build

# Optional settings of the core that several kinds use.
WINDOWS = frozenset((
  'model.window', 'model.dynamic_window', 'model.loss', 'model.negatives',
  'model.shared_negatives', 'optimizer.max_duplicates', 'train.batch_words',
  'train.threads', 'data.sample',
))  # fmt: skip
STARTED = frozenset(('data.grow', 'train.init_from'))
HELD_OUT = frozenset(('data.valid', 'data.test'))
DENSE = frozenset((
  'model.hidden', 'model.dropout', 'optimizer.decay', 'optimizer.rows',
  'optimizer.dense', 'optimizer.dense_learning_rate', 'optimizer.dense_decay',
  'train.batch_examples',
))  # fmt: skip
MONITORED = frozenset((
  'optimizer.plateau_factor', 'train.patience', 'eval.monitor',
))  # fmt: skip
PAIRS = frozenset((
  'model.loss', 'model.shared_negatives', 'model.temperature',
  'optimizer.max_duplicates', 'optimizer.decay', 'train.batch_examples',
))  # fmt: skip

# Links of a tree are int32, 2 * node + code, with nodes of words and of joins.
_MOST_LEAVES = 2**29


class Context(NamedTuple):
  """What a kind makes a model for."""

  config: 'ml_collections.ConfigDict'  # resolved
  tuning: 'config_lib.Tuning'
  row_ops: 'columns.RowOps'
  axes: tuple[str, ...]  # of the mesh, over which the examples of a step lie


class Kind:
  """A kind of data: its settings, source, models, evaluation and results.

  A kind has no state. The methods of this class are those of word vectors. A
  subclass overrides the methods that differ.
  """

  source: str = ''  # its name in `config.data.source`
  factory: str = ''  # dotted path of what makes a source of a `SourceSpec`
  start: str = ''  # the config to start from
  settings: Sequence[schema.Setting] = ()  # its own
  replaced: Mapping[str, str] = {}  # old names of settings, and what to give
  uses: frozenset[str] = WINDOWS  # of the core's optional settings
  uses_all: bool = False  # whether nothing is known of what it uses
  # Dotted paths by name.
  models: Mapping[str, str] = {
    'skipgram': 'jaxemb.models.skipgram:make',
    'cbow': 'jaxemb.models.cbow:make',
  }
  losses: Mapping[str, str] = {
    'negative_sampling': 'jaxemb.ops.sampling:logistic_loss',
    'hierarchical_softmax': 'jaxemb.models.hierarchical:make',
  }
  # What replaces `Setting.only_with` for this kind; '' = it is always used.
  only_with: Mapping[str, str] = {}
  help: Mapping[str, str] = {}  # of settings that mean something else here
  unit: str = 'words'  # what a step is counted in, as in `train.batch_<unit>`
  noun: str = 'word'  # what an exported vector belongs to, in the report
  # Whether skip-gram weights contexts by their distance, in place of windows
  # that are drawn.
  weights_contexts: bool = False
  # Usual learning rates of SGD by a kernel and by XLA, by model, where they are
  # not those of skip-gram or CBOW.
  learning_rates: Mapping[str, tuple[float, float]] = {}
  # Whether small data get more epochs and less subsampling, by the counts of
  # their keys.
  fits_passes: bool = False
  # Whether there are dense parameters, and rows learn by the mean over the
  # examples of a step.
  has_dense: bool = False
  # Row optimizers for which a CPU's kernel updates the rows of XLA's steps.
  row_kernels: frozenset[str] = frozenset()
  # Why a strategy does not train this kind, by its name.
  undivided: Mapping[str, str] = {}
  smaller: str = 'lower --config.model.dim'  # where tables have no room
  # The module whose functions evaluate, export and report a trained model.
  results: str = 'jaxemb.run.vectors'
  # Metrics of held-out data by which evaluations can be compared, of which
  # `eval.monitor` chooses, by default the first: the best model is exported,
  # and training may end early.
  monitors: Sequence[str] = ()
  exports_optimizer = True  # whether results have the state of row optimizers
  # Files of an export that a run is continued from, and settings that must be
  # the same, beside those of the model.
  continued_from: Sequence[str] = ('vocab.txt', 'vectors.npy')
  alike: Sequence[str] = ()
  # Why a run is not continued on new data, of kinds that do not.
  uncontinued: str = ''
  # How `data.path` begins for data that jaxemb makes itself.
  embedded: str = ''

  def compile_ahead(self, cache: pathlib.Path) -> None:
    """Starts to compile the code that reads the data, in another process."""

  def used(self, config: 'ml_collections.ConfigDict') -> frozenset[str]:
    """Returns the names of the optional core settings that have an effect."""
    return self.uses

  def check(self, config: 'ml_collections.ConfigDict') -> Iterator[str]:
    """Yields one line for each conflict between settings."""
    yield from ()

  def members(self, setting: str) -> Mapping[str, str] | None:
    """Returns the choices of a setting, by name, or None if it has none.

    The values are dotted paths.
    """
    by_setting = {'model.name': self.models, 'model.loss': self.losses}
    return by_setting.get(setting, kinds.members().get(setting))

  def is_embedded(self, path: str) -> bool:
    """Returns whether `data.path` names synthetic data."""
    return not path or bool(self.embedded and path.startswith(self.embedded))

  def chunk(self, config: 'ml_collections.ConfigDict') -> int:
    """Returns how many consecutive examples share negative samples.

    With hierarchical softmax, they share a matrix product.
    """
    return 64 if config.model.loss == 'hierarchical_softmax' else 16

  def max_duplicates(self, limit: float, is_small_step: bool) -> float:
    """Returns the cap on duplicate lookups of a row per step.

    Args:
      limit: the usual cap.
      is_small_step: whether a fused kernel runs the steps, or steps are short.
    """
    return limit

  def rate_factor(
    self, config: 'ml_collections.ConfigDict', source: 'data_base.Source'
  ) -> float:
    """Returns a factor that multiplies SGD's default learning rate."""
    return 1.0

  def make_source(self, spec: 'data_base.SourceSpec') -> 'data_base.Source':
    """Returns the source of the data, or raises a `UserError`."""
    return kinds.bind('data.source', self.source, (spec,))()

  def dropped(
    self, config: 'ml_collections.ConfigDict', source: 'data_base.Source'
  ) -> dict[str, int]:
    """Returns counts of data that are not used, by reason.

    Raises a `UserError` if missing data are necessary.
    """
    self._results().check_data(config, source)
    return {}

  def check_trained(self, counters: Mapping[str, float]) -> None:
    """Raises a `UserError` if the counters of all steps show no training."""
    if counters.get('pairs') == 0:
      raise errors.UserError(
        'nothing was learned: no word has another one in its window; give text '
        'with several words on a line, or raise --config.data.sample'
      )

  def fingerprints(self, model: 'model_base.Model') -> dict[str, str]:
    """Returns fingerprints of the files that the model depends on.

    The keys are the names of their settings.
    """
    return {}

  def make_model(
    self, corpus: 'model_base.Corpus', context: Context
  ) -> 'model_base.Model':
    """Returns the model that the settings name."""
    from jaxemb.models import hierarchical

    config, tuning = context.config, context.tuning
    m, spec = config.model, window_spec(corpus, context)
    if m.loss == 'hierarchical_softmax':
      check_tree(corpus)
      if m.name in ('skipgram', 'cbow'):
        return hierarchical.make(
          spec, corpus, m.name == 'cbow', num_shared=tuning.shared_nodes
        )
    return bind_model(config, (spec, corpus, bound_loss(config)))

  # What becomes of a trained model: functions of the module `results`.

  def go_on(self, parts: 'build.Parts', state: Any) -> Any:
    """Returns a state with the exported arrays of the run `parts.known`.

    Training continues that run. `state` is donated. Raises a `UserError` if the
    export cannot be used.
    """
    return self._results().go_on(parts, state)

  def can_evaluate(self, parts: 'build.Parts') -> bool:
    """Returns whether the model can be evaluated during training."""
    return self._results().can_evaluate(parts)

  def has_validation(self, source: 'data_base.Source') -> bool:
    """Returns whether the source has a validation split."""
    return self._results().has_validation(source)

  def collect(
    self, parts: 'build.Parts', state: Any, workdir: pathlib.Path
  ) -> Any:
    """Copies the trained model to the host of every process.

    All processes must call it.
    """
    return self._results().collect(parts, state, workdir)

  def evaluate(
    self, parts: 'build.Parts', model: Any, is_last: bool = True
  ) -> dict[str, dict[str, Any]]:
    """Returns `score`, `found` and `total` by name of the benchmark or split.

    Unless `is_last`, kinds with `monitors` (metrics that select the best model)
    evaluate only the validation split, if there is one.
    """
    return self._results().evaluate(parts, model, is_last)

  def summarize(self, scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the scores of an evaluation as a short text for the log."""
    return self._results().summarize(scores)

  def describe(
    self, parts: 'build.Parts', scores: Mapping[str, Mapping[str, Any]]
  ) -> list[str]:
    """Returns lines for the log with the scores of a complete run."""
    return self._results().describe(parts, scores)

  def export(
    self, folder: pathlib.Path, parts: 'build.Parts', model: Any
  ) -> dict[str, int]:
    """Writes the model that `collect` returned.

    Returns counts of entries that the export omits or renames, by reason.
    """
    return self._results().export(folder, parts, model)

  def report_values(
    self, parts: 'build.Parts', model: Any, scores: dict[str, Any]
  ) -> dict[str, Any]:
    """Returns more values for the report; may move values out of `scores`."""
    return self._results().report_values(parts, model, scores)

  def page(self, parts: 'build.Parts', model: Any) -> 'pages.Page':
    """Returns the page of report.html."""
    return self._results().page(parts, model)

  def is_saved(self, folder: pathlib.Path) -> bool:
    """Returns whether a folder has a model for `load`."""
    return self._results().is_saved(folder)

  def load(self, parts: 'build.Parts', folder: pathlib.Path) -> Any:
    """Loads a model that `collect` returned from the folder of its `save`."""
    return self._results().load(parts, folder)

  def _results(self) -> types.ModuleType:
    return importlib.import_module(self.results)


class SourceAlone(Kind):
  """A user's own source, without a kind: any model may learn from it."""

  uses_all = True
  noun = 'row'

  def __init__(self, source: str):
    """`source` is its dotted path."""
    self.source = self.factory = source

  def make_model(
    self, corpus: 'model_base.Corpus', context: Context
  ) -> 'model_base.Model':
    """See `Kind`: the model as the kind makes it that has one of that name."""
    name = context.config.model.name
    for kind in kinds.built_in():
      if name in kind.models:
        return kind.make_model(corpus, context)
    return super().make_model(corpus, context)


def context_weights(
  config: 'ml_collections.ConfigDict', tuning: 'config_lib.Tuning'
) -> tuple[float, ...]:
  """Returns weights of contexts by distance, from 1 on, in skip-gram.

  They fall as 1 / distance, and add up to what drawn windows have on average
  (experiments/results/step_notes.md). () = every context counts alike, of
  windows that are drawn if they are dynamic.
  """
  if not tuning.weights_contexts:
    return ()
  window = config.model.window
  inverses = [1 / distance for distance in range(1, window + 1)]
  scale = (window + 1) / 2 / sum(inverses)
  return tuple(scale * x for x in inverses)


def shortest_window(
  config: 'ml_collections.ConfigDict', tuning: 'config_lib.Tuning'
) -> int:
  """Returns the size from which windows are drawn."""
  m = config.model
  is_drawn = m.dynamic_window and not tuning.weights_contexts
  return 1 if is_drawn else m.window


def window_spec(
  corpus: 'model_base.Corpus', context: Context
) -> 'model_base.WindowSpec':
  """Sizes of models that learn from windows or pairs."""
  from jaxemb.models import base as model_base

  m, tuning = context.config.model, context.tuning
  return model_base.WindowSpec(
    vocab=len(corpus.counts),
    dim=m.dim,
    window=m.window,
    negatives=m.negatives,
    chunk=tuning.chunk,
    shared_negatives=m.shared_negatives or 1,  # a tree draws none
    context_weights=context_weights(context.config, tuning),
    tokens_once=tuning.tokens_once,
    row_ops=context.row_ops,
    sums_by_kernel=tuning.row_sums,
  )


def tree_conflicts(config: 'ml_collections.ConfigDict') -> Iterator[str]:
  """Yields what a Huffman tree of words does not go with."""
  path, loss = config.train.init_from, config.model.loss
  if path and loss == 'hierarchical_softmax' and not config.data.grow:
    yield (
      f'config.train.init_from={path} has one vector per word, but '
      f'config.model.loss={loss} needs other tables; change one of them, '
      f'or continue a run, --from={path}'
    )


def alone_conflicts(config: 'ml_collections.ConfigDict') -> Iterator[str]:
  """Yields what is wrong where there are no first vectors without a run."""
  path = config.train.init_from
  if path and not config.data.grow:
    yield (
      f'config.train.init_from={path} is of a run that is continued; give '
      f'--from={path}'
    )


def check_tree(corpus: 'model_base.Corpus') -> None:
  """Raises a `UserError` for a vocabulary that no Huffman tree has."""
  if len(corpus.counts) < 2:
    raise errors.UserError(
      'config.model.loss=hierarchical_softmax needs a vocabulary of two words '
      'or more; give more text, or lower --config.data.min_count'
    )
  if len(corpus.counts) > _MOST_LEAVES:
    raise errors.UserError(
      f'config.model.loss=hierarchical_softmax: {len(corpus.counts):,} words '
      f'are more than the {_MOST_LEAVES:,} that a tree has; raise '
      '--config.data.min_count'
    )


def bound_loss(
  config: 'ml_collections.ConfigDict', ranks: bool = False, **available: Any
) -> Any:
  """The loss that settings name, with those of `available` that it takes.

  It is a function of scores and labels, or if it `ranks` of the scores of
  positives and of their negatives. Raises a `UserError` if a user's own loss
  of a model of jaxemb does not return one number for each pair or positive.
  """
  arguments = 'scores', 'labels'
  name = config.model.loss
  bound = kinds.bind('model.loss', name, arguments, available=available)
  function, more = bound.func, bound.keywords
  loss = functools.partial(function, **more) if more else function
  if ':' in name and ':' not in config.model.name:
    _check_shape(name, loss, ranks)
  return loss


def _check_shape(name, loss, ranks):
  """Raises a `UserError` if a loss is not of pairs, or positives if `ranks`."""
  import jax
  import numpy as np

  scores = jax.ShapeDtypeStruct((2,), np.float32)
  others = jax.ShapeDtypeStruct((2, 3), np.float32) if ranks else scores
  try:
    result = jax.eval_shape(loss, scores, others)
  except (TypeError, ValueError) as error:
    if not ranks:  # an error in the function itself
      raise
    raise errors.UserError(
      f'config.model.loss={name} cannot take scores of positives (2,) and of '
      f'their negatives (2, 3), as this model gives it: '
      f'{errors.one_line(error)}; take these, not scores and labels'
    ) from error
  shape = getattr(result, 'shape', type(result).__name__)
  if shape != scores.shape:
    what = 'positive' if ranks else 'pair'
    raise errors.UserError(
      f'config.model.loss={name} returns {shape} and not (2,) for two {what}s; '
      f'return the loss of each {what}, without a sum or a mean over them'
    )


def bind_model(
  config: 'ml_collections.ConfigDict', args: Sequence[Any], **available: Any
) -> 'model_base.Model':
  """Makes the model that settings name, with what it takes of `available`."""
  name = config.model.name
  return kinds.bind('model.name', name, args, available=available)()


def dense_rate(config: 'ml_collections.ConfigDict') -> float:
  """Learning rate of dense parameters, by that of rows."""
  o = config.optimizer
  return (o.dense_learning_rate or o.learning_rate) / o.learning_rate
