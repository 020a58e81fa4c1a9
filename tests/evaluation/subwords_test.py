"""Models of fastText and n-grams of exports: the same vectors everywhere."""

import copy
import json
import pathlib
import pickle
import struct
import warnings

import numpy as np
import pytest

import jaxemb
from jaxemb import embeddings, errors
from jaxemb.cli import query
from jaxemb.evaluation import benchmarks, composed_vectors, subwords
from jaxemb.io import cache
from jaxemb.ops import ngrams
from jaxemb.storage import export, fasttext_format

_WORDS = ['</s>', 'king', 'queen', 'größe', 'ab', '東京', 'kings', 'x' * 30]
_UNSEEN = ['kingly', 'Queens', 'unsée', 'a']
_DIM, _BUCKETS, _CHARS = 6, 50, (3, 6)
_SPEC = ngrams.Subwords(*_CHARS, _BUCKETS)
_RNG = np.random.default_rng(0)
_OWN = _RNG.standard_normal((len(_WORDS), _DIM), np.float32)
_ROWS = _RNG.standard_normal((_BUCKETS, _DIM), np.float32)
_OUTPUTS = _RNG.standard_normal((len(_WORDS), _DIM), np.float32)
_COUNTS = np.arange(len(_WORDS))[::-1] + 1


def _vector(word, rows=_ROWS, bucket_rows=None):
  """Means of rows one by one, in float64, as fastText's getWordVector."""
  total, num = np.zeros(_DIM), 0
  if word in _WORDS:
    total, num = total + _OWN[_WORDS.index(word)], 1
  for _, bucket in ngrams.of_word(word, _SPEC):
    row = bucket if bucket_rows is None else bucket_rows.get(bucket)
    if row is not None:
      total, num = total + rows[row], num + 1
  return total / max(num, 1)


def _header(
  version=12,
  model=2,
  buckets=_BUCKETS,
  magic=fasttext_format.MAGIC,
  max_chars=_CHARS[1],
):
  chars = _CHARS[0], max_chars
  numbers = _DIM, 5, 5, 1, 5, 1, 2, model, buckets, *chars, 100
  return struct.pack('<2i12id', magic, version, *numbers, 1e-4)


def _dictionary(words=_WORDS, labels=(), pruned=None):
  num, total = len(words), int(_COUNTS.sum()) + 17  # of words without rows
  num_pruned = -1 if pruned is None else len(pruned)
  parts = [
    struct.pack('<3i2q', num + len(labels), num, len(labels), total, num_pruned)
  ]
  for word, count, kind in [
    *((x, n, 0) for x, n in zip(words, _COUNTS.tolist(), strict=False)),
    *((x, 1, 1) for x in labels),
  ]:
    raw = word if isinstance(word, bytes) else word.encode()
    parts.append(raw + b'\0' + struct.pack('<qb', count, kind))
  pairs = () if pruned is None else enumerate(pruned)
  parts += [struct.pack('<2i', bucket, row) for row, bucket in pairs]
  return b''.join(parts)


def _dense(rows):
  return struct.pack('<?2q', False, *rows.shape) + rows.tobytes()


def _model(**options):
  inputs = np.concatenate([_OWN, _ROWS])
  return _header(**options) + _dictionary() + _dense(inputs) + _dense(_OUTPUTS)


@pytest.fixture
def file(tmp_path):
  path = tmp_path / 'model.bin'
  path.write_bytes(_model())
  return path


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
  monkeypatch.setenv('JAXEMB_CACHE', str(tmp_path / 'cache'))


@pytest.mark.parametrize('version', [11, 12])
def test_vectors_are_means_of_rows(tmp_path, version):
  path = tmp_path / 'model.bin'
  path.write_bytes(_model(version=version))
  vectors = jaxemb.load(path)
  assert vectors.index_to_key == _WORDS
  np.testing.assert_array_equal(vectors.counts, _COUNTS)
  for word in _WORDS + _UNSEEN[:3]:
    np.testing.assert_allclose(vectors[word], _vector(word), atol=1e-6)
  with pytest.raises(KeyError):  # without an n-gram
    vectors['']
  model = vectors.origin
  np.testing.assert_array_equal(model.outputs[:], _OUTPUTS)
  np.testing.assert_array_equal(model.inputs[:], _OWN)
  assert (model.kind, model.loss) == ('skipgram', 'negative_sampling')


def test_all_vectors_are_those_of_single_words(file, monkeypatch):
  expected = np.array([_vector(x) for x in _WORDS])
  vectors = jaxemb.load(file).vectors
  assert (len(vectors), vectors.shape) == (8, (8, _DIM))
  # Rounds of two columns, blocks of a few rows.
  monkeypatch.setattr(composed_vectors, '_TABLE_BYTES', 4 * _BUCKETS * 2)
  monkeypatch.setattr(composed_vectors, '_BLOCK_BYTES', 4 * _DIM * 3)
  monkeypatch.setattr(composed_vectors, '_BLOCK_WORDS', 3)
  monkeypatch.setattr(ngrams, '_BLOCK_WORDS', 3)
  for part in (vectors[:], np.asarray(vectors)):
    np.testing.assert_allclose(part, expected, rtol=1e-5)
  np.testing.assert_allclose(vectors[[5, -1]], expected[[5, -1]], rtol=1e-5)
  np.testing.assert_allclose(vectors[2:7:2], expected[2:7:2], rtol=1e-5)
  lengths = np.linalg.norm(expected, axis=1)
  np.testing.assert_allclose(vectors.norms(), lengths, rtol=1e-5)
  target = np.arange(_DIM, dtype=np.float32)
  for limit in (None, 3):
    for part in (jaxemb.load(file).vectors, vectors):  # lengths unknown, known
      products = part.products(target, limit)
      np.testing.assert_allclose(products, expected[:limit] @ target, rtol=1e-4)
  with pytest.raises(IndexError):
    vectors[8]


def test_vectors_are_indexed_as_an_array_is(file):
  vectors = jaxemb.load(file).vectors
  matrix = np.asarray(vectors)
  mask = np.arange(8) % 3 == 0
  for index in (
    (0, 1), (slice(0, 2), 1), (3, slice(None)), (-1, -2), ([0, 5], [1, 2]),
    (slice(None), None), (..., 0), [[1, -1], [0, 1]], mask, (mask, 2), [],
    np.uint8(3), (), None, slice(None, None, -3),
  ):  # fmt: skip
    np.testing.assert_allclose(vectors[index], matrix[index], rtol=1e-5)
  assert (vectors.ndim, vectors.size, vectors.nbytes) == (2, 48, 192)
  assert vectors.astype(np.float16).dtype == np.float16
  assert (vectors == matrix).all() and not (vectors != matrix).any()
  for index in (8, -9, mask[:3], 1.5, (0, 6)):
    with pytest.raises(IndexError):
      vectors[index]
  with pytest.raises(AttributeError, match='np.asarray'):
    vectors.mean()


def test_vectors_are_pickled_without_their_rows(file, tmp_path):
  vectors = jaxemb.load(file)
  _ = vectors.norms
  data = pickle.dumps(vectors)
  assert len(data) < 20_000
  loaded = pickle.loads(data)
  np.testing.assert_array_equal(loaded['kingly'], vectors['kingly'])
  np.testing.assert_array_equal(loaded['king'], vectors['king'])
  in_memory = pickle.dumps(vectors.in_memory())
  copied = copy.deepcopy(vectors)
  file.unlink()
  np.testing.assert_array_equal(copied['king'], vectors['king'])
  with pytest.raises(errors.UserError, match='No such file'):
    pickle.loads(data)['king']
  np.testing.assert_allclose(
    pickle.loads(in_memory)['king'], vectors['king'], rtol=1e-6
  )
  file.write_bytes(_model() + b'other')
  with pytest.raises(errors.UserError, match='changed'):
    pickle.loads(data)['king']


def test_nearest_words_by_ngrams(file):
  vectors = jaxemb.load(file)
  rows = [_ROWS[bucket] for _, bucket in ngrams.of_word('kings', _SPEC)]
  target = np.mean(rows, 0) / np.linalg.norm(np.mean(rows, 0))
  cosines = {
    x: float(_vector(x) @ target / np.linalg.norm(_vector(x)))
    for x in _WORDS
    if x != 'kings'
  }
  expected = sorted(cosines, key=cosines.get)[::-1]
  ranked = vectors.similar_by_ngrams('kings', topn=3)
  assert [x for x, _ in ranked] == expected[:3]
  assert ranked[0][1] == pytest.approx(cosines[expected[0]], abs=1e-5)
  assert vectors.similar_by_ngrams('kingly') == vectors.most_similar('kingly')
  with pytest.raises(KeyError):
    vectors.similar_by_ngrams('')
  with pytest.raises(errors.UserError, match='no n-grams'):
    embeddings.Embeddings(['a'], _OWN[:1]).similar_by_ngrams('a')


def test_queries_of_unseen_words(file):
  vectors = jaxemb.load(file)
  matrix = np.array([_vector(x) for x in _WORDS])
  units = matrix / np.linalg.norm(matrix, axis=1)[:, None]
  for word in ('king', 'kingly'):
    target = _vector(word) / np.linalg.norm(_vector(word))
    cosines = dict(zip(_WORDS, units @ target, strict=True))
    cosines.pop(word, None)
    best = sorted(cosines, key=cosines.get)[::-1]
    found = vectors.most_similar(word, topn=None)
    np.testing.assert_allclose(found, units @ target, rtol=1e-4, atol=1e-6)
    found = vectors.most_similar(word, topn=3)
    assert [x for x, _ in found] == best[:3]
    assert vectors.similarity('king', word) == pytest.approx(
      float(units[1] @ target), abs=1e-6
    )
  assert 'kingly' in vectors and '' not in vectors
  assert not vectors.has_index_for('kingly') and vectors.has_index_for('king')
  assert 'kingly' not in vectors.key_to_index
  names, values = zip(*vectors.ngrams('kingly'), strict=True)
  assert names[:2] == ('<ki', '<kin')
  np.testing.assert_allclose(
    np.mean(values, 0), vectors['kingly'], rtol=1e-5, atol=1e-7
  )
  some = vectors.vectors_for_all(['queen', 'kingly'], copy_vecattrs=True)
  np.testing.assert_array_equal(some.counts, [_COUNTS[2], 0])
  with pytest.raises(errors.UserError, match='have no n-grams'):
    some.ngrams('king')


def test_expressions_keep_their_signs(file, capsys):
  assert query.main([f'--vectors={file}', 'kingly', '-queen']) == 0
  first = capsys.readouterr().out
  assert query.main([f'--vectors={file}', 'kingly', '-', 'queen']) == 0
  assert capsys.readouterr().out == first


def test_vectors_in_memory_do_not_need_the_file(file):
  vectors = jaxemb.load(file).in_memory()
  file.unlink()
  np.testing.assert_allclose(vectors['kingly'], _vector('kingly'), rtol=1e-6)
  assert isinstance(vectors.vectors, np.ndarray)


def test_lengths_of_many_words_are_cached(file, monkeypatch):
  monkeypatch.setattr(composed_vectors, '_MIN_CACHED', 1)
  expected = jaxemb.load(file).norms
  monkeypatch.setattr(
    composed_vectors.ComposedVectors, '_compose_all', None
  )  # not called
  np.testing.assert_array_equal(jaxemb.load(file).norms, expected)
  assert list(cache.default_folder().glob('norms-*/norms.npy'))


def test_many_rows_are_read_by_a_compiled_loop(file, monkeypatch):
  expected = np.asarray(jaxemb.load(file).vectors)
  monkeypatch.setattr(fasttext_format, '_MIN_COMPILED', 1)
  vectors = jaxemb.load(file)
  for rows in [0], [5, 0, 1, 2, 7], [*range(8)]:
    np.testing.assert_allclose(vectors.vectors[rows], expected[rows], rtol=1e-6)
  out = np.zeros_like(expected)
  vectors.origin.inputs.copy_to(out)
  np.testing.assert_array_equal(out, _OWN)
  vectors.add_vector('new', np.ones(_DIM))
  np.testing.assert_allclose(vectors.vectors[:-1], expected, rtol=1e-6)
  vectors = jaxemb.load(file)
  with open(file, 'r+b') as opened:  # within the first row
    opened.truncate(vectors.origin.inputs.start + 9)
  with pytest.raises(errors.UserError, match='was cut while it was read'):
    _ = vectors.vectors[[3, 5]]


def test_lengths_are_not_those_of_a_file_before(file, monkeypatch):
  monkeypatch.setattr(composed_vectors, '_MIN_CACHED', 1)
  before = jaxemb.load(file)
  _ = before.vectors[0]
  changed = jaxemb.load(file)
  changed['king'] = np.full(_DIM, 9)
  changed.save_fasttext(file)
  assert before.most_similar('kings')  # of the open file, that was replaced
  assert jaxemb.load(file).norms[1] == pytest.approx(9 * _DIM**0.5)


def _quantized(rows, dsub, has_lengths):
  """Rows whose parts are drawn from 256 centroids, and their file."""
  rng = np.random.default_rng(1)
  sizes = [dsub] * (_DIM // dsub)
  sizes += [_DIM % dsub] if _DIM % dsub else []
  centroids = [rng.standard_normal((256, x), np.float32) for x in sizes]
  codes = rng.integers(0, 256, (rows, len(sizes)), np.uint8)
  values = np.concatenate([x[codes[:, i]] for i, x in enumerate(centroids)], 1)
  head = struct.pack('<?', True)
  data = struct.pack('<?2qi', has_lengths, rows, _DIM, codes.size)
  data += codes.tobytes() + struct.pack(
    '<4i', _DIM, len(sizes), dsub, sizes[-1]
  )
  data += b''.join(x.tobytes() for x in centroids)
  if has_lengths:
    lengths = rng.standard_normal((256, 1), np.float32)
    length_codes = rng.integers(0, 256, rows, np.uint8)
    data += length_codes.tobytes() + struct.pack('<4i', 1, 1, 1, 1)
    data += lengths.tobytes()
    values = values * lengths[length_codes]
  return head + data, values


@pytest.mark.parametrize('dsub', [2, 4])
@pytest.mark.parametrize('has_lengths', [False, True])
def test_quantized_classifiers_with_pruned_ngrams(tmp_path, dsub, has_lengths):
  pruned = [7, 3, 41, 20]  # buckets, by row
  data, values = _quantized(len(_WORDS) + 4, dsub, has_lengths)
  outputs = np.ones((2, _DIM), np.float32)
  path = tmp_path / 'model.ftz'
  path.write_bytes(
    _header(model=3)
    + _dictionary(labels=['__label__a', '__label__b'], pruned=pruned)
    + data
    + _dense(outputs)
  )
  vectors = jaxemb.load(path)
  assert vectors.origin.labels == ['__label__a', '__label__b']
  rows = {bucket: row for row, bucket in enumerate(pruned)}
  own, num_unseen = values[: len(_WORDS)], 0
  for word in _WORDS + [f'{x}ing' for x in _WORDS]:
    used = [rows.get(b) for _, b in ngrams.of_word(word, _SPEC)]
    parts = [values[len(_WORDS) + x] for x in used if x is not None]
    if word in _WORDS:
      parts.append(own[_WORDS.index(word)])
    assert (word in vectors) == bool(parts)
    if parts:
      np.testing.assert_allclose(
        vectors[word], np.mean(parts, 0), rtol=1e-5, atol=1e-6
      )
      num_unseen += word not in _WORDS
  assert num_unseen
  for write in (vectors.save_fasttext, vectors.save):
    with pytest.raises(errors.UserError, match='quantized'):
      write(tmp_path / 'other')
    assert not (tmp_path / 'other').exists()


@pytest.mark.parametrize('is_sparse', [False, True])
def test_a_folder_and_a_bin_have_the_same_vectors(tmp_path, is_sparse):
  rows, buckets, by_bucket = _ROWS, None, None
  if is_sparse:  # of every other bucket, in no order
    buckets = np.random.default_rng(3).permutation(_BUCKETS)[::2]
    rows = _ROWS[buckets]
    zeros = np.setdiff1d(np.arange(_BUCKETS), buckets)
    by_bucket = _ROWS.copy()
    by_bucket[zeros] = 0
    buckets = buckets.astype(np.int32)
  source = subwords.NgramVectors(_SPEC, rows, buckets)
  full = _ROWS if by_bucket is None else by_bucket
  expected = [_vector(x, full) for x in _WORDS + _UNSEEN[:3]]
  composed = np.array(expected[: len(_WORDS)], np.float32)
  vectors = embeddings.Embeddings(_WORDS, composed, _COUNTS, subwords=source)
  vectors.save(tmp_path / 'folder')
  vectors.save_fasttext(tmp_path / 'model.bin')
  for path in (tmp_path / 'folder', tmp_path / 'model.bin'):
    loaded = jaxemb.load(path)
    values = loaded[_WORDS + _UNSEEN[:3]]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(loaded.counts, _COUNTS)
  own = loaded.origin.inputs[:]
  np.testing.assert_allclose(own, _OWN, rtol=1e-5, atol=1e-5)
  embeddings.Embeddings(['a'], np.ones((1, 2), 'f4')).save(tmp_path / 'folder')
  assert jaxemb.load(tmp_path / 'folder').subwords is None


def test_a_bin_is_written_as_it_was(file, tmp_path):
  jaxemb.load(file).save_fasttext(tmp_path / 'copy.bin')
  assert (tmp_path / 'copy.bin').read_bytes() == file.read_bytes()


def _outputs_of(path):
  model = fasttext_format.read(path)
  return model.settings, dict(zip(model.words, model.outputs[:], strict=True))


def test_output_rows_stay_with_their_words(file, tmp_path):
  settings, expected = _outputs_of(file)
  path = tmp_path / 'other.bin'
  vectors = jaxemb.load(file)
  vectors.add_vector('new', np.ones(_DIM))
  vectors.counts[:] = np.arange(len(vectors))
  vectors.sort_by_descending_frequency()
  with pytest.warns(UserWarning, match='1 of 9 output rows are zeros'):
    vectors.save_fasttext(path)
  others = _outputs_of(path)
  assert others[0] == settings and not others[1].pop('new').any()
  for changed in (others[1], expected):
    assert [*map(str, changed)] and set(changed) == set(_WORDS)
    for word, row in changed.items():
      np.testing.assert_array_equal(row, _OUTPUTS[_WORDS.index(word)])
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    jaxemb.load(file).in_memory().save_fasttext(path)
  assert _outputs_of(path)[1].keys() == expected.keys()
  jaxemb.load(file).save(tmp_path / 'folder')
  with pytest.warns(UserWarning, match='8 of 8 .* are neither from'):
    jaxemb.load(tmp_path / 'folder').save_fasttext(path)


def test_a_bin_without_ngrams_stays_in_its_file(tmp_path):
  numbers = _DIM, 7, 5, 1, 5, 1, 2, 1, 50, 0, 0, 100
  path = tmp_path / 'model.bin'
  data = struct.pack('<2i12id', fasttext_format.MAGIC, 12, *numbers, 1e-3)
  unused = np.zeros((50, _DIM), np.float32)
  rows = _dense(np.concatenate([_OWN, unused]))
  path.write_bytes(data + _dictionary() + rows + _dense(_OUTPUTS))
  vectors = jaxemb.load(path)
  np.testing.assert_array_equal(vectors[_WORDS], _OWN)
  lengths = np.linalg.norm(_OWN, axis=1)
  np.testing.assert_allclose(vectors.norms, lengths, rtol=1e-6)
  cosines = _OWN @ _OWN[1] / lengths / lengths[1]
  np.testing.assert_allclose(
    vectors.most_similar('king', topn=None), cosines, atol=1e-6
  )
  vectors.save_fasttext(tmp_path / 'copy.bin')
  settings, outputs = _outputs_of(tmp_path / 'copy.bin')
  assert (settings.window, settings.model, settings.sample) == (7, 1, 1e-3)
  np.testing.assert_array_equal(outputs['king'], _OUTPUTS[1])


def test_nodes_of_another_huffman_tree_are_not_written(tmp_path):
  path = tmp_path / 'model.bin'
  numbers = _DIM, 5, 5, 1, 5, 1, 1, 2, _BUCKETS, *_CHARS, 100
  header = struct.pack('<2i12id', fasttext_format.MAGIC, 12, *numbers, 1e-4)
  path.write_bytes(header + _model()[len(header) :])
  vectors = jaxemb.load(path)
  vectors.save_fasttext(tmp_path / 'copy.bin')
  assert (tmp_path / 'copy.bin').read_bytes() == path.read_bytes()
  vectors.set_vecattr('king', 'count', 99)
  with pytest.warns(UserWarning, match='8 of 8 .* Huffman'):
    vectors.save_fasttext(tmp_path / 'copy.bin')
  _, outputs = _outputs_of(tmp_path / 'copy.bin')
  assert not np.any([*outputs.values()])


@pytest.mark.parametrize('is_escaped', [False, True])
def test_of_repeated_words_the_first_stays(tmp_path, is_escaped):
  words = [*_WORDS[:4], b'a\\xff', *_WORDS[5:7], b'a\xff']
  kept = [*range(7)]
  if not is_escaped:
    words, kept = [*_WORDS[:6], 'king', 'kings'], [*range(6), 7]
  rows = np.concatenate([_OWN, _ROWS])
  path = tmp_path / 'model.bin'
  path.write_bytes(
    _header() + _dictionary(words) + _dense(rows) + _dense(_OUTPUTS)
  )
  with pytest.warns(UserWarning, match='1 repeated words, the first kept'):
    vectors = jaxemb.load(path)
  names = [x.decode(errors='backslashreplace') if isinstance(x, bytes) else x
           for x in words]  # fmt: skip
  assert vectors.index_to_key == [names[i] for i in kept]
  np.testing.assert_array_equal(vectors.counts, _COUNTS[kept])
  used = [b for _, b in ngrams.of_word(names[kept[-1]], _SPEC)]
  expected = (_OWN[kept[-1]] + _ROWS[used].sum(0)) / (len(used) + 1)
  for part in (vectors.vectors[-1], np.asarray(vectors.vectors)[-1]):
    np.testing.assert_allclose(part, expected, rtol=1e-5)
  np.testing.assert_array_equal(vectors.origin.outputs[:], _OUTPUTS[kept])


def test_plain_vectors_become_a_bin_without_ngrams(tmp_path):
  vectors = embeddings.Embeddings(_WORDS, _OWN)
  vectors.save_fasttext(tmp_path / 'model.bin')
  loaded = jaxemb.load(tmp_path / 'model.bin')
  np.testing.assert_array_equal(loaded.vectors, _OWN)
  assert loaded.subwords is None and 'kingly' not in loaded


def test_gensim_reads_and_writes_the_same(tmp_path, file):
  fasttext = pytest.importorskip('gensim.models.fasttext')
  vectors = jaxemb.load(file)
  words = [*_WORDS[1:], *_UNSEEN[:3]]  # gensim has n-grams of '</s>'
  vectors.save_fasttext(tmp_path / 'ours.bin')
  model = fasttext.load_facebook_model(str(tmp_path / 'ours.bin'))
  np.testing.assert_allclose(model.wv[words], vectors[words], atol=1e-6)
  fasttext.save_facebook_model(model, str(tmp_path / 'theirs.bin'))
  theirs = jaxemb.load(tmp_path / 'theirs.bin')
  np.testing.assert_allclose(theirs[words], vectors[words], atol=1e-6)
  embeddings.Embeddings(_WORDS, _OWN).save_fasttext(tmp_path / 'plain.bin')
  plain = fasttext.load_facebook_vectors(str(tmp_path / 'plain.bin'))
  np.testing.assert_array_equal(plain['king'], _OWN[1])
  vectors.add_vector('added', np.ones(_DIM))  # never counted
  with pytest.warns(UserWarning, match='1 of 9 output rows'):
    vectors.save_fasttext(tmp_path / 'added.bin')
  added = fasttext.load_facebook_vectors(str(tmp_path / 'added.bin'))
  np.testing.assert_allclose(added['added'], np.ones(_DIM), atol=1e-6)


def test_files_that_gensim_is_tested_with():
  pytest.importorskip('gensim')
  from gensim.models import fasttext
  from gensim.test import utils

  path = pathlib.Path(utils.datapath('crime-and-punishment.bin'))
  if not path.exists():
    pytest.skip('gensim is installed without its test data')
  theirs = fasttext.load_facebook_vectors(str(path))
  ours = jaxemb.load(path)
  words = [x for x in theirs.index_to_key if x != '</s>'] + ['неслыханно']
  np.testing.assert_allclose(ours[words], theirs[words], atol=1e-6)


def test_similarity_of_unseen_words_counts_them(tmp_path, file):
  pairs = tmp_path / 'pairs.txt'
  lines = 'king queen 3', 'kingly QUEEN 2', 'queens ab 1', '€ king 5'
  pairs.write_text('\n'.join(lines))
  vectors = jaxemb.load(file)
  benchmark = benchmarks.read(pairs)
  result = vectors.evaluate([benchmark])['pairs']
  assert (result['found'], result['by_subwords'], result['oov']) == (4, 3, 0)
  *_, unknown = vectors.evaluate_word_pairs(pairs)
  assert unknown == 0
  cosines = (
    [3.0, 2.0, 1.0, 5.0],
    [
      vectors.similarity(*x)
      for x in (('king', 'queen'), ('kingly', 'queen'), ('queens', 'ab'))
    ]
    + [vectors.similarity('€', 'king')],
  )
  expected = np.corrcoef(*cosines)[0, 1]
  assert result['pearson'] == pytest.approx(expected, abs=1e-5)
  assert vectors.evaluate_word_pairs(pairs)[0][0] == pytest.approx(
    expected, abs=1e-5
  )


def test_words_that_are_not_utf8_are_escaped(tmp_path):
  path = tmp_path / 'model.bin'
  words = [*_WORDS[:-1], b'caf\xc3']
  rows = np.concatenate([_OWN, _ROWS])
  path.write_bytes(
    _header() + _dictionary(words) + _dense(rows) + _dense(_OUTPUTS)
  )
  with pytest.warns(UserWarning, match='1 words that are not UTF-8'):
    vectors = jaxemb.load(path)
  assert vectors.index_to_key[-1] == 'caf\\xc3'
  used = [b for _, b in ngrams.of_word(b'caf\xc3', _SPEC)]  # of the bytes
  expected = (_OWN[-1] + _ROWS[used].sum(0)) / (len(used) + 1)
  np.testing.assert_allclose(vectors['caf\\xc3'], expected, rtol=1e-5)
  vectors.save_fasttext(tmp_path / 'copy.bin')  # with n-grams of the escape
  loaded = jaxemb.load(tmp_path / 'copy.bin')
  np.testing.assert_allclose(loaded.vectors, vectors.vectors, atol=1e-6)
  assert np.array_equal(loaded.origin.inputs[:-1], _OWN[:-1])


def test_words_with_other_names_keep_their_vectors(file, tmp_path):
  vectors = jaxemb.load(file)
  vectors.index_to_key = [x.upper() for x in vectors.index_to_key]
  with pytest.warns(UserWarning, match='7 of 8 output rows are zeros'):
    vectors.save_fasttext(tmp_path / 'upper.bin')
  loaded = jaxemb.load(tmp_path / 'upper.bin')
  assert loaded.index_to_key == vectors.index_to_key
  np.testing.assert_allclose(loaded.vectors, vectors.vectors, atol=1e-5)


_WHOLE = _model()
# Says that 10^13 n-grams are pruned, which no memory has room for.
_HUGE = _header() + _dictionary().replace(
  struct.pack('<q', -1), struct.pack('<q', 10**13), 1
)
_BAD = {
  'version': (_model(version=13), 'version is 13'),
  'model': (_model(model=9), 'header is damaged'),
  'buckets': (_model(buckets=51), 'input rows'),
  'header': (_WHOLE[:30], 'cut'),
  'words': (_WHOLE[:120], 'cut'),
  'rows': (_WHOLE[:-300], 'cut'),
  'end': (_WHOLE + b'more', '4 bytes follow'),
  'pruned': (_HUGE, 'cut'),
  'lengths': (_model(max_chars=1000), 'model.bin: n-grams'),
}


@pytest.mark.parametrize('name', _BAD)
def test_a_bad_file_is_one_line(tmp_path, name):
  data, reason = _BAD[name]
  path = tmp_path / 'model.bin'
  path.write_bytes(data)
  with pytest.raises(errors.UserError, match=reason) as caught:
    jaxemb.load(path)
  assert '\n' not in str(caught.value) and ';' in str(caught.value)


def test_a_model_without_words_has_n_grams(tmp_path):
  path = tmp_path / 'model.bin'
  none = np.zeros((0, _DIM), np.float32)
  parts = _header(), _dictionary(words=()), _dense(_ROWS), _dense(none)
  path.write_bytes(b''.join(parts))
  vectors = jaxemb.load(path)
  assert len(vectors) == 0
  rows = [_ROWS[bucket] for _, bucket in ngrams.of_word('king', _SPEC)]
  np.testing.assert_allclose(vectors['king'], np.mean(rows, 0), rtol=1e-5)


def test_a_packed_or_other_file_is_one_line(tmp_path, file):
  import gzip

  packed = tmp_path / 'model.bin.gz'
  packed.write_bytes(gzip.compress(file.read_bytes()))
  with pytest.raises(errors.UserError, match='unpack it'):
    jaxemb.load(packed)
  other = tmp_path / 'other.bin'
  other.write_bytes(_model(magic=1))
  with pytest.raises(errors.UserError, match='no model of fastText'):
    fasttext_format.read(other)


def test_a_damaged_export_is_one_line(tmp_path):
  source = subwords.NgramVectors(_SPEC, _ROWS)
  vectors = embeddings.Embeddings(_WORDS, _OWN, subwords=source)
  vectors.save(tmp_path)
  facts = '{"min_chars": %s, "max_chars": 6, "buckets": %s}'
  buckets = np.arange(_BUCKETS)
  for name, change in (
    ('subwords.json', lambda x: x.write_text('{"min_chars": 3}')),
    ('subwords.json', lambda x: x.write_text('[3, 6, 50]')),
    ('subwords.json', lambda x: x.write_text(facts % (3, '50.5'))),
    ('subwords.json', lambda x: x.write_text(facts % (9, 50))),
    ('ngrams.npy', lambda x: np.save(x, _ROWS[:, :3])),
    ('ngrams.npy', lambda x: np.save(x, _ROWS.astype(int))),
    ('ngrams.npy', lambda x: np.save(x, _ROWS.astype(complex))),
    ('buckets.npy', lambda x: np.save(x, np.arange(3, dtype=np.int32))),
    ('buckets.npy', lambda x: np.save(x, buckets + 1)),
    ('buckets.npy', lambda x: np.save(x, buckets // 2)),
    ('buckets.npy', lambda x: np.save(x, buckets.astype('f4'))),
    ('buckets.npy', lambda x: np.save(x, buckets[:, None])),
  ):
    vectors.save(tmp_path)
    change(tmp_path / name)
    with pytest.raises(errors.UserError) as caught:
      jaxemb.load(tmp_path)
    assert '\n' not in str(caught.value) and name in str(caught.value)
    (tmp_path / 'buckets.npy').unlink(missing_ok=True)
  vectors.save(tmp_path)
  assert json.loads((tmp_path / 'subwords.json').read_text()) == {
    'min_chars': 3, 'max_chars': 6, 'buckets': _BUCKETS,
  }  # fmt: skip
  assert export.SUBWORDS == 'subwords.json'


def test_an_export_without_a_used_bucket_is_loaded(tmp_path):
  none = np.zeros((0, _DIM), np.float32), np.zeros(0, np.int32)
  source = subwords.NgramVectors(_SPEC, *none)
  embeddings.Embeddings(_WORDS, _OWN, subwords=source).save(tmp_path)
  assert not jaxemb.load(tmp_path)['kingly'].any()
