"""The skip-gram mixture (Tian et al. 2014; DMWE): vectors of senses.

jaxemb train --config=mixture          the embedded corpus
jaxemb train --config=mixture:simple   Simple English
jaxemb train --config=mixture:dmwe     as DMWE trains
"""

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors


def get_config(
  variant: str = '', data_path: str = ''
) -> ml_collections.ConfigDict:
  """The settings of a variant: '', 'simple', 'dmwe' or 'smoke'.

  `data_path` is the user's own data; '' = the embedded corpus.
  """
  config = config_lib.default()
  config.model.name = 'mixture'
  config.model.loss = 'hierarchical_softmax'
  config.model.dim = 50
  config.optimizer.name = 'adagrad'
  # All words around an occurrence disambiguate it, near and far.
  config.model.window, config.model.dynamic_window = 10, False
  config.senses.top_ratio = 0.1
  if variant == 'simple':
    config.data.path = 'wikipedia:simple'
  elif variant == 'dmwe':
    # As its run.py: give --config.data.path, and --config.senses.words, the
    # only ambiguous words. The optimizer and the number of epochs (5, there 20)
    # differ.
    config.data.sample, config.senses.top_ratio = 0.0, 0.0
    config.model.window = 5
    config.senses.method = 'likelihoods'
  elif variant == 'smoke':
    # Small enough for a test of the whole program.
    config.data.path = 'toywiki:60000'
    config.data.min_count = 2
    config.model.dim = 16
    config.train.epochs = 2
  elif variant:
    raise errors.UserError(
      f'the config mixture has no variant {variant!r}; choose simple or dmwe'
    )
  elif not data_path:
    config.data.sample = 1e-3  # the embedded corpus is small
  return config
