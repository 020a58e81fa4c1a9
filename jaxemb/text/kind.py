"""Text: word vectors by skip-gram and CBOW."""

import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import ml_collections

from jaxemb import errors
from jaxemb.config import schema
from jaxemb.run import kind
from jaxemb.text import ahead

if TYPE_CHECKING:
  from jaxemb.data import blocks
  from jaxemb.models import base as model_base
  from jaxemb.run import build

_MIN_TOY_WORDS = 20_000
_BUCKETS = 'model.buckets'
_MAX_PASSES = 16
_OPTIONAL = frozenset((
  'data.columns', 'data.min_count', 'data.grow', 'train.init_from',
  'eval.paths', 'eval.restrict_vocab',
))  # fmt: skip


class Text(kind.Kind):
  """Text, and word vectors."""

  source = 'text'
  factory = 'jaxemb.text.loader:make'
  start = 'wiki'
  settings = schema.read(pathlib.Path(__file__).with_name('settings.toml'))
  uses = kind.WINDOWS | _OPTIONAL
  weights_contexts = True
  fits_passes = True
  help = {
    'data.path': "file, folder or glob; 'wikipedia:LANGUAGE' (simple, en, de, "
    "...) = a Wikipedia to download; '' or 'toywiki:WORDS' = synthetic text",
    'data.columns': 'key of JSON objects, or column of a table, that has the '
    'text, such as text:reviewText',
    'data.min_count': 'smallest count: rarer words are dropped',
  }
  smaller = 'lower --config.model.dim or --config.data.max_vocab'
  embedded = 'toywiki:'

  def compile_ahead(self, cache: pathlib.Path) -> None:
    """See `kind.Kind`."""
    ahead.start(cache)

  def check(self, config: ml_collections.ConfigDict) -> Iterator[str]:
    """See `kind.Kind`."""
    path = config.data.path
    size = path.removeprefix(self.embedded)
    is_size = size.isdecimal() and int(size) >= _MIN_TOY_WORDS
    if size != path and not is_size:
      yield (
        f'config.data.path={path} must be toywiki:WORDS, 20000 words or more'
      )
    if config.data.max_vocab == 1:
      yield 'config.data.max_vocab=1 leaves one word of two that are needed'
    yield from _phrase_conflicts(config.data)
    try:
      ''.encode(config.data.encoding)
    except (LookupError, ValueError) as error:
      yield f'config.data.encoding: {error}; give one such as cp1252 or gb18030'
    if config.data.grow and config.data.counts:
      yield (
        f'config.data.counts={config.data.counts} is not used with --from, '
        'which has counts; remove one of them'
      )
    yield from kind.tree_conflicts(config)
    yield from _subword_conflicts(config)

  def make_model(
    self, corpus: 'model_base.Corpus', context: kind.Context
  ) -> 'model_base.Model':
    """See `kind.Kind`."""
    m = context.config.model
    if not m.subwords:
      return super().make_model(corpus, context)
    from jaxemb.models import subwords
    from jaxemb.ops import ngrams

    return subwords.make(
      kind.window_spec(corpus, context),
      corpus,
      loss_of=kind.bound_loss(context.config),
      subwords=ngrams.parse(m.subwords, m.buckets),
      is_cbow=m.name == 'cbow',
    )

  def export(
    self, folder: pathlib.Path, parts: 'build.Parts', model: Any
  ) -> dict[str, int]:
    """See `kind.Kind`: with the phrases that are joined, if any."""
    from jaxemb.storage import atomic
    from jaxemb.text import phrases

    with atomic.together(folder) as new:
      source = cast('blocks.BlockSource', parts.source)
      if text := source.corpus.phrases:
        with atomic.write(new / phrases.FILE) as file:
          file.write(text)
      else:  # of an earlier export
        atomic.remove(new / phrases.FILE)
      return super().export(new, parts, model)


def _phrase_conflicts(data: ml_collections.ConfigDict) -> Iterator[str]:
  """Yields what is wrong between the settings of phrases."""
  num_passes = int(data.phrases) if data.phrases.isdecimal() else 0
  if num_passes > _MAX_PASSES:
    yield (
      f'config.data.phrases={num_passes} joins nothing more after a few '
      f'passes; give at most {_MAX_PASSES}'
    )
  if num_passes and data.counts:
    yield (
      f'config.data.counts={data.counts} has no counts of the phrases that '
      f'config.data.phrases={num_passes} finds; leave one of them out, or '
      'join the phrases of a run, --config.data.phrases=RUN'
    )
  for setting in TEXT.settings:
    group, _, name = setting.name.partition('.')
    is_of_passes = name.startswith('phrases_') and group == 'data'
    if is_of_passes and data[name] != setting.default and not num_passes:
      yield (
        f'config.{setting.name}={data[name]} is used only where phrases are '
        'searched for; give a number of passes, --config.data.phrases=2'
      )
  from jaxemb.text import phrases

  threshold = data.phrases_threshold
  if threshold == phrases.USUAL:
    return
  if data.phrases_score == 'npmi' and not -1 <= threshold <= 1:
    yield (
      f'config.data.phrases_threshold={threshold} is none of the scores of '
      'npmi, which are from -1 to 1'
    )
  if data.phrases_score == 'word2vec' and threshold < 0:
    yield (
      f'config.data.phrases_threshold={threshold} must be positive with '
      'config.data.phrases_score=word2vec'
    )


def _subword_conflicts(config: ml_collections.ConfigDict) -> Iterator[str]:
  """Yields what is wrong with n-grams, and what they do not go with."""
  m = config.model
  if not m.subwords:
    if (
      m.buckets != next(x for x in TEXT.settings if x.name == _BUCKETS).default
    ):
      yield (
        f'config.{_BUCKETS}={m.buckets} is only used with n-grams; remove it '
        'or set --config.model.subwords=3-6'
      )
    return
  from jaxemb.ops import ngrams  # takes a moment to import

  what = f'config.model.subwords={m.subwords}'
  try:
    ngrams.parse(m.subwords, m.buckets)
  except errors.UserError as error:
    yield f'{what}: {error}'
  if m.name not in TEXT.models:
    yield f'{what} is only used when config.model.name is skipgram or cbow'
  if config.train.init_from and not config.data.grow:
    yield (
      f'config.train.init_from={config.train.init_from} has vectors of whole '
      f'words, and {what} adds those of n-grams; remove one of them, or '
      f'continue a run or a .bin, --from={config.train.init_from}'
    )
  if config.strategy.name == 'partition':
    yield (
      f'{what} is not merged from sub-models yet; remove it, or '
      'config.strategy.name=partition'
    )


TEXT = Text()
KINDS = (TEXT,)
