"""Batches of pairs and of windows, and whole runs on them."""

import collections
import json

import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.data import base, examples
from jaxemb.interactions import sources
from jaxemb.run import lifecycle as train

SPLITS = {
  'columns': 'user,items', 'decimal': '', 'valid': '', 'test': '',
  'min_count': 1, 'sample': 0.0,
}  # fmt: skip
TEXT = {i: [f'i{j}' for j in range(1 + i % 7)] for i in range(50)}
NUM = sum(map(len, TEXT.values()))


@pytest.fixture
def make(tmp_path):
  """Makes a source of `TEXT`."""
  path = tmp_path / 'train.txt'
  lines = [' '.join([f'u{i}', *x]) for i, x in TEXT.items()]
  path.write_text('\n'.join(lines))

  def made(kind, num_parts=1, local=None, epochs=2, window=3, **settings):
    readers = base.ALONE._replace(local_parts=local or range(num_parts))
    given = {**SPLITS, 'path': str(path), **settings}
    args = str(path), 7, epochs, num_parts, 8, window, 4, window, given, readers
    return kind(base.SourceSpec(*args, tmp_path, lambda *x: None))

  return made


def _pairs(source, items):
  found = collections.Counter()
  for item in items:
    batch = item.batch
    is_example = batch.labels == 1
    assert (is_example == (batch.ids[..., 0] != examples.PADDING)).all()
    found.update(map(tuple, batch.ids[is_example].tolist()))
  return found


@pytest.mark.parametrize('num_parts', [1, 3])
def test_every_epoch_has_every_pair_once(num_parts, make, monkeypatch):
  monkeypatch.setattr(sources, '_DISPATCH', 50)
  source = make(sources.Interactions, num_parts)
  items = list(source.items(None, 0))
  assert items[-1].done_after == 2 * NUM == 2 * source.units_per_epoch
  train_sets = source.data.train
  expected = zip(train_sets.owners(), train_sets.ids, strict=True)
  wanted = {(int(u), int(i)): 2 for u, i in expected}
  assert _pairs(source, items) == wanted
  first, second = (
    [x for x in items if x.position[0] == e or x.position == [e + 1, 0]]
    for e in (0, 1)
  )
  assert _pairs(source, first[:1]) != _pairs(source, second[:1])
  for x in items:
    assert x.done_after - x.done_before == x.batch.examples.sum()
    assert x.batch.num_steps[0] * 8 >= x.batch.examples.max()


def test_reading_goes_on_where_it_stopped(make, monkeypatch):
  monkeypatch.setattr(sources, '_DISPATCH', 50)
  items = list(make(sources.ItemSets, 2, sample=0.05).items(None, 0))
  assert [x.index for x in items] == sorted({x.index for x in items})
  assert items[-1].done_after == 2 * NUM
  for i, item in enumerate(items[:-1]):
    source = make(sources.ItemSets, 2, sample=0.05)
    rest = list(source.items(item.position, item.done_after))
    assert len(rest) == len(items) - i - 1
    for x, y in zip(rest, items[i + 1 :], strict=True):
      assert x[1:] == y[1:]
      for a, b in zip(x.batch, y.batch, strict=True):
        np.testing.assert_array_equal(a, b)
  own = [
    sum(x.own for x in make(sources.ItemSets, 4, local).items(None, 0))
    for local in (range(2), range(2, 4))
  ]
  assert abs(sum(own) - 2 * NUM) <= 4 and min(own) > 0


def test_windows_meet_all_items_of_a_set_and_no_other(make, monkeypatch):
  monkeypatch.setattr(sources, '_DISPATCH', 48)
  source = make(sources.ItemSets, 2, epochs=20)
  vocab, window = len(source.keys), source.spec.window
  assert [source.keys[i] for i in range(vocab)] == [f'i{j}' for j in range(7)]
  centers, pairs = collections.Counter(), 0
  for item in source.items(None, 0):
    batch = item.batch
    for part in range(2):
      num = batch.kept_words[part]
      places = np.arange(num)
      mine, left, right = batch.ids[part], batch.left[part], batch.right[part]
      assert not left[num:].any() and not right[num:].any()
      centers.update(mine[window : window + num].tolist())
      for place in places:
        at = place + window
        near = [
          *mine[at - left[place] : at],
          *mine[at + 1 : at + 1 + right[place]],
        ]
        # An item once in a set, and no padding.
        assert len({*near, mine[at]}) == 1 + len(near)
        assert all(0 <= x < vocab for x in near)
        pairs += len(near)
      assert batch.pairs[part] == left.sum() + right.sum()
  counts = {i: 20 * int(x) for i, x in enumerate(source.counts)}
  assert centers == counts
  # All ordered pairs, but for those too far apart in an order.
  sizes = np.array(list(map(len, TEXT.values())))
  near = sum(
    abs(a - b) <= window and a != b
    for n in sizes
    for a in range(n)
    for b in range(n)
  )
  assert pairs == 20 * near


def test_subsampling_leaves_what_it_says(make):
  source = make(sources.ItemSets, epochs=200, sample=0.05)
  kept = sum(x.batch.kept_words.sum() for x in source.items(None, 0))
  expected = 200 * float(source.counts @ source.keep)
  assert abs(kept - expected) < 0.05 * expected
  with pytest.raises(errors.UserError, match=r'data\.sample=1e-12 leaves no'):
    next(make(sources.ItemSets, sample=1e-12).items(None, 0))


def _ndcg(data, split, scores, k):
  """Mean NDCG of scores [users, items] in float64, by a loop."""
  total, held = 0.0, data.held[split]
  for i, user in enumerate(held.users):
    seen, wanted = (
      x.ids[x.starts[j] : x.starts[j + 1]]
      for x, j in ((data.train, user), (held.sets, i))
    )
    order = np.argsort(-scores[user], kind='stable')
    best = [x for x in order if x not in seen][:k]
    gains = [1 / np.log2(2 + rank) for rank in range(k)]
    hits = sum(g for g, x in zip(gains, best, strict=False) if x in wanted)
    total += hits / sum(gains[: held.sizes[i]])
  return total / len(held.users)


def test_weights_of_item_sets_are_the_best_of_the_validation(make):
  source, chosen = make(sources.ItemSets, valid='0.3', test='0.2'), set()
  data, num = source.data, len(source.keys)
  sets = np.split(data.train.ids, data.train.starts[1:-1])
  for seed in range(4):
    rng = np.random.default_rng(seed)
    vectors, contexts = rng.normal(0, 0.7, (2, num, 3))
    source.counts = source.counts[::-1]  # they tell the truth, or the contrary
    logs = np.log(source.counts)
    products = np.array([vectors[x].mean(0) for x in sets]) @ contexts.T
    ndcg = {
      split: [
        _ndcg(data, split, w * products + c * logs, 3)
        for w, c in sources._WEIGHTS
      ]
      for split in data.held
    }
    best = int(np.argmax(ndcg['valid']))
    chosen.add(best)
    for x, scores in source.evaluate(vectors, contexts, ks=(3,)).items():
      assert scores['ndcg'] == pytest.approx(ndcg[x][best], rel=1e-6)
      weights = scores['product_weight'], scores['count_weight']
      assert weights == sources._WEIGHTS[best]
  assert len(chosen) > 1
  # Without a validation split they are those of training.
  del data.held['valid']
  found = source.evaluate(vectors, contexts, ks=(3,))
  assert found['test']['ndcg'] == pytest.approx(ndcg['test'][0], rel=1e-6)
  assert 'where there is --config.data.valid' in source.describe()[-1]


def _run(variant, workdir, **settings):
  values = {k.replace('__', '.'): v for k, v in settings.items()}
  config = config_lib.load(f'rec:{variant}' if variant else 'rec', values)
  assert train.run(config, workdir) == 0
  return json.loads((workdir / 'report.json').read_text())


# Of few examples small steps learn sooner.
SMALL = {'model__shared_negatives': 64, 'train__batch_examples': 512}
VARIANTS = {
  '': {'train__epochs': 6, **SMALL},
  'item2vec': {'train__epochs': 10, 'train__threads': 1},
}
# Of the 22 items that a user likes and does not have, 20 can be recommended.
BEST_RECALL = 20 / 22
# Of that, what a model learns in so few epochs.
LEAST = {'': 0.96, 'item2vec': 0.9}


@pytest.mark.slow
@pytest.mark.parametrize('variant', VARIANTS)
def test_planted_groups_are_learned(variant, tmp_path):
  found = _run(variant, tmp_path, **VARIANTS[variant])
  for split in ('valid', 'test'):
    scores = found['evaluation'][split]
    assert LEAST[variant] < scores['score'] / BEST_RECALL < 1.02
    assert scores['ndcg'] > 0.6 and scores['total'] == 30_000
  vectors = jaxemb.load(tmp_path)
  item = vectors.index_to_key[0]
  near = [x for x, _ in vectors.most_similar(item, topn=5)]
  group = item.partition('.')[0]
  assert sum(x.partition('.')[0] == group for x in near) >= 4


@pytest.mark.slow
def test_meshes_and_layouts_learn_the_same(tmp_path):
  small = {'train__epochs': 1, 'model__dim': 6, 'model__shared_negatives': 8}
  small |= {'optimizer__learning_rate': 0.01}
  meshes = {
    'one': {'mesh__data': 1},
    'rows': {'table__layout': 'row', 'mesh__data': 1, 'mesh__table': 4},
    'memory': {'table__store': 'memory', 'table__device_bytes': '80%'},
  }
  found = {}
  for name, settings in meshes.items():
    _run('', tmp_path / name, **small, **settings)
    found[name] = np.load(tmp_path / name / 'export' / 'vectors.npy')
  users = tmp_path / 'one' / 'export' / 'context_vocab.txt'
  assert len(set(users.read_text().split())) == 3000
  for name in meshes:
    np.testing.assert_allclose(found[name], found['one'], atol=2e-5)
