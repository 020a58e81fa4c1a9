r"""Clicks: DeepFM (Guo et al. 2017) on categories and numbers.

  jaxemb train --config=ctr           an embedded log
  jaxemb train --config=ctr --config.data.path=clicks.csv
  jaxemb train --config=ctr:criteo --config.data.path=train.txt
  jaxemb train --config=ctr:avazu --config.data.path=train.csv
  jaxemb train --config=ctr:ids --config.data.path=frappe
  jaxemb train --config=ctr:adult --config.data.path=adult.data \
    --config.data.test=test.csv

`ids` is for logs of nothing but ids in small tables, such as Frappe: users,
items and contexts, of which each pair occurs rarely. A step decays all rows.

Another model: `--config.model.name=dcn_v2`, or logistic, fm, wide_deep, dcn,
dlrm. The embedded log has 200,000 rows, of which the true odds have an AUC of
0.852; expected are 0.848 after some 20 s on two CPU cores.
"""

from collections.abc import Iterable

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.io import inputs

_VARIANTS = 'criteo', 'avazu', 'ids', 'adult'


def get_config(
  variant: str = '', data_path: str = ''
) -> ml_collections.ConfigDict:
  """The settings of a variant: '', one of `_VARIANTS`, or 'smoke'.

  `data_path` is the user's own log; '' = the embedded one.
  """
  config = config_lib.default()
  config.data.source = 'clicks'
  config.data.min_count = 2
  config.model.name = 'deepfm'
  config.model.dim = 16
  config.optimizer.name = 'adam_full'
  # Constant, unless another final one is given.
  config.optimizer.learning_rate = 0.002
  final_rate = config.optimizer.get_oneway_ref('learning_rate')
  config.optimizer.final_learning_rate = final_rate
  config.strategy.name = 'sync'
  config.train.epochs = 15
  config.eval.every_epochs = 1.0
  if variant in ('smoke', 'adult') or not (variant or data_path):
    # Of small data: more would be learned by heart.
    config.optimizer.decay = 1e-3
    config.optimizer.dense_decay = 1e-4
    config.train.batch_examples = 512
  elif variant != 'ids':
    config.optimizer.learning_rate = 0.001
  if variant in ('criteo', 'avazu'):
    config.train.epochs = 2
  config.data.valid = '0.1'  # the embedded log has rows of its own for it
  config.train.patience = 2
  config.optimizer.plateau_factor = 0.1
  if variant == 'criteo':
    config.data.format = 'criteo'
    config.data.min_count = 10
    config.data.test = '0.1'
  elif variant == 'avazu':
    config.data.format = 'avazu'
    config.data.test = '0.1'
  elif variant == 'ids':
    config.data.min_count = 1
    config.model.dim = 10
    config.model.hidden = '400,400,400'
    config.model.batch_norm = True
    config.model.dropout = 0.2
    config.optimizer.decay = 0.05
    config.optimizer.rows = 'all'
    config.train.epochs = 30  # fewer, as plateaus end training
  elif variant == 'adult':
    # UCI Adult, with or without a line of names.
    config.data.columns = (
      'number,category,number,category,number,category,category,category,'
      'category,category,number,number,number,category,label'
    )
    config.data.positive = '>50K'
    config.data.numbers = 'standard'
  elif variant == 'smoke':
    config.data.path = 'toyclicks:20000'
    config.train.batch_examples = 512
    config.train.epochs = 2
    config.model.hidden = '16'
    config.model.dim = 4
  elif variant:
    raise errors.UserError(
      f'the config ctr has no variant {variant!r}; choose '
      f'{", ".join(_VARIANTS)}'
    )
  for split in _splits(data_path):
    config.data[split] = ''  # the file that there is
  return config


def _splits(data_path: str) -> Iterable[str]:
  """The splits that a folder has beside the rows to train on."""
  try:
    return inputs.find(data_path).splits if data_path else ()
  except errors.UserError:  # which reading it raises, too
    return ()
