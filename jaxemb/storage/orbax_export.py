"""Whole arrays in a plain orbax checkpoint, for any program on any machine.

orbax restores a training checkpoint only onto devices like those that saved it.
An export holds whole arrays, in order of ids:

    {'vectors': [vocab, dim], 'context_vectors': [rows, dim],
     'optimizer': {...}}

Each is a zarr array (version 2, not compressed) of pieces of some rows, which
are written one after another, so that no array need be in memory as a whole.
Row i of `vectors` is line i of vocab.txt. Without jaxemb, these three lines
read it, whatever the number of devices:

    import pathlib
    import orbax.checkpoint as ocp
    arrays = ocp.PyTreeCheckpointer().restore(pathlib.Path(FOLDER).absolute())
"""

import contextlib
import json
import logging
import math
import pathlib
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxemb import errors
from jaxemb.runtime import process
from jaxemb.storage import atomic, export

_PIECE_BYTES = 1 << 26  # at most, of a file
_FORM = 'form'  # where orbax writes first


def write(folder: pathlib.Path | str, arrays: Mapping[str, Any]) -> None:
  """Replaces the folder by a tree of host arrays, as float32.

  They may be read `export.OnDemand`.

  Only one process calls it, even of several that train together. Raises a
  `UserError` if the file system refuses (full, read-only).
  """
  folder = pathlib.Path(folder).absolute()
  leaves, tree = jax.tree.flatten_with_path(dict(arrays))
  # What orbax writes, in which the arrays then take their places.
  form = jax.tree.unflatten(tree, [np.zeros(1, np.float32)] * len(leaves))
  try:
    with atomic.folder(folder) as new:
      with (
        _quiet(),
        ocp.Checkpointer(_handler(), multiprocessing_options=_alone()) as to,
      ):
        to.save(new / _FORM, ocp.args.PyTreeSave(form))
      for path, array in leaves:
        name = '.'.join(str(x.key) for x in path)
        _put(new / _FORM / name, array)
      for file in (new / _FORM).iterdir():
        file.rename(new / file.name)
      (new / _FORM).rmdir()
  except errors.UserError:
    raise
  except Exception as error:  # orbax and tensorstore raise many types
    raise errors.UserError(
      f'cannot write {atomic.final(folder)}: {errors.one_line(error)}; free '
      'space or choose another folder'
    ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Drops orbax's warnings, and tracebacks of errors that are raised anyway."""
  logger = logging.getLogger('absl')

  def is_critical(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.CRITICAL

  logger.addFilter(is_critical)
  process.filter_dropped(is_late)
  try:
    yield
  finally:
    logger.removeFilter(is_critical)


def is_late(unraisable: Any) -> bool:
  """Whether a dropped error is of what orbax no longer waits for.

  Where one array cannot be read or written, orbax closes the event loop of all
  of them; tensorstore then fails to say there that others are, at any time.
  """
  return str(unraisable.exc_value) == 'Event loop is closed'


def _put(folder: pathlib.Path, array: Any) -> None:
  """Replaces the zarr array in a folder, by blocks of rows.

  tensorstore would hold whole pieces in memory, some of them several times.
  """
  shape = np.shape(array)
  row_bytes = 4 * max(1, math.prod(shape[1:]))
  num_rows = max(1, _PIECE_BYTES // row_bytes)
  pieces = [min(num_rows, max(1, n)) for n in shape[:1]]
  pieces += [max(1, n) for n in shape[1:]]
  form = {
    'zarr_format': 2, 'shape': shape, 'chunks': pieces, 'dtype': '<f4',
    'compressor': None, 'fill_value': None, 'order': 'C', 'filters': None,
    'dimension_separator': '.',
  }  # fmt: skip
  shutil.rmtree(folder)
  folder.mkdir()
  (folder / '.zarray').write_text(json.dumps(form))
  if not shape:
    (folder / '0').write_bytes(np.asarray(array, '<f4').tobytes())
  elif math.prod(shape):
    for number, start in enumerate(range(0, len(array), pieces[0])):
      name = '.'.join([str(number)] + ['0'] * (len(shape) - 1))
      with open(folder / name, 'wb') as file:
        for block in export.blocks(array, start, start + pieces[0]):
          file.write(np.asarray(block, '<f4').view(np.uint8))
        # Pieces are whole, also the last one.
        file.truncate(row_bytes * pieces[0])


def shapes(folder: pathlib.Path | str) -> dict[str, Any]:
  """The shapes of what `read` returns; raises as it does."""
  tree = _of_readable(folder, lambda path: _handler().metadata(path).tree)
  return jax.tree.map(
    lambda x: tuple(x.shape), tree, is_leaf=lambda x: hasattr(x, 'shape')
  )


def read(
  folder: pathlib.Path | str, only: Collection[str] | None = None
) -> dict[str, Any]:
  """The tree of host arrays of any orbax checkpoint, sharded or not.

  `only` has the top-level keys to read; None for all. Raises a `UserError` if
  there is no readable orbax checkpoint.
  """
  tree = shapes(folder)
  tree = {name: tree[name] for name in (tree if only is None else only)}
  # Without restore arguments orbax wants the devices that saved the arrays.
  args = jax.tree.map(
    lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
    tree,
    is_leaf=lambda x: isinstance(x, tuple),
  )
  item = jax.tree.map(lambda _: 0, args)
  restore = ocp.args.PyTreeRestore(item, args, partial_restore=True)
  return _of_readable(
    folder, lambda path: _handler().restore(path, args=restore)
  )


def _alone() -> ocp.options.MultiprocessingOptions:
  """This process saves or reads, and waits for no other."""
  process = jax.process_index()
  return ocp.options.MultiprocessingOptions(process, {process})


def _handler() -> ocp.PyTreeCheckpointHandler:
  # Trained numbers hardly compress.
  return ocp.PyTreeCheckpointHandler(
    use_compression=False, use_ocdbt=False, multiprocessing_options=_alone()
  )


def _of_readable(
  folder: pathlib.Path | str, read_from: Callable[[pathlib.Path], Any]
) -> Any:
  try:
    return read_from(pathlib.Path(folder).absolute())
  except MemoryError:
    raise
  except Exception as error:  # whatever damaged files make orbax raise
    raise errors.UserError(
      f'no readable orbax checkpoint in {folder}: {errors.one_line(error)}'
    ) from error
