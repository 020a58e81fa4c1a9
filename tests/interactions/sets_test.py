"""Sets of items from files and shares."""

import pytest

from jaxemb.interactions import reading, sets

SETTINGS = dict.fromkeys(('path', 'columns', 'decimal', 'valid', 'test'), '')
SETTINGS |= {'min_count': 1}


def _made(tmp_path, text, settings=(), **others):
  path = tmp_path / 'train.txt'
  path.write_text(text)
  given = {**SETTINGS, 'path': str(path), **dict(settings)}
  for name, content in others.items():
    file = tmp_path / f'{name}.txt'
    file.write_text(content)
    given[name] = str(file)
  return sets.make(given, 1)


def _named(made, name='train'):
  if name == 'train':
    owners, ids = made.train.owners(), made.train.ids
  else:
    held = made.held[name]
    owners, ids = held.users[held.sets.owners()], held.sets.ids
  return {(int(u), made.items[i]) for u, i in zip(owners, ids, strict=True)}


def test_lines_are_users_and_items(tmp_path):
  made = _made(tmp_path, 'a x y x\n\nb\ty  z\nc\nb w', valid='b x q\nd y\n')
  assert made.items[0] == 'y' and made.counts.tolist() == [2, 1, 1, 1]
  expected = {(0, 'x'), (0, 'y'), (1, 'y'), (1, 'z'), (1, 'w')}
  assert _named(made) == expected
  assert _named(made, 'valid') == {(1, 'x')}
  assert made.held['valid'].sizes.tolist() == [2]  # with one nobody had before
  assert made.dropped == {
    'repeated_interactions': 1,
    'rare_interactions': 0,
    'users_without_items': 1,
    'valid_users_unknown': 1,
    'valid_items_unknown': 1,
    'valid_items_in_training': 0,
    'invalid_utf8_bytes': 0,
    'unreadable_rows': 0,
  }


def test_a_folder_has_its_own_splits(tmp_path):
  for name, text in ('train', 'a x y\nb y z\n'), ('test', 'a z\n'):
    (tmp_path / f'{name}.txt').write_text(text)
  (tmp_path / 'item_list.txt').write_text('org_id remap_id\n0 1\n')
  made = sets.make({**SETTINGS, 'path': str(tmp_path)}, 1)
  assert _named(made) == {(0, 'x'), (0, 'y'), (1, 'y'), (1, 'z')}
  assert _named(made, 'test') == {(0, 'z')}
  assert [x.files for x in made.inputs] == [
    (str(tmp_path / 'train.txt'),), (str(tmp_path / 'test.txt'),)
  ]  # fmt: skip


def test_bytes_that_are_no_text_are_counted(tmp_path):
  path = tmp_path / 'u.data'
  path.write_bytes(b'u x y\nw y \xc3\xa9 q\n' * 50 + b'v \xe9t\xe9 x\n')
  found = reading.read(str(path))
  assert found.dropped['invalid_utf8_bytes'] == 2
  assert found.items_of['v'] == ['\ufffdt\ufffd', 'x']


def test_rare_items_are_dropped_and_counted(tmp_path):
  text = 'a x y\nb x\nc z\nd w\ne w\n'
  made = _made(tmp_path, text, {'min_count': 2}, test='a y w\n')
  assert made.items == ['x', 'w'] and len(made.train) == 4
  assert made.dropped['rare_interactions'] == 2
  assert made.dropped['users_without_items'] == 1
  assert made.held['test'].sizes.tolist() == [2]


@pytest.mark.parametrize('share', ['0.3', 'last:0.3'])
def test_shares_are_held_out_of_each_set(share, tmp_path):
  items = {i: [str((7 * i + j) % 40) for j in range(i)] for i in range(1, 30)}
  lines = [' '.join([f'u{i}', *x]) for i, x in items.items()]
  settings = {'valid': share, 'test': share}
  made = _made(tmp_path, '\n'.join(lines), settings)
  again = _made(tmp_path, '\n'.join(lines), settings)
  parts = [_named(made, x) for x in ('train', 'valid', 'test')]
  assert sum(map(len, parts)) == len(set.union(*parts))
  sizes = [made.held[x].sizes.sum() for x in ('valid', 'test')]
  # All of them, though an item may be left to nobody.
  assert len(parts[0]) + sum(sizes) == sum(range(1, 30))
  assert (made.train.sizes() > 0).all() and len(made.train) == 29
  assert 0.25 < len(parts[1]) / sum(range(1, 30)) < 0.35
  assert _named(again, 'valid') == parts[1]
  last = {x for u, x in parts[1] if u == 28}
  assert (last == set(items[29][-9:])) == share.startswith('last')


def test_the_fingerprint_is_of_what_is_learned(tmp_path):
  found = [
    _made(tmp_path, x).fingerprint()
    for x in ('a x y\nb y\n', 'a x y\nb x\n', 'a p y\nb y\n', 'a x y\nb y\n')
  ]
  assert len(set(found)) == 3 and found[0] == found[3]
