"""Trained documents: their vectors, those of words, and inference.

export/          vectors of documents, in the forms of `storage.export`
export/words/    vocab.txt, `word count` lines; outputs.npy, and of PV-DM
                 inputs.npy, [words, dim] float32; documents.json, settings
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxemb.storage import atomic, word2vec_format
from jaxemb.storage import export as export_lib

_FOLDER, _SETTINGS = 'words', 'documents.json'
_OUTPUTS, _INPUTS = 'outputs.npy', 'inputs.npy'


def save(
  folder: pathlib.Path,
  config: Any,
  source: Any,
  arrays: Mapping[str, np.ndarray],
) -> None:
  """Writes what inference needs of a run into its export."""
  m, o, data = config.model, config.optimizer, config.data
  settings = {
    'model': m.name,
    'window': m.window,
    'dynamic_window': m.dynamic_window,
    'negatives': m.negatives,
    'sample': data.sample,
    'tokens': data.tokens,
    'lowercase': data.lowercase,
    'epochs': config.train.epochs,
    'learning_rate': o.learning_rate,
    'final_learning_rate': o.final_learning_rate,
    'seed': config.seed,
  }
  named = {_OUTPUTS: 'context_vectors', _INPUTS: 'word_vectors'}
  with atomic.folder(folder / _FOLDER) as new:
    for name, key in named.items():
      if key in arrays:
        with (new / name).open('wb') as file:
          export_lib.put_array(file, np.asarray(arrays[key]))
    with (new / 'vocab.txt').open('wb') as file:
      word2vec_format.put_counts(file, source.context_keys, source.word_counts)
    (new / _SETTINGS).write_text(json.dumps(settings, indent=2), 'utf-8')
