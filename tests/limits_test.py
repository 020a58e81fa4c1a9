"""Counters, ids and positions beyond 32 bits, from positions that are faked."""

import dataclasses
import re

import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.cli import train
from jaxemb.data import base as data_base
from jaxemb.data import blocks as blocks_lib
from jaxemb.data import subsampling
from jaxemb.graphs import edge_source
from jaxemb.io import keys
from jaxemb.models import base as model_base
from jaxemb.ops import huffman
from jaxemb.run import build, kind, loop, metrics
from jaxemb.runtime import resources
from jaxemb.senses import mixture
from jaxemb.storage import checkpoint, export, word2vec_format
from jaxemb.strategies import base as strategy_base
from jaxemb.tables import spec as spec_lib
from tests import corpora

_WORDS = 10**10
_NEAR = [2**31, 2**32, _WORDS]


class _Text:
  """A text of ten billion words, whose blocks are made when they are read."""

  words, manifest, num_words = ['a', 'b', 'c'], {}, _WORDS
  counts = np.array([_WORDS - 2**32 - 1, 2**32, 1])

  def __init__(self):
    sizes = np.full(-(-_WORDS // blocks_lib.BLOCK_WORDS), 4096)
    sizes[-1] = _WORDS - sizes[:-1].sum()
    starts = np.append(0, np.cumsum(sizes + 1))
    self.blocks = blocks_lib.Blocks(starts, sizes, np.arange(len(sizes)))

  def read(self, numbers):
    """Yields the ids of blocks."""
    for number in numbers:
      yield np.zeros(self.blocks.words[number], np.int32)


@pytest.fixture(scope='module')
def source():
  """Reads it twice, every third word."""
  spec = corpora.spec(sample=1e-1, part_words=4096, epochs=2)
  return blocks_lib.BlockSource(_Text(), spec)


def test_a_text_of_ten_billion_words_is_read_to_its_end(source):
  # The last two batches of the first epoch.
  num = -(-_WORDS // blocks_lib.BLOCK_WORDS)
  first = (num // 128 - 1) * 128
  blocks = source.corpus.blocks
  order = blocks_lib.hashing.order
  key = blocks_lib.hashing.part_key(source.spec.seed, 0, 0)
  left = blocks.words[order(first, num, size=num, key=key)].sum()
  items = source.items([0, first], _WORDS - int(left))
  *_, last = (next(items) for _ in range(2))
  assert last.done_after == _WORDS and last.position == [1, 0]
  following = next(items)
  assert following.done_before == _WORDS
  assert following.done_after > _WORDS and following.index == last.index + 1


def test_words_are_drawn_by_positions_of_64_bits(source):
  # Positions that differ by 2^32, or nearly: their choices are others.
  numbers = np.array([0, 2**19, 2**20]) * 2**13
  keep, out = source.batches_on_host()._keep_below, []
  for position in numbers:
    ids, left = np.full(4200, 3, np.int32), np.zeros((2, 4200), np.uint8)
    block, key = np.zeros(4096, np.int32), np.uint64(1)
    n, *_ = blocks_lib.pack(block, position, keep, key, (1, 5), ids, *left, 0)
    out.append((n, left[:, :n].tobytes()))
  assert len({*out}) == 3


def _schedule(source, done):
  item = data_base.Item(None, 0, [0, 0], done, done + 1)
  config = config_lib.default()
  config.optimizer.learning_rate = 0.05
  return loop.schedule(config, item, 2 * source.units_per_epoch)


def test_learning_rates_fall_to_the_last_word(source):
  ends = [0, *(x + d for x in _NEAR for d in (-1, 0)), 2 * _WORDS - 1]
  # The schedule has 32 bits, of which a word is less than one.
  rates = [
    rate
    for x in map(_schedule, [source] * len(ends), ends)
    for rate in (x.first_learning_rate, x.last_learning_rate)
  ]
  assert np.all(np.diff(rates) <= 0) and rates[0] == np.float32(0.05)
  assert rates[-1] == np.float32(1e-4)


@pytest.mark.parametrize('done', _NEAR)
def test_totals_count_on_and_are_saved(source, tmp_path, done):
  totals = metrics.Totals(done=done - 1000, steps=done, examples=5.0 * done)
  totals.counters = {'pairs': 9 * done - 1}
  item = data_base.Item(None, 0, [1, 2**32], done - 1000, done + 1000)
  steps = strategy_base.StepMetrics(
    np.float32(20), np.float32(10), np.int32(-1), {}
  )
  dispatch = strategy_base.DispatchMetrics(
    steps, np.int32(7), {'pairs': np.int32(2**31 - 1)}
  )
  totals.add(item, _WORDS, (0.2, 0.1), dispatch, 9.0)
  assert totals.counters == {'pairs': 9 * done + 2**31 - 2}
  assert totals.done == done + 1000 and totals.steps == done + 7
  record = {'totals': dataclasses.asdict(totals)}
  with checkpoint.Checkpoints(tmp_path, 1, pytest.fail) as checkpoints:
    checkpoints.save(totals.steps, {'x': np.zeros(2, np.float32)}, record)
    checkpoints.wait()
    step, _, read = checkpoints.restore(lambda _: {'x': np.zeros(2, 'f')})
  assert step == done + 7 and metrics.Totals(**read['totals']) == totals


def test_counts_of_words_have_64_bits(tmp_path):
  counts = np.array([6 * 10**9, 2**32 + 1, 2**31, 5])
  path = tmp_path / 'vocab.txt'
  word2vec_format.write_vocab(path, [*'abcd'], counts)
  assert np.array_equal(word2vec_format.read_vocab(path)[1], counts)
  small = counts // 2**12
  keep, expected = (
    subsampling.keep_probabilities(x, 1e-3) for x in (counts, small)
  )
  assert keep[:3] == pytest.approx(expected[:3], rel=1e-5)
  tree = huffman.links(counts)
  assert huffman.sums(tree, counts)[0] == counts.sum()


@pytest.mark.parametrize(('window', 'num_parts'), [(255, 1), (5, 64)])
def test_pairs_of_a_batch_have_32_bits(window, num_parts):
  spec = corpora.spec(num_parts, part_words=2**24, window=window)
  group = blocks_lib.BlockSource(_Text(), spec)._group
  pairs = 2 * window * num_parts * group * blocks_lib.BLOCK_WORDS
  assert 2**29 < pairs < 2**31


def test_edges_beyond_32_bits_are_read():
  source = object.__new__(edge_source.Edges)
  source.spec = corpora.spec()
  source.graph = type('Directed', (), {'directed': True})
  source._starts, source._num_ids = [2**32 - 3, 2**32 + 5], 1

  class Column:
    def __getitem__(self, places):
      return places - (2**32 - 3)

  source._columns = [Column()]
  ids, _ = source._bucket(0, 0)
  assert sorted(ids[:, 0].tolist()) == [*range(8)]


def test_tables_of_too_many_rows_are_refused(monkeypatch):
  spec_lib.TableSpec('words', vocab=2**31 - 2, dim=1, init_scale=0.0)
  with pytest.raises(errors.UserError, match='2,147,483,647 rows'):
    spec_lib.TableSpec('words', vocab=2**31 - 1, dim=1, init_scale=0.0)
  monkeypatch.setattr(spec_lib, 'MAX_ROWS', 19)
  with pytest.raises(errors.UserError, match='would have 20 rows'):
    mixture.number(np.ones(4, bool), 5)


def test_trees_and_keys_of_too_many_words_are_refused(monkeypatch):
  counts = np.broadcast_to(1, 2**29 + 1)
  corpus = model_base.Corpus(keys=(), counts=counts, centers=counts)
  with pytest.raises(errors.UserError, match='536,870,913 words are more'):
    kind.check_tree(corpus)
  monkeypatch.setattr(keys, '_MAX_KEYS', 5)
  known = keys.Keys(range(1, 6))
  with pytest.raises(errors.UserError, match='more than 5 different keys'):
    known.add(np.array([3, 9], np.uint64))


def test_files_of_2_31_rows_are_refused_before_they_are_read(tmp_path):
  with open(tmp_path / 'vectors.npy', 'wb') as file:
    export.put_header(file, np.dtype(np.float16), (2**31 + 8, 4))
    file.truncate(file.tell() + 8 * (2**31 + 8))  # a hole
  (tmp_path / 'vocab.txt').write_text('a 1\nb 2\n')
  with pytest.raises(errors.UserError, match='vectors.npy has 2147483656 rows'):
    export.read(tmp_path)
  path = tmp_path / 'vectors.bin'
  with open(path, 'wb') as file:
    file.write(b'3000000000 100\na ' + bytes(400) + b'\n')
    file.truncate(400 * 3_000_000_000)
  with pytest.raises(errors.UserError, match='no word before vector 2'):
    word2vec_format.read(path)


def test_a_line_without_an_end_is_refused(tmp_path):
  path = tmp_path / 'vectors.txt'
  path.write_bytes(b'3000000000 2\na 1 2\n' + bytes(300_000))
  with pytest.raises(errors.UserError, match='line 3 has more than 65,664'):
    word2vec_format.read(path)


@pytest.mark.slow
@pytest.mark.parametrize(
  'config',
  [
    'wiki:smoke', 'mixture:smoke', 'documents:smoke', 'ctr:smoke', 'rec',
    'rec:item2vec', 'graph', 'graph:line', 'graph:relations', 'graphsage',
  ],
)  # fmt: skip
def test_what_has_no_room_is_refused_before_it_is_made(
  monkeypatch, tmp_path, capsys, config
):
  def fail(*unused):
    raise AssertionError('takes memory')

  monkeypatch.setattr(resources, 'available_bytes', lambda: 100_000_000)
  monkeypatch.setattr(build.Parts, 'new_state', fail)
  assert train.main([f'--config={config}', f'--workdir={tmp_path}']) == 2
  *_, line = capsys.readouterr().err.splitlines()
  assert re.search(r'training and its results \(.* GB\) need .* 0.1 GB', line)
