"""The functions of `import jaxemb`: `train`, `load` and `load_phrases`.

JAX is imported only when they are called.
"""

import itertools
import json
import os
import pathlib
import tempfile
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never

from jaxemb import errors, missing_names

if TYPE_CHECKING:
  from jaxemb import embeddings
  from jaxemb.clicks import predictor
  from jaxemb.documents import trained
  from jaxemb.text import phrases

_COLUMNS = {  # of tables, by `data.source`; others have users and items
  'clicks': ('label', 'user'),
  **dict.fromkeys(('graph', 'nodes', 'edges'), ('source', 'target')),
}
_OF_SENTENCES = 'text', 'documents'  # values of `data.source`
_KINDS = str, bytes, Iterable  # of sentences, of which bytes are refused


def train(
  data: str | os.PathLike[str] | Iterable[str | Sequence[str]] | Any,
  *,
  config: str = '',
  dim: int | None = None,
  window: int | None = None,
  negatives: int | None = None,
  model: str | None = None,
  min_count: int | None = None,
  sample: float | None = None,
  epochs: int | None = None,
  seed: int | None = None,
  workdir: str | os.PathLike[str] | None = None,
  start: str | os.PathLike[str] | None = None,
  settings: Mapping[str, Any] = types.MappingProxyType({}),
  **unknown: Never,
) -> 'embeddings.Embeddings | predictor.ClickModel | trained.Documents':
  """Trains word vectors on sentences, or another model on files and tables.

  Args:
    data: sentences, each a string or a list of tokens; or the path of a file or
      folder; or a pandas, polars or Arrow table, a dict of columns or a list of
      dicts; or a `ConfigDict`; or, for documents, gensim's `TaggedDocument`s.
      An iterator is read once.
    config: name of a config, such as 'documents', 'rec:bpr', 'ctr' or 'graph'.
      Tables need a config. The arguments from `dim` to `seed` that are None
      have the values of the config or, without a config, the default below.
    dim: dimension of the vectors (default: 100).
    window: context window, number of words on each side of the center word
      (default: 5).
    negatives: negative samples per positive example (default: 5).
    model: 'skipgram' (default) or 'cbow', or a model of the config's kind of
      data.
    min_count: smallest count; rarer words are dropped (default: 5).
    sample: subsampling threshold of frequent words; 0 = no subsampling; -1
      (default) = 1e-4, or larger for texts with fewer than 16 million words.
    epochs: passes over the data; 0 (default) = 5, or more for texts with fewer
      than 16 million words.
    seed: random seed (default: 1).
    workdir: folder of the run; None = a temporary folder. If training was
      interrupted, another call with the same folder resumes it.
    start: workdir of a run, or a fastText `.bin`, from which training continues
      on `data`, like `--from` of `jaxemb train`. The words of the run or file
      are kept.
    settings: other settings by name, such as `{'optimizer.name': 'adagrad'}`.
    unknown: any other argument raises a `TypeError`.

  Returns:
    Vectors; or a `ClickModel` or `Documents`, if the config selects these
    models.

  Raises:
    errors.UserError: data or settings cannot be used, or a signal stopped
      training.
    TypeError: an argument is unknown. If it is an argument of gensim or
      fastText, the message names the argument of jaxemb.

  Examples:
    >>> import jaxemb
    >>> rulers = 'king', 'queen'
    >>> sentences = [f'the {ruler} rules the land' for ruler in rulers] * 500
    >>> vectors = jaxemb.train(sentences, dim=20, workdir='runs/kings')
    >>> vectors
    Embeddings(5 words x 20)
    >>> vectors.most_similar('king', topn=1)
    [('queen', 0.9...)]
  """
  for argument in unknown:
    raise TypeError(missing_names.unexpected(argument))
  from jaxemb import config as config_lib
  from jaxemb.clicks import predictor
  from jaxemb.run import lifecycle

  arguments = {
    'model.dim': dim,
    'model.window': window,
    'model.negatives': negatives,
    'model.name': model,
    'data.min_count': min_count,
    'data.sample': sample,
    'train.epochs': epochs,
    'seed': seed,
  }
  arguments = {k: x for k, x in arguments.items() if x is not None}
  continued = _started(start)
  _check_given_once({**arguments, **continued}, settings)
  with tempfile.TemporaryDirectory(prefix='jaxemb-') as temporary:
    chosen, values, cache = _configure(
      data, arguments, folder=temporary, name=config
    )
    values = {**values, **continued, **settings}
    for key, value in values.items():
      if hasattr(value, 'item'):  # a number of NumPy
        values[key] = value.item()
    chosen = config_lib.check(chosen, values)
    folder = workdir or os.path.join(temporary, 'run')
    code = lifecycle.run(chosen, folder, text_cache=cache)
    if code == lifecycle.STOPPED:
      raise errors.UserError(
        'training was stopped by a signal; '
        + ('call again to resume' if workdir else 'give a workdir to resume')
      )
    result = load(folder)
    if isinstance(result, predictor.ClickModel):
      return result
    return result.in_memory()  # a temporary folder is deleted


def _check_given_once(
  arguments: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
  """Raises a `UserError` if an argument and a setting differ."""
  for key in arguments.keys() & settings.keys():
    if arguments[key] != settings[key]:
      raise errors.UserError(
        f'{_argument(key)}={arguments[key]!r} and settings={{{key!r}: '
        f'{settings[key]!r}}} differ; give one of them'
      )


def _argument(key: str) -> str:
  """Returns the name of the argument of `train` that sets a setting."""
  others = {
    'model.name': 'model',
    'train.init_from': 'start',
    'data.grow': 'start',
  }
  return others.get(key, key.split('.')[-1])


def _started(start: Any) -> dict[str, Any]:
  """Settings of a run that is continued, whose folder is given."""
  if start is None:
    return {}
  if not isinstance(start, str | os.PathLike):
    raise errors.UserError(
      f'start is of type {type(start).__name__}, and must be the folder of a '
      'run; give workdir= to the call of jaxemb.train that is to be continued'
    )
  return {'train.init_from': os.fspath(start), 'data.grow': True}


def _configure(
  data: Any, arguments: Mapping[str, Any], folder: str, name: str
) -> tuple[Any, Mapping[str, Any], pathlib.Path | None]:
  """A config, values to set in it, and the cache of what is in the folder.

  Writes sentences and tables to the folder; None = the usual cache.
  """
  import ml_collections

  from jaxemb import config as config_lib

  if isinstance(data, ml_collections.ConfigDict):
    if name:
      raise errors.UserError(
        f'config={name!r} is not used, as the data are a config; give one of '
        'them'
      )
    for key, value in arguments.items():
      raise errors.UserError(
        f'{_argument(key)}={value!r} is not used with a config; set '
        f'config.{key} there, or settings={{{key!r}: {value!r}}}'
      )
    return data, {}, None
  is_path = isinstance(data, str | os.PathLike)
  if name:
    # A config knows by the path whether data are the user's own.
    path = os.fspath(data) if is_path else os.path.join(folder, 'data')
    config, values = config_lib.load(name, {'data.path': path}), {**arguments}
  else:
    config = config_lib.default()
    values = {**arguments, 'eval.paths': 'none'}
  if is_path:
    config.data.path = os.fspath(data)
    return config, values, None
  cache = pathlib.Path(folder, 'cache')
  source = config.data.source
  if _is_table(data):
    if source == 'text':
      raise errors.UserError(
        'a table has columns and no sentences; give config, such as '
        "config='rec', 'ctr' or 'graph', or a column of it as sentences"
      )
    config.data.path = os.path.join(folder, 'table.parquet')
    _write_table(data, config.data.path)
    return config, values, cache
  if source not in _OF_SENTENCES and ':' not in source:
    raise errors.UserError(
      f'config={name!r} needs a path or a table, and data is of type '
      f'{type(data).__name__}; {_remedy(data, source)}'
    )
  data, is_tagged = _peek(data, source)
  if is_tagged:
    config.data.path = os.path.join(folder, 'documents.jsonl')
    has_tokens = _write_tagged(data, config.data.path)
  else:
    config.data.path = os.path.join(folder, 'text.txt')
    has_tokens = _write_sentences(data, config.data.path)
  config.data.tokens = 'whitespace' if has_tokens else 'words'
  config.data.lowercase = not has_tokens
  return config, values, cache


def _is_table(data: Any) -> bool:
  """Whether it is a table of pandas, polars or Arrow, or of lists or dicts."""
  if isinstance(data, list):
    return bool(data) and isinstance(data[0], Mapping)
  if hasattr(data, 'dtype'):  # of NumPy, with fields
    return bool(getattr(data.dtype, 'names', ()))
  named = 'column_names', 'columns'
  return isinstance(data, Mapping) or any(hasattr(data, x) for x in named)


def _remedy(data: Any, source: str) -> str:
  """Returns what to do with data that the kind of a source cannot read."""
  if hasattr(data, 'nodes') and hasattr(data, 'edges'):
    return (
      'save it first, jaxemb.graphs.graph.save(jaxemb.graphs.files.'
      "from_networkx(DATA), 'FOLDER'), and give that folder"
    )
  a, b = _COLUMNS.get(source, ('user', 'item'))
  if hasattr(data, 'tocoo'):
    return f"give x = DATA.tocoo() by column, {{'{a}': x.row, '{b}': x.col}}"
  return f"give it by column, such as {{'{a}': [...], '{b}': [...]}}"


def _write_table(data: Any, path: str) -> None:
  """Writes a table as Parquet; raises a `UserError` if it is none."""
  import pyarrow as pa
  from pyarrow import parquet

  from jaxemb.io import columns

  try:
    parquet.write_table(columns.of(data), path)
  except (pa.ArrowException, NotImplementedError) as error:
    raise errors.UserError(
      f'the table cannot be written: {errors.one_line(error)}; give columns of '
      'names, numbers or lists of them'
    ) from error


def load(
  path: str | os.PathLike[str],
  encoding: str = 'utf-8',
) -> 'embeddings.Embeddings | predictor.ClickModel | trained.Documents':
  """Loads vectors or a model from a run, a file or a folder that `save` wrote.

  For a run, pass its workdir or export folder, also as the URL of a bucket.
  Files may be in the formats of word2vec (text or binary), GloVe, fastText
  (.vec, .bin, .ftz) or safetensors. Files of word2vec, GloVe and .vec may be
  compressed; `encoding` is the encoding of their words. Folders of model2vec
  are loaded, too. Raises an `errors.UserError` if the path cannot be read.

  Examples:
    >>> import jaxemb
    >>> jaxemb.load('runs/kings')
    Embeddings(5 words x 20)
    >>> jaxemb.load('runs/kings/export/vectors.bin')
    Embeddings(5 words x 20)
  """
  from jaxemb import embeddings, vector_files
  from jaxemb.storage import bucket

  with bucket.opened(path) as folder:
    if model := vector_files.model_folder(folder):
      from jaxemb.clicks import predictor

      return predictor.load(model)
    if documents := _documents(folder):
      return documents.in_memory() if bucket.is_url(path) else documents
    vectors = embeddings.load_vectors(folder, encoding)
    return vectors.in_memory() if bucket.is_url(path) else vectors


def load_phrases(path: str | os.PathLike[str]) -> 'phrases.Phrases':
  """Loads the phrases of a run, to join them in other text.

  `path` is a run, its export folder or its phrases.txt. Raises a `UserError` if
  there are no phrases.

  Examples:
    >>> import jaxemb
    >>> names = 'anna', 'ben', 'carla', 'dan', 'eva', 'finn'
    >>> cities = 'new york', 'paris', 'rome', 'oslo', 'san francisco'
    >>> text = [f'{x} lives in {y}' for x in names for y in cities] * 20
    >>> settings = {
    ...   'data.phrases': '1',
    ...   'data.phrases_score': 'npmi',
    ...   'data.phrases_connectors': 'english',
    ... }
    >>> _ = jaxemb.train(text, settings=settings, workdir='runs/cities')
    >>> phrases = jaxemb.load_phrases('runs/cities')
    >>> phrases[['he', 'left', 'new', 'york']]
    ['he', 'left', 'new_york']
  """
  from jaxemb.storage import bucket
  from jaxemb.text import phrases

  with bucket.opened(path) as folder:
    return phrases.load(folder)


def _documents(path: str | os.PathLike[str]) -> 'trained.Documents | None':
  """The documents of a run or of what they saved, if there are any."""
  from jaxemb.documents import trained

  folder = trained.folder_of(path)
  return trained.load(folder) if folder else None


def _peek(data: Any, source: str) -> tuple[Any, bool]:
  """Returns the same data, and whether it has words and tags, as gensim's."""
  if source != 'documents' or not isinstance(data, Iterable):
    return data, False
  items = iter(data)
  first = next(items, None)
  if first is None:
    return (), False
  is_tagged = hasattr(first, 'words') and hasattr(first, 'tags')
  return itertools.chain([first], items), is_tagged


def _write_tagged(documents: Iterable[Any], path: str) -> bool:
  """Writes JSON lines of gensim's `TaggedDocument`; returns True: of tokens."""
  with open(path, 'w', encoding='utf-8', errors='replace') as file:
    for number, document in enumerate(documents, 1):
      tags = getattr(document, 'tags', None)
      if not isinstance(tags, list | tuple) or len(tags) != 1:
        raise errors.UserError(
          f'document {number:,} has the tags {tags!r}, and one is needed, in a '
          'list; train documents with other tags apart'
        )
      words = ' '.join(_tokens(document.words, number))
      row = {'tag': str(tags[0]), 'text': words}
      file.write(json.dumps(row) + '\n')
  return True


def _write_sentences(
  sentences: Iterable[str | Sequence[str]], path: str
) -> bool:
  """Writes a sentence a line; returns whether they are lists of tokens."""
  kinds = set()
  # Lone surrogates, which no UTF-8 has, become question marks. The no-break
  # space keeps a first sentence such as '<doc>' from passing for a format.
  with open(path, 'w', encoding='utf-8', errors='replace') as file:
    file.write('\N{NO-BREAK SPACE}')
    every = sentences if isinstance(sentences, Iterable) else ()
    for number, sentence in enumerate(every, 1):
      kind = next((x for x in _KINDS if isinstance(sentence, x)), None)
      if kind in (None, bytes):
        raise errors.UserError(
          f'sentence {number:,} is {str(sentence)[:60]!r}; sentences must be '
          'all strings or all lists of tokens'
        )
      kinds.add(kind)
      if kind is Iterable:
        sentence = ' '.join(_tokens(sentence, number))
      line = ' '.join(str(sentence).splitlines())
      if '\0' in line:
        raise errors.UserError(
          f'sentence {number:,} has a NUL character, {line[:60]!r}; remove it'
        )
      file.write(line + '\n')
  if kinds not in ({str}, {Iterable}):
    raise errors.UserError(
      'sentences must be all strings or all lists of tokens, and at least one'
    )
  return kinds == {Iterable}


def _tokens(sentence: Iterable[Any], number: int) -> list[str]:
  """Returns the names of a sentence's tokens, which may be numbers or flags."""
  from jaxemb.io import columns

  names = []
  for token in sentence:
    names.append(token if type(token) is str else columns.name(token))
    if len(names[-1].split()) != 1:
      raise errors.UserError(
        f'sentence {number:,} has the token {token!r}, which is missing or has '
        'white space; tokens are words'
      )
  return names
