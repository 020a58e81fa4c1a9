"""Graphs of files that are damaged, or say what is not so."""

import contextlib
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from scipy import io, sparse

from jaxemb import errors

_MATRIX = sparse.csr_matrix(np.triu(np.ones((5, 5)), 1))
_HUGE = {
  'shape': np.array([10**9, 10**9]), 'row': [0], 'col': [1], 'data': [1.0],
}  # fmt: skip


def _csr(**changes):
  names = 'data', 'indices', 'indptr', 'shape'
  parts = {x: getattr(_MATRIX, x) for x in names}
  return {**parts, 'format': b'csr', **changes}


@pytest.mark.parametrize(
  'arrays',
  [
    _csr(indices=np.array([0, 10**9, *_MATRIX.indices[2:]])),
    _csr(indices=np.array([0, -(10**6), *_MATRIX.indices[2:]])),
    _csr(indptr=np.array([0, 10**6, *_MATRIX.indptr[2:]])),
    _csr(format=b'csc', indices=np.array([10**9, *_MATRIX.indices[1:]])),
    _csr(format=b'xyz'),
    {**_HUGE, 'format': b'coo'},
    {'edges': np.array([[0, 10**9], [1, 2]])},
    {'edges': np.array([[0, 2**64 - 1], [1, 2]], np.uint64)},
  ],
)
def test_damaged_matrices_are_one_line(arrays, tmp_path, read):
  np.savez(tmp_path / 'a.npz', **arrays)
  with pytest.raises(errors.UserError, match='cannot read'):
    read(None, 'a.npz')


def _element(kind, data):
  padding = bytes(-len(data) % 8)
  return struct.pack('<II', kind, len(data)) + data + padding


def _matlab(kind, sizes, name, data=b'', num_bytes=None):
  """A matrix of Matlab, which says that it has so many bytes."""
  body = _element(6, struct.pack('<II', kind, 0))
  body += _element(5, struct.pack(f'<{len(sizes)}i', *sizes))
  body += _element(1, name) + data
  return struct.pack('<II', 14, num_bytes or len(body)) + body


def _nested(depth):
  cell = _matlab(6, (1, 1), b'', _element(9, bytes(8)))
  return _matlab(1, (1, 1), b'', num_bytes=8) * depth + cell


@pytest.mark.slow
@pytest.mark.parametrize('is_packed', [False, True])
@pytest.mark.parametrize(
  ('more', 'says'),
  [
    (_nested(30_000), 'SciPy crashed'),
    (_matlab(4, (30_000, 30_000), b'x', _element(16, b'')), 'cannot read'),
    (_matlab(1, (30_000, 30_000), b'x'), 'cannot read'),
    (_matlab(6, (9, 9), b'x', struct.pack('<II', 9, 2**31)), 'cannot read'),
  ],
)
def test_sizes_in_matlab_files_are_not_trusted(
  more, says, is_packed, tmp_path, read
):
  numbers = _element(9, struct.pack('<4d', 0, 1, 1, 0))
  network = _matlab(6, (2, 2), b'network', numbers)
  if is_packed:
    packed = zlib.compress(more)
    more = struct.pack('<II', 15, len(packed)) + packed
  header = b'MATLAB'.ljust(124) + b'\0\1IM'
  (tmp_path / 'a.mat').write_bytes(header + network)
  assert read(None, 'a.mat').num_nodes == 2
  (tmp_path / 'b.mat').write_bytes(header + network + more)
  with pytest.raises(errors.UserError, match=says):
    read(None, 'b.mat')


@pytest.mark.parametrize('is_packed', [False, True])
def test_integers_in_matlab_files_are_not_sizes(is_packed, tmp_path, read):
  values = np.random.default_rng(0).integers(0, 50, (5, 30_000), np.int32)
  arrays = {'network': _MATRIX, 'attributes': values}
  io.savemat(tmp_path / 'a.mat', arrays, do_compression=is_packed)
  np.testing.assert_array_equal(read(None, 'a.mat').features, values)


def test_sparse_matrices_of_matlab_are_checked(tmp_path, read):
  matrix = sparse.csc_matrix(_MATRIX)
  io.savemat(tmp_path / 'a.mat', {'network': matrix})
  data = (tmp_path / 'a.mat').read_bytes()
  first = matrix.indices.astype('<i4').tobytes()
  assert data.count(first) == 1
  wrong = np.array([10**9, *matrix.indices[1:]], '<i4').tobytes()
  (tmp_path / 'b.mat').write_bytes(data.replace(first, wrong))
  with pytest.raises(errors.UserError, match='cannot read'):
    read(None, 'b.mat')


@pytest.mark.parametrize('digits', ['9' * 5000, '1' * 19])
def test_numbers_of_too_many_digits_are_names(digits, read, write):
  for text in (
    f'{digits}\n0 1\n1 2\n2 3\n',
    f'{digits} 6\n0 1\n1 2\n2 3\n3 4\n4 5\n5 0\n',
  ):
    with contextlib.suppress(errors.UserError):
      read(text)
  assert digits in read(f'0 1\n1 {digits}\n').names
  write({'labels.tsv': f'{digits}\ta\n0\tb\n'})
  assert read('0 1\n1 2\n', labels='labels.tsv').labels.nodes.tolist() == [0]


@pytest.mark.parametrize('num', ['nan', '1e18', '2.5', '-4', '1e400', 'x'])
def test_numbers_of_nodes_of_ogb_are_not_trusted(num, read, write):
  texts = {'edge': '0,1\n1,2\n', 'num-node-list': f'{num}\n'}
  write({f'raw/{k}.csv.gz': x for k, x in texts.items()}, 'ogb')
  with pytest.raises(errors.UserError, match='download it again'):
    read(None, 'ogb')


def test_tables_may_have_no_column(tmp_path, read, write):
  write({'a.parquet': pa.table({})})
  with pytest.raises(errors.UserError, match='has no column'):
    read(None, 'a.parquet')
  for role in 'labels', 'features':
    with pytest.raises(errors.UserError, match='has no column'):
      read('0 1\n1 2\n', **{role: 'a.parquet'})
