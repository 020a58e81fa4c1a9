"""Models of fastText as vectors of words, and vectors as such models."""

import functools
import itertools
import operator
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import composed_vectors, subwords
from jaxemb.ops import ngrams as ngrams_lib
from jaxemb.storage import export, fasttext_format, formats, word2vec_format

_BLOCK_WORDS = 4096


class Export(NamedTuple):
  """The export of a run, which may have output rows of words in `orbax/`."""

  folder: pathlib.Path
  words: Sequence[str]


class _Origin(NamedTuple):
  """What vectors are from, with attributes of `fasttext_format.Model`."""

  path: pathlib.Path
  settings: fasttext_format.Settings
  kind: str
  loss: str
  words: list[str]
  counts: np.ndarray
  num_tokens: int
  outputs: np.ndarray  # [words, dim] float32


def load(
  path: pathlib.Path | str,
) -> tuple[
  fasttext_format.Model,
  composed_vectors.ComposedVectors,
  subwords.NgramVectors | None,
]:
  """Reads a model of fastText; returns it, vectors of words and its n-grams.

  Raises a `UserError` for a file that cannot be read.
  """
  model = fasttext_format.read(path)
  ngrams = subwords.of_model(model)
  return model, composed_vectors.ComposedVectors(model, ngrams), ngrams


def write(
  path: pathlib.Path | str,
  words: Sequence[str],
  vectors: np.ndarray | export.LazyRows,
  counts: np.ndarray | None,
  ngrams: subwords.NgramVectors | None,
  origin: fasttext_format.Model | Export | None,
) -> int:
  """Writes a model of fastText, from which it has the same vectors.

  Settings, and output rows by word, are those of the model or the run that the
  vectors are from, if there is one; else fastText's defaults and zeros, with a
  warning of their number. Returns how many words UTF-8 cannot hold, which are
  renamed. Raises a `UserError` if it cannot be written.
  """
  words, num_renamed = word2vec_format.spell(words, has_spaces=True)
  if ngrams is not None and not ngrams.counts_missing:
    if ngrams.buckets is not None:
      raise errors.UserError(
        f'{path}: rows of a quantized model cannot be written; copy its .ftz'
      )
  source = _of_export(origin) if isinstance(origin, Export) else origin
  shape = len(words), vectors.shape[1]
  rows, reason = _output_rows(source, words, counts=counts, dim=shape[1])
  settings, num_others = fasttext_format.Settings(shape[1]), 0
  if source is not None and source.kind != 'supervised':
    settings = source.settings._replace(dim=shape[1])
    num_others = max(0, source.num_tokens - int(np.sum(source.counts)))
  settings = settings._replace(buckets=0, min_chars=0, max_chars=0)
  if ngrams is not None:
    spec = ngrams.subwords
    settings = settings._replace(
      buckets=spec.buckets, min_chars=spec.min_chars, max_chars=spec.max_chars
    )
  fasttext_format.write(
    path,
    settings=settings,
    words=words,
    counts=counts,
    inputs=_inputs(words, vectors, ngrams),
    outputs=export.OnDemand(
      functools.partial(_read_outputs, source, rows, shape[1]),
      shape,
      np.dtype(np.float32),
    ),
    num_others=num_others,
  )
  if num_unknown := int((rows < 0).sum()):
    warnings.warn(
      f'{path}: {num_unknown:,} of {len(words):,} output rows are zeros, as '
      f'{reason}; vectors are right, but training cannot continue from it',
      stacklevel=4,
    )
  return num_renamed


def _of_export(exported: Export) -> _Origin | None:
  """Reads what a run has learned beside its vectors, if fastText knows it.

  It knows output rows of skip-gram and CBOW with negative sampling.
  """
  folder, config_file = exported.folder, exported.folder.parent / 'config.json'
  if not ((folder / 'orbax').is_dir() and config_file.is_file()):
    return None
  from jaxemb.storage import orbax_export

  with export.reading(config_file):
    config = export.read_record(config_file)
    formats.RUN.check(config_file.parent, config)
  model, data = config['model'], config['data']
  name = 'context_vectors'
  num_rows, dim = orbax_export.shapes(folder / 'orbax').get(name, (0, 0))
  number_of = {name: number for number, name in fasttext_format.MODELS.items()}
  is_known = model['loss'] == 'negative_sampling' and model['name'] in number_of
  if not is_known or num_rows != len(exported.words):
    return None
  return _Origin(
    path=folder,
    settings=fasttext_format.Settings(
      dim,
      window=model['window'],
      epochs=config['train']['epochs'],
      min_count=data['min_count'],
      negatives=model['negatives'],
      model=number_of[model['name']],
      sample=data['sample'],
    ),
    kind=model['name'],
    loss=model['loss'],
    words=list(exported.words),
    counts=np.zeros(0, np.int64),
    num_tokens=0,
    outputs=orbax_export.read(folder / 'orbax', [name])[name],
  )


def _inputs(words, vectors, ngrams) -> Iterator[np.ndarray]:
  """Yields word rows in blocks, then rows of n-grams."""
  if ngrams is None:
    yield from export.blocks(vectors)
    return
  for first in range(0, len(words), _BLOCK_WORDS):
    names = words[first : first + _BLOCK_WORDS]
    rows = np.arange(first, first + len(names))
    if not isinstance(vectors, composed_vectors.ComposedVectors):
      yield _word_rows(names, vectors[rows], ngrams)
      continue
    block = vectors.model.inputs[rows]
    is_renamed = _are_renamed(names, vectors.model, first)
    if is_renamed.any():
      renamed = [*itertools.compress(names, is_renamed)]
      block[is_renamed] = _word_rows(renamed, vectors[rows[is_renamed]], ngrams)
    yield block
  yield from ngrams.all_buckets()


def _are_renamed(names, model, first: int) -> np.ndarray:
  """Returns which names have other bytes than words of a model, from `first`.

  They have other n-grams, too, such as those of escapes in place of bytes that
  are not UTF-8.
  """
  rows = slice(first, first + len(names))
  sizes = np.array([len(x.encode()) for x in names])
  are_equal = np.array([*map(operator.eq, names, model.words[rows])])
  return ~are_equal | (sizes != model.ends[rows] - model.begins[rows])


def _word_rows(names, vectors, ngrams) -> np.ndarray:
  """Returns the rows of which, and of n-grams, vectors are means."""
  bags = ngrams.bags(ngrams_lib.of_words(names, ngrams.subwords))
  sums = composed_vectors.ngram_sums(bags, ngrams.rows)
  sizes = bags.sizes[:, None].astype(np.float32)
  return np.asarray(vectors, np.float32) * sizes - sums


def _output_rows(
  origin: fasttext_format.Model | _Origin | None,
  words: Sequence[str],
  counts: np.ndarray | None,
  dim: int,
) -> tuple[np.ndarray, str]:
  """Returns the output row of each word, -1 = unknown, and why any is."""
  rows = np.full(len(words), -1)
  if origin is None or origin.settings.dim != dim:
    return rows, (
      'these vectors are neither from a model of fastText nor those of a run '
      'that is still there'
    )
  if origin.kind == 'supervised':
    return rows, 'those of a classifier, and its labels, are not written'
  is_same = list(words) == origin.words
  if is_same and len(origin.outputs) == len(words):
    rows = np.arange(len(words))
  if origin.loss == 'hierarchical_softmax':
    if counts is None or not np.array_equal(counts, origin.counts):
      rows[:] = -1
    return rows, 'words or counts, and so the Huffman tree, have changed'
  if not is_same:
    row_of = dict(zip(origin.words, range(len(origin.words)), strict=True))
    rows = np.array([row_of.get(x, -1) for x in words], np.int64)
  return rows, f'{origin.path} lacks these words'


def _read_outputs(origin, rows, dim, wanted):
  """Returns output rows [n, dim] of words, zeros where there are none."""
  rows = rows[wanted]
  block = np.zeros((len(rows), dim), np.float32)
  if (rows >= 0).any():
    block[rows >= 0] = origin.outputs[rows[rows >= 0]]
  return block
