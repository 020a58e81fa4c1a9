r"""GraphSAGE (Hamilton et al. 2017): classes of nodes from what neighbors have.

  jaxemb train --config=graphsage        an embedded graph
  jaxemb train --config=graphsage --config.data.path=cora.npz
  jaxemb train --config=graphsage:walks  vectors of nodes, no labels

Of a graph of your own 20 labelled nodes of each class are learned from, 500
others choose the best evaluation, and 1000 are the test, as it is usual for
Cora (Yang et al. 2016). The rest has labels that nothing learns from:
`--config.data.train_per_class=0 --config.data.valid=0.1 --config.data.test=0.2`
learns from all that are not held out.

Nodes without features: `--config.model.inputs=rows`, or `both`.
"""

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """The settings of a variant: '' or 'walks'."""
  config = config_lib.default()
  config.data.source = 'nodes'
  config.data.normalize = True
  config.model.name = 'graphsage'
  config.model.dim = 64
  config.optimizer.name = 'adam_full'
  # Constant, unless another final one is given.
  config.optimizer.learning_rate = 0.01
  final_rate = config.optimizer.get_oneway_ref('learning_rate')
  config.optimizer.final_learning_rate = final_rate
  config.strategy.name = 'sync'
  if variant == 'walks':
    config.data.targets = 'walks'
    config.data.fanouts = '5,10'
    config.data.normalize = False
    config.model.hidden = '128'  # with 64 some communities stay together
    config.model.window = 2  # as far as both layers see
    config.model.temperature = 0.2
    config.train.batch_examples = 256
    config.train.epochs = 10
  elif variant:
    raise errors.UserError(
      f'the config graphsage has no variant {variant!r}; choose walks'
    )
  else:
    # Of few labels: more would be learned by heart.
    config.data.train_per_class = 20
    config.data.valid, config.data.test = '500', '1000'
    config.model.hidden = '16'
    config.model.dropout = 0.5
    config.optimizer.dense_decay = 5e-4
    config.train.batch_examples = 256
    config.train.epochs = 200
    config.train.patience = 100
    config.eval.every_epochs = 1.0
  return config
