"""The models that the settings name, made of what they want to know."""

import numpy as np

from jaxemb import errors
from jaxemb.models import cbow, hierarchical, skipgram, tree
from jaxemb.senses import context_mixture, mixture, sampled, sense_rows
from jaxemb.text import loader


def _sampled(model):
  """A model with negative sampling."""

  def make(config, spec, counts, words):
    del config, words
    return model(spec, skipgram.negative_distribution(counts))

  return make


def _tree(config, spec, counts):
  if len(counts) < 2:
    raise errors.UserError(
      'config.model.loss=hierarchical_softmax needs a vocabulary of two words '
      'or more; give more text, or lower --config.data.min_count'
    )
  centers = loader.center_probabilities(counts, config.data.sample)
  return tree.grow(counts, centers, spec.chunk, config.model.shared_nodes)


def _hierarchical(config, spec, counts, words):
  del words
  outputs = _tree(config, spec, counts)
  return hierarchical.Hierarchical(spec, outputs, config.model.name == 'cbow')


def _mixture(config, spec, counts, words):
  """The mixture, with the outputs that its loss has."""
  s = config.senses
  if config.model.loss == 'hierarchical_softmax':
    outputs = _tree(config, spec, counts)
  else:
    outputs = sampled.outputs(spec, skipgram.negative_distribution(counts))
  is_ambiguous = sense_rows.ambiguous(config, words).mask
  centers = loader.center_probabilities(counts, config.data.sample)
  rows = sense_rows.number(is_ambiguous, s.number)
  chance = float(centers[is_ambiguous].sum())
  if s.method == 'contexts':
    half = context_mixture.HALF_WEIGHT
    weights = (half / (half + counts / counts.sum())).astype(np.float32)
    return context_mixture.ContextMixture(
      spec,
      outputs,
      rows,
      weights,
      context_mixture.concentration(
        config.model.shortest_window, config.model.window
      ),
      chance,
    )
  return mixture.Mixture(spec, outputs, rows, True, True, 0.0, chance)


# By name and loss: (config, spec, counts, words) -> model
MODELS = {
  ('skipgram', 'negative_sampling'): _sampled(skipgram.SkipGram),
  ('cbow', 'negative_sampling'): _sampled(cbow.Cbow),
  ('skipgram', 'hierarchical_softmax'): _hierarchical,
  ('cbow', 'hierarchical_softmax'): _hierarchical,
  ('mixture', 'negative_sampling'): _mixture,
  ('mixture', 'hierarchical_softmax'): _mixture,
}
