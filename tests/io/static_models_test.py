"""Sentences are cut as texts are, and other programs read what is written."""

import functools
import json

import numpy as np
import pytest

import jaxemb
from jaxemb import errors
from jaxemb.io import static_models
from jaxemb.storage import export
from jaxemb.text import tokenize

pytest.importorskip('safetensors', reason="needs the extra 'hub'")
pytest.importorskip('tokenizers', reason="needs the extra 'hub'")

_SENTENCES = (
  "The king's NAÏVE daughter, aged 42, can't stay.",
  'İstanbul, Izmir, ΟΔΟΣ; Straße (STRASSE)\u2028next_line\tend',
  'l·l col·legi L·L a·b l·k soft\xadhyphen zero\u200bwidth \u2060word',
  'می\u200cروم می\u200c \u200cروم क्षि क\u094d\u200dष ক\u09cd\u200d का\u0301',
  '中文分词 ひらがな 한국어 ไทย ועד״ס מה״ ֑x',
  'e\u0301clair \u0301alone x\u0301\u200dy tags <b>bold</b> a&amp;b',
  'party 🎉🎊 👍🏽 👨\u200d👩\u200d👧 🇩🇪🇫🇷🇩 1️⃣ ☺️ ™ word🎉word',
  '3.14 1,000 x² ⅷ ٣ \x00\x07 a\u00a0b c\u3000d',
)


def _words_of(text, tokens, lowercase):
  """Words of a text, in order, as training reads them."""
  ids, words, *_ = tokenize.tokenize(text.encode(), tokens, lowercase)
  names = [x.decode() for x in words.texts()]
  return [names[i] for i in ids.tolist() if i != tokenize.END]


@functools.cache
def _vectors(tokens, lowercase):
  """Vectors of every other word of the sentences."""
  all_words = [
    w for x in _SENTENCES for w in _words_of(x, tokens, lowercase=lowercase)
  ]
  words = list(dict.fromkeys(all_words))[::2] + ['only']
  rows = np.random.default_rng(0).normal(size=(len(words), 8))
  return jaxemb.Embeddings(words, rows.astype(np.float32))


def _mean(vectors, sentence, tokens, lowercase):
  """The mean of the vectors of known words in plain loops, float64."""
  total, num = np.zeros(vectors.vector_size), 0
  for word in _words_of(sentence, tokens, lowercase):
    if word in vectors.key_to_index:
      total += vectors.vectors[vectors.key_to_index[word]]
      num += 1
  return total / max(1, num)


either_case = pytest.mark.parametrize('lowercase', [True, False])
every_definition = pytest.mark.parametrize('tokens', static_models.TOKENS)


@every_definition
@either_case
def test_sentences_are_cut_as_texts_are(tokens, lowercase):
  vectors = _vectors(tokens, lowercase)
  names = vectors.index_to_key
  tokenizer = static_models._tokenizer(names, tokens, lowercase=lowercase)
  for sentence in _SENTENCES:
    expected = [
      names.index(x)
      for x in _words_of(sentence, tokens, lowercase=lowercase)
      if x in vectors.key_to_index
    ]
    assert tokenizer.encode(sentence).ids == expected, sentence


@every_definition
@either_case
def test_model2vec_gives_mean_vectors(tokens, lowercase, tmp_path):
  model2vec = pytest.importorskip('model2vec')
  vectors = _vectors(tokens, lowercase)
  vectors.save_static_model(tmp_path / 'model', tokens, lowercase)
  model = model2vec.StaticModel.from_pretrained(tmp_path / 'model')
  sentences = [*_SENTENCES, '', 'nothing of this', 'only only']
  for sentence, encoded in zip(sentences, model.encode(sentences), strict=True):
    expected = _mean(vectors, sentence, tokens, lowercase=lowercase)
    np.testing.assert_allclose(encoded, expected, atol=1e-6)


@pytest.mark.slow
def test_sentence_transformers_gives_mean_vectors(tmp_path):
  sentence_transformers = pytest.importorskip('sentence_transformers')
  vectors = _vectors('words', True)
  vectors.save_static_model(tmp_path / 'model')
  model = sentence_transformers.SentenceTransformer(str(tmp_path / 'model'))
  sentences = [*_SENTENCES, 'only only unknown', 'unknown']
  for sentence, encoded in zip(sentences, model.encode(sentences), strict=True):
    expected = _mean(vectors, sentence, 'words', lowercase=True)
    np.testing.assert_allclose(encoded, expected, atol=1e-6)


def test_what_is_written_is_read_again(tmp_path):
  words = ['▁king', 'New York', 'ünï', '']
  rows = np.arange(12, dtype=np.float32).reshape(4, 3)
  vectors = jaxemb.Embeddings(words, rows, np.array([9, 7, 3, 1]))
  vectors.save_safetensors(tmp_path / 'x.safetensors')
  again = jaxemb.load(tmp_path / 'x.safetensors')
  assert again.index_to_key == words
  np.testing.assert_array_equal(again.vectors, rows)
  np.testing.assert_array_equal(again.counts, [9, 7, 3, 1])
  with pytest.warns(UserWarning, match="2 of 4 words, such as 'New York'"):
    vectors.save_static_model(tmp_path / 'model', 'whitespace')
  again = jaxemb.load(tmp_path / 'model')
  assert again.index_to_key == words and again.counts is None
  np.testing.assert_array_equal(again.vectors, rows)
  card = (tmp_path / 'model/README.md').read_text()
  assert "from_pretrained('model')" in card and '4 word vectors of 3' in card


@pytest.mark.parametrize('dtype', ['>f4', '>f2', '<f8'])
def test_the_order_of_bytes_does_not_matter(dtype, tmp_path):
  vectors = np.arange(6, dtype=dtype).reshape(3, 2)
  path, counts = tmp_path / 'x.safetensors', np.array([3, 2, 1], '>i8')
  static_models.write(path, ['a', 'b', 'c'], vectors, counts)
  _, found, found_counts = static_models.read(path)
  np.testing.assert_array_equal(found, vectors)
  np.testing.assert_array_equal(found_counts, counts)


def test_types_that_safetensors_has_not_are_one_line(tmp_path):
  vectors = np.zeros((1, 2), np.complex64)
  with pytest.raises(errors.UserError, match='vectors of complex64 cannot be'):
    static_models.write(tmp_path / 'x.safetensors', ['a'], vectors, None)
  assert not [*tmp_path.iterdir()]


def test_the_empty_word_is_no_unknown_word(tmp_path):
  words = ['', 'king', '\u2581', ' ']
  rows = np.arange(12, dtype=np.float32).reshape(4, 3)
  for tokens in static_models.TOKENS:
    tokenizer = static_models._tokenizer(words, tokens, lowercase=False)
    for text, expected in (
      ('king zzz', [1]),
      ('  zzz \x01 \u00a0', []),
      ('\u2581\u2581', []),
    ):
      assert tokenizer.encode(text).ids == expected
  vectors = jaxemb.Embeddings(words, rows)
  with pytest.warns(UserWarning, match='of 4 words'):
    vectors.save_static_model(tmp_path)
  assert jaxemb.load(tmp_path).index_to_key == words


def test_equal_words_have_the_first_row(tmp_path):
  from safetensors import numpy as safetensors

  path, rows = tmp_path / 'x.safetensors', np.arange(8.0).reshape(4, 2)
  tensors = {'vectors': rows, 'counts': np.array([4, 3, 2, 1])}
  words = json.dumps([*'abab'])
  path.write_bytes(safetensors.save(tensors, {'words': words}))
  with pytest.warns(UserWarning, match='2 repeated words, the first kept'):
    vectors = jaxemb.load(path)
  assert vectors.index_to_key == ['a', 'b']
  assert vectors.counts.tolist() == [4, 3]
  np.testing.assert_array_equal(vectors.vectors, rows[:2])


def test_senses_become_words(tmp_path):
  from jaxemb.evaluation import multivectors

  rows = np.arange(9, dtype=np.float32).reshape(3, 3)
  table = multivectors.MultiVectors(
    words=['bank', 'the'],
    counts=np.array([3, 2]),
    starts=np.array([0, 2, 3]),
    vectors=rows,
    priors=np.array([0.25, 0.75, 1], np.float32),
  )
  names = ['bank#0', 'bank#1', 'the']
  senses = jaxemb.Embeddings(names, rows, sense_table=table)
  with pytest.warns(UserWarning, match='senses are not written'):
    senses.save_static_model(tmp_path / 'model')
  again = jaxemb.load(tmp_path / 'model')
  assert again.index_to_key == ['bank', 'the']
  np.testing.assert_allclose(again['bank'], rows[0] / 4 + rows[1] * 3 / 4)


def test_models_of_model2vec_are_read(tmp_path):
  from safetensors import numpy as safetensors

  vectors = _vectors('words', True)
  vectors.save_static_model(tmp_path)
  num = len(vectors)
  mapping = np.arange(num) // 2
  weights = np.linspace(1, 2, num)
  tensors = {
    'embeddings': vectors.vectors[: (num + 1) // 2].astype(np.float16),
    'mapping': mapping,
    'weights': weights,
  }
  safetensors.save_file(tensors, tmp_path / 'model.safetensors')
  again = jaxemb.load(tmp_path)
  for row in range(num):
    expected = np.float16(vectors.vectors[row // 2]) * weights[row]
    np.testing.assert_allclose(again.vectors[row], expected, rtol=1e-6)
  assert again.vectors.dtype == np.float32


def test_unusable_files_and_arguments_are_one_line(tmp_path, monkeypatch):
  from safetensors import numpy as safetensors

  vectors, path = _vectors('words', True), tmp_path / 'x.safetensors'
  vectors.save_safetensors(path)
  content = path.read_bytes()
  words = {'words': json.dumps(['a', 'b'])}
  for damaged, message in (
    (content[:-5], 'no safetensors'),
    (b'x' * 100, 'no safetensors'),
    (safetensors.save({'w': np.ones((2, 2))}, words), 'no tensor vectors or'),
    (safetensors.save({'vectors': np.ones((2, 2))}), 'words are missing'),
    (safetensors.save({'vectors': np.ones((3, 2))}, words), '2 words do not'),
    (safetensors.save({'vectors': np.ones(2)}, words), 'of shape'),
    *(
      (safetensors.save({'vectors': np.ones((2, 2))}, {'words': x}), 'no list')
      for x in ('5', '"ab"', '[[1], [2]]', '[1, 2]', '{"a": 0, "b": 1}', 'null')
    ),
    *(
      (
        safetensors.save({'vectors': np.ones((2, 2)), 'counts': x}, words),
        'no safetensors.*counts',
      )
      for x in (np.ones(3), np.array([-1, 2]), np.array([1.5, 2]))
    ),
  ):
    path.write_bytes(damaged)
    with pytest.raises(errors.UserError, match=message):
      jaxemb.load(path)
  with pytest.raises(errors.UserError, match='No such file|no safetensors'):
    jaxemb.load(tmp_path / 'missing.safetensors')
  path.write_bytes(safetensors.save({'vectors': np.ones((2, 2))}))
  (tmp_path / 'tokenizer.json').write_text('{}')
  with pytest.raises(errors.UserError, match='tokenizer.json'):
    jaxemb.load(path)
  with pytest.raises(errors.UserError, match='none of words, words.emoji'):
    vectors.save_static_model(tmp_path / 'model', tokens='letters')
  monkeypatch.setattr(static_models, '_MAX_HEADER_BYTES', 10)
  with pytest.raises(errors.UserError, match='do not fit the header'):
    vectors.save_safetensors(path)


def test_a_run_is_not_taken_for_a_static_model(tmp_path):
  vectors = _vectors('words', True)
  vectors.save(tmp_path)
  (tmp_path / 'model.safetensors').write_bytes(b'')
  assert jaxemb.load(tmp_path).index_to_key == vectors.index_to_key
  assert (tmp_path / export.VECTORS).exists()
