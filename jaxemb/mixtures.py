"""Settings of the model 'mixture'; the other ones are in `config`."""

import ml_collections

CHOICES = {
  'senses.drawn_for': ('pairs', 'occurrences'),
  'senses.averages': ('log_likelihoods', 'responsibilities'),
}
RANGES = {
  'senses.number': (1, 50),
  'senses.top_n': (0, None),
  'senses.top_ratio': (0, 1),
  'senses.momentum': (0, 1),
  'senses.tied_until': (0, 1),
  'senses.annealed_until': (0, 1),
}


def default() -> ml_collections.ConfigDict:
  """The section config.senses."""
  c = ml_collections.ConfigDict()
  c.number = 5  # of each word that has several; those are the union of
  c.top_n = 0  # the most frequent words,
  c.top_ratio = 0.0  # the most frequent share of the vocabulary, and
  c.words = ''  # the words of a file with one per line
  c.drawn_for = 'pairs'  # the sense that is meant: anew for every pair,
  # as the paper has it, or one for all pairs of an occurrence, 'occurrences'
  c.averages = 'log_likelihoods'  # what priors are averages of: of joint
  # log-likelihoods, or of 'responsibilities'
  c.tied_until = 0.0
  c.annealed_until = 0.0
  c.momentum = 0.05  # of those averages; rises to 1 while training
  return c
