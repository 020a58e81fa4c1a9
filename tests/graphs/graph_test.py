"""Lists of neighbors, against a loop; and graphs of files."""

import json
import os

import numpy as np
import pyarrow as pa
import pytest
from scipy import io, sparse

from jaxemb import errors
from jaxemb.graphs import edge_lists, files
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.runtime import resources


def _edges(num, seed=0):
  rng = np.random.default_rng(seed)
  ends = rng.integers(0, 27, (2, num))
  return *ends, rng.random(num).astype('f4'), rng.integers(0, 3, num)


def _in_a_loop(sources, targets, weights, relations, directed):
  """Sums by (node, neighbor, relation), and how many edges are left out."""
  sums, pairs, num_loops = {}, set(), 0
  for i, (a, b) in enumerate(
    zip(sources.tolist(), targets.tolist(), strict=True)
  ):
    relation = 0 if relations is None else int(relations[i])
    weight = 1.0 if weights is None else float(weights[i])
    if a == b and (relations is None or not directed):
      num_loops += 1
      continue
    for u, v in ((a, b), (b, a))[: 1 if directed else 2]:
      key = u, v, relation
      sums[key] = sums.get(key, 0) + weight
    pairs.add((a, b, relation) if directed or a < b else (b, a, relation))
  return sums, num_loops, len(sources) - num_loops - len(pairs)


@pytest.mark.parametrize(
  ('has_weights', 'has_relations', 'directed'),
  [(False, False, False), (True, True, False), (True, True, True)],
)
def test_lists_are_those_of_a_loop_in_memory_and_on_disk(
  has_weights, has_relations, directed, tmp_path, monkeypatch
):
  sources, targets, weights, relations = _edges(400)
  weights = weights if has_weights else None
  relations = relations if has_relations else None
  given = sources, targets, weights, relations
  graph = graph_lib.from_edges(
    sources,
    targets,
    num_nodes=30,
    weights=weights,
    relations=relations,
    directed=directed,
  )
  sums, num_loops, num_duplicates = _in_a_loop(*given, directed)
  keys = sorted(sums)
  nodes = np.repeat(np.arange(30), np.diff(graph.offsets))
  assert list(zip(nodes, graph.neighbors, strict=True)) == [x[:2] for x in keys]
  if has_weights:
    np.testing.assert_allclose(graph.weights, [sums[x] for x in keys], 1e-5)
  if has_relations:
    assert graph.relations.tolist() == [x[2] for x in keys]
  with_edges = {y for x in keys for y in x[:2]}
  assert graph.counted == {
    'duplicate_edges': num_duplicates,
    'self_loops': num_loops,
    'isolated_nodes': 30 - len(with_edges),
  }
  # In chunks, and range by range of nodes.
  monkeypatch.setattr(graph_lib, '_RANGE_EDGES', 37)

  def chunks():
    for i in range(0, 400, 77):
      cut = (x if x is None else x[i : i + 77] for x in given)
      yield graph_lib.Edges(*cut)

  built = graph_lib.build(chunks, 30, directed, tmp_path)
  names = [f'node {i}' for i in range(30)]
  known = {
    'names': names,
    'labels': labels_lib.Labels(np.arange(30) % 4, names=[*'abcd']),
  }
  known |= {'splits': {'test': np.array([3, 5])}}
  known |= {'features': sparse.random(30, 9, 0.1, 'csr', np.float32)}
  saved = graph_lib.save(built._replace(**known), tmp_path)
  assert saved.digest == graph_lib.fingerprint(graph._replace(**known))
  for field in ('offsets', 'neighbors', 'weights', 'relations'):
    np.testing.assert_array_equal(getattr(saved, field), getattr(graph, field))
  assert saved.names[:] == names and saved.splits['test'].tolist() == [3, 5]
  assert not (saved.features != known['features']).nnz
  assert isinstance(saved.neighbors, np.memmap)
  (tmp_path / 'neighbors.npy').write_bytes(b'')
  with pytest.raises(errors.UserError, match='holds no whole graph'):
    graph_lib.load(tmp_path)


def _listed(graph):
  keys = graph.keys()
  nodes = np.repeat(np.arange(graph.num_nodes), np.diff(graph.offsets))
  pairs = [
    (keys[a], keys[b]) for a, b in zip(nodes, graph.neighbors, strict=True)
  ]
  weights = graph.weights
  if weights is None:
    return sorted(pairs)
  return sorted(zip(*zip(*pairs, strict=True), weights.tolist(), strict=True))


TABLE = pa.table({'w': [2.0, 3.0], 'src': ['x', 'y'], 'dst': ['y', 'z, q']})


@pytest.mark.parametrize(
  ('text', 'name'),
  [
    ('a,b,weight\nx,y,2\ny,"z, q",3\n', 'edges.csv'),
    ('from\tto\tw\n\nx\ty\t2\ny\tz, q\t3', 'edges.tsv.gz'),
    ('# names\n% and more\r\nx\ty\t2\r\ny\tz, q\t3\r\n', 'edges'),
    (TABLE, 'edges.parquet'),
  ],
)
def test_headers_weights_and_names_are_found(text, name, read):
  graph = read(text, name, directed=True)
  assert _listed(graph) == [('x', 'y', 2.0), ('y', 'z, q', 3.0)]
  again = read(None, name, directed=True)  # from the cache
  assert again.digest == graph.digest


def test_a_graph_whose_cache_or_file_has_changed_is_read_again(read, tmp_path):
  text = 'a\tb\nb\tc\n'
  digest = read(text).digest
  for path in (tmp_path / 'cache').glob('*/*.*'):
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.unlink()  # this process has mapped it
    path.write_bytes(data)
    graph = read(None)
    assert graph.digest == digest and _listed(graph) == [
      ('a', 'b'), ('b', 'a'), ('b', 'c'), ('c', 'b'),
    ], path  # fmt: skip
  times = (tmp_path / 'edges.txt').stat()
  (tmp_path / 'edges.txt').write_text('a\tb\na\tc\n')
  os.utime(tmp_path / 'edges.txt', ns=(times.st_atime_ns, times.st_mtime_ns))
  assert _listed(read(None))[:2] == [('a', 'b'), ('a', 'c')]


def test_numbers_triples_and_columns(read):
  graph = read('5 7\n7   1000000\n')
  assert graph.keys()[:] == ['5', '7', '1000000'] and graph.num_edges == 2
  assert read('0 1\n1 2\n').names is None
  assert read('007 1\n').keys()[:] == ['007', '1']
  graph = read('a likes b\nb hates c\n', directed=True)
  assert _listed(graph) == [('a', 'b'), ('b', 'c')]
  assert [graph.relation_names[x] for x in graph.relations] == [
    'likes',
    'hates',
  ]
  graph = read('1 a b 9\n', columns='-,target,source,weight', directed=True)
  assert _listed(graph) == [('b', 'a')]
  counted = read('0 1\n1 0\n2 2\n', num_nodes=9).counted
  assert counted['isolated_nodes'] == 7 and counted['self_loops'] == 1


def test_names_of_urls_are_no_comments(read, write):
  write({'labels': '% c\n%C3\tx\n'})
  text = '% c\n%%\na\t%C3\n%C3\tb\n'
  graph = read(text, labels='labels', directed=True)
  assert _listed(graph) == [('%C3', 'b'), ('a', '%C3')]
  assert graph.labels.classes.tolist() == [-1, 0, -1]


@pytest.mark.parametrize(
  ('text', 'settings', 'message'),
  [
    ('a;b;0,5\nb;c;0,7\n', {'name': 'a.csv'}, 'such as 0,7; write points'),
    ('5 6\n1 2\n2 3\n3 1\n4 5\n1 5\n2 4\n', {}, 'begins with 5 6, which'),
    ('4 5\n1 9\n9 3\n3 1\n7 9\n7 3\n', {}, 'begins with 4 5, which'),
    ('4 5\na b\nb c\nc a\nd b\nd c\n', {}, 'begins with 4 5, which'),
    ('% sym unweighted\n1 2\n', {'directed': True}, 'lead both ways'),
    (
      '%%MatrixMarket matrix coordinate pattern symmetric\n2 2 1\n2 1\n',
      {'directed': True},
      'lead both ways',
    ),
    ('source,target\n', {}, 'no line with an edge'),
    ('1 2\n', {'comments': '//'}, 'comments=// is not one sign'),
    ('1 2\n', {'comments': '§'}, 'comments=§ is not one sign'),
    (
      pa.table({'source': [['x']], 'target': [['y']]}),
      {'name': 'edges.parquet'},
      r'cannot read .*Unsupported cast from list',
    ),
  ],
)
def test_bad_input_is_one_line(text, settings, message, read):
  with pytest.raises(errors.UserError, match=message) as caught:
    read(text, **settings)
  assert '\n' not in str(caught.value)


def test_labels_and_features_of_files(read, write):
  write({
    'labels': 'node,label\na,x\nb,y\nb,x\nq,z\n',
    'features': 'c 1 2\na 3 4\n',
  })  # fmt: skip
  graph = read('a b\nb c\n', labels='labels', features='features')
  every = graph.labels.matrix(np.arange(3)).toarray()
  assert graph.labels.names == ['x', 'y'] and every.tolist() == [
    [True, False], [True, True], [False, False],
  ]  # fmt: skip
  assert graph.features.tolist() == [[3, 4], [0, 0], [1, 2]]
  assert graph.counted['labels_of_unknown_nodes'] == 1
  assert graph.counted['nodes_without_features'] == 1


def test_labels_are_no_features_and_missing_ones_are_dropped(read, write):
  write(
    {
      'all.csv': 'id,label,v,x\n1,NA,0,5\n2,True,1,6\n3,None,0,7\n3,,0,8\n',
      'few.csv': 'id,label\n1,2\n',
    }
  )
  graph = read('1 2\n2 3\n', labels='all.csv', features='all.csv')
  assert graph.features.tolist() == [[0, 5], [1, 6], [0, 8]]
  assert graph.counted['repeated_features'] == 1
  assert graph.labels.names == ['true']
  assert graph.counted['missing_labels'] == 3
  graph = read(
    '1 2\n2 3\n', labels='all.csv', features='all.csv', label_column='v'
  )
  assert graph.features.tolist() == [[5], [6], [8]]
  with pytest.raises(errors.UserError, match='has no features but id, label'):
    read('1 2\n2 3\n', features='few.csv')
  write({'few.csv': 'id,label\n1,\n'})
  with pytest.raises(errors.UserError, match='no labels but 1 missing'):
    read('1 2\n2 3\n', labels='few.csv')


@pytest.mark.parametrize(
  ('text', 'name', 'settings'),
  [
    ('# as DeepWalk has it\na b c\nb a\nc a\nd', 'x_adjlist.txt', {}),
    ('a\tb\tc\r\n\nd\t\n', 'x.adjlist.gz', {}),
    ('a,b,c\nd\n', 'x.csv', {'columns': 'source,targets'}),
  ],
)
def test_adjacency_lists_are_edges(text, name, settings, read):
  graph = read(text, name, **settings)
  pairs = {x[:2] for x in _listed(graph)}
  assert pairs == {('a', 'b'), ('a', 'c'), ('b', 'a'), ('c', 'a')}
  assert sorted(graph.keys()) == list('abcd')
  assert graph.counted['self_loops'] == graph.counted['unreadable_edges'] == 0
  assert graph.counted['isolated_nodes'] == 1


@pytest.mark.parametrize(
  ('labels', 'message'),
  [
    # Labels and nodes are integers: the second column has more of these.
    ('0 0\n1 1\n0 2\n1 3\n', '2 nodes of the graph in its first column'),
    ('0,31,x\n1,32,x\n2,33,y\n', 'are all labels'),
    ('0 1\n1 -1\n2 1\n', 'at most one class'),
    ('0 2\n# the\n', 'data.comments=# if they are'),
  ],
)
def test_labels_that_may_be_something_else(labels, message, read, write):
  write({'labels.txt': labels})
  with pytest.raises(errors.UserError, match=message):
    read('0 1\n1 2\n2 3\n', labels='labels.txt')


def test_numbers_below_0_are_no_labels_and_007_is_no_node(
  read, write, tmp_path
):
  write({'labels.txt': '0 5\n1 -1\n2 4\n003 4\n'})
  np.save(tmp_path / 'labels.npy', [5, -1, 4, -1])
  for name in 'labels.txt', 'labels.npy':
    graph = read('0 1\n1 2\n2 3\n', labels=name)
    assert graph.labels.classes.tolist() == [1, -1, 0, -1], name
    assert graph.labels.names == ['4', '5']


@pytest.mark.parametrize(
  ('name', 'text'),
  [
    ('x.cmty.txt', '; one\na b\nc\n'),
    ('x.content', '; one two three\na 1 0\nb 2 0\nc 3 1\n'),
  ],
)
def test_comments_of_labels_are_as_set(name, text, read, write):
  write({name: text})
  graph = read('a b\nb c\n', labels=name, comments=';')
  assert graph.labels.classes.tolist() == [0, 0, 1]


@pytest.mark.parametrize('form', ['parquet', 'jsonl'])
def test_rows_without_a_name_are_counted_by_their_rows(form, read):
  columns = {'source': ['a', 'b', 'c', ''], 'target': ['b', 'c', 'd', 'e']}
  text = pa.table(columns)
  if form == 'jsonl':
    text = ''.join(json.dumps(x) + '\n' for x in text.to_pylist())
  with pytest.raises(errors.UserError, match='line 4: a node has no name'):
    read(text, f'edges.{form}')


def test_comments_are_counted_and_other_files_named(read, write):
  assert read('# one\n% two\na b\nb c\n').counted['comments'] == 2
  graph = read('# one\na b\n# two\nb c\n', comments='#')
  assert graph.counted['comments'] == 2 and graph.num_edges == 2
  with pytest.raises(errors.UserError, match='data.comments=% if they are'):
    read('# one\na b\n% two\nb c\n')
  with pytest.raises(errors.UserError, match='data.comments=# if they are'):
    read('a b\n' * 6_000 + '# end\n')
  with pytest.raises(errors.UserError, match="first line, '// comment'"):
    read('// comment\na\tb\nb\tc\n')
  write({'list.tsv': 'a\tb\n' * 20, 'about': 'A graph, 2019\n'}, 'lists')
  with pytest.raises(errors.UserError, match=r'about, list.tsv; give one'):
    read(None, 'lists')


def test_columns_are_for_lists_alone(tmp_path, read):
  sparse.save_npz(tmp_path / 'a.npz', MATRIX)
  for given in {'columns': 'source,target'}, {'comments': '#'}:
    with pytest.raises(errors.UserError, match='is for lists of edges'):
      read(None, 'a.npz', **given)


def test_a_folder_of_ogb_whose_files_do_not_fit(read, write):
  texts = {'edge': '0,1\n1,2\n', 'num-node-list': '3\n', 'node-feat': '1,2\n'}
  write({f'raw/{k}.csv.gz': x for k, x in texts.items()}, 'ogb')
  with pytest.raises(errors.UserError, match='lines of 1 nodes, and the graph'):
    read(None, 'ogb')


def test_matrices_of_scipy_and_folders(tmp_path, read, write):
  dense = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
  matrix = sparse.csr_matrix(dense)
  sparse.save_npz(tmp_path / 'a.npz', matrix)
  group = sparse.csr_matrix(np.array([[1, 0], [1, 1], [0, 1]]))
  io.savemat(tmp_path / 'b.mat', {'network': matrix, 'group': group})
  np.savez(
    tmp_path / 'c.npz', **_parts(matrix), labels=[1, 0, 1],
    node_names=['x', 'y', 'z'], attr_matrix=np.eye(3),
  )  # fmt: skip
  for name in ('a.npz', 'b.mat', 'c.npz'):
    graph = read(None, name)
    assert graph.num_edges == 2 and graph.weights is None
  assert graph.names[:] == ['x', 'y', 'z']
  assert graph.labels.classes.tolist() == [1, 0, 1]
  assert graph.features.tolist() == np.eye(3).tolist()
  labels = read(None, 'b.mat').labels.matrix(np.array([1, 2])).toarray()
  assert labels.tolist() == [[True, True], [False, True]]
  graph_lib.save(graph, tmp_path / 'saved')
  assert _listed(read(None, 'saved')) == _listed(graph)
  write({
    'raw/edge.csv.gz': '0,1\n1,2\n', 'raw/num-node-list.csv.gz': '4\n',
    'raw/node-feat.csv.gz': '1,2\n3,4\n5,6\n7,8\n',
    'raw/node-label.csv.gz': '0\n1\n1\n0\n',
    'split/time/train.csv.gz': '0\n1\n', 'split/time/test.csv.gz': '3\n',
  }, 'cache/ogbn-arxiv')  # fmt: skip
  graph = read(None, path='ogbn-arxiv')
  assert graph.num_nodes == 4 and graph.counted['isolated_nodes'] == 1
  assert graph.labels.classes.tolist() == [0, 1, 1, 0]
  assert graph.features[3, 1] == 8
  assert {k: x.tolist() for k, x in graph.splits.items()} == {
    'train': [0, 1], 'test': [3],
  }  # fmt: skip


MATRIX = sparse.csr_matrix(np.diag([1.0, 1, 1], 1) + np.diag([1, 1, 1], -1))
GROUP = np.array([[1, 0], [1, 1], [0, 1], [0, 0]])


def _parts(matrix, name='adj'):
  parts = {x: getattr(matrix, x) for x in ('data', 'indices', 'indptr')}
  return {f'{name}_{k}': x for k, x in {**parts, 'shape': matrix.shape}.items()}


def test_labels_of_matrices(tmp_path, read):
  for given, numbers, names in [
    ([3, 7, 7, -1], [0, 1, 1, -1], ['3', '7']),
    ([1.0, 2, np.nan, 10**12], [0, 1, -1, 2], ['1', '2', str(10**12)]),
    ([[5], [4], [5], [5]], [1, 0, 1, 1], ['4', '5']),
    (['y', 'x', 'x', 'y'], [1, 0, 0, 1], ['x', 'y']),
  ]:
    np.savez(tmp_path / 'a.npz', **_parts(MATRIX), labels=given)
    graph = read(None, 'a.npz')
    assert graph.labels.classes.tolist() == numbers
    assert graph.labels.names == names
    array = np.array(given)
    array = array.astype(array.dtype.newbyteorder('>'))
    np.save(tmp_path / 'labels.npy', array)
    graph = read('0 1\n1 2\n2 3\n', labels='labels.npy')
    assert graph.labels.classes.tolist() == numbers
    assert graph.labels.names == names
  every = np.arange(4)
  for given in ({'labels': GROUP}, _parts(sparse.csr_matrix(GROUP), 'labels')):
    np.savez(tmp_path / 'a.npz', **_parts(MATRIX), **given)
    found = read(None, 'a.npz').labels.matrix(every)
    np.testing.assert_array_equal(found.toarray(), GROUP > 0)
  attributed = {'Network': MATRIX, 'Label': [[2, 1, 1, 2]]}
  io.savemat(tmp_path / 'b.mat', attributed | {'Attributes': GROUP})
  assert read(None, 'b.mat').labels.classes.tolist() == [1, 0, 0, 1]
  assert read(None, 'b.mat').features.tolist() == GROUP.tolist()
  np.savez(
    tmp_path / 'a.npz', **_parts(MATRIX), labels=[0, 2, 2, 0],
    class_names=['p', 'q', 'r'],
  )  # fmt: skip
  assert read(None, 'a.npz').labels.names == ['p', 'r']


def test_matrices_as_others_write_them(tmp_path, read):
  # Bojchevski and Gunnemann 2018 have pickled dicts of names.
  names = np.array({0: 'a'}, dtype=object)
  np.savez(tmp_path / 'a.npz', **_parts(MATRIX), idx_to_class=names)
  dotted = {x.replace('_', '_matrix.'): y for x, y in _parts(MATRIX).items()}
  np.savez(tmp_path / 'b.npz', **dotted)
  for form in ('coo', 'dia'):
    sparse.save_npz(tmp_path / f'{form}.npz', MATRIX.asformat(form))
  # A zero that is stored is no edge, and edges both ways are one.
  stored = sparse.csr_matrix(([1.0, 1, 1, 1, 0], ([0, 1, 1, 2, 3],
    [1, 0, 2, 3, 0])), shape=(4, 4))  # fmt: skip
  sparse.save_npz(tmp_path / 'zero.npz', stored)
  for name in ('a.npz', 'b.npz', 'coo.npz', 'dia.npz', 'zero.npz'):
    graph = read(None, name)
    assert graph.num_edges == 3 and graph.weights is None, name


def test_matrices_with_splits(tmp_path, read):
  mask = np.array([True, False, False, True])
  splits = {'train_masks': [mask, ~mask], 'idx_test': [1], 'val_mask': ~mask}
  np.savez(
    tmp_path / 'a.npz', node_features=np.eye(4), node_labels=[0, 1, 1, 0],
    edges=[[0, 1], [1, 2], [2, 3]], **splits,
  )  # fmt: skip
  graph = read(None, 'a.npz')
  assert {k: x.tolist() for k, x in graph.splits.items()} == {
    'train': [0, 3], 'valid': [1, 2], 'test': [1],
  }  # fmt: skip
  assert graph.num_edges == 3 and graph.features.shape == (4, 4)
  assert graph.labels.classes.tolist() == [0, 1, 1, 0]
  # Of PyTorch Geometric, a mask is a column.
  columns = np.stack([mask, ~mask], 1)
  np.savez(tmp_path / 'b.npz', **_parts(MATRIX), train_mask=columns)
  assert read(None, 'b.npz').splits['train'].tolist() == [0, 3]
  np.savez(tmp_path / 'c.npz', **_parts(MATRIX), val_mask=mask[:3])
  with pytest.raises(errors.UserError, match='val_mask of 3 nodes, and the'):
    read(None, 'c.npz')


def test_names_that_are_given_twice(tmp_path, read):
  np.savez(
    tmp_path / 'a.npz', **_parts(MATRIX), node_names=['a', '', 'a', 'a#2']
  )
  assert read(None, 'a.npz').names[:] == ['a', '#1', 'a#2', 'a#2#3']


@pytest.mark.parametrize(
  ('name', 'given', 'message'),
  [
    ('a.mat', {'network': MATRIX, 'group': GROUP[:3]}, 'labels of 3 nodes'),
    ('a.mat', {'network': MATRIX * -1.5}, r'has the weight -1\.5'),
    ('a.mat', {'network': MATRIX * 1j}, 'weights of complex128'),
    ('a.npz', {**_parts(MATRIX), 'adj_shape': (2, 2)}, 'cannot read'),
    ('a.npz', {**_parts(MATRIX), 'node_names': ['x']}, 'names of 1 nodes'),
    ('a.npz', {**_parts(MATRIX), 'idx_train': [4]}, 'nodes for train that'),
  ],
)
def test_bad_matrices_are_one_line(name, given, message, tmp_path, read):
  write = io.savemat if name == 'a.mat' else lambda x, y: np.savez(x, **y)
  write(tmp_path / name, given)
  with pytest.raises(errors.UserError, match=message) as caught:
    read(None, name)
  assert '\n' not in str(caught.value)


class _Graph:
  """What is used of a NetworkX graph."""

  def nodes(self, data):
    return [
      ('x', {'label': 'l', 'club': ['a', 'b']}),
      (('y', 1), {'club': None}),
      (3, {'label': 'm'}),
    ]

  def edges(self, data):
    return [('x', ('y', 1), {'weight': 2.5}), (('y', 1), 3, {})]

  def is_directed(self):
    return True


def test_graphs_of_networkx():
  graph = files.from_networkx(_Graph())
  assert _listed(graph) == [("('y', 1)", '3', 1.0), ('x', "('y', 1)", 2.5)]
  assert graph.directed and graph.labels.classes.tolist() == [0, -1, 1]
  graph = files.from_networkx(_Graph(), label='club')
  labels = graph.labels
  assert labels.names == ['a', 'b'] and labels.classes.tolist() == [0, 1]
  assert labels.offsets.tolist() == [0, 2, 2, 2]


def test_nodes_without_room_are_refused_before_edges_are_read(
  tmp_path, monkeypatch
):
  path = tmp_path / 'edges.tsv'
  path.write_text('0\t1\n1\t2\n2\t0\n')
  monkeypatch.setattr(resources, 'available_bytes', lambda: 10**9)
  settings = {'num_nodes': 2 * 10**9}
  with pytest.raises(errors.UserError) as caught:
    edge_lists.listed({path: None}, settings, tmp_path, lambda *_: None)
  assert '16.0 GB' in str(caught.value)
  assert 'lower --config.data.num_nodes=2000000000' in str(caught.value)
