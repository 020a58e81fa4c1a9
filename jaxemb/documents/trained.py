"""Trained documents: their vectors, those of words, and inference.

export/          vectors of documents, in the forms of `storage.export`
export/words/    vocab.txt, `word count` lines; outputs.npy, and of PV-DM
inputs.npy, [words, dim] float32; documents.json, settings
"""

import functools
import json
import math
import numbers
import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from jaxemb import embeddings, errors, missing_names
from jaxemb.data import sentences
from jaxemb.evaluation import geometry
from jaxemb.storage import atomic, damage, formats, word2vec_format
from jaxemb.storage import export as export_lib

if TYPE_CHECKING:
  from jaxemb.documents import inference

_FOLDER, _SETTINGS = 'words', 'documents.json'
_OUTPUTS, _INPUTS = 'outputs.npy', 'inputs.npy'
FORMAT = formats.Format(
  'a model of documents', number=1, remedy='use that version, or train it again'
)
_MOST_NAMES = 5
_MAX_SETTING = 1 << 32
# As of `config.model` and `config.train`, or inference would not end.
_MOST = {'window': 255, 'negatives': 65_536, 'epochs': 1_000_000}
# Of the settings that are saved.
_KINDS = {
  'model': str, 'window': int, 'dynamic_window': bool, 'negatives': int,
  'sample': float, 'tokens': str, 'lowercase': bool, 'epochs': int,
  'learning_rate': float, 'final_learning_rate': float, 'seed': int,
}  # fmt: skip


class Documents:
  """Document vectors, with the method names of gensim's `Doc2Vec`.

  `dv` has the vectors of documents, by tag or by number as a string. `wv` has
  the vectors of words: the input vectors of PV-DM, or the output vectors of
  PV-DBOW, which has no input vectors. `infer` returns vectors of new documents.

  Examples:
    The examples of all methods begin with this model:

    >>> import jaxemb
    >>> animals, foods = ('cow', 'horse'), ('grass', 'hay', 'straw')
    >>> texts = [f'the {x} eats {y}' for x in animals for y in foods] * 30
    >>> model = jaxemb.train(texts, config='documents', dim=20, epochs=50)
    >>> model
    Documents(dbow, 180 documents, 7 words, dim 20)
    >>> model.dv['0'].shape  # of the first document
    (20,)
    >>> 'cow' in model.wv
    True
  """

  def __init__(
    self,
    dv: embeddings.Embeddings,
    outputs: embeddings.Embeddings,
    inputs: embeddings.Embeddings | None,
    settings: Mapping[str, Any],
  ):
    """`outputs` and `inputs` are vectors of words, with their counts."""
    self.dv, self._outputs, self._inputs = dv, outputs, inputs
    self.settings = dict(settings)

  def __getattr__(self, name: str) -> Any:
    """Raises an `AttributeError` that says what stands for gensim's `name`."""
    instead = missing_names.OF_DOCUMENTS
    raise AttributeError(
      missing_names.missing(type(self).__name__, name, instead)
    )

  @property
  def wv(self) -> embeddings.Embeddings:
    """Returns the vectors of words."""
    return self._outputs if self._inputs is None else self._inputs

  @property
  def _word_counts(self) -> np.ndarray:
    """Returns the counts of words, which are known."""
    return cast(np.ndarray, self._outputs.counts)

  @property
  def vector_size(self) -> int:
    """Returns the dimension of the vectors."""
    return self.dv.vectors.shape[1]

  @property
  def epochs(self) -> int:
    """Returns the epochs of training, the default for inference."""
    return self.settings['epochs']

  def __repr__(self) -> str:
    """Says what the model is."""
    return (
      f'Documents({self.settings["model"]}, {len(self.dv):,} documents, '
      f'{len(self.wv):,} words, dim {self.vector_size})'
    )

  def infer(
    self,
    documents: Iterable[str | Sequence[str]],
    *,
    epochs: int | None = None,
    learning_rate: float | None = None,
    final_learning_rate: float | None = None,
    seed: int | None = None,
  ) -> np.ndarray:
    """Returns the vectors of new documents, [documents, dim] float32.

    A document is a string, which is split into words as in training, or a list
    of words. Its vector does not depend on the other documents. Epochs,
    learning rates and seed that are None are those of the run. Documents
    without a known word have zero vectors, with a warning. The inference uses
    all cores.

    Examples:
      >>> model.infer(['the cow eats hay', ['a', 'horse']]).shape
      (2, 20)
    """
    from jaxemb.documents import inference

    if isinstance(documents, str):
      raise errors.UserError(
        f'{documents[:60]!r} is one document; give a list, or infer_vector'
      )
    for name, value in (('epochs', epochs), ('seed', seed)):
      if not (value is None or isinstance(value, numbers.Integral)):
        raise errors.UserError(f'{name}={value!r} must be a whole number')
    s, documents = self.settings, _listed(documents)
    ids, starts = self._words_of(documents)
    empty = np.flatnonzero(np.diff(starts) == 0)
    if len(empty):
      names = ', '.join(map(str, empty[:_MOST_NAMES]))
      names += ', ...' * (len(empty) > _MOST_NAMES)
      warnings.warn(
        f'documents without a known word have zeros: {names}', stacklevel=2
      )
    first, last = self._rates(learning_rate, final_learning_rate)
    epochs = s['epochs'] if epochs is None else epochs
    if not 1 <= epochs < 2**31:
      raise errors.UserError(f'epochs={epochs} must be 1 or more')
    options = inference.Options(
      window=s['window'],
      shortest_window=1 if s['dynamic_window'] else s['window'],
      negatives=s['negatives'],
      epochs=epochs,
      learning_rate=first,
      final_learning_rate=last,
      seed=(s['seed'] if seed is None else seed) % 2**63,
    )
    return inference.infer(ids, starts, self._trained[1], options=options)

  def _rates(
    self, first: float | None, last: float | None
  ) -> tuple[float, float]:
    """Returns learning rates; raises a `UserError` for unusable ones."""
    for rate in first, last:
      if not (rate is None or isinstance(rate, numbers.Real)):
        raise errors.UserError(f'a learning rate of {rate!r} must be a number')
    if first is None:
      first = self.settings['learning_rate']
    if last is None:
      last = min(first, self.settings['final_learning_rate'])
    if not 0 < first < math.inf:
      raise errors.UserError(f'a learning rate of {first} must be positive')
    if not 0 <= last <= first:
      raise errors.UserError(
        f'a final learning rate of {last} must be 0 or more, and at most '
        f'{first:g}, from which the rate falls'
      )
    return float(first), float(last)

  def infer_vector(
    self,
    doc_words: str | Sequence[str],
    alpha: float | None = None,
    min_alpha: float | None = None,
    epochs: int | None = None,
  ) -> np.ndarray:
    """Returns the vector of a new document, [dim], with gensim's arguments.

    For many documents, `infer` is faster.

    Examples:
      >>> vector = model.infer_vector(['cow', 'eats', 'hay'])
      >>> number, cosine = model.dv.most_similar(vector, topn=1)[0]
      >>> texts[int(number)]
      'the cow eats hay'
    """
    return self.infer(
      [doc_words],
      epochs=epochs,
      learning_rate=alpha,
      final_learning_rate=min_alpha,
    )[0]

  def similarity_unseen_docs(
    self,
    doc_words1: str | Sequence[str],
    doc_words2: str | Sequence[str],
    alpha: float | None = None,
    min_alpha: float | None = None,
    epochs: int | None = None,
  ) -> float:
    """Returns the cosine of the inferred vectors of two documents.

    Examples:
      >>> text = 'the cow eats hay'
      >>> near = model.similarity_unseen_docs(text, 'a cow eats hay')
      >>> far = model.similarity_unseen_docs(text, 'a horse eats straw')
      >>> near > far
      True
    """
    a, b = (
      geometry.unit_vector(
        self.infer_vector(x, alpha, min_alpha, epochs=epochs)
      )
      for x in (doc_words1, doc_words2)
    )
    return float(a @ b)

  def save(self, folder: pathlib.Path | str) -> None:
    """Writes a folder for `jaxemb.load`.

    Raises a `UserError` if a file cannot be written.

    Examples:
      >>> model.save('documents')
      >>> jaxemb.load('documents')
      Documents(dbow, 180 documents, 7 words, dim 20)
    """
    inputs = None if self._inputs is None else self._inputs.vectors
    arrays = {_OUTPUTS: self._outputs.vectors, _INPUTS: inputs}
    with atomic.together(folder) as new:
      self.dv.save(new)
      _write(
        new,
        self.settings,
        words=self._outputs.index_to_key,
        counts=self._word_counts,
        arrays=arrays,
      )

  def in_memory(self) -> 'Documents':
    """Returns a copy in memory, which does not depend on files.

    Examples:
      >>> import shutil
      >>> model.save('documents')
      >>> loaded = jaxemb.load('documents').in_memory()
      >>> shutil.rmtree('documents')
      >>> loaded.infer(['the cow eats hay']).shape
      (1, 20)
    """
    inputs = self._inputs and self._inputs.in_memory()
    return Documents(
      self.dv.in_memory(),
      outputs=self._outputs.in_memory(),
      inputs=inputs,
      settings=self.settings,
    )

  @functools.cached_property
  def _trained(self) -> tuple[dict[str, int], 'inference.Rows']:
    """Returns words and their rows, which stay when `wv` is changed."""
    from jaxemb.documents import inference

    inputs = None if self._inputs is None else self._inputs.vectors
    rows = inference.rows(
      self._outputs.vectors,
      inputs,
      counts=self._word_counts,
      sample=self.settings['sample'],
    )
    return dict(self._outputs.key_to_index), rows

  def _words_of(
    self, documents: Sequence[str | Sequence[str]]
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids of known words, and where those of each document begin."""
    known, ids = self._trained[0], []
    texts = [x for x in documents if isinstance(x, str)]
    of_texts = iter(_split(texts, self.settings))
    for number, document in enumerate(documents):
      if isinstance(document, bytes) or not isinstance(document, Iterable):
        raise errors.UserError(
          f'document {number:,} is {str(document)[:60]!r}; give text or a list '
          'of words'
        )
      words = next(of_texts) if isinstance(document, str) else document
      ids.append([known[x] for x in words if x in known])
    starts = np.cumsum([0, *map(len, ids)])
    flat = np.fromiter((y for x in ids for y in x), np.int32, starts[-1])
    return flat, starts


def _listed(documents: Iterable[str | Sequence[str]]) -> list:
  """Returns documents in a list; raises a `UserError` for anything else."""
  if not isinstance(documents, Iterable):
    raise errors.UserError(f'{documents!r} must be a list of documents')
  return list(documents)


def _split(
  texts: Sequence[str], settings: Mapping[str, Any]
) -> list[list[str]]:
  """Returns the words of texts, as a run with these settings cuts them."""
  from jaxemb.text import tokenize

  if not texts:
    return []
  lines = [' '.join(x.splitlines()) + '\n' for x in texts]
  ids, words, *_ = tokenize.tokenize(
    ''.join(lines).encode(errors='replace'),
    definition=settings['tokens'],
    lowercase=settings['lowercase'],
    every_line=True,
  )
  names = [x.decode() for x in words.texts()]
  stops = np.flatnonzero(ids == sentences.END)
  return [
    [names[i] for i in x[x != sentences.END]] for x in np.split(ids, stops)[:-1]
  ]


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
  _write(
    folder,
    settings,
    words=source.context_keys,
    counts=source.word_counts,
    arrays={
      _OUTPUTS: arrays['context_vectors'],
      _INPUTS: arrays.get('word_vectors'),
    },
  )


def _write(
  folder: pathlib.Path,
  settings: Mapping[str, Any],
  words: Sequence[str],
  counts: np.ndarray,
  arrays: Mapping[str, np.ndarray | None],
) -> None:
  with atomic.folder(folder / _FOLDER) as new:
    for name, array in arrays.items():
      if array is not None:
        with (new / name).open('wb') as file:
          export_lib.put_array(file, np.asarray(array))
    with (new / 'vocab.txt').open('wb') as file:
      word2vec_format.put_counts(file, words, counts)
    record = FORMAT.stamp() | dict(settings)
    (new / _SETTINGS).write_text(json.dumps(record, indent=2), 'utf-8')


def _check_settings(settings: Mapping[str, Any]) -> None:
  """Raises a `ValueError` for settings that inference cannot use."""
  for name, kind in _KINDS.items():
    # bool is an int in Python.
    if type(settings.get(name)) not in (kind, int if kind is float else kind):
      raise ValueError(
        f'{_SETTINGS} has {name}={settings.get(name)!r}, no {kind.__name__}'
      )
    most = _MOST.get(name, _MAX_SETTING)
    if kind in (int, float) and not abs(settings[name]) <= most:
      raise ValueError(f'{_SETTINGS} has {name}={settings[name]}')


def folder_of(path: str | os.PathLike[str]) -> pathlib.Path | None:
  """Returns the folder of an export with documents, or None."""
  folders = export_lib.folders(path)
  return next((x for x in folders if (x / _FOLDER / _SETTINGS).is_file()), None)


def load(folder: pathlib.Path) -> Documents:
  """Reads what a run or `Documents.save` has written.

  Raises a `UserError` if it is damaged.
  """
  inner = folder / _FOLDER
  try:
    settings = FORMAT.check(inner, export_lib.read_record(inner / _SETTINGS))
    _check_settings(settings)
    words, counts = word2vec_format.read_vocab(inner / 'vocab.txt')
    arrays = {
      x: embeddings.Embeddings(words, export_lib.open_array(inner / x), counts)
      for x in (_OUTPUTS, _INPUTS)
      if (inner / x).exists()
    }
    vectors = embeddings.load_vectors(folder)
    for name, words_of in arrays.items():
      if words_of.vectors.shape[1:] != vectors.vectors.shape[1:]:
        raise ValueError(f'{name} has other dimensions than the documents')
    return Documents(
      vectors,
      outputs=arrays[_OUTPUTS],
      inputs=arrays.get(_INPUTS),
      settings=settings,
    )
  except (OSError, *damage.ERRORS) as error:
    raise errors.UserError(
      f'{inner} is damaged: {errors.one_line(error)}; export the run again'
    ) from error
