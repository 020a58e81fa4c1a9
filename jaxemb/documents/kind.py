"""Documents: text, and a vector for each document (Le & Mikolov 2014)."""

import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import ml_collections

from jaxemb import errors
from jaxemb.run import kind
from jaxemb.text import kind as text_kind

if TYPE_CHECKING:
  from jaxemb.data import base as data_base
  from jaxemb.documents import loader
  from jaxemb.models import base as model_base
  from jaxemb.run import build

# Of those of text, what the words of documents are.
_SETTINGS = (
  'data.tokens', 'data.encoding', 'data.lowercase', 'data.counts',
  'data.max_vocab',
)  # fmt: skip
# Words that a document learns from in all epochs at the usual rate of PV-DBOW.
_USUAL_WORDS = 660
_OF_WINDOWS = frozenset(('model.window', 'model.dynamic_window'))


class Documents(text_kind.Text):
  """Text, and vectors of its documents beside those of words."""

  source = 'documents'
  noun = 'document'
  factory = 'jaxemb.documents.loader:make'
  start = 'documents'
  settings = tuple(x for x in text_kind.TEXT.settings if x.name in _SETTINGS)
  uses = kind.WINDOWS | kind.STARTED | {'data.columns', 'data.min_count'}
  models = {
    'dbow': 'jaxemb.documents.models:dbow',
    'dm': 'jaxemb.documents.models:dm',
  }
  losses = {'negative_sampling': 'jaxemb.ops.sampling:logistic_loss'}
  # By kernels the nearest documents have the same topic as often as those of
  # gensim at .025 (experiments/topics.py). A step by XLA learns less.
  learning_rates = {'dbow': (0.035, 0.05), 'dm': (0.06, 0.06)}
  weights_contexts = False
  help = {
    **text_kind.TEXT.help,
    'data.path': 'file, folder or glob: one document per line, or per row of '
    "a table or of JSON lines; '' or 'toywiki:WORDS' = synthetic articles",
    'data.columns': 'columns or keys of the text and, optionally, of the tags '
    'of documents, such as text:review,tag:id; without tags, documents are '
    'numbered',
    'model.dynamic_window': 'draw window sizes from 1 to model.window; false = '
    'always use the whole window',
  }
  continued_from = (
    'vocab.txt', 'vectors.npy', 'words/vocab.txt', 'words/outputs.npy'
  )  # fmt: skip
  undivided = {
    'partition': 'train documents, of which each sub-model would have few',
    'workers': 'train documents',
  }

  def used(self, config: ml_collections.ConfigDict) -> frozenset[str]:
    """See `kind.Kind`: PV-DBOW has no windows."""
    is_dbow = config.model.name == 'dbow'
    return self.uses - _OF_WINDOWS if is_dbow else self.uses

  def chunk(self, config: ml_collections.ConfigDict) -> int:
    """See `kind.Kind`: words of a document share more than windows do."""
    return 32 if config.model.name == 'dbow' else super().chunk(config)

  def rate_factor(
    self, config: ml_collections.ConfigDict, source: 'data_base.Source'
  ) -> float:
    """See `kind.Kind`: it falls with the words that a document learns from.

    As the fourth root of their number in all epochs: .035 of 660, .024 of 3,000
    (experiments/topics.py).
    """
    from jaxemb.data import subsampling

    if config.model.name != 'dbow':
      return 1.0
    documents = cast('loader.DocumentSource', source)
    kept = subsampling.kept_fraction(documents.word_counts, config.data.sample)
    num_words = kept * source.units_per_epoch * config.train.epochs
    each = num_words / max(1, (source.frequencies > 0).sum())
    return min(max((_USUAL_WORDS / each) ** (1 / 4), 0.6), 1.2)

  def check(self, config: ml_collections.ConfigDict) -> Iterator[str]:
    """See `kind.Kind`."""
    yield from super().check(config)
    yield from kind.alone_conflicts(config)
    if config.data.path.startswith('wikipedia:'):
      yield (
        f'config.data.path={config.data.path} downloads text for word vectors; '
        'give a file with a document per line, or a table'
      )
    if config.data.phrases:
      yield (
        f'config.data.phrases={config.data.phrases} is not used with '
        'documents, as those inferred later would lack the phrases; join them '
        'in the text first, jaxemb.load_phrases(RUN)[TOKENS]'
      )

  def max_duplicates(self, limit: float, is_small_step: bool) -> float:
    """See `kind.Kind`: a step has most words of a document."""
    return 0.0 if is_small_step else limit

  def check_trained(self, counters: Mapping[str, float]) -> None:
    """See `kind.Kind`."""
    if counters.get('kept_words') == 0:
      raise errors.UserError(
        'nothing was learned: no document has a word; lower '
        '--config.data.min_count, or raise --config.data.sample'
      )

  def make_model(
    self, corpus: 'model_base.Corpus', context: kind.Context
  ) -> 'model_base.Model':
    """See `kind.Kind`: the model of a corpus whose keys are words."""
    words = cast('loader.DocumentSource', corpus.source).word_corpus()
    spec = kind.window_spec(words, context)
    config = context.config
    return kind.bind_model(config, (spec, words, kind.bound_loss(config)))

  def dropped(
    self, config: ml_collections.ConfigDict, source: 'data_base.Source'
  ) -> dict[str, int]:
    """See `kind.Kind`: documents whose rows stay as they began."""
    super().dropped(config, source)
    return {'documents_without_words': int((source.counts == 0).sum())}

  def export(
    self, folder: pathlib.Path, parts: 'build.Parts', model: Any
  ) -> dict[str, int]:
    """See `kind.Kind`: with what infers vectors of other documents."""
    from jaxemb.documents import trained
    from jaxemb.storage import atomic

    with atomic.together(folder) as new:
      trained.save(new, parts.config, parts.source, arrays=model.others)
      return super().export(new, parts, model)


KINDS = (Documents(),)
