"""Vectors of documents by PV-DBOW or PV-DM (Le & Mikolov 2014).

  jaxemb train --config=documents        the embedded encyclopedia's articles
  jaxemb train --config=documents:dm     by PV-DM

Your own documents: `--config.data.path=FILE_FOLDER_OR_GLOB`, a document per
line, or per row of a table or of JSON lines.
"""

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """The settings of a variant: '', 'dm' or 'smoke'."""
  config = config_lib.default()
  config.data.source, config.model.name = 'documents', 'dbow'
  # As many as gensim's users give; the few words of a document take them.
  config.train.epochs = 20
  if variant == 'dm':
    config.model.name = 'dm'
  elif variant == 'smoke':
    # Small enough for a test of the whole program.
    config.data.path = 'toywiki:60000'
    config.data.min_count = 2
    config.model.dim = 16
    config.train.epochs = 2
  elif variant:
    raise errors.UserError(
      f'the config documents has no variant {variant!r}; choose dm'
    )
  return config
