"""Folders of graphs in the forms in which others publish them."""

import json

import numpy as np
import pytest
from scipy import io, sparse

from jaxemb import errors
from jaxemb.graphs import edge_splits
from tests.graphs import sources

# Six nodes, named by numbers that differ from their places in most forms.
EDGES = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (2, 3)]
LABELS = ['a', 'a', 'b', 'b', 'a', 'c']
ONE = [[x] for x in LABELS]
MANY = [['1'], ['1', '2'], ['2'], ['2'], ['1'], ['2', '3']]
FEATURES = np.eye(6, 5, dtype=np.float32) + np.eye(6, 5, -1, np.float32)
NAMES = [str(3 * i + 7) for i in range(6)]
WORDS = FEATURES.astype(int).tolist()
NODES = list(zip(NAMES, WORDS, LABELS, strict=True))


def _lines(sign, rows):
  return ''.join(sign.join(map(str, x)) + '\n' for x in rows)


def _named(edges=EDGES):
  return [(NAMES[a], NAMES[b]) for a, b in edges]


def _labels(graph):
  """The names of the labels of each node."""
  labels = graph.labels
  matrix = labels.matrix(np.arange(graph.num_nodes))
  return [[labels.class_names[i] for i in row.indices] for row in matrix]


TANG = {
  'readme.txt': '1. Data Set Information:\n',
  'data/nodes.csv': _lines(',', zip(NAMES, strict=True)),
  'data/groups.csv': '1\n2\n3\n',
  'data/edges.csv': _lines(',', _named()),
  'data/group-edges.csv': _lines(
    ',', [(n, y) for n, x in zip(NAMES, MANY, strict=True) for y in x]
  ),
}
LINQS = {
  'README': 'This directory contains the citations\nof one\n',
  'cora.cites': _lines('\t', _named()),
  'cora.content': _lines('\t', [(n, *x, y) for n, x, y in NODES][::-1]),
}
MUSAE = {
  'README.txt': 'Some pages of a site\n',
  'citing.txt': '@misc{a,\n}\n',
  'musae_x_edges.csv': 'id_1,id_2\n' + _lines(',', _named()),
  'musae_x_target.csv': 'id,facebook_id,page_name,page_type\n'
  + _lines(',', [(n, i, f'"x, {n}"', LABELS[i]) for i, n in enumerate(NAMES)]),
  'musae_x_features.json': json.dumps(
    {
      n: np.flatnonzero(x).tolist()
      for n, x in zip(NAMES, FEATURES, strict=True)
    }
  ),
}
TWITCH = {
  'musae_DE_edges.csv': 'from,to\n' + _lines(',', _named()),
  'musae_DE_target.csv': 'id,days,mature,views,partner,new_id\n'
  + _lines(
    ',',
    [(n, 5, LABELS[-1 - i], 1, False, NAMES[-1 - i])
     for i, n in enumerate(NAMES)],
  ),
}  # fmt: skip
GEOM, ACTOR = (
  {
    'out1_graph_edges.txt': 'node_id\tnode_id\n' + _lines('\t', _named()),
    'out1_node_feature_label.txt': 'node_id\tfeature\tlabel\n'
    + _lines('\t', [(n, ','.join(map(str, x)), y) for n, x, y in nodes]),
  }
  for nodes in (NODES, [(n, np.flatnonzero(x), y) for n, x, y in NODES])
)
SNAP = {
  'email.txt.gz': '# FromNodeId\tToNodeId\n' + _lines(' ', _named()),
  'email-department-labels.txt.gz': _lines(
    ' ', zip(NAMES, LABELS, strict=True)
  ),
}
COMMUNITIES = {
  'com-x.ungraph.txt.gz': '# FromNodeId\tToNodeId\n' + _lines('\t', _named()),
  'com-x.top5000.cmty.txt.gz': _lines(
    '\t',
    [
      [n for n, x in zip(NAMES, MANY, strict=True) if label in x]
      for label in '123'
    ],
  ),
}
NETWORK_REPOSITORY = {
  'readme.html': '<html>\n</html>\n',
  'x.edges': _lines(',', _named()),
  'x.node_labels': _lines(',', zip(NAMES, LABELS, strict=True)),
}


def _dense(features):
  """The same, or what a sparse matrix has."""
  return features.toarray() if hasattr(features, 'toarray') else features


@pytest.mark.parametrize(
  ('given', 'labels', 'has_features'),
  [
    (TANG, MANY, False),
    (LINQS, ONE, True),
    (MUSAE, ONE, True),
    (TWITCH, ONE, False),
    (GEOM, ONE, True),
    (ACTOR, ONE, True),
    (SNAP, ONE, False),
    (COMMUNITIES, [[str(int(y) - 1) for y in x] for x in MANY], False),
    (NETWORK_REPOSITORY, ONE, False),
  ],
)
def test_a_folder_has_edges_labels_and_features(
  given, labels, has_features, read, write, caplog
):
  write(given, 'data')
  with caplog.at_level('INFO', 'jaxemb'):
    found = read(None, 'data')
  assert 'of the folder' in caplog.text
  keys = list(found.keys())
  sources = np.repeat(np.arange(found.num_nodes), np.diff(found.offsets))
  pairs = {
    (keys[a], keys[b]) for a, b in zip(sources, found.neighbors, strict=True)
  }
  assert pairs == {*_named()} | {(b, a) for a, b in _named()}
  named = _labels(found)
  for node, name in enumerate(keys):
    assert named[node] == labels[NAMES.index(name)]
    if has_features:
      np.testing.assert_array_equal(
        _dense(found.features)[node], FEATURES[NAMES.index(name)]
      )
  assert (found.features is not None) == has_features


def test_a_folder_of_graphsaint_has_splits(tmp_path, read, write):
  ends = np.array(EDGES + [(b, a) for a, b in EDGES]).T
  matrix = sparse.csr_matrix((np.ones(len(ends[0]), bool), ends), (6, 6))
  sparse.save_npz(tmp_path / 'adj_full.npz', matrix)
  sparse.save_npz(tmp_path / 'adj_train.npz', matrix)
  np.save(tmp_path / 'feats.npy', FEATURES)
  many = {str(i): [int(y in x) for y in '123'] for i, x in enumerate(MANY)}
  role = {'tr': [5, 0], 'va': [1], 'te': [2, 3]}
  write({'class_map.json': json.dumps(many), 'role.json': json.dumps(role)})
  found = read(None, '.')
  assert found.num_edges == len(EDGES)
  assert {k: x.tolist() for k, x in found.splits.items()} == {
    'train': [5, 0],
    'valid': [1],
    'test': [2, 3],
  }
  assert _labels(found) == [[str(int(y) - 1) for y in x] for x in MANY]
  np.testing.assert_array_equal(found.features, FEATURES)
  write({'role.json': json.dumps({**role, 'te': [6]})})
  with pytest.raises(errors.UserError, match='not among the 6'):
    read(None, '.')


_TABLE = 'airport,country,activity\n7,C1,x\n10,C2,y\n'


@pytest.mark.parametrize(
  ('name', 'text', 'column', 'labels'),
  [
    ('a.csv', _TABLE, 'activity', [['x'], ['y']]),
    ('a.csv', _TABLE, 'none', 'label_column'),
    ('a.csv', _TABLE, '', 'label_column'),
    (  # numbers that other columns have are no nodes
      'a.csv', 'views,numeric_id,lang\n10,7,E\n7,10,D\n', 'lang', [['E'], ['D']]
    ),
    ('a.csv', ',label\n7,x\n10,\n', '', [['x'], []]),
    ('a.csv', 'year,label,name\n1990,x,7\n1991,y,10\n', '', [['x'], ['y']]),
    ('a.csv', 'label;id\nx;7\ny;10\n;11\n', '', [['x'], ['y']]),
    ('a.csv', 'party,name\nx,7\ny,10\n', '', [['x'], ['y']]),
    ('a.txt', '% c\n10 y\n7 x\n', '', [['x'], ['y']]),
    ('a.txt', '7 y x\n10 class y\n', '', [['x', 'y'], ['class', 'y']]),
    ('g.json', '{"7": ["Pop", "Jazz"], "10": ["Pop"]}', '',
     [['Pop', 'Jazz'], ['Pop']]),
    ('g.json', '{"7": [3, 0], "10": null}', '', [['3', '0'], []]),
    ('g.json', '{"7": [0, 1], "10": [1, 0]}', '', [['1'], ['0']]),
    ('g.json', '{"7": true, "10": 2.0}', '', [['true'], ['2']]),
    ('a.csv', 'node,label\n7,x|y\n10,y\n', '', [['x', 'y'], ['y']]),
    ('a.csv', 'node,label\n7,0|3\n10,"1,2"\n', '', [['0', '3'], ['1', '2']]),
    ('a.csv', """node,label\n7,"['x', 'y']"\n10,[]\n""", '', [['x', 'y'], []]),
    ('a.jsonl', '{"id": 7, "label": ["x"]}\n{"id": 10, "label": ["x", "y"]}\n',
     '', [['x'], ['x', 'y']]),
    ('a.txt', '7\tx\t\n10\ty\t\n', '', [['x'], ['y']]),
  ],
)  # fmt: skip
def test_labels_of_nodes(name, text, column, labels, read, write):
  write({name: text})
  if isinstance(labels, str):
    with pytest.raises(errors.UserError, match=labels):
      read('7,10\n', 'edges.csv', labels=name, label_column=column)
    return
  found = read('7,10\n', 'edges.csv', labels=name, label_column=column)
  assert _labels(found) == [sorted(x) for x in labels]


@pytest.mark.parametrize(
  ('name', 'text', 'message'),
  [
    ('ind.cora.graph', 'x', 'has pickles.*node_labels'),
    ('polblogs.gml', 'graph [\n]\n', 'networkx.read_gml'),
    ('x.gml.txt', 'Creator "me"\ngraph\n[\n  node [ id 0 ]\n', 'read_gml'),
    ('x.xml', '<?xml version="1.0"?>\n<graphml>\n<a b="c">\n', 'read_graphml'),
    ('x.txt', '*Vertices 2\n1 "a b"\n*Edges\n1 2\n', 'networkx.read_pajek'),
    ('x.txt', 'strict digraph {\n  a -> b;\n}\n', 'nx_pydot.read_dot'),
    ('x.txt', 'nodedef>name VARCHAR\na\nedgedef>a,b\n', 'is GDF'),
    ('x.gr', 'c some\nc more\np sp 3 2\na 1 2 5\n', 'is of DIMACS'),
    ('x.txt', '# x\n@prefix ex: <http://e/> .\nex:a ex:b ex:c .\n', 'Turtle'),
    ('x.html', '\n<!DOCTYPE html>\n<a b>\n', 'a page of the web'),
    (
      'x.mtx',
      '%%MatrixMarket matrix coordinate complex general\n2 2 1\n1 2 5 6\n',
      'or complex ones',
    ),
    ('x.mtx', '%%MatrixMarket matrix array real general\n2 2\n0\n1\n1\n0\n',
     'all numbers of a matrix'),
    ('cora.content', '1\t0\ta\n', 'no edges; give its folder'),
    ('X.DIRECTED.cites.tab', 'DIRECTED\tcites\n', 'pubmed.npz'),
    ('x.graph', '3 3\n2 3\n1 3\n1 2\n', 'METIS'),
  ],
)  # fmt: skip
def test_other_forms_are_refused_with_what_to_do(name, text, message, read):
  with pytest.raises(errors.UserError, match=message):
    read(text, name)


def test_several_graphs_in_a_folder_are_not_one(tmp_path, read, write):
  for x in 'brazil', 'usa':
    write({
      f'{x}-airports.edgelist': '7 10\n10 13\n',
      f'labels-{x}-airports.txt': 'node label\n7 0\n10 1\n13 1\n',
    })  # fmt: skip
  with pytest.raises(errors.UserError, match='brazil-airports.edgelist, usa'):
    read(None, '.')
  for path in tmp_path.glob('*brazil*'):
    path.unlink()
  assert read(None, '.').labels.classes.tolist() == [0, 1, 1]


def test_lists_of_names_are_no_edges(read, write, caplog):
  names = dict.fromkeys(('x.nodes', 'x-names.txt', 'x.node_labels'), '7 1\n')
  write({**names, 'x.txt': '7 -> 10\n'})
  with caplog.at_level('INFO', 'jaxemb'):
    found = read(None, '.')
  assert list(found.keys()) == ['7', '10'] and found.weights is None
  assert 'not used: x-names.txt, x.nodes' in caplog.text


def test_arrays_by_other_names(tmp_path, read):
  ends, labels = np.array(EDGES), np.arange(6) % 3
  for name, edges in ('edge_index', ends.T), ('edges', ends), ('edges', ends.T):
    np.savez(tmp_path / 'x.npz', **{name: edges, 'x': FEATURES, 'y': labels})
    found = read(None, 'x.npz')
    assert found.num_edges == len(EDGES)
    assert found.labels.classes.tolist() == labels.tolist()
    np.testing.assert_array_equal(found.features, FEATURES)


def test_wiki_cs_is_read(tmp_path, read, write):
  given = {
    'links': [[b for a, b in EDGES if a == i] for i in range(6)],
    'labels': [0, 1, 2] * 2,
    'features': FEATURES.tolist(),
    'train_masks': [[i == j for i in range(6)] for j in range(3)],
    'test_mask': [i > 3 for i in range(6)],
  }
  write({'data.json': json.dumps(given), 'metadata.json': '{}'}, 'a')
  found = read(None, 'a')
  assert found.num_edges == len(EDGES)
  assert found.labels.classes.tolist() == given['labels']
  np.testing.assert_array_equal(found.features, FEATURES)
  assert {k: x.tolist() for k, x in found.splits.items()} == {
    'train': [0],
    'test': [4, 5],
  }
  (tmp_path / 'a' / 'metadata.json').unlink()
  assert read(None, 'a').num_edges == len(EDGES)
  with pytest.raises(errors.UserError, match='cannot read .*x.json'):
    read('{"links": [[9]], "labels": [1]}', 'x.json')


def test_square_features_are_no_graph(tmp_path, read):
  matrix = sparse.csc_matrix((np.ones(7), np.array(EDGES).T), (6, 6))
  given = {'A': matrix, 'fea': np.eye(6), 'gnd': np.arange(6), 'y': np.eye(6)}
  io.savemat(tmp_path / 'x.mat', given)
  found = read(None, 'x.mat')
  assert [*found.inputs[0].columns] == ['fea', 'gnd', 'adj']
  assert found.num_edges == len(EDGES)
  assert found.features.tolist() == np.eye(6).tolist()
  assert found.labels.classes.tolist() == [*range(6)]
  io.savemat(tmp_path / 'x.mat', {**given, 'B': matrix})
  with pytest.raises(errors.UserError, match='a, b may all be'):
    read(None, 'x.mat')


@pytest.mark.parametrize(
  ('text', 'rows'),
  [
    ('{"7": [0, 1, 1], "10": [1, 1, 0]}', [[0, 1, 1], [1, 1, 0]]),
    ('{"7": [0, 1], "10": [1]}', [[1, 1], [0, 1]]),
    ('{"7": [1.0, 2.0], "10": [3.0, 4.0]}', [[1, 2], [3, 4]]),
    ('{"7": [1, 2], "10": [3, 4]}', 'may be numbers, or places'),
    ('{"7": [1], "10": [3, 99999999]}', 'place 99999999 is too large'),
    ('node,v\n7,"[1, 0, 1]"\n10,"[2, 2, 1]"\n', [[1, 0, 1], [2, 2, 1]]),
    ('node,v\n7,"1,5"\n10,"2,7"\n', 'parse string'),
    ('7\t1,0\n10\t0,1\n', 'parse string'),
  ],
)
def test_lists_of_features_are_places_or_numbers(text, rows, read, write):
  name = 'x_features.' + ('json' if text[0] == '{' else 'csv')
  write({'x_edges.csv': '7,10\n', name: text}, 'data')
  if isinstance(rows, str):
    with pytest.raises(errors.UserError, match=rows):
      read(None, 'data')
    return
  assert _dense(read(None, 'data').features).tolist() == rows


def test_features_of_two_zeros_and_ones_are_these(read, write):
  text = 'node_id\tfeature\tlabel\n7\t1,0\ta\n10\t0,1\tb\n'
  files = {'out1_graph_edges.txt': 'node_id\tnode_id\n7\t10\n'}
  write({**files, 'out1_node_feature_label.txt': text}, 'data')
  assert read(None, 'data').features.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
  ('name', 'text', 'message'),
  [
    ('x_features.json', '{"7": 3}', 'cannot read features'),
    ('x.content', '7 x y L\n10 1 0 M\n', 'or `node numbers label`'),
  ],
)
def test_bad_features_are_one_line(name, text, message, read, write):
  write({'x_edges.csv': '7,10\n', name: text}, 'data')
  with pytest.raises(errors.UserError, match=message) as caught:
    read(None, 'data', features=f'data/{name}')
  assert '\n' not in str(caught.value)


def test_no_path_is_the_embedded_graph_in_any_folder(tmp_path, monkeypatch):
  (tmp_path / 'edges.txt').write_text('a b\n')
  monkeypatch.chdir(tmp_path)
  graph, *_ = edge_splits.split(sources.spec(tmp_path, path=''))
  assert graph.num_nodes == 4000
