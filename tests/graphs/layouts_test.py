"""Lists of edges as others publish or write them: read right or refused."""

import io
import json

import hypothesis
import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxemb import errors
from jaxemb.graphs import files

NODES = range(12)
PAIRS = [(a, b) for a in NODES for b in NODES if 0 < b - a < 4]
TRIPLES = [(a, ('likes', 'knows')[i % 2], b) for i, (a, b) in enumerate(PAIRS)]
NUMBERED = [(a, int(r == 'knows'), b) for a, r, b in TRIPLES]
WEIGHTED = [(a, b, 1 + (a + b) % 3) for a, b in PAIRS]


def _named(rows, *prefixes):
  """Rows whose cells have a prefix each."""
  return [
    tuple(f'{x}{y}' for x, y in zip(prefixes, row, strict=True)) for row in rows
  ]


KG = _named(TRIPLES, '/m/0', '', '/m/0')
WORDNET = _named(TRIPLES, '0010', '_', '0010')
PEOPLE = _named(PAIRS, 'u', 'u')


def _htr(rows):
  return [(a, b, r) for a, r, b in rows]


def _lines(rows, sign='\t', header=''):
  lines = [sign.join(map(str, x)) for x in rows]
  return '\n'.join([*([header] * bool(header)), *lines, ''])


def _nx(write, graph):
  file = io.BytesIO()
  write(graph, file)
  return file.getvalue().decode()


KARATE = nx.karate_club_graph()
PLAIN = nx.Graph(KARATE.edges())
FRAME = pd.DataFrame(PEOPLE, columns=['from', 'to'])

COUNT = str(len(PAIRS))
POINTS = [(*x, 0.25 + x[0]) for x in PAIRS]
YEARS = [(*x, 1990 + i) for i, x in enumerate(PEOPLE)]
TIMED = [(*x, 1_400_000_000 + i) for i, x in enumerate(WEIGHTED)]
INDEXED = [(i, *x) for i, x in enumerate(PEOPLE)]
SIDES = _named(PAIRS, 'left:', 'right:')
AUTHORS = _named(PAIRS, 'author:u', 'paper:u')
TAGS = _named(PAIRS, '#', 'u')
PROTEINS = _named(WEIGHTED, '9606.P', '9606.P', '')
RATED = [(f'user:{a}', f'movie:{b}', 3.5 + a % 2) for a, b in PAIRS]
MOVIELENS = [(*x, 3.5 + x[0] % 2, 1_400_000_000 + x[0]) for x in PAIRS]
RATINGS = 'userId,movieId,rating,timestamp'
GROUPED = _named(NUMBERED, 'Person:', '', 'Movie:')
URIS = [(f'<{a}>', r, f'<{b}>') for a, r, b in KG]
CSKG = 'id node1 relation node2 node1;label node2;label relation;label source'
CSKG_ROWS = [('e', a, r, b, 'l', 'm', 'n', 'CN') for a, r, b in KG]
PRIME = 'relation,display_relation,x_index,x_id,x_type,x_name,x_source,' + (
  'y_index,y_id,y_type,y_name,y_source'
)
PRIME_ROWS = [
  (r, 'is', a, 9, 'gene', 'G', 'NCBI', b, 8, 'drug', 'D', 'DB')
  for a, r, b in NUMBERED
]
GEPHI = 'Source,Target,Type,Id,Label,timeset,Weight'
GEPHI_ROWS = [(a, b, 'Undirected', 3, '', '', w) for a, b, w in WEIGHTED]
MATRIX = f'%%MatrixMarket matrix coordinate pattern general\n12 12 {COUNT}'
RECBOLE = 'head_id:token\trelation_id:token\ttail_id:token'
NEO4J = ':START_ID(Person),:TYPE,:END_ID(Movie)'
JSON = [
  json.dumps({'head': a, 'relation': r, 'tail': b}) + '\n' for a, r, b in KG
]

# Name, file, sign between cells, header, and rows: triples, or pairs with a
# weight or without. Behind them what they are, if that is something else.
LISTS = [
  ('FB15k-237, PyKEEN', 'train.txt', '\t', '', KG),
  ('WN18RR', 'train.txt', '\t', '', WORDNET),
  ('KB2E', 'train.txt', '\t', '', _htr(KG), KG),
  ('PyTorch-BigGraph', 'train.tsv', ' ', '', KG),
  ('OpenKE', 'train2id.txt', ' ', COUNT, _htr(NUMBERED), NUMBERED),
  ('OpenKE, other name', 'x.txt', '\t', COUNT, _htr(NUMBERED), NUMBERED),
  ('RecBole', 'ml.kg', '\t', RECBOLE, KG),
  ('OGB, pandas', 'x.csv', ',', 'head,relation,tail', NUMBERED),
  ('CSKG', 'x.tsv', '\t', CSKG.replace(' ', '\t'), CSKG_ROWS, KG),
  ('PrimeKG', 'kg.csv', ',', PRIME, PRIME_ROWS, NUMBERED),
  ('Neo4j', 'x.csv', ',', NEO4J, NUMBERED, GROUPED),
  ('Gephi', 'x.csv', ',', GEPHI, GEPHI_ROWS, WEIGHTED),
  ('STRING', 'x.txt', ' ', 'protein1 protein2 combined_score', PROTEINS),
  ('KONECT', 'out.x', ' ', '% asym positive', TIMED, WEIGHTED),
  ('KONECT, bipartite', 'out.x', ' ', '% bip unweighted', PAIRS, SIDES),
  ('Matrix Market', 'x.mtx', ' ', MATRIX, PAIRS),
  ('LastFM friends', 'user_friends.dat', '\t', 'userID\tfriendID', PAIRS),
  ('MovieLens', 'x.csv', ',', RATINGS, MOVIELENS, RATED),
  ('a timed graph', 'x.csv', ',', 'source,target,year', YEARS, PEOPLE),
  ('points', 'x.txt', ' ', '', POINTS),
  ('hashtags', 'x.tsv', '\t', '', TAGS),
  ('semicolons', 'x.csv', ';', 'source;target', PEOPLE),
  ('N-Triples', 'x.nt', ' ', '', [(*x, '.') for x in URIS], URIS),
  ('LINE', 'x.txt', ' ', '', [(*x, 1) for x in PAIRS], PAIRS),
  ('a header behind #', 'x.tsv', '\t', '#source\ttarget\tweight', WEIGHTED),
  ('R, write.table', 'x.tsv', '\t', 'from\tto', INDEXED, PEOPLE),
  ('two kinds', 'x.csv', ',', 'authorName,paperName', PEOPLE, AUTHORS),
  ('relation first', 'x.tsv', '\t', '', [(r, a, b) for a, r, b in KG], KG),
  ('ids of edges', 'x.csv', ',', 'edge_id,a,b', INDEXED, PEOPLE),
  ('a tab at the end', 'x.txt', '\t', '', [(*x, '') for x in PEOPLE], PEOPLE),
  ('a byte order mark', 'x.txt', ' ', '\ufeff# c', PAIRS),
  ('ConceptNet', 'x.csv', '\t', '', [('/a/[]', r, a, b, '{"weight": 1.0}') for
   a, r, b in KG], KG),
  ('KONECT, mixed', 'out.x', ' ', '% asym', [(a, f'{b}\t{w}', 7) for a, b, w
   in WEIGHTED], WEIGHTED),
]  # fmt: skip
# Name, file, text, and what it is.
READ = [
  *((x[0], x[1], _lines(x[4], x[2], x[3]), x[-1]) for x in LISTS),
  ('edgelist', 'x.edgelist', _nx(nx.write_edgelist, PLAIN), PLAIN.edges()),
  (
    'edgelist with attributes',
    'x.edgelist',
    _nx(nx.write_edgelist, KARATE),
    KARATE.edges(data='weight'),
  ),
  ('adjlist', 'x.adjlist', _nx(nx.write_adjlist, PLAIN), PLAIN.edges()),
  ('pandas', 'x.csv', FRAME.to_csv(), PEOPLE),
  ('pandas without names', 'x.csv', pd.DataFrame(PEOPLE).to_csv(), PEOPLE),
  ('R, write.csv', 'x.csv', FRAME.to_csv(quoting=2), PEOPLE),
  ('JSON lines', 'x.jsonl', ''.join(JSON), KG),
  ('lines in .json', 'x.json', ''.join(JSON), KG),
]

REFUSED = [
  ('three integers', 'x.txt', _lines(WEIGHTED, ' '), 'source,target,weight'),
  ('no count', 'x.txt', _lines(_htr(NUMBERED)), 'source,target,relation'),
  (
    'a name between numbers',
    'x.txt',
    _lines([(i, 'abcdefgh'[i % 8], 90 + i) for i in range(20)]),
    'source,relation,target',
  ),
  ('wrong count', 'train2id.txt', _lines(_htr(NUMBERED), ' ', '7'), 'says 7'),
  ('years', 'x.txt', _lines(YEARS), 'times'),
  ('of weight', 'x.csv', _lines(YEARS, ',', 'source,target,weight'), 'times'),
  ('days', 'x.csv', _lines(WEIGHTED, ',', 'source,target,days'), 'weight or n'),
  ('kinds', 'x.csv', _lines(PAIRS, ',', 'person_no,firm_no'), 'same numbers'),
  ('names', 'x.csv', 'one,knows,other\n1,2,3\n', 'data.columns=source:'),
  (
    'more relations than nodes',
    'x.csv',
    _lines([(a, 9 * a + b, b) for a, b in PAIRS], ',', 'head,relation,tail'),
    'relations between',
  ),
  (
    'labels of 0 and 1',
    'x.csv',
    _lines([(*x, x[0] % 2) for x in PAIRS], ',', 'source,target,label'),
    'may be a relation or not',
  ),
  (
    'multiline',
    'x.txt',
    _nx(nx.write_multiline_adjlist, PLAIN),
    'multiline adjacency list',
  ),
  ('matrix', 'x.csv', nx.to_pandas_adjacency(PLAIN).to_csv(), 'is a matrix'),
  ('matrix, n0..', 'x.csv', ',n0,n1,n2\nn0,0,.5,1\nn1,2,0,3\n', 'is a matrix'),
  ('numbers', 'x.csv', '0,1,0,2\n1,0,1,3\n0,1,0,1\n1,1,1,0\n', 'is a matrix'),
  ('no index', 'x.csv', 'A,B,C,D' + '\n0,1,0,1' * 4 + '\n', 'is a matrix'),
  ('n columns', 'x.csv', 'id,x1,x2,x3\n7,1,2,3\n', 'is known as source or t'),
  *(
    ('several', 'x.csv', f'a,b\n0,{x}\n1,0\n2,1\n', 'lists of nodes')
    for x in ('1|2', '"1,2"', '"[1, 2]"', '[1]', "\"{'1', '2'}\"")
  ),
  *(
    ('signs', 'x.txt', x, 'signs that')
    for x in ('(0, 1)\n(1, 2)\n', '0: 1\n1: 2\n', '0:1,2\n1:0,2\n', "'a','b'\n")
  ),
  ('names', 'x.csv', _lines(PEOPLE, ',', 'von,nach'), 'source:von,target:nach'),
  (
    'names of triples',
    'x.csv',
    _lines(KG * 3, ',', 'n,q,m'),
    'source:n,target:m',
  ),
  ('R, write.table', 'x.txt', '"from" "to"\n"1" "a" "b"\n', 'in quotes'),
  (
    'node-link',
    'x.json',
    json.dumps(nx.node_link_data(PLAIN, edges='edges')),
    'node_link_graph',
  ),
  ('of lists', 'x.json', json.dumps({'1': [2], '2': []}), 'from_dict_of_lists'),
  ('objects', 'x.json', f'[{",".join(JSON)}]', 'object for each edge'),
  ('lists', 'x.jsonl', '{"source": 1, "target": [2, 3]}\n', 'lists of nodes'),
]


def _found(graph):
  """The edges of a graph as rows, of undirected ones in either order."""
  keys = list(graph.keys())
  sources = np.repeat(np.arange(graph.num_nodes), np.diff(graph.offsets))
  columns = [[keys[x] for x in sources]]
  if graph.relations is not None:
    columns.append([graph.relation_names[x] for x in graph.relations])
  columns.append([keys[x] for x in graph.neighbors])
  if graph.weights is not None:
    columns.append([f'{x:g}' for x in graph.weights])
  return set(zip(*columns, strict=True))


def _expected(rows, with_relations):
  rows = [tuple(map(str, x)) for x in rows]
  if not with_relations and rows and len(rows[0]) == 3:
    rows = [(a, b, f'{float(w):g}') for a, b, w in rows]
  if with_relations:
    return {*rows}
  return {*rows} | {(b, a, *rest) for a, b, *rest in rows}


@pytest.mark.parametrize(
  ('name', 'text', 'rows'), [x[1:] for x in READ], ids=[x[0] for x in READ]
)
def test_layouts_as_published(name, text, rows, read):
  rows = list(rows)
  graph = read(text, name, source='edges')
  with_relations = graph.relations is not None
  assert _found(graph) == _expected(rows, with_relations)
  assert with_relations == (
    rows[0][1:2] in [('likes',), ('_likes',), (0,), ('0',)]
  )
  assert graph.inputs[0].line()


@pytest.mark.parametrize(
  'header',
  """source_node,target_node from_address,to_address entity1,entity2 IpSrc,IpDst
  NodeA,NodeB protein_a,protein_b author,coauthor username,friend
  node0,node1 paper_id,cited_paper_id
  src_type,src_id,dst_type,dst_id source,target,""".split(),
)
def test_headers_of_names_that_no_node_has(header, read):
  width = header.count(',') + 1
  rows = [(a, b) if width < 4 else ('x', a, 'y', b) for a, b in PEOPLE]
  if width == 3:  # a sign at the end of rows, but not of the header
    header, rows = header[:-1], [(*x, '') for x in rows]
  text = _lines(rows, ',', header)
  assert _found(read(text, 'x.csv')) == _expected(PEOPLE, False)


@pytest.mark.parametrize(
  'header',
  """head_entity,relation_type,tail_entity subj,pred,obj
  Entity1,rel,Entity2""".split(),
)
def test_headers_of_triples(header, read):
  graph = read(_lines(KG, ',', header), 'x.csv', source='edges')
  assert _found(graph) == _expected(KG, True)


def test_a_first_row_that_data_columns_names_is_a_header(read):
  declared = 'source:von,target:nach'
  graph = read(_lines(PEOPLE, ',', 'von,nach'), 'x.csv', columns=declared)
  assert _found(graph) == _expected(PEOPLE, False)
  graph = read(_lines(PEOPLE, ',', 'von,nach'), columns='source,target')
  assert graph.num_edges == 1 + len(PEOPLE)


def test_a_comment_may_be_the_header_of_three_columns(read):
  for header in '# source,target,weight', '# x\n# source,target,weight':
    graph = read(_lines([(*x, 2) for x in PEOPLE], ',', header), 'x.csv')
    assert _found(graph) == _expected(PEOPLE, False)
    assert 'weight=weight' in graph.inputs[0].line()


def test_nodes_that_are_called_as_columns_are(read):
  loops = ''.join(f'n{i},n{i}\n' for i in range(99))
  with pytest.raises(errors.UserError, match='without edges'):
    read(loops, 'x.csv')
  for rows in (
    'n1,n2\nn3,n4\n', 'gene_a,gene_b\ngene_c,gene_d\n',
    'BRCA1,BRCA2\nTP53,MDM2\n', 'HLA-A,HLA-B\nTP53,MDM2\n',
    'ice cream,ice\ncream cake,cream\n'
  ):  # fmt: skip
    assert read(rows, 'x.csv').num_nodes == 4


@pytest.mark.parametrize(
  ('name', 'text', 'message'),
  [x[1:] for x in REFUSED],
  ids=[x[0] for x in REFUSED],
)
def test_layouts_of_several_readings_are_refused(name, text, message, read):
  with pytest.raises(errors.UserError, match=message) as caught:
    read(text, name, source='edges')
  assert '\n' not in str(caught.value)


# Whatever is written is read as it was, or refused.

_LETTERS = st.characters(
  exclude_categories=['C', 'Z'], exclude_characters='"\\#%{}\',;|:\t '
)
_TEXT = st.text(_LETTERS, min_size=1, max_size=6)
_NAMES = st.one_of(
  st.integers(0, 99).map(str),
  st.integers(0, 30).map(lambda x: f'n{x}'),
  _TEXT,
  _TEXT.map(lambda x: f'#{x}'),
  _TEXT.map(lambda x: f'{x} {x}'),
)
_WEIGHTS = st.one_of(st.integers(1, 9), st.floats(0.125, 64, width=16))
_EDGES = st.lists(st.tuples(_NAMES, _NAMES, _WEIGHTS), min_size=1, max_size=30)
_FEW = settings(
  max_examples=20,
  deadline=None,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
_HEADERS = st.sampled_from(
  ['source,target', 'src,dst', 'from,to', 'head,tail', 'node1,node2', 'u,v', '']
)


def _sums(edges):
  """Weights by pair of nodes."""
  sums = {}
  for a, b, weight in edges:
    if a != b:
      sums[a, b] = sums.get((a, b), 0) + weight
  return sums


def _same(graph, edges, with_weights):
  """Whether a directed graph has these edges."""
  keys = list(graph.keys())
  sources = np.repeat(np.arange(graph.num_nodes), np.diff(graph.offsets))
  ends = zip(sources, graph.neighbors, strict=True)
  pairs = [(keys[a], keys[b]) for a, b in ends]
  sums = _sums(edges)
  assert {*pairs} == {*sums}
  assert graph.relations is None
  if with_weights and graph.weights is not None:
    read_sums = dict(zip(pairs, graph.weights.tolist(), strict=True))
    assert read_sums == pytest.approx(sums, rel=1e-5)


def _whole(name):
  """What a name is called that is a whole number."""
  head, point, zeros = name.partition('.')
  is_whole = point and zeros.strip('0') == '' and head.isdecimal()
  return head if is_whole and zeros else name


@_FEW
@given(_EDGES, _HEADERS, st.sampled_from([',', '\t', ';', '|']), st.booleans())
def test_what_pandas_writes_is_read_or_refused(
  read, edges, header, sign, with_weights
):
  names = header.split(',') if header else ['1', '2']
  names += ['weight'] * with_weights
  cells = [[str(y).isdecimal() for y in x[: len(names)]] for x in edges]
  is_like_header = any(map(all, zip(*cells[1:], strict=True)))
  hypothesis.assume(header or any(cells[0]) or not is_like_header)
  frame = pd.DataFrame([x[: len(names)] for x in edges], columns=names)
  text = frame.to_csv(index=False, header=bool(header), sep=sign)
  try:
    graph = read(text, 'edges.csv', directed=True)
  except errors.UserError as error:
    assert '\n' not in str(error)
    return
  _same(graph, [(_whole(a), _whole(b), w) for a, b, w in edges], with_weights)


@_FEW
@given(_EDGES, st.booleans())
def test_what_networkx_writes_is_read_or_refused(read, edges, with_weights):
  graph = nx.DiGraph()
  for a, b, weight in edges:
    graph.add_edge(a, b, **({'weight': weight} if with_weights else {}))
  file = io.BytesIO()
  nx.write_edgelist(graph, file)
  rows = [(a, b, x.get('weight', 1)) for a, b, x in graph.edges(data=True)]
  try:
    found = read(file.getvalue().decode(), 'x.edgelist', directed=True)
  except errors.UserError as error:
    assert '\n' not in str(error)
    return
  _same(found, [(_whole(a), _whole(b), w) for a, b, w in rows], with_weights)


@_FEW
@given(st.lists(st.tuples(*[st.integers(0, 20)] * 2), min_size=2, max_size=30))
def test_a_value_has_one_name_wherever_it_is(read, edges):
  if all(a == b for a, b in edges):
    return
  frame = pd.DataFrame(edges, columns=['source', 'target'])
  networkx = nx.MultiDiGraph(edges)
  graphs = [
    read(frame.to_csv(index=False), 'x.csv', directed=True),
    read(frame.astype(float).to_csv(index=False), 'x.csv', directed=True),
    read(pa.Table.from_pandas(frame), 'x.parquet', directed=True),
    files.from_table(frame, directed=True),
    files.from_table(frame.astype(float), directed=True),
    files.from_table(pa.Table.from_pandas(frame), directed=True),
    files.from_table(np.array(edges), directed=True),
    files.from_networkx(networkx),
    files.from_networkx(nx.MultiDiGraph([tuple(map(float, x)) for x in edges])),
  ]
  for graph in graphs:
    _same(graph, [(str(a), str(b), 1) for a, b in edges], False)


def test_objects_of_python_that_are_no_graph_or_have_any_names():
  graph = files.from_table(np.array([['#a', 'b\tc'], ['"d"', '#a']]))
  assert {*graph.names} == {'#a', 'b\tc', '"d"'}
  numbered = files.from_table(pd.DataFrame([('a', 'b'), ('b', 'c')]))
  assert list(numbered.names) == ['a', 'b', 'c']
  for bad in (pd.DataFrame({'source': ['a', ''], 'target': ['b', 'c']}),
              pd.DataFrame({'source': [], 'target': []}),
              pd.DataFrame({'source': [['a']], 'target': ['b']})):  # fmt: skip
    with pytest.raises(errors.UserError, match='the table'):
      files.from_table(bad)
  with pytest.raises(errors.UserError, match="2 nodes are called '1'"):
    files.from_networkx(nx.Graph([(1, 2), ('1', 2)]))
  with pytest.raises(errors.UserError, match=r'shape \(2,\) has no edges'):
    files.from_table(np.array([0, 1]))
  edges = nx.Graph([(1, 2, {'weight': 'x'})])
  edges.nodes[1]['label'], edges.nodes[2]['label'] = float('nan'), 1.0
  with pytest.raises(errors.UserError, match="'weight' of edges has other"):
    files.from_networkx(edges)
  graph = files.from_networkx(edges, weight='none')
  assert graph.labels.names == ['1']


def test_tables_of_python_have_headers_flags_and_columns_without_a_role(read):
  with_header = np.array([['source', 'target'], ['b', 'c']])
  assert list(files.from_table(with_header).names) == ['b', 'c']
  flags = pd.DataFrame({'source': [True, False], 'target': ['b', 'c']})
  flags['x'], flags['weight'] = [[1], [2]], [1.5, 2.5]
  graph = files.from_table(flags)
  assert graph.inputs[0].unused == ('x',)
  again = read(flags.drop(columns='x').to_csv(index=False), 'x.csv')
  assert _found(graph) == _found(again)
  assert ('true', 'b', '1.5') in _found(graph)
  assert list(read('NA,None\nNone,x\n', 'x.csv').names) == ['NA', 'None', 'x']
  flags['weight'] = [1.5, np.nan]
  with pytest.raises(errors.UserError, match="row 2: the weight '' is not"):
    files.from_table(flags)


def test_edges_without_a_relation_are_no_edges_of_one_without_name(read):
  rows = [(f'a{i}', 'r', f'b{i % 7}') for i in range(200)]
  text = 'head,relation,tail\n' + _lines(rows, ',')
  assert read('a b\n' * 200 + 'c\n').counted['unreadable_edges'] == 1
  graph = read(text + 'a1,,b2\n')
  assert graph.relation_names == ['r']
  assert graph.counted['unreadable_edges'] == 1
  with pytest.raises(errors.UserError, match='a relation has no name'):
    read(text + 'a1,,b2\n' * 9)
  graph = read('Source,Target,Label\na,b,\nb,c,\n')
  assert graph.relation_names is None and graph.num_nodes == 3


def test_attributes_of_edges_are_in_any_quotes(read):
  graph = read('0 1 {"weight": 3}\n1 2 {"weight": 4}\n')
  assert sorted({*graph.weights.tolist()}) == [3, 4]
  with pytest.raises(errors.UserError, match="weight '' is not above 0"):
    read("0 1 {'weight': nan, 'x': None}\n")
