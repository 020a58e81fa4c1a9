"""Readers of vectors and of what is written beside them."""

import bz2
import gzip
import io
import lzma
import pathlib
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import zstandard

from jaxemb import embeddings, errors
from jaxemb.evaluation import benchmarks, multivectors
from jaxemb.evaluation import subwords as subwords_lib
from jaxemb.ops import ngrams
from jaxemb.storage import attributes as attributes_lib
from jaxemb.storage import export, fasttext_format, word2vec_format
from tests.fuzz import folders, fuzzing

_WORDS = ['the', 'of', 'New York', 'été', '<b>', '7']
_UNSEEN = 'theory'


def _rows(num: int, dim: int = 4) -> np.ndarray:
  return np.random.default_rng(num).normal(size=(num, dim)).astype(np.float32)


def _vectors(**more: Any) -> embeddings.Embeddings:
  counts = np.arange(len(_WORDS), 0, -1)
  return embeddings.Embeddings(_WORDS, _rows(len(_WORDS)), counts, **more)


def _written(write: Callable[[pathlib.Path], object], name: str) -> bytes:
  """Returns the file, or the files of the folder, that a function writes."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, name)
    write(path)
    return folders.of_folder(path) if path.is_dir() else path.read_bytes()


# Reading.


def _use(vectors: embeddings.Embeddings) -> None:
  """Looks at all of the vectors and of what they have beside them."""
  if not len(vectors):
    return
  word = vectors.index_to_key[-1]
  vectors.most_similar(word, topn=2)
  if _UNSEEN in vectors:
    vectors.most_similar([_UNSEEN, word], topn=2)
  if vectors.subwords is not None:
    vectors.ngrams(_UNSEEN)
  if vectors.sense_table is not None:
    words = vectors.sense_table.words
    vectors.disambiguate([*words[:3], words[-1]], 0)
    vectors.senses(words[-1])
    vectors.of_words()


def _load(path: pathlib.Path) -> None:
  _use(embeddings.load_vectors(path))


def _load_and_save(path: pathlib.Path) -> None:
  """What is written of vectors is read again."""
  vectors = embeddings.load_vectors(path)
  _use(vectors)
  vectors.save(path.with_name('saved'))
  embeddings.load_vectors(path.with_name('saved'))


def _load_model(path: pathlib.Path) -> None:
  vectors = embeddings.load_vectors(path)
  _use(vectors)
  np.asarray(vectors.origin.outputs)
  vectors.save_fasttext(path.with_name('saved.bin'))


# Texts and their packed forms.


def _word2vec_text() -> list[bytes]:
  return [
    b'3 2\nthe 0.1 -0.2\nof 1e-3 4\n\xc3\xa9t\xc3\xa9 -1 0\n',
    b'3 2\r\nthe\t1\t2\r\na\t3\t4\r\n b\t3\t4\r\n',
    b'\xef\xbb\xbf2 3 \n</s> 1 2 3 \na b 1.5 2.5 3.5 \n',
  ]


def _glove() -> list[bytes]:
  return [
    b'the 0.1 -0.2 3\nof 1e-3 4 5\nNew York 5 6 7\n',
    b'. 0.1 -0.2\n, 1 4\n1.5 1 4\n. . . 1 2\n',
  ]


def _word2vec_binary() -> list[bytes]:
  rows = _rows(3, 2)
  words = [b'the', b'New York', '\xe9'.encode()]
  pairs = [(x, y.tobytes()) for x, y in zip(words, rows, strict=True)]
  head = b'3 2\n'
  return [
    head + b''.join(b'%b %b\n' % x for x in pairs),
    head + b''.join(b'%b %b' % x for x in pairs[:1] + pairs[2:] * 2),
    head + b'\n'.join(b'%b %b' % x for x in pairs),
  ]


def _vocabulary() -> list[bytes]:
  return [b'the 10\nof 9\n\xc3\xa9 1\n', b'the\nof\n', b'\xef\xbb\xbfa 1\r\n']


def _packed() -> list[bytes]:
  text = _word2vec_text()[0]
  archive = io.BytesIO()
  with zipfile.ZipFile(archive, 'w', zipfile.ZIP_DEFLATED) as file:
    file.writestr('vectors.txt', text)
  half = gzip.compress(text[:20], mtime=0), gzip.compress(text[20:], mtime=0)
  return [
    b''.join(half),
    bz2.compress(text),
    lzma.compress(text),
    zstandard.compress(text),
    archive.getvalue(),
    gzip.compress(_word2vec_binary()[0], mtime=0),
  ]


# fastText's models.


def _header(model: int = 2, version: int = 12) -> bytes:
  numbers = 4, 5, 5, 1, 5, 1, 2, model, 6, 2, 3, 100
  magic = fasttext_format.MAGIC
  return struct.pack('<2i12id', magic, version, *numbers, 1e-4)


def _dictionary(labels: tuple[str, ...] = (), pruned: int = -1) -> bytes:
  num = len(_WORDS)
  sizes = num + len(labels), num, len(labels), 99, pruned
  entries = [(x, 0) for x in _WORDS] + [(x, 1) for x in labels]
  return struct.pack('<3i2q', *sizes) + b''.join(
    x.encode() + b'\0' + struct.pack('<qb', 5, kind) for x, kind in entries
  )


def _dense(num: int) -> bytes:
  return struct.pack('<?2q', False, num, 4) + _rows(num).tobytes()


def _quantized(num: int, has_lengths: bool) -> bytes:
  centroids = _rows(256 * 2, 2).tobytes()
  data = struct.pack('<??2qi', True, has_lengths, num, 4, 2 * num)
  data += bytes(range(2 * num)) + struct.pack('<4i', 4, 2, 2, 2) + centroids
  if has_lengths:
    data += bytes(range(num)) + struct.pack('<4i', 1, 1, 1, 1)
    data += _rows(256, 1).tobytes()
  return data


def _fasttext_bin() -> list[bytes]:
  num = len(_WORDS)
  rows = _dense(num + 6) + _dense(num)
  return [
    _header() + _dictionary() + rows,
    _header(model=1, version=11) + _dictionary() + rows,
  ]


def _fasttext_ftz() -> list[bytes]:
  num, labels = len(_WORDS), ('__label__a', '__label__b')
  pruned = np.array([(1, 0), (4, 1)], '<i4').tobytes()
  return [
    _header(model=3)
    + _dictionary(labels, pruned=2)
    + pruned
    + _quantized(num + 2, has_lengths)
    + _dense(2)
    for has_lengths in (False, True)
  ]


# Arrays and folders.


def _export() -> list[bytes]:
  attributes = {'weight': np.linspace(0, 1, 6), 'tag': np.array(_WORDS)}
  relations = export.Relations(
    'translation', 'cosine', 0.5, ['likes', 'knows'], _rows(2), _rows(6) + 1
  )
  half = _vectors()
  half.vectors = half.vectors.astype(np.float16)
  return [
    _written(x.save, 'vectors')
    for x in (_vectors(attributes=attributes, relations=relations), half)
  ] + [_of_int8()]


def _of_int8() -> bytes:
  rows = np.arange(24, dtype=np.int8).reshape(6, 4)
  encoded = export.Encoded(rows, np.linspace(0.1, 1, 6, dtype=np.float32))

  def write(folder):
    export.write(folder, _WORDS, encoded, counts=None, is_minimal=True)

  return _written(write, 'vectors')


def _subwords() -> list[bytes]:
  spec = ngrams.Subwords(2, 3, 20)
  buckets = np.arange(0, 20, 2, dtype=np.int32)
  return [
    _written(_vectors(subwords=x).save, 'vectors')
    for x in (
      subwords_lib.NgramVectors(spec, _rows(20)),
      subwords_lib.NgramVectors(spec, _rows(10), buckets),
    )
  ]


def _senses() -> list[bytes]:
  counts, starts = np.array([9, 5, 2]), np.array([0, 1, 3, 4])
  tables = [
    multivectors.MultiVectors(
      words=['the', 'bank', 'of'],
      counts=counts,
      starts=starts,
      vectors=_rows(4),
      priors=np.array([1, 0.25, 0.75, 1], np.float32),
      outputs=_rows(3 - is_tree),
      loss='hierarchical_softmax' if is_tree else 'negative_sampling',
      negatives=5,
      window=2,
      means=None if is_tree else _rows(4),
      concentration=None if is_tree else 3.0,
    )
    for is_tree in (False, True)
  ]
  return [
    _written(
      embeddings.Embeddings(
        x.names(), x.vectors, np.array([9, 5, 5, 2]), x
      ).save,
      'vectors',
    )
    for x in tables
  ]


def _npy() -> list[bytes]:
  seeds = []
  for array in (
    _rows(6),
    _rows(6).astype(np.float64),
    np.asfortranarray(_rows(6)),
  ):
    file = io.BytesIO()
    np.save(file, array)
    seeds.append(file.getvalue())
  return seeds


def _load_npy(path: pathlib.Path) -> None:
  path = path.rename(path.with_name('vectors.npy'))
  path.with_name('vocab.txt').write_text('\n'.join('abcdef'))
  _load(path)


def _npz() -> list[bytes]:
  files = folders.split(_export()[0])
  return [files['attributes.npz'], files['relations.npz'], _tree()]


def _tree() -> bytes:
  file = io.BytesIO()
  words, nodes = np.array([2, 3, 0]), np.array([-1, 1])
  np.savez(file, words=words, inner_nodes=nodes)
  return file.getvalue()


def _load_npz(path: pathlib.Path) -> None:
  """Reads an archive as each of those that an export may have."""
  folder, refusals = path.parent, []
  np.save(folder / export.TARGETS, _rows(6))
  for name, read in (
    (attributes_lib.FILE, lambda: attributes_lib.read(folder, 6)),
    (export.RELATIONS, lambda: export.read_relations(folder, 6)),
    (export.TREE, lambda: export.read_tree(folder, 3)),
  ):
    shutil.copyfile(path, folder / name)
    try:
      read()
    except errors.UserError as error:
      refusals.append(error)
  if len(refusals) == 3:
    raise refusals[-1]


def _npz_members() -> list[bytes]:
  """Arrays of archives, whose checksums are right whatever is changed."""
  seeds = []
  for data in _npz():
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
      seeds.append(
        folders.joined({x: archive.read(x) for x in archive.namelist()})
      )
  return seeds


def _load_npz_members(path: pathlib.Path) -> None:
  files = folders.split(path.read_bytes())
  packed = path.with_name('packed')
  with zipfile.ZipFile(packed, 'w') as archive:
    for name, data in files.items():
      archive.writestr(name, data)
  _load_npz(packed)


def _index() -> list[bytes]:
  return [_written(_vectors().index(connectivity=4).save, 'index')]


def _load_index(folder: pathlib.Path) -> None:
  vectors = _vectors()
  index = vectors.load_index(folder)
  vectors.most_similar(_WORDS[0], topn=2, indexer=index)


# Models of sentences.


def _safetensors() -> list[bytes]:
  unknown = embeddings.Embeddings(_WORDS, _rows(6))
  return [
    _written(x.save_safetensors, 'a.safetensors') for x in (_vectors(), unknown)
  ]


def _static_model() -> list[bytes]:
  return [_written(_vectors().save_static_model, 'model')]


# Benchmarks.


def _benchmark() -> list[bytes]:
  return [
    b': capitals\na b c d\nA b C d\n: plural\na b e f\n',
    b'# word pairs\na\tb\t1.5\nc\td\t2\nb f 3\n',
    b'word1,word2,score\na,b,1.5\nc,d,9\n',
  ]


def _evaluate(path: pathlib.Path) -> None:
  benchmark = benchmarks.read(path)
  if benchmark is None:
    raise errors.UserError('no benchmark')
  vectors = embeddings.Embeddings([*'abcdef'], _rows(6))
  vectors.evaluate([benchmark])


def _read_vocabulary(path: pathlib.Path) -> None:
  word2vec_format.read_vocab(path, needs_counts=False)


def _target(
  name: str,
  seeds: Callable[[], list[bytes]],
  read: Callable[[pathlib.Path], object],
  suffix: str = '',
) -> fuzzing.Target:
  return fuzzing.Target(name, suffix, seeds=seeds, read=read)


def _folder(
  name: str,
  seeds: Callable[[], list[bytes]],
  read: Callable[[pathlib.Path], object],
) -> fuzzing.Target:
  return _target(name, seeds, folders.reader(read))


TARGETS = (
  _target('word2vec_text', _word2vec_text, _load_and_save, '.txt'),
  _target('word2vec_binary', _word2vec_binary, _load_and_save, '.bin'),
  _target('glove', _glove, _load, '.txt'),
  _target('vocabulary', _vocabulary, _read_vocabulary, '.txt'),
  _target('packed', _packed, _load),
  _target('fasttext_bin', _fasttext_bin, _load_model, '.bin'),
  _target('fasttext_ftz', _fasttext_ftz, _load, '.ftz'),
  _target('npy', _npy, _load_npy, '.npy'),
  _target('npz', _npz, _load_npz, '.npz'),
  _target('npz_members', _npz_members, _load_npz_members),
  _folder('export', _export, _load_and_save),
  _folder('subwords', _subwords, _load_and_save),
  _folder('senses', _senses, _load_and_save),
  _folder('neighbor_index', _index, _load_index),
  _target('safetensors', _safetensors, _load, '.safetensors'),
  _folder('static_model', _static_model, _load),
  _target('benchmark', _benchmark, _evaluate, '.txt'),
)
