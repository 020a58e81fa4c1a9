"""Readers of training data, from a file to the encoded corpus, log or graph."""

import bz2
import functools
import gzip
import io
import json
import pathlib
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from scipy import io as scipy_io
from scipy import sparse

from jaxemb import config as config_lib
from jaxemb.clicks import loader as clicks
from jaxemb.data import base
from jaxemb.evaluation import benchmarks
from jaxemb.graphs import files as graph_files
from jaxemb.graphs import mat_files
from jaxemb.interactions import sets
from jaxemb.runtime import background
from jaxemb.text import encode, phrases
from tests import faults
from tests.fuzz import fuzzing

Seeds = Callable[[], Sequence[bytes]]


def _progress(*_: object) -> None:
  pass


@functools.cache
def _settings(**changes: Any) -> Mapping[str, Any]:
  """Settings of `config.data`, as a run has them."""
  given = {f'data.{k}': v for k, v in {'min_count': 1, **changes}.items()}
  if changes.get('source') == 'clicks':
    given |= {'model.name': 'fm', 'strategy.name': 'sync'}
  return config_lib.check(config_lib.default(), given).data.to_dict()


def _cache(path: pathlib.Path) -> pathlib.Path:
  return path.parent / 'cache'


def _target(
  name: str, suffix: str, seeds: Seeds, read: Callable[..., Any], **options: Any
) -> fuzzing.Target:
  read = functools.partial(read, **options)
  return fuzzing.Target(name, suffix, seeds=seeds, read=read)


# Text.


def _read_text(path: pathlib.Path, **changes: Any) -> None:
  settings = encode.settings_of(_settings(**changes))
  encoded = encode.encode(str(path), settings, _cache(path), _progress)
  for i in range(len(encoded.blocks.words)):
    encoded.block(i).sum()


def _lines(num: int = 12) -> str:
  words = (
    'the cat sat on a mat, but der Hund heißt "Rex"\u2019s 漢字 x1 \U0001f600'
  )
  return ''.join(f'{words} w{i % 5}\n' for i in range(num))


def _plain_text() -> list[bytes]:
  russian = 'мама мыла раму и окно\n' * 9
  return [
    _lines().encode(),
    _lines(3).replace('\n', '\r\n').encode('utf-8-sig'),
    _lines(2).replace('\n', '\r').encode(),
    russian.encode('cp1251'),
    russian.encode('utf-16'),
    b'caf\xe9 latin words\n' * 3 + b'plain words\n' * 99,
  ]


def _records() -> list[bytes]:
  texts = 'a b &amp; d', 'tab\there\nline "two"', ['x', 'y z'], '\u00e9t\u00e9'
  rows = [{'id': i, 'title': f't{i}', 'text': x} for i, x in enumerate(texts)]
  lines = '\n'.join(map(json.dumps, rows))
  return [
    lines.encode(),
    json.dumps(rows, indent=1).encode(),
    json.dumps({'version': 1, 'data': rows}, indent=1).encode(),
    json.dumps([['some text'], ['other text', 'more of it']]).encode(),
    b'{"body": "one two"}{"body": "three four"}\n{"body": "five"}',
    b'{"\\u0061": 1, "content": "cut of',
  ]


def _text_tables() -> list[bytes]:
  return [
    b'id,text\n1,"one, two ""three"" four"\n2,five six\n3,"line\nbreak"\n' * 2,
    b'text\tlabel\nsome words\t1\nmore words\t0\n',
    b'id;content\n1;"a \\" b"\n2;c d\n',
  ]


_PAGE = (
  '<page><title>{}</title><ns>{}</ns><id>1</id><revision><model>wikitext'
  '</model><text xml:space="preserve">{}</text></revision></page>\n'
)
_WIKITEXT = (
  "'''Bold''' [[link|label]] and [[File:x.png|thumb|a [[nested]] one]] "
  '{{template|{{inner}}|x=1}} &lt;ref name="a"&gt;note&lt;/ref&gt; text'
  '&amp;nbsp;&amp;#233; [http://example.org label] &lt;!-- hidden '
  '--&gt;\n== Heading ==\n'
  '{| class="t"\n| cell || other\n|}\n* item one\n:: indented &lt;math&gt;x^2'
  '&lt;/math&gt; &lt;nowiki&gt;[[raw]]&lt;/nowiki&gt; __NOTOC__ {{shy}}end\n'
)


def _dumps() -> list[bytes]:
  head = (
    '<mediawiki xml:lang="de"><siteinfo><namespaces><namespace key="6" case='
    '"first-letter">Datei</namespace><namespace key="1">Diskussion</namespace>'
    '</namespaces></siteinfo>\n'
  )
  pages = _PAGE.format('One', 0, _WIKITEXT) + _PAGE.format('Two', 1, 'talk')
  pages += _PAGE.format('Three', 0, '#REDIRECT [[One]]')
  return [
    (head + pages + '</mediawiki>\n').encode(),
    b'<?xml version="1.0"?>\n' + (head + pages).encode(),
    pages.encode(),
  ]


def _extracted() -> list[bytes]:
  doc = '<doc id="{}" url="u" title="T">\nT\n\nSome &lt;b&gt; text.\n\n</doc>\n'
  lines = [{'id': '1', 'url': 'u', 'title': 'T', 'text': 'T\n\nsome &lt; text'}]
  return [
    (doc.format(1) + doc.format(2)).encode(),
    ('\n'.join(map(json.dumps, 3 * lines)) + '\n').encode(),
  ]


def _packed() -> list[bytes]:
  text, (dump, *_) = _lines().encode(), _dumps()
  archive = io.BytesIO()
  with zipfile.ZipFile(archive, 'w') as file:
    file.writestr('a.txt', text)
  return [
    gzip.compress(text),
    bz2.compress(dump),
    archive.getvalue(),
    gzip.compress(text[:50]) + gzip.compress(text[50:]),
  ]


# Phrases and benchmarks.


def _read_phrases(path: pathlib.Path) -> None:
  loaded = phrases.load(path)
  [*loaded[[['new', 'york', 'of', 'times']]]]
  text = path.with_name('text.txt')
  text.write_text('new york times of new york\n' * 9)
  settings = encode.settings_of(_settings(phrases=str(path)))
  encode.encode(str(text), settings, _cache(path), _progress)


def _phrases() -> list[bytes]:
  rules = {'score': 'word2vec', 'threshold': 1.0, 'min_count': 1}
  head = {'format': 1, 'passes': 2, **rules, 'connectors': ['of']}
  lines = (
    '1\t9\t12.5\tnew york\n1\t3\t5.0\ta of b\n2\t4\t3.25\tnew_york times\n'
  )
  return [(json.dumps(head) + '\n' + lines).encode()]


def _read_benchmark(path: pathlib.Path) -> None:
  benchmarks.find([path])


def _benchmarks() -> list[bytes]:
  context = 'the <b>bank</b> is\tsome <b>money</b> here'
  scws = f'1\tbank\tn\tmoney\tn\t{context}\t5.5' + '\t5.0' * 10
  return [
    b'# words\ncat dog 7.5\nsun,moon,3\ncar\ttrain\t6.1\t6\t7\n',
    (f'{scws}\n' * 3).encode(),
    b': capitals\nAthens Greece Berlin Germany\na b c d\n: other\ne f g h\n',
    b'type,word1,word2,word3,target\na,b,c,d,e\nf,g,"h, i",j,k\n',
    b'category,word\nfruit,apple\nfruit,pear\ntool,saw\n',
  ]


# Graphs.


def _read_graph(path: pathlib.Path, **changes: Any) -> None:
  settings = {**_settings(), 'path': str(path), **changes}
  graph = graph_files.read(settings, _cache(path), _progress)
  graph.keys()[-1], graph.neighbors.max()


def _read_mat(path: pathlib.Path) -> None:
  """Reads a .mat file, with a fork where users have a process that starts."""
  with mock.patch.object(background, 'call', _call_in_fork):
    _read_graph(path)


def _call_in_fork(
  module: str, *arguments: pathlib.Path, message: bytes
) -> subprocess.CompletedProcess:
  """Does what `background.call` does, without starting Python."""
  assert module == mat_files.__name__ and not message
  output = arguments[-1].with_name('printed')
  code = faults.in_fork(lambda: mat_files.main(*map(str, arguments)), output)
  printed = output.read_bytes()
  return subprocess.CompletedProcess(module, code, printed, stderr=b'')


def _read_node_file(path: pathlib.Path, role: str, file_name: str = '') -> None:
  edges = path.with_name('edges.tsv')
  pairs = [(i, (7 * i + 1) % 9) for i in range(9)]
  edges.write_text(''.join(f'{a}\t{b}\n' for a, b in pairs))
  if file_name:
    path = shutil.copyfile(path, path.with_name(file_name))
  _read_graph(edges, **{role: str(path)})


def _edges() -> list[bytes]:
  pairs = [(i, (3 * i + 1) % 9) for i in range(12)]
  named = ''.join(f'n{a}\tlikes\tn{b}\n' for a, b in pairs)
  return [
    ''.join(f'{a} {b}\n' for a, b in pairs).encode(),
    b'# nodes\n' + ''.join(f'{a},{b},0.{b}5\n' for a, b in pairs).encode(),
    named.encode(),
    b'source,target,weight\r\na,b,1.5\r\n"c ""d""",e,2\r\n',
    b'% sym unweighted\n1 2\n2 3\n3 1\n',
    b"0 1 {'weight': 4}\n1 2 {'weight': np.float64(2.5), 'a': [1]}\n",
    b'{"source": "a", "target": "b"}\n{"source": "b", "target": 3}\n',
    b'9\n0 1 0\n1 2 0\n3 4 1\n' * 2,
  ]


def _adjacency() -> list[bytes]:
  return [
    *_edges(),
    b'#G\n# GMT Mon\n#\n0 1 2 3\n1 2\n2 3\n3\n',
    b'a b c\nb c\nd\n',
  ]


def _matrix_market() -> list[bytes]:
  head = b'%%MatrixMarket matrix coordinate '
  return [
    *_edges(),  # which others may become
    head + b'real general\n% of a graph\n4 4 3\n1 2 1.5\n2 3 2\n4 1 0.5\n',
    head + b'pattern symmetric\n4 4 2\n2 1\n3 2\n',
    head + b'integer general\n3 5 2\n1 5 2\n3 4 7\n',
  ]


def _node_rows() -> list[bytes]:
  return [
    ''.join(f'{i}\tc{i % 3}\n' for i in range(9)).encode(),
    b'node,label,age\n0,a|b,1.5\n1,c,2\n2,,3\n',
    ''.join(f'{i} {i % 2} {i % 5}\n' for i in range(9)).encode(),
    b'id,x,y\n' + ''.join(f'{i},{i}.5,-1e3\n' for i in range(9)).encode(),
    ''.join(f'{i}\t[{i}, {i + 1}.5]\n' for i in range(9)).encode(),
    ''.join(f'{i} 0 1 0 {i}.5 c{i % 2}\n' for i in range(9)).encode(),
  ]


def _communities() -> list[bytes]:
  return [
    b'0 1 2\n3 4\n5\t6\t7\n',
    b'circle0\t0\t1\ncircle1\t2\n',
    b'a; 0 1 2\n',
  ]


def _node_json() -> list[bytes]:
  objects = (
    {str(i): [i % 2, 1] for i in range(9)},
    {str(i): f'c{i % 3}' for i in range(9)},
    {str(i): [x + 0.5 for x in range(3)] for i in range(9)},
    {str(i): [*range(i % 4)] for i in range(9)},
  )
  return [json.dumps(x).encode() for x in objects]


def _wiki_cs() -> list[bytes]:
  masks = [[i < 3] * 2 for i in range(6)]
  graph = {
    'features': [[i / 2, 1.0] for i in range(6)],
    'labels': [0, 1, 2, 0, 1, 2],
    'links': [[1, 2], [2], [0], [5], [3], []],
    'train_masks': masks,
    'val_masks': masks,
    'test_mask': [i > 3 for i in range(6)],
  }
  return [json.dumps(graph).encode()]


def _npy(array: Any) -> bytes:
  file = io.BytesIO()
  np.save(file, array)
  return file.getvalue()


def _npy_files() -> list[bytes]:
  return [
    _npy(np.arange(9) % 3),
    _npy(np.arange(18, dtype=np.float32).reshape(9, 2)),
    _npy(np.eye(9, 3, dtype=bool)),
    _npy(np.array([f'c{i}' for i in range(9)])),
  ]


def _upper() -> Any:
  return sparse.csr_matrix(np.triu(np.ones((6, 6)), 1))


def _graph_arrays() -> list[dict[str, Any]]:
  upper, edges = _upper(), np.array([[0, 1], [1, 2], [2, 3], [4, 5]])
  parts = {x: getattr(upper, x) for x in ('data', 'indices', 'indptr', 'shape')}
  feature_parts = {f'attr_{k}': x for k, x in parts.items()}
  return [
    {**parts, 'format': np.array(b'csr')},
    {
      **{'row': edges[:, 0], 'col': edges[:, 1], 'data': np.ones(4)},
      **{'shape': np.array([6, 6]), 'format': np.array(b'coo')},
    },
    {f'adj_{k}': x for k, x in parts.items()}
    | feature_parts
    | {'labels': np.arange(6) % 2, 'class_names': np.array(['a', 'b'])},
    {
      'edges': edges,
      'node_features': np.ones((6, 2)),
      'node_labels': np.arange(6) % 3,
      'train_mask': np.arange(6) < 3,
      'val_mask': np.arange(6) == 3,
      'test_mask': np.arange(6) > 3,
      'node_names': np.array([*'abcdef']),
    },
  ]


def _npz_files() -> list[bytes]:
  files = []
  for arrays in _graph_arrays():
    file = io.BytesIO()
    np.savez(file, **arrays)
    files.append(file.getvalue())
  return files


_BETWEEN = b'\n--member '


def _npz_members() -> list[bytes]:
  """Arrays before they are packed, as zip has checksums of each."""
  return [
    b''.join(_BETWEEN + f'{k}\n'.encode() + _npy(x) for k, x in arrays.items())
    for arrays in _graph_arrays()
  ]


def _read_npz_members(path: pathlib.Path) -> None:
  packed = path.with_name('graph.npz')
  with zipfile.ZipFile(packed, 'w') as file:
    for member in path.read_bytes().split(_BETWEEN)[1:]:
      name, _, data = member.partition(b'\n')
      file.writestr(f'{name.decode("latin-1")}.npy'.replace('\0', ''), data)
  _read_graph(packed)


def _mat_files() -> list[bytes]:
  group = np.eye(6, 3)
  cells = np.array([['a'], ['b'], ['a'], ['c'], ['b'], ['a']], object)
  files = []
  for arrays, is_packed in (
    ({'network': _upper(), 'group': sparse.csc_matrix(group)}, False),
    ({'network': _upper().toarray(), 'labels': cells}, False),
    (
      {'Problem': np.ones((4, 4)), 'note': 'text', 'more': {'a': [1, 2]}},
      False,
    ),
    ({'network': _upper(), 'group': group}, True),
  ):
    file = io.BytesIO()
    scipy_io.savemat(file, arrays, do_compression=is_packed)
    files.append(file.getvalue())
  file = io.BytesIO()
  scipy_io.savemat(file, {'network': _upper()}, format='4')
  return [*files, file.getvalue()]


_OGB = {
  'num-node-list': '6\n',
  'edge': '0,1\n1,2\n2,3\n3,4\n4,5\n',
  'node-feat': '0.5,1\n' * 6,
  'node-label': '0\n1\n2\n0\n1\nnan\n',
}


def _ogb() -> list[bytes]:
  return [json.dumps(_OGB, indent=1).encode().replace(b'\\n', b'\n')]


def _read_ogb(path: pathlib.Path) -> None:
  """Reads a folder of OGB, of which the input has all files, unpacked."""
  text, folder = path.read_bytes(), path.with_name('ogb')
  (folder / 'raw').mkdir(parents=True)
  names, ends = [*_OGB], [text.find(f'"{x}"'.encode()) for x in _OGB]
  for name, start, stop in zip(names, ends, [*ends[1:], None], strict=True):
    if start >= 0:
      cells = text[start:stop].partition(b': "')[2].rpartition(b'"')[0]
      (folder / f'raw/{name}.csv.gz').write_bytes(gzip.compress(cells, 1))
  _read_graph(folder)


# Logs of clicks.


def _read_log(path: pathlib.Path, **changes: Any) -> None:
  settings = {**_settings(source='clicks', **changes), 'path': str(path)}
  spec = base.SourceSpec(
    path=str(path),
    seed=3,
    epochs=1,
    num_parts=1,
    part_words=8,
    window=5,
    chunk=1,
    shortest_window=1,
    settings=settings,
    readers=base.ALONE,
    cache=_cache(path),
    progress=_progress,
  )
  source = clicks.make(spec)
  for _ in source.items(None, 0):
    pass


def _logs() -> list[bytes]:
  rows = [(i % 2, f's{i % 5}', i / 4, f'a|b{i % 3}') for i in range(24)]
  lines = [','.join(map(str, x)) for x in rows]
  return [
    '\n'.join(['click,shop,price,tags', *lines, '']).encode(),
    b'label\tx\tsize\n1\t"2 a"\t3\n0\tb\t4\n' * 3,
    b'\xef\xbb\xbfclick;x;size\r\n1;"a ""b""";1,5\r\n0;c;2,25\r\n' * 2,
    b'sep=;\nclick;x\n1;a\n0;b\n',
    ('\t'.join(['1', *map(str, range(13)), *26 * ['ab']]) + '\n').encode() * 4,
    b'id,click,hour,C1,banner_pos,site_id\n1,0,14102100,1005,0,a\n',
  ]


def _json_logs() -> list[bytes]:
  rows = [
    {
      'click': i % 2,
      'x': f'a{i % 3}',
      'tags': [i, i + 1],
      'z': i / 2,
      'w': None,
    }
    for i in range(9)
  ]
  return [''.join(json.dumps(x) + '\n' for x in rows).encode()]


def _libsvm() -> list[bytes]:
  return [
    ''.join(
      f'{i % 2} {i % 5}:1 {9 + i % 4}:1 20:{i / 2}\n' for i in range(20)
    ).encode(),
    b'# of libsvm\n1 1:1 2:1\n-1 3:1 # end\n+1 1:1 2:1 3:1\n' * 3,
  ]


def _libffm() -> list[bytes]:
  line = '{} 0:{}:1 1:{}:1 2:7:0.{}\n'
  return [''.join(line.format(i % 2, i, i % 3, i) for i in range(9)).encode()]


def _table(**columns: Any) -> bytes:
  file = io.BytesIO()
  parquet.write_table(pa.table(columns), file)
  return file.getvalue()


def _parquet_logs() -> list[bytes]:
  flags = [i % 2 for i in range(9)]
  names = [f'a{i % 3}' for i in range(9)]
  return [
    _table(click=flags, x=names, tags=[[i] for i in flags]),
    _table(
      label=flags,
      t=pa.array(range(9), pa.timestamp('us', 'UTC')),
      z=pa.array([f'c{i % 2}' for i in range(9)]).dictionary_encode(),
      w=pa.array([None, 1.5, 2.5] * 3),
    ),
  ]


def _parquet_edges() -> list[bytes]:
  names = [f'n{i}' for i in range(9)]
  return [
    _table(source=names, target=names[1:] + names[:1], weight=[*range(1, 10)])
  ]


# Interactions.


def _read_sets(path: pathlib.Path, **changes: Any) -> None:
  sets.make({**_settings(**changes), 'path': str(path)}, 3)


def _interactions() -> list[bytes]:
  pairs = [(i % 4, i % 7, 1 + i % 5) for i in range(24)]
  return [
    ''.join(f'u{i} i{i % 5} i{i % 3} i{i}\n' for i in range(9)).encode(),
    b'user,item,time\n'
    + ''.join(f'{a},{b},{9e8 + c:.0f}\n' for a, b, c in pairs).encode(),
    ''.join(f'{a}\t{b}\n' for a, b, _ in pairs).encode(),
    b'user;items\nu1;"[a, b]"\nu2;"[\'c\', \'d\']"\n',
    b'{"user": "a", "item": 1}\n{"user": "b", "item": 2}\n',
  ]


def _ratings() -> list[bytes]:
  rows = [(i % 4, i % 7, 1 + i % 5) for i in range(24)]
  return [
    ''.join(f'{a}::{b}::{c}::978300760\n' for a, b, c in rows).encode(),
    ''.join(f'{a} {b} {c}.5 2020-01-02\n' for a, b, c in rows).encode(),
    ''.join(f'"{a}","b {b}",{c},true\n' for a, b, c in rows).encode(),
  ]


TARGETS = (
  _target('text', '.txt', _plain_text, _read_text),
  _target(
    'text_phrases',
    '.txt',
    _plain_text,
    _read_text,
    phrases='2',
    phrases_min_count=1,
    phrases_threshold=0.0,
  ),
  _target('text_utf16', '.txt', _plain_text, _read_text, encoding='utf-16'),
  _target('text_json', '.json', _records, _read_text),
  _target('text_table', '.csv', _text_tables, _read_text),
  _target('text_packed', '.txt.gz', _packed, _read_text),
  _target('mediawiki', '.xml', _dumps, _read_text),
  _target('wikiextractor', '', _extracted, _read_text),
  _target('phrases_of_runs', '.txt', _phrases, _read_phrases),
  _target('benchmarks', '.txt', _benchmarks, _read_benchmark),
  _target('edges', '.txt', _edges, _read_graph),
  _target('edges_json', '.jsonl', _edges, _read_graph),
  _target('edges_parquet', '.parquet', _parquet_edges, _read_graph),
  _target('adjacency', '.adjlist', _adjacency, _read_graph),
  _target('matrix_market', '.mtx', _matrix_market, _read_graph),
  _target('graph_npz', '.npz', _npz_files, _read_graph),
  _target('graph_npz_members', '', _npz_members, _read_npz_members),
  _target('mat', '.mat', _mat_files, _read_mat),
  _target('wiki_cs', '.json', _wiki_cs, _read_graph),
  _target('ogb', '', _ogb, _read_ogb),
  _target('labels', '.tsv', _node_rows, _read_node_file, role='labels'),
  _target('features', '.tsv', _node_rows, _read_node_file, role='features'),
  _target(
    'content',
    '',
    _node_rows,
    _read_node_file,
    role='features',
    file_name='x.content',
  ),
  _target(
    'communities',
    '',
    _communities,
    _read_node_file,
    role='labels',
    file_name='x.cmty.txt',
  ),
  _target(
    'circles',
    '',
    _communities,
    _read_node_file,
    role='labels',
    file_name='x.circles',
  ),
  _target('labels_json', '.json', _node_json, _read_node_file, role='labels'),
  _target(
    'features_json', '.json', _node_json, _read_node_file, role='features'
  ),
  _target('labels_npy', '.npy', _npy_files, _read_node_file, role='labels'),
  _target('features_npy', '.npy', _npy_files, _read_node_file, role='features'),
  _target('clicks', '.csv', _logs, _read_log),
  _target('clicks_json', '.jsonl', _json_logs, _read_log),
  _target('clicks_parquet', '.parquet', _parquet_logs, _read_log),
  _target('clicks_buckets', '.csv', _logs, _read_log, numbers='buckets'),
  _target('libsvm', '.libsvm', _libsvm, _read_log),
  _target('libffm', '.libffm', _libffm, _read_log),
  _target('interactions', '.txt', _interactions, _read_sets),
  _target(
    'ratings', '.csv', _ratings, _read_sets, columns='user:1,item:2,rating:3>=2'
  ),
  _target('sets', '.txt', _interactions, _read_sets, columns='user,items'),
)
