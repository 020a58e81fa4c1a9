"""Operations that write files, for faults.py: each replaces an old result.

`prepare` fills a folder with what the operation reads and an old result, `run`
makes the new one, and `read` returns what loads: the bits of one of them.
Operations run in forks of a process that has not started JAX.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

# What operations import late.
import orbax.checkpoint as _orbax  # noqa: F401
import pyarrow.parquet as _parquet  # noqa: F401
import safetensors.numpy as _safetensors  # noqa: F401
import tokenizers as _tokenizers  # noqa: F401
import usearch.index as _usearch  # noqa: F401

import jaxemb
from jaxemb import __main__ as command
from jaxemb import config as config_lib
from jaxemb import embeddings, errors
from jaxemb.clicks import encode as clicks_encode
from jaxemb.evaluation import neighbor_index
from jaxemb.graphs import files as graph_files
from jaxemb.graphs import graph as graph_lib
from jaxemb.report import pages, report
from jaxemb.run import metrics
from jaxemb.run import vectors as vectors_lib
from jaxemb.storage import checkpoint, export
from jaxemb.text import encode as text_encode

NOTHING = 'nothing'  # where nothing has been written yet
_DIM = 16
_INDEXED = 20  # rows: each is several calls


@dataclasses.dataclass(frozen=True)
class Operation:
  """What is interrupted."""

  prepare: Callable[[pathlib.Path], Any]
  run: Callable[[pathlib.Path], Any]
  read: Callable[[pathlib.Path], str]
  stride: int = 1  # a start of JAX takes long: one call in so many is tried
  allocates: bool = True  # whether failed allocations raise a `MemoryError`
  compiles: bool = False  # whether Numba does, which is done before the forks


def _digest(*values: Any) -> str:
  """Returns a hash of arrays, texts and what JSON has."""
  made = hashlib.sha256()
  for value in values:
    if isinstance(value, (bytes, np.ndarray)) or hasattr(value, 'read_into'):
      data = value if isinstance(value, bytes) else np.asarray(value).tobytes()
    else:
      data = json.dumps(value).encode()
    made.update(data)
  return made.hexdigest()[:12]


def _vectors(seed: int, num: int = 600) -> embeddings.Embeddings:
  """Returns vectors of which no row is the one of another seed."""
  rng = np.random.default_rng(seed)
  return embeddings.Embeddings(
    [f'w{i}' for i in range(num)],
    rng.standard_normal((num, _DIM)).astype(np.float32),
    np.arange(num, 0, -1) + seed,
  )


def _old_vectors() -> embeddings.Embeddings:
  """Returns vectors that have more files than new ones."""
  vectors = _vectors(1)
  vectors.set_vecattr('w0', 'marked', 7)
  return vectors


def _read_vectors(name: str, folder: pathlib.Path) -> str:
  vectors = jaxemb.load(folder / name)
  attributes = {k: x.tolist() for k, x in vectors.attributes.items()}
  counts = None if vectors.counts is None else vectors.counts.tolist()
  arrays = vectors.index_to_key, np.asarray(vectors.vectors)
  return _digest(*arrays, counts, attributes)


def _read_bytes(name: str, folder: pathlib.Path) -> str:
  """Returns the bits of a file that jaxemb writes and does not read."""
  return _digest((folder / name).read_bytes())


def _saving(
  name: str,
  save: Callable[[embeddings.Embeddings, pathlib.Path], Any],
  allocates: bool = True,
  read: Callable[[str, pathlib.Path], str] = _read_vectors,
) -> Operation:
  """Returns the operation that saves vectors over others."""
  return Operation(
    prepare=lambda folder: save(_old_vectors(), folder / name),
    run=lambda folder: save(_vectors(2), folder / name),
    read=functools.partial(read, name),
    allocates=allocates,
  )


def _binary(vectors: embeddings.Embeddings, path: pathlib.Path) -> None:
  vectors.save_word2vec_format(path, binary=True)


def _convert(folder: pathlib.Path) -> None:
  jaxemb.load(folder / 'in.txt').save_word2vec_format(folder / 'x.bin.gz')


def _prepare_converting(folder: pathlib.Path) -> None:
  _vectors(2).save_word2vec_format(folder / 'in.txt')
  _vectors(1).save_word2vec_format(folder / 'x.bin.gz')


# Neighbor indexes.


def _save_index(seed: int, folder: pathlib.Path) -> None:
  vectors = _vectors(seed, _INDEXED)
  neighbor_index.build(
    vectors.vectors, vectors.norms, current=lambda: vectors.vectors
  ).save(folder / 'index')


def _read_index(folder: pathlib.Path) -> str:
  for seed in (1, 2):
    vectors = _vectors(seed, _INDEXED)
    try:
      neighbor_index.read(
        folder / 'index', vectors.vectors, norms=vectors.norms, current=int
      )
    except errors.UserError as error:
      if 'other vectors' not in str(error):
        raise
    else:
      return f'index of {seed}'
  raise AssertionError('an index of no vectors')


# Caches.


def _write_text(folder: pathlib.Path) -> None:
  rng = np.random.default_rng(0)
  words = rng.zipf(1.3, 20_000) % 500
  lines = np.split(words, range(20, len(words), 20))
  text = '\n'.join(' '.join(f'w{x}' for x in y) for y in lines)
  (folder / 'text.txt').write_text(text)


def _cache_text(folder: pathlib.Path) -> None:
  settings = text_encode.settings_of(_data('text') | {'min_count': 1})
  path, cache = str(folder / 'text.txt'), folder / 'cache'
  text_encode.encode(path, settings, cache, progress=lambda *unused: None)


def _read_cache(
  pattern: str, load: Callable[[pathlib.Path], Any], folder: pathlib.Path
) -> str:
  """Returns the bits of the one cache there is; raises if it is damaged."""
  found = [x for x in folder.glob(f'cache/{pattern}') if x.name[0] != '.']
  if not found:
    return NOTHING
  (only,) = found
  load(only)
  files = sorted(x for x in only.iterdir() if x.name != 'manifest.json')
  return _digest(*(x.name.encode() + x.read_bytes() for x in files))


def _write_log(folder: pathlib.Path) -> None:
  rng = np.random.default_rng(0)
  rows = rng.integers(0, 50, (4000, 3))
  lines = (f'{int(a > 25)},u{b},i{c}' for a, b, c in rows.tolist())
  (folder / 'log.csv').write_text('\n'.join(['label,user,item', *lines]))


def _cache_log(folder: pathlib.Path) -> None:
  settings = _data('clicks') | {'min_count': 1, 'valid': '', 'test': '.1'}
  clicks_encode.encode(
    str(folder / 'log.csv'),
    settings,
    seed=0,
    cache=folder / 'cache',
    progress=lambda *unused: None,
  )


def _data(source: str) -> dict[str, Any]:
  """Returns the documented defaults of `config.data`."""
  found = config_lib.settings(source).values()
  names = [(x.name, x.default) for x in found if x.name.startswith('data.')]
  return {k.removeprefix('data.'): x for k, x in names}


def _write_edges(folder: pathlib.Path) -> None:
  rng = np.random.default_rng(0)
  pairs = rng.integers(0, 300, (4000, 2)).tolist()
  (folder / 'edges.tsv').write_text(''.join(f'n{a}\tn{b}\n' for a, b in pairs))


def _cache_graph(folder: pathlib.Path) -> None:
  path = str(folder / 'edges.tsv')
  graph_files.read(
    _data('graph') | {'path': path}, folder / 'cache', lambda *unused: None
  )


# Reports and metrics.


def _write_report(seed: int, folder: pathlib.Path) -> None:
  page = report.page(_vectors(seed, _INDEXED))
  values = {'model': f'm{seed}', 'config': {'name': f'm{seed}'}}
  pages.write(folder, page, report=values, metrics=[])


def _read_report(folder: pathlib.Path) -> str:
  export.folders(folder)
  values = json.loads((folder / 'report.json').read_text())
  text = (folder / 'report.html').read_text()
  assert values['model'] in text, 'a mix'
  return values['model']


def _write_metrics(last: int, folder: pathlib.Path) -> None:
  writer = metrics.Writer(folder, step=2)
  for step in range(3, last):
    writer.write({'step': step, 'loss': 0.5, 'epoch': 0.1})
  writer.close()


def _read_metrics(folder: pathlib.Path) -> str:
  """Records may be missing at a fault, but those before it stay."""
  steps = [x['step'] for x in metrics.read(folder / 'metrics.jsonl')]
  assert steps[:3] == [0, 1, 2] and steps == sorted(set(steps)), steps
  return 'records of all earlier steps'


def _prepare_metrics(folder: pathlib.Path) -> None:
  rows = [json.dumps({'step': i}) for i in range(6)]
  (folder / 'metrics.jsonl').write_text('\n'.join(rows) + '\n{"step"')


# What needs JAX.


def _state(seed: int) -> Any:
  rng = np.random.default_rng(seed)
  return {'vectors': rng.random((600, _DIM), np.float32), 'x': np.full(5, 1.0)}


def _save_checkpoints(steps: range, folder: pathlib.Path) -> None:
  import jax.numpy as jnp

  from jaxemb.run import loop

  def put(values):
    return {k: jnp.asarray(x, jnp.float32) for k, x in values.items()}

  with loop.open_checkpoints(folder) as saved:
    for step in steps:
      saved.save(step, put(_state(step)), {'step': step})


def _read_checkpoint(folder: pathlib.Path) -> str:
  import jax

  def like(record):
    return {
      k: jax.ShapeDtypeStruct(x.shape, np.float32) for k, x in _state(0).items()
    }

  lines = []
  with checkpoint.Checkpoints(folder / 'checkpoints', 3, lines.append) as saved:
    step, state, record = saved.restore(like)
  assert record['step'] == step and not lines, lines
  for name, array in _state(step).items():
    np.testing.assert_array_equal(state[name], array.astype(np.float32))
  return f'step {step}'


def _export(seed: int, folder: pathlib.Path) -> None:
  vectors = _vectors(seed)
  of_contexts = np.full((600, _DIM), seed, np.float32)
  made = vectors_lib.Export(
    keys=vectors.index_to_key,
    counts=vectors.counts,
    rows=export.Encoded(vectors.vectors),
    others={'context_vectors': of_contexts},
    context_keys=['c'] * 600 if seed == 1 else (),
  )
  vectors_lib.write_export(folder / 'export', made)


def _read_export(folder: pathlib.Path) -> str:
  from jaxemb.storage import orbax_export

  found = _read_vectors('export', folder)
  vectors = jaxemb.load(folder / 'export').vectors
  arrays = orbax_export.read(folder / 'export' / 'orbax')
  np.testing.assert_array_equal(arrays['vectors'], vectors)
  for name in ('vectors.bin', 'vectors.txt'):
    others = jaxemb.load(folder / 'export' / name)
    np.testing.assert_array_equal(others.vectors, vectors)
  is_first = (folder / 'export' / export.CONTEXTS).exists()
  return f'{found} {is_first} {arrays.get("context_vectors", np.zeros(1))[0]}'


def _command(*arguments: str) -> None:
  """Raises what the command has said if it fails."""
  if code := command.main(arguments):
    raise SystemExit(code)


def _merge(parts: tuple[int, ...], folder: pathlib.Path) -> None:
  paths = [str(folder / f'part-{x}') for x in parts]
  _command('merge', *paths, f'--output={folder}/merged', '--dim=8')


def _prepare_merging(folder: pathlib.Path) -> None:
  for seed in (1, 2, 3):
    _vectors(seed).save(folder / f'part-{seed}')
  _merge((1, 2), folder)


def _read_merged(folder: pathlib.Path) -> str:
  found = _read_vectors('merged', folder)
  report = json.loads((folder / 'merged' / 'merge.json').read_text())
  return f'{found} {[x["name"] for x in report["parts"]]}'


_USES_JAX = {'allocates': False, 'stride': 4}
OPERATIONS = {
  'vectors': _saving('vectors', embeddings.Embeddings.save),
  # orjson, tokenizers, usearch and what encodes texts end the process where no
  # memory is left.
  'word2vec': _saving(
    'x.txt', embeddings.Embeddings.save_word2vec_format, allocates=False
  ),
  'word2vec-binary': _saving('x.bin', _binary),
  'fasttext': _saving('x.bin', embeddings.Embeddings.save_fasttext),
  'parquet': _saving(
    'x.parquet', embeddings.Embeddings.save_parquet, read=_read_bytes
  ),
  'safetensors': _saving(
    'x.safetensors', embeddings.Embeddings.save_safetensors
  ),
  'static-model': _saving(
    'model', embeddings.Embeddings.save_static_model, allocates=False
  ),
  'converting': Operation(
    _prepare_converting,
    _convert,
    functools.partial(_read_vectors, 'x.bin.gz'),
    allocates=False,
  ),
  'index': Operation(
    functools.partial(_save_index, 1),
    functools.partial(_save_index, 2),
    _read_index,
    allocates=False,
  ),
  'text-cache': Operation(
    _write_text,
    _cache_text,
    functools.partial(_read_cache, 'corpora/*', text_encode._open),
    compiles=True,
    allocates=False,
  ),
  'log-cache': Operation(
    _write_log,
    _cache_log,
    functools.partial(_read_cache, 'clicks-*', clicks_encode._opened),
    compiles=True,
  ),
  'graph-cache': Operation(
    _write_edges,
    _cache_graph,
    functools.partial(_read_cache, 'graph-*', graph_lib.load),
    compiles=True,
  ),
  'report': Operation(
    functools.partial(_write_report, 1),
    functools.partial(_write_report, 2),
    _read_report,
  ),
  'metrics': Operation(
    _prepare_metrics, functools.partial(_write_metrics, 9), _read_metrics
  ),
  'checkpoint': Operation(
    functools.partial(_save_checkpoints, range(1, 4)),
    functools.partial(_save_checkpoints, range(4, 5)),
    _read_checkpoint,
    **_USES_JAX,
  ),
  'export': Operation(
    functools.partial(_export, 1),
    functools.partial(_export, 2),
    _read_export,
    **_USES_JAX,
  ),
  'merging': Operation(
    _prepare_merging,
    functools.partial(_merge, (1, 2, 3)),
    _read_merged,
    **_USES_JAX,
  ),
}
