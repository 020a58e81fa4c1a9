r"""Vectors of items from interactions: who visited, bought or liked what.

  jaxemb train --config=rec            matrix factorization, softmax
  jaxemb train --config=rec:bpr        the same by BPR
  jaxemb train --config=rec:item2vec   skip-gram on sets of items

  jaxemb train --config=rec --config.data.path=train.txt \
    --config.data.valid=0.1

Files are tables of users and items, or lines `user item item ...`. Without one,
embedded sets are used, of users who like two of a hundred groups of items: of
what is held out, 20 recommended items can have all.
"""

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """The settings of a variant: '', 'bpr' or 'item2vec'."""
  config = config_lib.default()
  config.data.source = 'interactions'
  config.data.min_count = 1
  config.model.name = 'factorization'
  config.model.dim = 64
  config.optimizer.name = 'adagrad'
  config.strategy.name = 'sync'
  config.train.batch_examples = 2048
  if variant == 'item2vec':
    config.data.source = 'item_sets'
    config.data.sample = 0.0
    config.model.name = 'skipgram'
    config.model.window, config.model.dynamic_window = 20, False
    config.train.batch_examples = config_lib.find(
      'train.batch_examples'
    ).default
    # Rows have few interactions: with 0.15 they need many more epochs.
    config.optimizer.learning_rate = 0.5
    config.train.epochs = 40
  elif variant == 'bpr':
    config.model.loss = 'bpr'
    config.model.shared_negatives = 64
    config.optimizer.learning_rate = 0.5
    config.optimizer.decay = 0.0075
    # It learns slowly, as most draws are told apart soon.
    config.train.epochs = 300
  elif variant:
    raise errors.UserError(
      f'the config rec has no variant {variant!r}; choose bpr or item2vec'
    )
  else:
    config.model.loss = 'softmax'
    config.model.shared_negatives = 256
    config.model.temperature = 0.15
    config.optimizer.learning_rate = 0.3
    config.train.epochs = 30
  return config
