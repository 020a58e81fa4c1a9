"""Vectors as safetensors, and as models that encode sentences by mean vectors.

The folder that `write_model` writes is in the layout of model2vec, which
sentence-transformers reads as its `StaticEmbedding`:

    model.safetensors   `embeddings`, [vocab, dim] float32
    tokenizer.json      what cuts a sentence into words, for `tokenizers`
    config.json modules.json README.md

A sentence becomes the mean of the vectors of its words; words without a vector
do not count. sentence-transformers would average the vector of an unknown
token, too, so that there is none: a word of the vocabulary stands behind a
mark, such as '▁king', and an unknown one would be spelled by single characters
(BPE without merges), of which none is in the vocabulary.
"""

import json
import pathlib
import struct
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from jaxemb import errors
from jaxemb.ops import characters
from jaxemb.storage import atomic, damage, word2vec_format
from jaxemb.storage import attributes as attributes_lib

_EXTRA = 'hub'
MODEL, TOKENIZER = 'model.safetensors', 'tokenizer.json'
TOKENS = 'words', 'words+emoji', 'whitespace'
# Before a word; the second one is no part of any word.
_MARKS = '\u2581', '\x01'
_NO_WORD = ' '  # the token of the empty word, which no text has
_TENSORS = 'vectors', 'embeddings', 'embedding.weight'
# Of NumPy's types.
_DTYPES = {
  'float64': 'F64', 'float32': 'F32', 'float16': 'F16', 'bfloat16': 'BF16',
  'int64': 'I64',
}  # fmt: skip
_MAX_HEADER_BYTES = 90_000_000  # safetensors reads 100 MB
# Lower-cased by code points, this letter alone becomes two and so stays.
_LONG_CAPITAL, _STAND_IN = '\u0130', '\U0010fffd'
_CARD = """---
library_name: model2vec
tags: [embeddings, static-embeddings, sentence-transformers, jaxemb]
---

# {name}

{vocab:,} word vectors of {dim} dimensions, trained with jaxemb. A sentence is
the mean of the vectors of its words; words without a vector do not count.

```python
from model2vec import StaticModel
StaticModel.from_pretrained('{name}').encode(['a sentence'])

from sentence_transformers import SentenceTransformer
SentenceTransformer('{name}').encode(['a sentence'])
```
"""


def write(
  path: pathlib.Path | str,
  words: Sequence[str],
  vectors: np.ndarray,
  counts: np.ndarray | None,
) -> None:
  """Writes `vectors` and any `counts`, with the words in the metadata.

  Raises a `UserError` if the file cannot be written.
  """
  text = json.dumps(list(words))
  if len(text) > _MAX_HEADER_BYTES:
    raise errors.UserError(
      f'{path}: {len(text):,} bytes of words do not fit the header of '
      'safetensors; use `save`, or a folder by `save_static_model`'
    )
  tensors = {'vectors': np.ascontiguousarray(vectors)}
  if counts is not None:
    tensors['counts'] = np.ascontiguousarray(counts)
  with atomic.write(path) as file:
    _put(file, tensors, {'words': text})


def _put(
  file: BinaryIO, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
  """Writes safetensors.

  The library's `save` returns a copy, and `save_file` names a temporary file
  that a killed process leaves. Raises a `UserError` for types it has not.
  """
  arrays = {
    name: array.astype(array.dtype.newbyteorder('<'), copy=False)
    for name, array in arrays.items()
  }
  header: dict[str, Any] = {'__metadata__': metadata}
  size = 0
  for name, array in arrays.items():
    if array.dtype.name not in _DTYPES:
      raise errors.UserError(
        f'{name} of {array.dtype.name} cannot be written as safetensors; give '
        f'one of {", ".join(_DTYPES)}'
      )
    offsets = size, size + array.nbytes
    header[name] = {
      'dtype': _DTYPES[array.dtype.name],
      'shape': array.shape,
      'data_offsets': offsets,
    }
    size += array.nbytes
  data = json.dumps(header).encode()
  data += b' ' * (-len(data) % 8)  # arrays begin at a multiple of 8
  file.write(struct.pack('<Q', len(data)) + data)
  for array in arrays.values():
    file.write(array.reshape(-1).view(np.uint8))


def is_static(path: pathlib.Path | str) -> bool:
  """Returns whether `read` reads a path."""
  path = pathlib.Path(path)
  if path.is_dir():
    return (path / MODEL).is_file() and not (path / 'vectors.npy').exists()
  return path.suffix == '.safetensors'


def read(
  path: pathlib.Path | str,
) -> tuple[list[str], np.ndarray, np.ndarray | None]:
  """Reads what `write` and `write_model` write, and models of model2vec.

  Returns words, [vocab, dim] float32 vectors and counts, if there are any.
  Words are those of the metadata, or tokens of a tokenizer.json beside it.
  Raises a `UserError` if it is missing, damaged or not recognized.
  """
  path = pathlib.Path(path)
  path = path / MODEL if path.is_dir() else path
  try:
    tensors, metadata = _tensors(path)
    names = [x for x in _TENSORS if x in tensors]
    if not names:
      raise ValueError(f'no tensor {" or ".join(_TENSORS)}')
    vectors, counts = tensors[names[0]], tensors.get('counts')
    if 'mapping' in tensors:  # of tokens to rows
      vectors = vectors[tensors['mapping']]
    if 'weights' in tensors:
      vectors = vectors * tensors['weights'][:, None]
    if 'words' in metadata:
      words = json.loads(metadata['words'])
    else:
      words = _tokens(path.with_name(TOKENIZER))
    if not isinstance(words, list) or {*map(type, words)} - {str}:
      raise ValueError('its words are no list of strings')
    if vectors.ndim != 2 or len(words) != len(vectors):
      raise ValueError(
        f'{len(words)} words do not fit vectors of shape {vectors.shape}'
      )
    if counts is not None:
      counts = attributes_lib.counts(counts, len(words))
  except (OSError, *damage.ERRORS) as error:
    reason = getattr(error, 'strerror', None) or errors.one_line(error)
    raise errors.UserError(
      f'{path} is no safetensors of word vectors: {reason}; give a file of '
      '`save_safetensors`, or a folder with its tokenizer.json'
    ) from error
  vectors = np.asarray(vectors, np.float32)
  if num_equal := len(words) - len(set(words)):
    line = f'{path}: {num_equal:,} repeated words, the first kept'
    warnings.warn(line, stacklevel=2)
    first = {word: row for row, word in reversed([*enumerate(words)])}
    rows = np.sort([*first.values()])
    words, vectors = [words[row] for row in rows.tolist()], vectors[rows]
    counts = None if counts is None else counts[rows]
  return words, vectors, counts


def _tensors(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict]:
  """Returns the tensors and the metadata of a file of safetensors."""
  safetensors = errors.optional('safetensors', _EXTRA)
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      return {x: file.get_tensor(x) for x in file.keys()}, file.metadata() or {}
  # NumPy has no float8.
  except (safetensors.SafetensorError, AttributeError, TypeError) as error:
    raise ValueError(errors.one_line(error)) from error


def _tokens(path: pathlib.Path) -> list[str]:
  """Returns the tokens of a tokenizer by id, without the mark of words."""
  if not path.is_file():
    raise ValueError(f'its words are missing, as is {path.name} beside it')
  try:
    library = errors.optional('tokenizers', _EXTRA)
    vocab = library.Tokenizer.from_file(str(path)).get_vocab()
  except Exception as error:  # its library raises nothing more precise
    raise ValueError(f'{path.name}: {errors.one_line(error)}') from error
  tokens = sorted(vocab, key=vocab.get)
  if [vocab[x] for x in tokens] != [*range(len(tokens))]:
    raise ValueError(f'{path.name} leaves out ids of tokens')
  marked = [x for x in tokens if x != _NO_WORD]
  mark = next((x for x in _MARKS if all(y.startswith(x) for y in marked)), '')
  return [
    '' if mark and x == _NO_WORD else x.removeprefix(mark) for x in tokens
  ]


def write_model(
  folder: pathlib.Path | str,
  words: Sequence[str],
  vectors: np.ndarray,
  tokens: str = 'words',
  lowercase: bool | None = None,
) -> int:
  """Writes a folder that model2vec and sentence-transformers load.

  `tokens` and `lowercase` say what a word of a sentence is, as `config.data`
  does; without the latter, sentences are lower-cased if no word has capitals.
  Warns of words that no sentence can have. Returns how many words UTF-8 cannot
  hold, which are renamed. Raises a `UserError` if the folder cannot be written.
  """
  folder = pathlib.Path(folder)
  if tokens not in TOKENS:
    raise errors.UserError(f'tokens={tokens!r} is none of {", ".join(TOKENS)}')
  words, num_renamed = word2vec_format.spell(words, has_spaces=True)
  if lowercase is None:
    lowercase = not any(map(_has_capitals, words))
  tokenizer = _tokenizer(words, tokens, lowercase=lowercase)
  _warn_of_unreachable(tokenizer, words, tokens)
  vocab, dim = vectors.shape
  config = {
    'model_type': 'model2vec',
    'architectures': ['StaticModel'],
    'tokenizer_name': 'jaxemb',
    'hidden_dim': dim,
    'seq_length': 1_000_000,
    'normalize': False,
    'embedding_dtype': 'float32',
  }
  kind = 'sentence_transformers.models.StaticEmbedding'
  modules = [{'idx': 0, 'name': '0', 'path': '.', 'type': kind}]
  card = _CARD.format(name=folder.name, vocab=vocab, dim=dim)
  embeddings = np.ascontiguousarray(vectors, np.float32)
  files = MODEL, TOKENIZER, 'config.json', 'modules.json', 'README.md'
  with atomic.folder(folder, replaces=files) as temporary:
    with (temporary / MODEL).open('wb') as file:
      _put(file, {'embeddings': embeddings}, {})
    # Not its `save`, which raises errors of its own.
    (temporary / TOKENIZER).write_text(tokenizer.to_str(), 'utf-8')
    (temporary / files[2]).write_text(json.dumps(config, indent=2))
    (temporary / files[3]).write_text(json.dumps(modules, indent=2))
    (temporary / files[4]).write_text(card, 'utf-8')
  return num_renamed


def _has_capitals(word: str) -> bool:
  rest = word.replace(_LONG_CAPITAL, '')
  return rest != rest.lower()


def _tokenizer(words: Sequence[str], tokens: str, lowercase: bool) -> Any:
  """Returns a `tokenizers.Tokenizer` whose ids are rows of words."""
  library = errors.optional('tokenizers', _EXTRA)
  mark = next(x for x in _MARKS if not any(x in word for word in words))
  vocab = {
    mark + word if word else _NO_WORD: row for row, word in enumerate(words)
  }
  model = library.models.BPE(vocab, [], ignore_merges=True)
  tokenizer = library.Tokenizer(model)
  replace, regex = library.normalizers.Replace, library.Regex
  classes, normalizers = _classes(tokens), []
  if tokens != 'whitespace':
    normalizers += [
      replace(regex(f'[{classes[characters.IGNORED]}]'), ''),
      # Of several joiners in a row the first stays.
      replace(regex('(?<=[{0}])[{0}]'.format(classes[characters.JOINER])), ''),
    ]
  if lowercase:
    normalizers += [
      replace(_LONG_CAPITAL, _STAND_IN),
      library.normalizers.Lowercase(),
      replace(_STAND_IN, _LONG_CAPITAL),
    ]
  if normalizers:
    tokenizer.normalizer = library.normalizers.Sequence(normalizers)
  split = library.pre_tokenizers.Split(
    regex(_pattern(tokens, classes)), 'removed', invert=True
  )
  marked = library.pre_tokenizers.Metaspace(mark, 'always', split=False)
  tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([split, marked])
  return tokenizer


def _classes(tokens: str) -> dict[int, str]:
  """Returns ranges of characters, for a regular expression, by what they do."""
  table = (
    characters.code_points(tokens.removesuffix('+emoji'), False)[:-1] >> 32
  )
  starts = np.flatnonzero(np.diff(table, prepend=-1))
  stops = np.append(starts[1:], len(table))
  classes: dict[int, str] = {}
  for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
    kind = int(table[start])
    text = f'\\x{{{start:X}}}-\\x{{{stop - 1:X}}}'
    classes[kind] = classes.get(kind, '') + text
  return classes


def _pattern(tokens: str, classes: dict[int, str]) -> str:
  """Returns a regular expression of a word, as `text.tokenize` reads it."""
  if tokens == 'whitespace':
    ends = classes[characters.SEPARATOR] + classes[characters.LINE_END]
    return f'[^{ends}]+'
  letter, mark = classes[characters.LETTER], classes[characters.MARK]
  joiner, zwj = classes[characters.JOINER], f'\\x{{{characters.ZWJ:X}}}'
  inner = [
    f'[{letter}{mark}]',
    f'(?<=[{mark}]){zwj}',  # makes a letter, also at the end of a word
    f'[{joiner}](?=[{letter}{mark}])',
    '(?<=l)\u00b7(?=l)|(?<=L)\u00b7(?=L)',
  ]
  word = f'[{letter}](?:{"|".join(inner)})*'
  if not tokens.endswith('+emoji'):
    return word
  flag, tone = (
    f'[\\x{{{first:X}}}-\\x{{{last:X}}}]'
    for first, last in (characters.FLAGS, characters.SKIN_TONES)
  )
  emoji = f'[{classes[characters.EMOJI]}]'
  return f'{word}|(?:{flag}{{2}}|{emoji})(?:[{mark}]|{tone}|{zwj}{emoji})*'


def _warn_of_unreachable(tokenizer, words, tokens) -> None:
  """Warns of words that the tokenizer does not leave whole."""
  encodings = tokenizer.encode_batch_fast(list(words), add_special_tokens=False)
  lost = [
    word
    for row, (word, encoding) in enumerate(zip(words, encodings, strict=True))
    if encoding.ids != [row]
  ]
  if lost:
    warnings.warn(
      f'{len(lost):,} of {len(words):,} words, such as {lost[0]!r}, are not '
      f'words of tokens={tokens!r} and are not found in sentences; tokens and '
      "lowercase are those of the run, and tokens='whitespace' is for text "
      'whose tokens are separated',
      stacklevel=5,
    )
