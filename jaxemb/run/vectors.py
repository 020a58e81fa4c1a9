"""Vectors of keys, such as words: what most kinds of data train.

Functions with the names of `Kind`'s methods are what those do by default.
"""

import functools
import pathlib
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from jaxemb import embeddings, errors
from jaxemb.config import schema
from jaxemb.evaluation import multivectors, ranking, subwords, words
from jaxemb.merging import warm_start
from jaxemb.ops import huffman
from jaxemb.report import pages, report
from jaxemb.run import build, evaluation
from jaxemb.storage import atomic, ngram_files, orbax_export
from jaxemb.storage import export as export_lib

_NOTHING: Mapping[str, Any] = types.MappingProxyType({})


class Export(NamedTuple):
  """A trained model on the host; rows in a store stay there until asked for."""

  keys: Sequence[str]  # words, the most frequent first
  counts: np.ndarray  # [len(keys)] int
  rows: export_lib.Encoded  # [len(keys), dim], or a row for each of its vectors
  # Of models with several vectors per key.
  multi: multivectors.MultiVectors | None = None
  # Further arrays of export/orbax: 'context_vectors', 'optimizer'.
  others: Mapping[str, Any] = _NOTHING
  # What rows of context vectors are of, if not of keys.
  context_keys: Sequence[str] = ()
  relations: export_lib.Relations | None = None
  # Of hierarchical softmax, whose `others` have rows of nodes.
  tree: huffman.Links | None = None
  # Rows of n-grams, from which unseen words have vectors.
  ngrams: subwords.NgramVectors | None = None

  def names(self) -> tuple[Sequence[str], np.ndarray]:
    """A name and a count for each row."""
    if self.multi is None:
      return self.keys, self.counts
    return self.multi.names(), self.multi.by_row(self.counts)

  def embeddings(self, num: int | None = None) -> embeddings.Embeddings:
    """The vectors, to be searched and evaluated; the first `num` words alone.

    Of keys with several vectors all.
    """
    names, counts = self.names()
    first = slice(num if self.multi is None else None)
    rows = np.asarray(self.rows.on_demand()[first])
    return embeddings.Embeddings(
      index_to_key=list(names[first]),
      vectors=rows,
      counts=counts[first],
      sense_table=self.multi,
      relations=self.relations,
      subwords=self.ngrams,
    )

  def save(self, folder: pathlib.Path) -> None:
    """Writes all that was trained, for `load`; replaces the folder."""
    arrays = {'rows': self.rows._asdict(), 'others': dict(self.others)}
    leaves, _ = jax.tree.flatten_with_path(arrays)
    with atomic.folder(folder) as new:
      for path, array in leaves:
        name = '.'.join(str(x.key) for x in path)
        with (new / f'{name}.npy').open('wb') as file:
          export_lib.put_array(file, array)

  def select(self, mask: np.ndarray) -> 'Export':
    """The words of a [len(keys)] mask, of a model with one vector per key."""

    def selected(x):  # rows of n-grams are not of words
      return x[mask] if len(x) == len(mask) else x

    keys = [self.keys[i] for i in np.flatnonzero(mask).tolist()]
    # A tree has all words.
    others = {k: x for k, x in self.others.items() if k != 'inner_nodes'}
    if 'optimizer' in others:
      of_nodes = {
        k: x for k, x in others['optimizer'].items() if k != 'inner_nodes'
      }
      others['optimizer'] = of_nodes
    counts, rows, others = jax.tree.map(
      selected, (self.counts, self.rows, others)
    )
    return self._replace(
      keys=keys, counts=counts, rows=rows, others=others, tree=None
    )


def check_data(config: ml_collections.ConfigDict, source: Any) -> None:
  """Raises a `UserError` for settings that need more data."""
  lacking = 'data for validation; set --config.data.valid=0.1'
  evaluation.check(config, has_validation(source), lacking)
  longest = max(schema.sizes('eval.k', config.eval.k), default=0)
  if longest > len(source.keys):
    raise errors.UserError(
      f'config.eval.k={longest} is more than the {len(source.keys):,} that can '
      'be ranked; lower it'
    )
  if config.eval.k and not getattr(source, 'held', True):
    raise errors.UserError(
      f'config.eval.k={config.eval.k} needs data for a test; set '
      '--config.data.test=0.1, or remove it'
    )


def has_validation(source: Any) -> bool:
  """See `Kind`: of sources that have what is `held` out, by split."""
  return 'valid' in getattr(source, 'held', ())


def can_evaluate(parts: build.Parts) -> bool:
  """See `Kind`: on benchmarks, or on what the source holds out."""
  has_own = getattr(parts.source, 'evaluate', None) is not None
  return has_own or bool(parts.benchmarks)


def go_on(parts: build.Parts, state: Any) -> Any:
  """See `Kind`: a state with the tables of the run that is continued."""
  assert parts.known is not None  # of other runs nobody calls this
  model, source = parts.trainable.model, parts.source
  has_keys = getattr(model, 'has_contexts_of_keys', False)
  return warm_start.go_on(
    parts.trainable,
    parts.strategy,
    state=state,
    run=parts.known,
    words=source.keys,
    contexts=() if has_keys else getattr(source, 'context_keys', ()),
  )


def collect(
  parts: build.Parts, state: Any, workdir: pathlib.Path | None = None
) -> Export:
  """Copies trained tables to the host; all processes take part.

  Tables in a store are not copied: until the state changes, their rows are read
  from it.
  """
  model = parts.trainable.model
  export_rows = rows_of(parts, state)
  # Rows of words alone, where vectors are composed of more.
  title = 'words' if model.composed_of else 'vectors'
  tables = {title: export_rows(model.vectors_table)}
  by_name = {model.vectors_table: tables[title].encoded}
  if model.contexts_table:
    tables['context_vectors'] = export_rows(model.contexts_table)
  if model.context_inputs_table:
    tables['word_vectors'] = export_rows(model.context_inputs_table)
  if model.nodes_table:
    tables['inner_nodes'] = export_rows(model.nodes_table)
  for name in model.composed_of:
    tables[name] = export_rows(name)
    by_name[name] = tables[name].encoded
  others = {
    k: x.encoded.on_demand() for k, x in tables.items() if k != 'vectors'
  }
  if optimizer := {k: x.opt_state for k, x in tables.items() if x.opt_state}:
    others['optimizer'] = optimizer
  return _collected(parts, model.composed(by_name), others)


def _collected(parts, rows, others):
  source, model = parts.source, parts.trainable.model
  has_keys = getattr(model, 'has_contexts_of_keys', False)
  return Export(
    keys=source.keys,
    counts=source.counts,
    rows=rows,
    others=others,
    context_keys=() if has_keys else getattr(source, 'context_keys', ()),
    tree=model.nodes.links if model.nodes_table else None,
    ngrams=model.ngram_vectors(others),
  )


def rows_of(parts: build.Parts, state: Any) -> Callable[[str], Any]:
  """A function that exports a table by name; rows in a store stay there."""
  if store := parts.strategy.store:
    return functools.partial(store.rows_on_demand, state)
  return functools.partial(parts.strategy.export_rows, state)


def dense_params(parts: build.Parts, state: Any) -> Any:
  """Dense parameters, on the host of every process; of replicas their mean."""
  if not jax.tree.leaves(state.params):
    return state.params
  has_replicas = bool(parts.strategy.num_replicas)
  return jax.device_get(_dense_params(has_replicas, state.params))


@functools.partial(jax.jit, static_argnums=0)
def _dense_params(has_replicas, params):
  return jax.tree.map(lambda x: x.mean(0) if has_replicas else x, params)


def write_export(
  folder: pathlib.Path, export: Export, is_minimal: bool = False
) -> dict[str, int]:
  """Writes the files of `storage.export`; returns what is dropped."""
  names, counts = export.names()
  arrays = {'vectors': export.rows.on_demand(), **export.others}
  with (
    atomic.together(folder) as new,
    futures.ThreadPoolExecutor() as pool,
  ):
    written = pool.submit(orbax_export.write, new / 'orbax', arrays)
    dropped = export_lib.write(
      new,
      words=names,
      rows=export.rows,
      counts=counts,
      is_minimal=is_minimal,
      context_words=export.context_keys,
    )
    multivectors.write(new, export.multi)
    export_lib.write_relations(new, export.relations)
    export_lib.write_tree(new, export.tree)
    ngram_files.write(new, export.ngrams.table() if export.ngrams else None)
    written.result()
  return dropped


def is_saved(folder: pathlib.Path) -> bool:
  """Whether `Export.save` has written a folder."""
  return (folder / 'rows.data.npy').exists()


def load(parts: build.Parts, folder: pathlib.Path) -> Export:
  """Maps what `Export.save` has written of a model of `parts`."""
  from flax import traverse_util  # here, as it takes long to import

  flat = {x.stem: export_lib.open_array(x) for x in folder.glob('*.npy')}
  arrays = traverse_util.unflatten_dict(flat, sep='.')
  rows = export_lib.Encoded(**arrays['rows'])
  return _collected(parts, rows, arrays.get('others', {}))


def evaluate(
  parts: build.Parts, export: Export, is_last: bool = True, **options: Any
) -> dict[str, dict[str, Any]]:
  """Scores on benchmarks, or on what the source holds out, by name.

  `options` go to the `evaluate` of the source.
  """
  if evaluate := getattr(parts.source, 'evaluate', None):
    if parts.kind.monitors:
      options['is_last'] = is_last
    contexts = export.others.get('context_vectors')
    rows, keys = export.rows.decode(), parts.source.keys
    if len(export.keys) < len(keys):  # sub-models may have none of some
      ids = {x: i for i, x in enumerate(keys)}
      known, rows = rows, np.zeros((len(keys), rows.shape[1]), rows.dtype)
      rows[[ids[x] for x in export.keys]] = known
    return dict(evaluate(rows, contexts, **options))
  if not parts.benchmarks:
    return {}
  limit = parts.config.eval.restrict_vocab
  vectors = export.embeddings(limit or None)
  return dict(vectors.evaluate(parts.benchmarks, limit))


def summarize(scores: Mapping[str, Mapping[str, Any]]) -> str:
  """See `Kind`."""
  scored = []
  for name, x in scores.items():
    if x['found']:
      ndcg = f', NDCG {x["ndcg"]:.3f}' if 'ndcg' in x else ''
      scored.append(f'{name} {x["score"]:.3f}{ndcg}')
  return ', '.join(scored) or 'no scores'


def describe(
  parts: build.Parts, scores: Mapping[str, Mapping[str, Any]]
) -> list[str]:
  """See `Kind`: a table of benchmarks, or a line for each score."""
  if parts.benchmarks:
    return words.format_table(scores).splitlines()
  return [f'{name}: {_line(x)}' for name, x in scores.items()]


def _line(scores: Mapping[str, Any]) -> str:
  """Scores of what a source evaluates itself, in a few words."""
  if 'ndcg' in scores:
    return ranking.describe(scores)
  numbers = (f'{k} {x:.4f}' for k, x in scores.items() if isinstance(x, float))
  return f'{", ".join(numbers)}; {scores["found"]:,} of {scores["total"]:,}'


def export(
  folder: pathlib.Path, parts: build.Parts, collected: Export
) -> dict[str, int]:
  """See `Kind`."""
  return write_export(folder, collected)


def report_values(
  parts: build.Parts, export: Export, scores: dict[str, Any]
) -> dict[str, Any]:
  """See `Kind`."""
  if parts.source.unit != 'words':
    return {}
  return {
    'words_counted': 'corpus words inside the vocabulary, before '
    'frequent-word subsampling, times epochs'
  }


def page(parts: build.Parts, model: Export) -> pages.Page:
  """See `Kind`: categories of the source are for the map."""
  return report.page(
    model.embeddings(report.MAX_SEARCHED),
    parts.benchmarks,
    labels=getattr(parts.source, 'categories', None) or {},
  )
