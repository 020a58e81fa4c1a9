"""Names of gensim and fastText that jaxemb lacks, and what to use instead."""

from collections.abc import Mapping

_CONTINUE = 'jaxemb.train(data, start=RUN) continues a run'

# What to use in place of a name that `Embeddings` lacks: names of gensim's
# `KeyedVectors`, past and present, then of models of gensim and fastText.
INSTEAD = {
  'allocate_vecattrs': 'set_vecattr makes room for all words',
  'resize_vectors': 'add_vectors(words, vectors) adds rows',
  'next_index': 'add_vector adds behind the last row',
  'mapfile_path': 'jaxemb.load maps files of `save` into memory',
  'lifecycle_events': 'report.json of a run has its history',
  'add_lifecycle_event': 'report.json of a run has its history',
  'log_accuracy': 'evaluate_word_analogies returns the numbers',
  'log_evaluate_word_pairs': 'evaluate_word_pairs returns the numbers',
  'similarity_unseen_docs': 'n_similarity compares groups of words',
  'add': 'vectors are added by add_vectors',
  'word_vec': 'vectors of words are get_vector(word)',
  'words_closer_than': 'the method is closer_than',
  'vectors_norm': 'vectors of length 1 are get_normed_vectors()',
  'syn0': 'all vectors are vectors',
  'syn0norm': 'vectors of length 1 are get_normed_vectors()',
  'index2word': 'words are index_to_key',
  'index2entity': 'words are index_to_key',
  'vocab': 'rows of words are key_to_index, counts get_vecattr(word, "count")',
  'wv': 'these are the vectors',
  'build_vocab': _CONTINUE,
  'train': _CONTINUE,
  'get_word_vector': 'vectors of words are get_vector(word)',
  'get_sentence_vector': 'the mean of words is get_mean_vector(text.split())',
  'get_nearest_neighbors': 'neighbors are most_similar(word, topn=10)',
  'get_analogies': 'analogies are most_similar([a, c], [b])',
  'get_subwords': 'n-grams and their vectors are ngrams(word)',
  'get_words': 'words are index_to_key',
  'words': 'words are index_to_key',
  'get_word_id': 'the row of a word is get_index(word, -1)',
  'get_dimension': 'the dimension is vector_size',
  'save_model': 'save_fasttext(path) writes a .bin',
}
# The same of `Documents` and names of gensim's `Doc2Vec`.
OF_DOCUMENTS = {
  'build_vocab': _CONTINUE,
  'train': _CONTINUE,
  'corpus_count': 'the number of documents is len(model.dv)',
  'docvecs': 'vectors of documents are dv',
  'most_similar': 'neighbors are dv.most_similar(tag), wv.most_similar(word)',
}

# The same of `jaxemb.train` and arguments of gensim and fastText.
OF_TRAIN = {
  **dict.fromkeys(('vector_size', 'size'), 'dim='),
  **dict.fromkeys(('negative', 'neg'), 'negatives='),
  **dict.fromkeys(('epoch', 'iter'), 'epochs='),
  'sg': "model='skipgram' or 'cbow'",
  'ws': 'window=',
  't': 'sample=',
  'minCount': 'min_count=',
  **dict.fromkeys(
    ('hs', 'loss'), "settings={'model.loss': 'hierarchical_softmax'}"
  ),
  **dict.fromkeys(
    ('alpha', 'lr', 'learning_rate'),
    "settings={'optimizer.learning_rate': RATE}",
  ),
  'min_alpha': "settings={'optimizer.final_learning_rate': RATE}",
  **dict.fromkeys(
    ('workers', 'thread', 'threads'), "settings={'train.threads': NUMBER}"
  ),
  'max_final_vocab': "settings={'data.max_vocab': NUMBER}",
  'shrink_windows': "settings={'model.dynamic_window': BOOL}",
  **dict.fromkeys(
    ('min_n', 'max_n', 'minn', 'maxn'), "settings={'model.subwords': '3-6'}"
  ),
  'bucket': "settings={'model.buckets': NUMBER}",
  'pretrainedVectors': "settings={'train.init_from': FILE}",
  **dict.fromkeys(
    ('sentences', 'corpus_file', 'corpus_iterable', 'documents', 'input'),
    'the first argument',
  ),
  'dm': "config='documents:dm' or 'documents'",
}


def missing(owner: str, name: str, instead: Mapping[str, str] = INSTEAD) -> str:
  """Returns the message of an `AttributeError` for a name of a class."""
  line = f'{owner!r} object has no attribute {name!r}'
  return f'{line}; {instead[name]}' if name in instead else line


def unexpected(argument: str) -> str:
  """Returns the message of a `TypeError` for an argument of `jaxemb.train`."""
  line = f'train() got an unexpected keyword argument {argument!r}; '
  if argument in OF_TRAIN:
    return f'{line}use {OF_TRAIN[argument]}'
  return f"{line}other settings are settings={{'GROUP.NAME': value}}"
