"""The export folder: every form of the same vectors, replaced together."""

import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from gensim import models

from jaxemb import errors
from jaxemb.storage import export, orbax_export
from jaxemb.storage import word2vec_format as w2v
from jaxemb.tables import spec as spec_lib

_WORDS = ['x y', 'the', 'Ωmega', 'naïve', '12', '-']
_VECTORS = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
_COUNTS = np.array([5, 9, 2, 9, 7, 1])


def _on_demand(block):
  return spec_lib.on_demand(
    lambda ids: jax.tree.map(lambda x: x[ids], block), len(block.encoded.data)
  )


def test_every_form_holds_the_same(tmp_path, monkeypatch):
  monkeypatch.setattr(export, '_MAX_PROJECTOR_WORDS', 4)
  monkeypatch.setattr(w2v, '_BLOCK_ROWS', 3)
  rows = export.Encoded(_VECTORS)
  assert export.write(tmp_path, _WORDS, rows, _COUNTS) == {
    'words_renamed_in_exports': 1, 'words_left_out_of_projector': 2,
  }  # fmt: skip
  files = {'vectors.bin', 'vectors.txt', 'vectors.npy'}
  files |= {'vocab.txt', 'export.json'}
  assert {x.name for x in tmp_path.iterdir()} == files | {'projector'}
  words, counts = w2v.read_vocab(tmp_path / 'vocab.txt')
  assert words == ['x_y', *_WORDS[1:]] and counts.tolist() == _COUNTS.tolist()
  np.testing.assert_array_equal(np.load(tmp_path / 'vectors.npy'), _VECTORS)
  for name, is_binary in (('vectors.bin', True), ('vectors.txt', False)):
    keyed = models.KeyedVectors.load_word2vec_format(
      tmp_path / name, tmp_path / 'vocab.txt', is_binary
    )
    assert keyed.index_to_key == words
    np.testing.assert_array_equal(keyed.vectors, _VECTORS)
    assert keyed.get_vecattr('12', 'count') == 7
  # The projector has the most frequent words.
  folder = tmp_path / 'projector'
  words = (folder / 'metadata.tsv').read_text(encoding='utf-8')
  assert words == 'word\tcount\nx_y\t5\nthe\t9\nnaïve\t9\n12\t7\n'
  tensors = np.loadtxt(folder / 'tensors.tsv', np.float32)
  np.testing.assert_array_equal(tensors, _VECTORS[[0, 1, 3, 4]])
  config = (folder / 'projector_config.pbtxt').read_text()
  paths = re.findall('_path: "(.*)"', config)
  assert len(paths) == 2 and all((folder / x).exists() for x in paths)


@pytest.mark.parametrize('dtype', ['bfloat16', 'int8'])
def test_rows_read_on_demand_are_written_as_those_in_memory(
  tmp_path, dtype, monkeypatch
):
  monkeypatch.setattr(export, '_BLOCK_BYTES', 40)
  monkeypatch.setattr(orbax_export, '_PIECE_BYTES', 64)
  block = spec_lib.RowBlock(
    spec_lib.encode_rows(_VECTORS, dtype),
    {'sums': np.arange(6, dtype=np.float32)},
  )
  files = []
  for name, x in (('memory', block), ('demand', _on_demand(block))):
    folder = tmp_path / name
    export.write(folder, _WORDS, x.encoded, _COUNTS, context_words=['a', 'b c'])
    arrays = {'vectors': x.encoded.decode(), 'optimizer': x.opt_state}
    orbax_export.write(folder / 'orbax', arrays)
    paths = [x for x in sorted(folder.rglob('*')) if x.is_file()]
    paths = [x for x in paths if not x.name.startswith('_')]  # with the time
    paths = [x for x in paths if x.name != 'commit_success.txt']
    files.append({x.relative_to(folder): x.read_bytes() for x in paths})
    found = orbax_export.read(folder / 'orbax')
    np.testing.assert_array_equal(found['vectors'], block.rows)
    np.testing.assert_array_equal(found['optimizer']['sums'], np.arange(6))
  assert files[0] == files[1]
  assert len([*(tmp_path / 'demand/orbax/vectors').glob('*.0')]) == 2
  made = _on_demand(block).encoded.decode()
  chosen = np.array([[4, 0], [4, 4]])
  np.testing.assert_array_equal(made[chosen], block.rows[chosen])
  np.testing.assert_array_equal(made[1:9], block.rows[1:])


_PROGRAM = """
import pathlib, re, sys
import numpy as np
from jaxemb.run import vectors
from jaxemb.graphs import graph
from jaxemb.storage import export
from jaxemb.stores import local as stores
from jaxemb.tables import spec

def peak_bytes():
  status = pathlib.Path('/proc/self/status').read_text()
  return 1024 * int(re.search(r'VmHWM:\\s*(\\d+) kB', status)[1])

folder, num, dim = pathlib.Path(sys.argv[1]), 400_000, 64
stores.MAPPED_BYTES = 1 << 24
record = stores.Record((np.dtype(np.float32),) * 2, ((dim,), ()))

def make(ids):
  rows = ids[:, None] * 32.0 + np.arange(dim)
  return record.pack([np.float32(rows), np.float32(ids)])

store = stores.Disk(num, record.num_bytes, make, folder=folder)
for ids in np.array_split(np.arange(num), 50):
  store.write(ids, make(ids))

def read(ids):
  rows, sums = record.unpack(store.read(ids))
  return spec.RowBlock(export.Encoded(rows), {'sums': sums})

def write(num):
  block = spec.on_demand(read, num)
  keys = graph.Chosen(None, np.arange(num))
  others = {'optimizer': {'vectors': block.opt_state}}
  made = vectors.Export(keys, np.ones(num, int), block.encoded, None, others)
  vectors.write_export(folder / 'export', made)

write(1000)  # libraries are loaded
before = peak_bytes()
write(num)
print(peak_bytes() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='asks /proc')
def test_a_table_in_a_file_is_never_in_memory_as_a_whole(tmp_path):
  command = [sys.executable, '-c', _PROGRAM, str(tmp_path)]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  rows = np.load(tmp_path / 'export/vectors.npy', mmap_mode='r')
  np.testing.assert_array_equal(rows[-1], 399_999 * 32.0 + np.arange(64))
  # Vectors alone have 102 MB.
  assert int(done.stdout) < 64e6


def test_slices_of_rows_on_demand_are_read_some_at_a_time():
  rows, nums = np.arange(120_000).reshape(40_000, 3), []

  def read(some):
    nums.append(len(some))
    return rows[some]

  lazy = export.OnDemand(read, rows.shape, rows.dtype)
  np.testing.assert_array_equal(np.asarray(lazy), rows)
  np.testing.assert_array_equal(lazy[39_990:5:-2, 1:], rows[39_990:5:-2, 1:])
  assert max(nums) < 20_000


@pytest.mark.parametrize('dtype', ['bfloat16', 'int8'])
def test_rows_keep_their_precision(tmp_path, dtype):
  rows = spec_lib.encode_rows(_VECTORS, dtype)
  export.write(tmp_path, _WORDS, rows, _COUNTS, is_minimal=True)
  has_scales = {'scales.npy'} if dtype == 'int8' else set()
  names = {'vectors.npy', 'vocab.txt', 'export.json'} | has_scales
  assert {x.name for x in tmp_path.iterdir()} == names
  found = export.read(tmp_path)
  assert found.vectors.dtype == np.float32
  np.testing.assert_array_equal(found.vectors, rows.decode())
  np.testing.assert_allclose(found.vectors, _VECTORS, 0, 0.03)
  assert found.counts.tolist() == _COUNTS.tolist() and found.folder == tmp_path
  rows = export.Encoded(_VECTORS)
  export.write(tmp_path, _WORDS, rows, _COUNTS, is_minimal=True)
  assert not (tmp_path / 'scales.npy').exists()


def test_an_array_with_a_damaged_header_is_one_line(tmp_path):
  export.write(tmp_path, ['a'], export.Encoded(np.ones((1, 2))), None, True)
  data = (tmp_path / 'vectors.npy').read_bytes()
  assert data.count(b'}') == 1
  (tmp_path / 'vectors.npy').write_bytes(data.replace(b'}', b' '))
  with pytest.raises(errors.UserError, match='header is damaged.*give a work'):
    export.read(tmp_path)


def test_an_archive_in_place_of_an_array_is_one_line(tmp_path):
  export.write(tmp_path, ['a'], export.Encoded(np.ones((1, 2))), None, True)
  with (tmp_path / 'vectors.npy').open('wb') as file:
    np.savez(file, np.ones((1, 2)))
  with pytest.raises(errors.UserError, match='an archive.*give a workdir'):
    export.read(tmp_path)


@pytest.mark.parametrize('given', ['', 'export', 'export/vectors.npy'])
def test_a_merge_that_was_killed_is_completed_by_readers(given, tmp_path):
  for folder, value in ((tmp_path, 1), (tmp_path / '.replacement', 2)):
    rows = export.Encoded(np.full((3, 2), value, np.float32))
    export.write(folder / 'export', list('abc'), rows, None, is_minimal=True)
  first, *_ = tmp_path.glob('.replacement/export/*.npy')
  first.replace(tmp_path / 'export' / first.name)  # and then killed
  assert export.read(tmp_path / given).vectors[0, 0] == 2
  assert not (tmp_path / '.replacement').exists()


def test_a_failed_export_keeps_the_earlier_one(tmp_path, monkeypatch):
  def contents():
    files = (x for x in tmp_path.rglob('*') if x.is_file())
    return {path: path.read_bytes() for path in files}

  rows = spec_lib.encode_rows(_VECTORS, 'int8')
  export.write(tmp_path, _WORDS, rows, _COUNTS)
  before = contents()

  def fail(*_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(w2v, 'put_counts', fail)
  with pytest.raises(errors.UserError, match='No space left'):
    export.write(tmp_path, _WORDS, export.Encoded(_VECTORS), _COUNTS)
  assert contents() == before
