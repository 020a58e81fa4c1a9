"""The models to merge: opened wherever they are, checked, their words united.

A part is a run, an export, an earlier merge, an orbax checkpoint with a
vocab.txt, a word2vec, GloVe or .vec file, or a model of fastText. Rows stay in
their files, but for the last, whose vectors of words are composed.
"""

import dataclasses
import itertools
import mmap
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import multivectors
from jaxemb.storage import attributes as attributes_lib
from jaxemb.storage import export, fasttext_format, word2vec_format

_BLOCK_ROWS = 65_536
# Files that mark a folder written by orbax.
_ORBAX = ('_METADATA', 'manifest.ocdbt', '_CHECKPOINT_METADATA')

Progress = Callable[[str, int, int], None]  # (what, items done, all items)


class DiskError(errors.UserError):
  """Rows cannot be written; the part is not to blame."""


class Part(NamedTuple):
  """One of the models to merge."""

  name: str
  words: Sequence[str]  # distinct; names of rows where words have senses
  vectors: np.ndarray  # [words, dim] float32, mapped if in a file
  # [words] int64, how often the part saw each word; None = unknown. Rows of
  # count 0 are ignored.
  counts: np.ndarray | None = None
  # Further rows of the same words: 'context_vectors' and the state of row
  # optimizers, 'optimizer/vectors/<name>', 'optimizer/context_vectors/<name>'.
  trainable: Mapping[str, np.ndarray] = {}
  senses: multivectors.MultiVectors | None = None  # if words have several
  lost: Sequence[str] = ()  # what is not merged
  rms_norm: float = 0.0  # root mean square length, see `check`

  @property
  def dim(self) -> int:
    """Numbers of each vector."""
    return self.vectors.shape[1]

  def of_words(self) -> 'Part':
    """The part with one vector per word, the mean of its senses."""
    if (senses := self.senses) is None:
      return self
    counts = self.counts
    if counts is not None:  # the same for all senses of a word
      counts = counts[senses.starts[:-1]]
    # Read as an array is, block by block.
    vectors = cast(np.ndarray, Means(self.vectors, senses))
    return self._replace(
      words=senses.words, counts=counts, vectors=vectors, senses=None
    )


@dataclasses.dataclass(frozen=True)
class Means:
  """[vocab, dim] means of the senses of words, computed as they are read."""

  vectors: np.ndarray
  senses: multivectors.MultiVectors

  @property
  def shape(self) -> tuple[int, int]:
    """Of the array that this stands for."""
    return len(self.senses.words), self.vectors.shape[1]

  def __getitem__(self, ids: np.ndarray) -> np.ndarray:
    firsts, ends = self.senses.starts[:-1][ids], self.senses.starts[1:][ids]
    offsets = np.append(0, np.cumsum(ends - firsts))
    rows = np.repeat(firsts - offsets[:-1], ends - firsts)
    rows += np.arange(len(rows))
    weighted = self.senses.priors[rows, None] * take(self.vectors, rows)
    return np.add.reduceat(weighted, offsets[:-1], 0, np.float32)


def take(rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
  """[..., dim] rows of ids [...]; zeros for negative ones."""
  if (
    isinstance(rows, np.memmap)
    and isinstance(rows.base, mmap.mmap)
    and rows.filename is not None
  ):
    # The whole file, mapped anew: what was read before takes no memory.
    rows = np.load(rows.filename, mmap_mode='r')
  taken = np.asarray(rows[ids])
  taken[ids < 0] = 0
  return taken


def write_rows(
  blocks: Iterable[np.ndarray],
  shape: tuple[int, ...],
  folder: pathlib.Path | None,
  name: str,
) -> np.ndarray:
  """[rows, dim] float32 of all blocks, in a new folder/name.npy or in memory.

  Raises a `DiskError` if the file cannot be written.
  """
  if folder is None:
    nothing = np.empty((0, *shape[1:]), np.float32)
    return np.concatenate([nothing, *blocks], dtype=np.float32)
  path = folder / f'{name}.npy'
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('wb') as file:
      export.put_header(file, '<f4', shape)
      for block in blocks:
        file.write(np.ascontiguousarray(block, '<f4').data)
  except OSError as error:
    raise DiskError(
      f'cannot write {path}: {error.strerror or error}; free space or choose '
      'another --output'
    ) from error
  return np.load(path, mmap_mode='r')


def open_all(
  paths: Sequence[str],
  scratch: pathlib.Path,
  trainable: bool,
  skip_bad: bool,
  encoding: str = 'utf-8',
) -> tuple[list[Part], list[dict[str, str]]]:
  """Opens parts; also returns {'name', 'reason'} of those left out.

  UserError if one cannot be used, or fewer than two are left.
  """
  parts, skipped = [], []
  for i, path in enumerate(paths):
    try:
      part = open_part(path, scratch / str(i), trainable, encoding=encoding)
      parts.append(part)
    except DiskError:
      raise
    except errors.UserError as error:
      if not skip_bad:
        raise errors.UserError(
          f'{error}; or go on without it: --skip-bad'
        ) from error
      skipped.append({'name': path, 'reason': str(error)})
  if len(parts) < 2:
    raise errors.UserError(
      f'there is nothing to merge: {len(parts)} of {len(paths)} part(s) can '
      'be used; give two or more' + ''.join(f'; {x["reason"]}' for x in skipped)
    )
  return parts, skipped


def open_part(
  path: pathlib.Path | str,
  scratch: pathlib.Path | None = None,
  trainable: bool | None = False,
  encoding: str = 'utf-8',
) -> Part:
  """Opens one part in any of the forms above, and reads all rows once.

  Rows that cannot be read in place go to the folder `scratch`; None = memory.
  Context vectors and optimizer state are opened too if `trainable`; None = if
  there are any. `encoding` is that of words in a file. UserError if it cannot
  be read, is empty or not finite, or lacks context vectors.
  """
  path = pathlib.Path(path)
  if any((x / 'model.json').is_file() for x in export.folders(path)):
    raise errors.UserError(
      f'{path} is a click model, which has no vectors of words; give runs of '
      'embeddings, such as those of --config=wiki, rec or graph'
    )
  if _is_orbax(path) and not trainable:
    return check(_open_orbax(path, scratch))
  if fasttext_format.is_model(path):
    return check(_open_fasttext(path, scratch, trainable))
  words, vectors, counts, folder = export.read(path, encoding)
  more, senses, lost = {}, None, []
  if folder:
    lost = _lost(folder, len(words))
    senses = multivectors.read(
      folder, names=words, counts=counts, vectors=vectors
    )
    if trainable is not False:
      more = _open_trainable(folder, len(words), scratch)
  if trainable and not more:
    raise errors.UserError(
      f'{path} has no context vectors of words (export/orbax/); give a run, or '
      'a merge with --trainable, or leave out --trainable'
    )
  if counts is not None and np.all(counts == 1):
    counts = None  # a merge of parts with unknown counts
  file = folder.parent / 'vocab.txt' if folder else None
  if senses is not None and file is not None and file.exists():
    # How often the sub-model saw the words; the export counts the whole text.
    seen, counts = word2vec_format.read_vocab(file)
    if seen != list(words):
      raise errors.UserError(
        f'{file} does not fit the {len(words):,} rows of the export; remove '
        'its folder and train that sub-model again'
      )
  rows = vectors.base  # of a file that holds what is read
  if not isinstance(rows, np.memmap) or rows.dtype != np.float32:
    rows = write_rows([vectors], vectors.shape, folder=scratch, name='vectors')
  part = Part(name=str(path), words=words, vectors=rows, counts=counts)
  return check(part._replace(trainable=more, senses=senses, lost=lost))


def _open_fasttext(
  path: pathlib.Path, scratch: pathlib.Path | None, trainable: bool | None
) -> Part:
  """Opens a model of fastText, with its composed vectors of words."""
  from jaxemb.evaluation import fasttext_models  # and with it numba

  model, vectors, ngrams = fasttext_models.load(path)
  has_contexts = model.loss == 'negative_sampling' and not model.labels
  if trainable and not has_contexts:
    raise errors.UserError(
      f'{path} has no output rows of words by negative sampling; leave out '
      '--trainable'
    )
  more = {}
  if has_contexts and trainable is not False:
    more['context_vectors'] = write_rows(
      export.blocks(model.outputs),
      model.outputs.shape,
      folder=scratch,
      name='context_vectors',
    )
  rows = write_rows(
    export.blocks(vectors), vectors.shape, folder=scratch, name='vectors'
  )
  return Part(
    name=str(path),
    words=word2vec_format.spell(model.words)[0],
    vectors=rows,
    counts=model.counts,
    trainable=more,
    lost=['n-grams'] if ngrams else [],
  )


def _lost(folder: pathlib.Path, num_words: int) -> list[str]:
  """Returns what an export has that is not merged."""
  relations = export.read_relations(folder, num_words)
  parts = {
    'n-grams': (folder / export.SUBWORDS).exists(),
    'attributes': (folder / attributes_lib.FILE).exists(),
    'relations': relations is not None and relations.has_rows,
  }
  return [name for name, is_there in parts.items() if is_there]


def _open_trainable(folder, num_words, scratch):
  """All of orbax/ but the vectors, by path; {} without context vectors."""
  from flax import traverse_util

  from jaxemb.storage import orbax_export

  folder = folder / 'orbax'
  shapes = orbax_export.shapes(folder) if folder.is_dir() else {}
  if 'context_vectors' not in shapes:
    return {}
  if shapes['vectors'][0] != num_words:
    raise errors.UserError(
      f'{folder} has not the {num_words:,} rows of vocab.txt; export again'
    )
  tree = orbax_export.read(folder, shapes.keys() - {'vectors'})
  arrays = traverse_util.flatten_dict(tree, sep='/')
  for path, array in arrays.items():
    rows = array.reshape(num_words, -1)
    arrays[path] = write_rows([rows], rows.shape, folder=scratch, name=path)
  return arrays


def _is_orbax(path):
  """Whether orbax wrote a folder that is neither a run nor an export."""
  if (path / 'export').is_dir() or (path / 'vectors.npy').exists():
    return False
  inside = [path, *path.glob('[0-9]*'), *path.glob('[0-9]*/*')]
  return any((folder / name).exists() for folder in inside for name in _ORBAX)


def _open_orbax(path, scratch):
  """A checkpoint of another program, with vocab.txt in it or around it."""
  import jax

  from jaxemb.storage import orbax_export

  steps = [x for x in path.glob('*') if x.name.isdigit()]
  folder = max(steps, key=lambda x: int(x.name), default=path)
  if (folder / 'record').is_dir():
    raise errors.UserError(
      f'{path} has checkpoints that only training can read; give the folder of '
      'the run'
    )
  around = [path, *path.absolute().parents[:3]]
  files = [x / 'vocab.txt' for x in around if (x / 'vocab.txt').exists()]
  if not files:
    raise errors.UserError(
      f'{path} is a checkpoint without words: put a vocab.txt (`word count` '
      'lines, in order of the rows) into that folder'
    )
  words, counts = word2vec_format.read_vocab(files[0])
  if (folder / 'default').is_dir():
    folder = folder / 'default'
  arrays = jax.tree.leaves(orbax_export.read(folder))
  fitting = [x for x in arrays if x.ndim == 2 and len(x) == len(words)]
  if len(fitting) != 1:
    raise errors.UserError(
      f'{path}: expected one array of {len(words):,} rows, the words in '
      f'{files[0]}, found {len(fitting)}; save that array alone'
    )
  rows = write_rows(fitting, fitting[0].shape, folder=scratch, name='vectors')
  return Part(name=str(path), words=words, vectors=rows, counts=counts)


def check(part: Part) -> Part:
  """The part with its `rms_norm`; UserError if it is empty or not finite."""
  square = 0.0
  for name, rows in [*part.trainable.items(), ('vectors', part.vectors)]:
    squares = np.zeros(len(rows), np.float32)
    for first in range(0, len(rows), _BLOCK_ROWS):
      ids = np.arange(first, min(first + _BLOCK_ROWS, len(rows)))
      block = take(rows, ids)
      # Numbers whose squares overflow are as bad as infinite ones.
      with np.errstate(over='ignore', invalid='ignore'):
        squares[ids] = np.vecdot(block, block)
    bad = np.flatnonzero(~np.isfinite(squares))
    if len(bad):
      raise errors.UserError(
        f'{part.name}: {len(bad):,} of {len(squares):,} rows of {name} are not '
        f'finite (that of {part.words[bad[0]]!r} is the first)'
      )
    square = squares.sum(dtype=np.float64)
  num_rows, dim = part.vectors.shape
  if not square or (part.counts is not None and not np.any(part.counts)):
    values = (
      f'{num_rows:,} vectors of {dim:,} numbers' if not square else 'counts'
    )
    raise errors.UserError(f'{part.name} is empty: all its {values} are 0')
  return part._replace(rms_norm=float(np.sqrt(square / num_rows)))


class Union(NamedTuple):
  """The words of all parts, the most frequent first."""

  words: list[str]
  counts: np.ndarray  # [words] int64, summed; all 1 = unknown
  rows: np.ndarray  # [n, words] int, row in each part, -1 = none
  votes: np.ndarray  # [n, words] float64, how much a part says about a word


def unite_words(
  parts: Sequence[Part], by_counts: bool, keeps_unseen: bool = False
) -> Union:
  """The words of all parts, by falling count; parts vote by their counts.

  Parts vote alike if one has no counts, or not `by_counts`. If one has none,
  words are in order of their best rank in any part. Words of count 0 in all
  parts are left out, or with `keeps_unseen` count once in each.
  """
  words = list(dict.fromkeys(itertools.chain(*(part.words for part in parts))))
  ids = dict(zip(words, range(len(words)), strict=True))
  rows = np.full((len(parts), len(words)), -1, np.int32)
  seen = np.zeros(rows.shape)
  for i, part in enumerate(parts):
    mine = np.fromiter(map(ids.__getitem__, part.words), np.int32)
    rows[i, mine] = np.arange(len(mine))
    seen[i, mine] = 1 if part.counts is None else part.counts
  if keeps_unseen:
    seen = np.where(seen.any(0), seen, rows >= 0)
  rows[seen == 0] = -1
  has_counts = all(part.counts is not None for part in parts)
  counts = seen.sum(0).astype(np.int64)
  ranks = np.where(rows >= 0, rows, np.iinfo(rows.dtype).max).min(0)
  order = np.argsort(-counts if has_counts else ranks, kind='stable')
  order = order[counts[order] > 0]
  rows, seen = rows[:, order], seen[:, order]
  return Union(
    words=[words[i] for i in order.tolist()],
    # Not sums over some of the parts.
    counts=counts[order] if has_counts else np.ones_like(order),
    rows=rows,
    votes=seen if by_counts and has_counts else (rows >= 0).astype(np.float64),
  )
