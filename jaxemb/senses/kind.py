"""Senses: text, and several vectors for each ambiguous word."""

import dataclasses
import logging
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ml_collections

from jaxemb.config import schema
from jaxemb.run import kind
from jaxemb.text import kind as text_kind

if TYPE_CHECKING:
  from jaxemb.data import base as data_base
  from jaxemb.models import base as model_base
  from jaxemb.run import build


_LOG = logging.getLogger('jaxemb')


class Senses(text_kind.Text):
  """Text, and mixtures of skip-gram models."""

  start = 'mixture'
  fits_passes = False
  uncontinued = (
    'chooses the words with several senses by the counts of its text'
  )
  settings = text_kind.TEXT.settings + schema.read(
    pathlib.Path(__file__).with_name('settings.toml')
  )
  models = {'mixture': 'jaxemb.senses.mixture:make'}

  def check(self, config: ml_collections.ConfigDict) -> Iterator[str]:
    """See `kind.Kind`."""
    yield from super().check(config)
    s = config.senses
    if config.train.init_from:
      yield (
        f'config.train.init_from={config.train.init_from} has one vector per '
        'word, but config.model.name=mixture needs other tables; change one of '
        'them'
      )
    loss = config.model.loss
    if s.number > 1 and ':' in loss:
      yield (
        f'config.model.loss={loss} is not used with several senses; choose '
        f'{" or ".join(self.losses)}'
      )
    if s.number > 1 and not (s.top_ratio or s.words):
      yield (
        f'config.model.name=mixture with config.senses.number={s.number} has '
        'no ambiguous words; set --config.senses.top_ratio or .words, or '
        '--config.senses.number=1'
      )

  def dropped(
    self, config: ml_collections.ConfigDict, source: 'data_base.Source'
  ) -> dict[str, int]:
    """See `kind.Kind`; logs how many words have several senses."""
    from jaxemb.senses import mixture

    s = config.senses
    if s.number == 1:
      return {}
    ambiguous = mixture.ambiguous(config, source.keys)
    _LOG.info(f'{ambiguous.mask.sum():,} words have {s.number} senses each')
    if not s.words:
      return {}
    _LOG.info(
      f'{ambiguous.num_unknown:,} of the {ambiguous.num_listed:,} in {s.words} '
      'are not in the vocabulary'
    )
    return {'sense_words_out_of_vocabulary': ambiguous.num_unknown}

  def fingerprints(self, model: 'model_base.Model') -> dict[str, str]:
    """See `kind.Kind`: of the words with several senses."""
    rows = getattr(model, 'rows', None)  # none of one sense
    return {'config.senses.words': rows.digest() if rows is not None else ''}

  def make_model(
    self, corpus: 'model_base.Corpus', context: kind.Context
  ) -> 'model_base.Model':
    """See `kind.Kind`; a mixture of one sense is skip-gram."""
    from jaxemb.models import hierarchical, skipgram, targets
    from jaxemb.senses import context_mixture, mixture

    config, shared = context.config, context.tuning.shared_nodes
    m, s = config.model, config.senses
    spec = kind.window_spec(corpus, context)
    is_tree = m.loss == 'hierarchical_softmax'
    if is_tree:
      kind.check_tree(corpus)
    if s.number == 1:
      if is_tree:
        return hierarchical.make(spec, corpus, False, num_shared=shared)
      return skipgram.make(spec, corpus, kind.bound_loss(config))
    outputs: mixture.Outputs
    if is_tree:
      outputs = targets.tree(corpus, spec.chunk, shared)
    else:
      outputs = targets.sampled(spec, corpus)
    mask = mixture.ambiguous(config, corpus.keys).mask
    fields: dict[str, Any] = {
      'outputs': outputs,
      'mask': mask,
      'num_senses': s.number,
    }
    if s.method == 'likelihoods':
      return mixture.make(spec, corpus, **fields)
    min_window = 1 if m.dynamic_window else m.window
    return context_mixture.make(spec, corpus, min_window=min_window, **fields)

  def collect(
    self, parts: 'build.Parts', state: Any, workdir: pathlib.Path
  ) -> Any:
    """See `kind.Kind`: every sense is a vector."""
    import numpy as np

    from jaxemb.run import vectors
    from jaxemb.tables import spec as spec_lib

    model, source = parts.trainable.model, parts.source
    if not hasattr(model, 'export_senses'):  # of one sense
      return vectors.collect(parts, state)
    rows_of = vectors.rows_of(parts, state)
    table = rows_of(model.vectors_table)
    encoded = table.encoded

    def rows_by_name(name):  # those of vectors are there already
      read = table if name == model.vectors_table else rows_of(name)
      return np.asarray(read.rows)

    senses = model.export_senses(rows_by_name, source.keys, source.counts)
    window = parts.config.senses.query_window or senses.window
    senses = dataclasses.replace(senses, window=window)
    if senses.means is not None:  # its vectors are not those of the table
      encoded = spec_lib.encode_rows(senses.vectors, encoded.dtype)
      senses = dataclasses.replace(senses, vectors=encoded.decode())
    others = {}
    if table.opt_state:
      others['optimizer'] = {'vectors': table.opt_state}
    return vectors.Export(
      keys=source.keys,
      counts=source.counts,
      rows=encoded,
      multi=senses,
      others=others,
    )


KINDS = (Senses(),)
