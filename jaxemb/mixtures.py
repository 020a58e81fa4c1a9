"""Settings of the model 'mixture'; the other ones are in `config`."""

import ml_collections

CHOICES = {
  'senses.told_by': ('contexts', 'likelihoods'),
  'senses.drawn_for': ('pairs', 'occurrences'),
  'senses.averages': ('log_likelihoods', 'responsibilities'),
}
RANGES = {
  'senses.number': (1, 50),
  'senses.top_n': (0, None),
  'senses.top_ratio': (0, 1),
  'senses.momentum': (0, 1),
  'senses.tied_until': (0, 1),
  'senses.shared': (0, 1),
  'senses.concentration': (0, None),
  'senses.shift': (0, None),
  'senses.half_weight': (1e-9, None),
  'senses.query_window': (0, None),
}


# Of a mean of words, for each of them, as one over its variance is. The scores
# of SCWS liked 25 where windows of up to 5 have 6 words.
_CONCENTRATION_PER_WORD = 25 / 6


def concentration(config: ml_collections.ConfigDict) -> float:
  """Of contexts around their sense's mean (`models.context_mixture`)."""
  s = config.senses
  if config.model.name != 'mixture' or s.told_by != 'contexts':
    return s.concentration  # means nothing
  # Windows are of all sizes alike; two of the mean size are around a word.
  words = config.model.shortest_window + config.model.window
  return s.concentration or _CONCENTRATION_PER_WORD * words


def default() -> ml_collections.ConfigDict:
  """The section config.senses."""
  c = ml_collections.ConfigDict()
  c.number = 5  # of each word that has several; those are the union of
  c.top_n = 0  # the most frequent words,
  c.top_ratio = 0.0  # the most frequent share of the vocabulary, and
  c.words = ''  # the words of a file with one per line
  c.told_by = 'contexts'  # the words around an occurrence by what they mean;
  # or by how likely each of them is, 'likelihoods', as Tian et al. 2014 have it
  c.concentration = 0.0  # of contexts around their sense's mean; 0 = as many
  # words have that the windows of training hold, see `concentration`
  c.half_weight = 1e-3  # share of the text of a word that weighs half in them
  c.shift = 1.25  # how far vectors are moved to where their sense occurs
  c.shared = 0.9  # share of what a sense learns that its word's others learn
  c.query_window = 0  # known words on each side that tell which sense is meant
  # in a text that is asked about; 0 = as many as model.window, of 'contexts'
  # twice as many, since they are not subsampled and more words steady a mean
  c.tied_until = 0.2  # share of training in which all senses of a word learn
  # the same, as contexts mean nothing yet; 0 = none
  c.momentum = 0.9  # of the averages that priors, and means of 'contexts', are;
  # rises to 1 while training
  # Of 'likelihoods':
  c.drawn_for = 'occurrences'  # the sense that is meant: one for all pairs of
  # an occurrence; or anew for all of them, 'pairs', as Tian et al. 2014 have it
  c.averages = 'responsibilities'  # what priors are averages of; or of joint
  # log-likelihoods, 'log_likelihoods', as the paper's code has it
  return c
