"""Whole runs in this process, on a small corpus."""

import json
import pathlib
import re

import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.evaluation import multivectors
from jaxemb.run import lifecycle as train
from jaxemb.storage import orbax_export

_ROOT = pathlib.Path(__file__).parents[1]
SETTINGS = {
  'data.path': 'toywiki:60000',
  'data.min_count': 2,
  'data.sample': 1e-4,
  'model.dim': 16,
  'train.epochs': 5,
  'mesh.data': 2,  # whatever the machine
  'train.threads': 1,  # the same bits again
  'eval.paths': 'none',
}
SAVE_ALWAYS = {'train.checkpoint_every_secs': 0.0}


def run(workdir: pathlib.Path, settings: dict, *args, **fixed) -> int:
  """Trains with these settings beside `SETTINGS`; returns the exit code."""
  config = config_lib.check(config_lib.default(), SETTINGS | settings)
  return train.run(config, workdir, *args, **fixed)


def refused(workdir: pathlib.Path, settings: dict, *args) -> str:
  """The one line about it; what is there of an earlier run stays."""
  files = [workdir / 'config.json', *workdir.glob('export/*.*')]
  before = {x: x.read_bytes() for x in files if x.exists()}
  with pytest.raises(errors.UserError) as caught:
    run(workdir, settings, *args)
  assert '\n' not in str(caught.value)
  assert all(x.read_bytes() == data for x, data in before.items())
  return str(caught.value)


def report(workdir: pathlib.Path, name: str = 'report.json') -> dict:
  """What a file of JSON says."""
  return json.loads((workdir / name).read_text())


def log(workdir: pathlib.Path) -> str:
  """The log of all starts."""
  return (workdir / 'log.txt').read_text()


def vectors(workdir: pathlib.Path) -> bytes:
  """The exported vectors, to the last bit."""
  return (workdir / 'export' / 'vectors.npy').read_bytes()


def examples() -> dict[str, str]:
  """The modules of docs/guides/extending.md, by name."""
  text = (_ROOT / 'docs' / 'guides' / 'extending.md').read_text()
  blocks = re.findall(
    r'^```python\n(# my_.*?)^```', text, re.DOTALL | re.MULTILINE
  )
  return {x.split('.py:')[0].removeprefix('# '): x for x in blocks}


def write_senses(
  folder: pathlib.Path | str, senses: multivectors.MultiVectors
) -> None:
  """The export of words with several vectors."""
  rows = senses.names(), senses.vectors, senses.by_row(senses.counts)
  jaxemb.Embeddings(*rows, senses).save(folder)


def write_trained(
  workdir: pathlib.Path, words: list[str], vectors: np.ndarray, counts
) -> None:
  """The export of a run with Adagrad, as merges and warm starts read it.

  Context vectors are twice the vectors; the sums of squares of row i are i + 1,
  and i + 2 of its context vector.
  """
  jaxemb.Embeddings(words, vectors, np.array(counts)).save(workdir / 'export')
  squares = np.arange(1, len(words) + 1, dtype=np.float32)
  optimizer = {
    'vectors': {'sum_squares': squares},
    'context_vectors': {'sum_squares': squares + 1},
  }
  arrays = {'vectors': vectors, 'context_vectors': 2 * vectors}
  arrays['optimizer'] = optimizer
  orbax_export.write(workdir / 'export' / 'orbax', arrays)
