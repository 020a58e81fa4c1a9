"""Finds phrases as gensim's Phrases does, and compares sets, texts and seconds.

  python experiments/phrases.py --text=FILES --passes=2

Both get the same tokens: those of jaxemb's encoding, all words of which are in
the vocabulary. gensim has them as lists in memory. Its seconds are those of
counting, of `freeze`, which scores the pairs, and of joining; jaxemb's are of
the same steps, from pieces on disk to pieces on disk, after a run that
compiles.

After the first pass gensim's `freeze` splits a phrase into its single words and
scores the first one with the last, as it does not when it joins: of later
passes all pairs are scored one by one, which takes no part in its seconds.
"""

import argparse
import itertools
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from gensim.models import phrases as gensim_phrases

from jaxemb.text import encode, passes, phrases, tokenize


def _encode(text: str, cache: str, **settings: Any) -> encode.Encoded:
  """Encodes a text with all of its words."""
  all_words = encode.Settings(
    tokens='words', lowercase=True, min_count=1, max_vocab=0, counts=''
  )
  return encode.encode(
    text, all_words._replace(**settings), pathlib.Path(cache), lambda *_: None
  )


def _timed(seconds: dict[str, float], name: str, function: Callable) -> Any:
  start = time.perf_counter()
  result = function()
  seconds[name] = seconds.get(name, 0) + time.perf_counter() - start
  return result


def _sentences(encoded: encode.Encoded) -> Iterator[list[str]]:
  """Yields the tokens of each sentence."""
  words = encoded.words
  for is_end, ids in itertools.groupby(
    encoded.ids.tolist(), lambda i: i == tokenize.END
  ):
    if not is_end:
      yield [words[i] for i in ids]


def _scored(
  model: gensim_phrases.Phrases, sentences: list[list[str]]
) -> dict[str, float]:
  """Returns the pairs of a text that are phrases, with their scores."""
  pairs = set()
  for sentence in sentences:
    places = [
      i for i, x in enumerate(sentence) if x not in model.connector_words
    ]
    pairs |= {tuple(sentence[i : j + 1]) for i, j in itertools.pairwise(places)}
  scored = (model.score_candidate(x[0], x[-1], list(x[1:-1])) for x in pairs)
  return {name: score for name, score in scored if name}


def _gensim(
  sentences: list[list[str]], num_passes: int, **options: Any
) -> tuple[list[dict[str, float]], list[list[str]], dict[str, float]]:
  """Returns phrases with scores by pass, the joined text, and seconds."""
  found, seconds = [], {}
  for number in range(num_passes):
    model = _timed(
      seconds,
      'count',
      lambda: gensim_phrases.Phrases(sentences, **options),  # noqa: B023
    )
    if number:
      found.append(_scored(model, sentences))
    else:
      model = _timed(seconds, 'freeze', model.freeze)
      found.append(model.phrasegrams)
    sentences = _timed(
      seconds,
      'join',
      lambda: [model[x] for x in sentences],  # noqa: B023
    )
  return found, sentences, seconds


def _ours(
  text: str, num_passes: int, **options: Any
) -> tuple[phrases.Phrases, list[list[str]], dict[str, float]]:
  """Returns the phrases, the joined text, and seconds of the second run."""
  settings = {f'phrases_{k}': x for k, x in options.items()}
  methods = {'find_once': 'find', 'join_once': 'join'}
  originals = {x: getattr(passes.Passes, x) for x in methods}

  def timed(method: str) -> Callable:
    def call(*args):
      return _timed(seconds, methods[method], lambda: originals[method](*args))

    return call

  for method in methods:
    setattr(passes.Passes, method, timed(method))
  for _ in range(2):
    seconds = {}
    with tempfile.TemporaryDirectory() as cache:
      encoded = _encode(text, cache, phrases=str(num_passes), **settings)
      found = phrases.load(encoded.folder)
  return found, list(_sentences(encoded)), seconds


def main() -> None:
  """Prints what both find and how long they take."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument('--text', required=True)
  parser.add_argument('--passes', type=int, default=1)
  parser.add_argument('--score', choices=phrases.THRESHOLDS, default='word2vec')
  parser.add_argument('--threshold', type=float)
  parser.add_argument('--min_count', type=int, default=5)
  parser.add_argument('--connectors', default='', help="'english' or words")
  args = parser.parse_args()
  threshold = args.threshold
  if threshold is None:
    threshold = phrases.THRESHOLDS[args.score]
  ours, our_text, our_secs = _ours(
    args.text,
    args.passes,
    score=args.score,
    threshold=threshold,
    min_count=args.min_count,
    connectors=args.connectors,
  )
  with tempfile.TemporaryDirectory() as cache:
    sentences = list(_sentences(_encode(args.text, cache)))
  print(f'{sum(map(len, sentences)):,} words, {len(sentences):,} sentences')
  theirs, their_text, their_secs = _gensim(
    sentences,
    args.passes,
    scoring='default' if args.score == 'word2vec' else args.score,
    threshold=threshold,
    min_count=args.min_count,
    connector_words=frozenset(phrases.connectors(args.connectors)),
  )
  for number, (mine, known) in enumerate(
    zip(ours.passes, theirs, strict=True), 1
  ):
    names = {'_'.join(x.words): x.score for x in mine}
    same = names.keys() & known.keys()
    print(
      f'pass {number}: {len(names):,} phrases, gensim {len(known):,}, both '
      f'{len(same):,}; scores that differ: '
      f'{sum(names[x] != known[x] for x in same):,}'
    )
  print('same text' if our_text == their_text else 'the texts differ')
  for name, secs in ('jaxemb', our_secs), ('gensim', their_secs):
    steps = ', '.join(f'{k} {x:.2f}' for k, x in secs.items())
    print(f'{name}: {sum(secs.values()):.2f} s ({steps})')
  print(f'{sum(their_secs.values()) / sum(our_secs.values()):.1f} x')


if __name__ == '__main__':
  main()
