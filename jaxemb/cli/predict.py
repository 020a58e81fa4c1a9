"""Predicts clicks, classes or vectors of nodes, or vectors of documents.

    jaxemb predict --model=RUN --data=FILE --output=FILE

RUN is the folder of a run on clicks, or its export. FILE may have any format
that `config.data.path` accepts, and needs no label. The command prints how many
categories the model does not know. The output, .csv or .parquet, has a line for
each row of FILE, in the same order, with the columns that `--keep` names and
`prediction`.

    jaxemb predict --model=RUN --data=GRAPH --output=FILE

RUN is a GraphSAGE run that was trained on features. GRAPH is the graph of the
run with new nodes, or a different graph, in any format that `config.data.path`
accepts. Features are in GRAPH or in `--features`; `--columns` and `--num_nodes`
mean the same as in `config.data`. The output has a line for each node: `node`,
`class` and `probability`. With `--keep=vector` it also has the vector of the
node, and for runs on walks it has the vector instead of a class. In .csv, the
columns of a vector are `vector_0`, `vector_1` and so on.

    jaxemb predict --model=RUN --data=FILE --output=FILE

RUN is a run on documents. FILE has new documents, in any format that
`config.data.path` accepts for documents; if a text is not in UTF-8, pass its
`--encoding`. The output has a line for each document: `document` (its tag or
number), and its inferred vector in the same columns as for nodes.
"""

import argparse
import itertools
import os
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from jaxemb import errors
from jaxemb.runtime import process
from jaxemb.storage import atomic

_DOCUMENTS = 1 << 14  # that are inferred at once
_OF_NODES = {
  'features': (str, 'features of nodes'),
  'columns': (str, 'roles of columns of an edge list or of documents'),
  'comments': (str, 'prefix of comment lines of an edge list'),
  'num_nodes': (int, 'number of nodes of an edge list'),
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code, 2 for unusable input."""
  return process.exit_code(_run, argv)


def _run(argv: Sequence[str] | None) -> None:
  parser = argparse.ArgumentParser(
    prog='jaxemb predict',
    description='Predicts clicks, classes or vectors of nodes, or vectors of '
    'documents.',
    allow_abbrev=False,
  )
  add = parser.add_argument
  add('--model', required=True, help='workdir of a run, or its export folder')
  add('--data', required=True, help='file, folder or glob of the data')
  add('--output', required=True, help='.csv or .parquet file to write')
  text = (
    'for clicks, columns to copy to the output, separated by commas; for '
    'nodes, `vector` to write their vectors, too'
  )
  add('--keep', default='', help=text)
  for name, (kind, help_text) in _OF_NODES.items():
    help_text = f'{help_text} (see config.data.{name})'
    add(f'--{name}', type=kind, default=kind(), help=help_text)
  text = 'encoding of documents in text files (default: utf-8)'
  add('--encoding', default='', help=text)
  flags = parser.parse_args(argv)
  output = pathlib.Path(os.path.expanduser(flags.output))
  if output.suffix not in ('.csv', '.parquet'):
    raise errors.UserError(
      f'--output={flags.output} must end in .csv or .parquet'
    )
  if not output.parent.is_dir():
    raise errors.UserError(f'there is no folder {output.parent}; make it first')
  keep = [x.strip() for x in flags.keep.split(',') if x.strip()]
  from jaxemb.storage import export  # here to keep --help fast

  folders = export.folders(flags.model)
  is_of_nodes = any((x / 'network.json').is_file() for x in folders)
  is_of_documents = any((x / 'words').is_dir() for x in folders)
  predict = _predict_nodes if is_of_nodes else _predict_clicks
  if is_of_documents:
    predict = _predict_documents
  elif flags.encoding:
    raise errors.UserError(
      f'--encoding={flags.encoding} is of documents, and --model={flags.model} '
      'has none; remove it'
    )
  counts: dict[str, int] = {}
  tables = predict(flags, output, keep, counts=counts)
  num, lines = _write(output, tables, flags.data), []
  if is_of_nodes or is_of_documents:
    lines = [f'{name}: {num:,}' for name, num in counts.items() if num]
  elif counts:
    from jaxemb.clicks import predictor

    lines = [predictor.unknown_line(counts)]
  what = 'nodes' if is_of_nodes else 'rows'
  what = 'documents' if is_of_documents else what
  print(f'{num:,} {what} in {output}', *lines, sep='\n', file=sys.stderr)


def _predict_clicks(
  flags: argparse.Namespace,
  output: pathlib.Path,
  keep: Sequence[str],
  counts: dict[str, int],
) -> Iterator[Any]:
  """Yields probabilities of rows, some megabytes at a time."""
  # JAX and Arrow only once the arguments are right.
  import pyarrow as pa

  from jaxemb import api
  from jaxemb.clicks import predictor
  from jaxemb.io import inputs

  for name in _OF_NODES:
    if value := getattr(flags, name):
      raise errors.UserError(
        f'--{name}={value} is of nodes, and --model={flags.model} is no run of '
        'GraphSAGE; remove it'
      )
  model = api.load(flags.model)
  if not isinstance(model, predictor.ClickModel):
    raise errors.UserError(
      f'--model={flags.model} has vectors, and no model of clicks; give a run '
      'that was trained with --config=ctr'
    )
  _refuse_overwriting(output, 'data', inputs.together(flags.data))
  for chances, table in model.predicted(flags.data, counts):
    for name in keep:
      if name not in table.columns:
        raise errors.UserError(
          f'--keep={flags.keep}: there is no column {name}; there are '
          f'{", ".join([*table.columns][:30])}'
        )
    columns = *table.arrow(keep).columns, chances
    yield pa.table(columns, [*keep, 'prediction'])


def _predict_nodes(
  flags: argparse.Namespace,
  output: pathlib.Path,
  keep: Sequence[str],
  counts: dict[str, int],
) -> Iterator[Any]:
  """Yields classes or vectors of all nodes of a graph."""
  import pyarrow as pa

  from jaxemb.graphs import files, inference
  from jaxemb.io import inputs

  if {*keep} - {'vector'}:
    raise errors.UserError(f'--keep={flags.keep}: of nodes there is `vector`')
  for flag in ('data', 'features'):
    try:
      paths = inputs.find(getattr(flags, flag)).train
    except errors.UserError:  # no file: reading it says so
      continue
    _refuse_overwriting(output, flag, paths)
  model = inference.load(flags.model)
  assert model is not None  # as it has a network.json
  settings = {
    'path': flags.data, 'labels': '', 'label_column': '',
    'directed': model.settings['directed'],
  }  # fmt: skip
  settings |= {k: getattr(flags, k) for k in _OF_NODES}
  with tempfile.TemporaryDirectory() as cache:
    graph = files.read(settings, pathlib.Path(cache), lambda *_: None)
    counts |= graph.counted
    inferred = model.infer(graph)
    columns = {'node': pa.array(list(graph.keys()))}
    if model.classes:
      classes, chances = zip(
        *inference.likeliest(
          inferred.outputs, model.classes, model.spec.has_many
        ),
        strict=True,
      )
      if not model.spec.has_many:
        chances = tuple(map(float, chances))
      columns |= {'class': pa.array(classes), 'probability': pa.array(chances)}
    if keep or not model.classes:
      columns |= _vector_columns(inferred.vectors, output)
  yield pa.table(columns)


def _vector_columns(vectors: Any, output: pathlib.Path) -> dict[str, Any]:
  """Vectors as columns of a table: several in .csv."""
  import pyarrow as pa

  if output.suffix == '.csv':
    return {f'vector_{i}': pa.array(x) for i, x in enumerate(vectors.T)}
  flat, dim = pa.array(vectors.ravel()), vectors.shape[1]
  return {'vector': pa.FixedSizeListArray.from_arrays(flat, dim)}


def _predict_documents(
  flags: argparse.Namespace,
  output: pathlib.Path,
  keep: Sequence[str],
  counts: dict[str, int],
) -> Iterator[Any]:
  """Yields inferred vectors of documents, some at a time."""
  import pyarrow as pa

  from jaxemb import api
  from jaxemb.documents import loader, trained
  from jaxemb.io import text_files

  for name in (x for x in _OF_NODES if x != 'columns'):
    if value := getattr(flags, name):
      raise errors.UserError(
        f'--{name}={value} is of nodes, and --model={flags.model} has '
        'documents; remove it'
      )
  if keep:
    raise errors.UserError(
      f'--keep={flags.keep}: of documents there are tag and vector; remove it'
    )
  model = api.load(flags.model)
  if not isinstance(model, trained.Documents):
    raise errors.UserError(
      f'--model={flags.model} has vectors, and no documents; give a run that '
      'was trained with --config=documents'
    )
  paths = [x.path for x in text_files.find(flags.data)]
  _refuse_overwriting(output, 'data', paths)
  encoding = flags.encoding or text_files.UTF_8
  numbered = enumerate(loader.read(flags.data, flags.columns, encoding))
  while some := [*itertools.islice(numbered, _DOCUMENTS)]:
    with warnings.catch_warnings():  # they are counted
      warnings.simplefilter('ignore')
      vectors = model.infer([text for _, (text, _) in some])
    names = [str(i) if tag is None else tag for i, (_, tag) in some]
    counts['without a known word'] = counts.get(
      'without a known word', 0
    ) + int((~vectors.any(1)).sum())
    yield pa.table({
      'document': pa.array(names), **_vector_columns(vectors, output)
    })  # fmt: skip


def _refuse_overwriting(
  output: pathlib.Path, flag: str, files: Sequence[pathlib.Path]
) -> None:
  """Refuses an output that would replace a file that is read."""
  if output.exists() and any(x.samefile(output) for x in files):
    raise errors.UserError(
      f'--output={output} is a file of --{flag}; give another name'
    )


def _write(output: pathlib.Path, tables: Iterator[Any], data: str) -> int:
  """Writes Arrow tables made of some data; returns the number of rows."""
  from pyarrow import csv, parquet

  first, num_rows = next(tables, None), 0
  if first is None:
    raise errors.UserError(f'{data} has no rows')
  make = csv.CSVWriter if output.suffix == '.csv' else parquet.ParquetWriter
  try:
    with atomic.write(output) as file, make(file, first.schema) as writer:
      for table in itertools.chain([first], tables):
        writer.write_table(table)
        num_rows += len(table)
  except OSError as error:
    raise errors.UserError(
      f'cannot write {output}: {errors.one_line(error)}; free space there'
    ) from error
  return num_rows
