"""Writes the probabilities of clicks that a trained model gives to rows.

    python -m jaxemb.predict --model=RUN --data=FILE --output=FILE

RUN is the folder of a run on clicks, or its export. FILE is in any form that
`config.data.path` may have, and needs no label; categories that the model does
not know count as unknown, and are counted. The output, .csv or .parquet, has a
column `prediction`, a line for each row in their order, behind the columns of
the data that `--keep` names.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from jaxemb import errors
from jaxemb.storage import atomic


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code, 2 for unusable input."""
  return errors.exit_code(_run, argv)


def _run(argv: Sequence[str] | None) -> None:
  parser = argparse.ArgumentParser(
    prog='python -m jaxemb.predict',
    description='Writes probabilities of clicks.',
    allow_abbrev=False,
  )
  add = parser.add_argument
  add('--model', required=True, help='folder of a run on clicks, or its export')
  add('--data', required=True, help='file, folder or glob')
  add('--output', required=True, help='a file .csv or .parquet')
  add('--keep', default='', help='columns to write too, separated by commas')
  flags = parser.parse_args(argv)
  output = pathlib.Path(flags.output).expanduser()
  if output.suffix not in ('.csv', '.parquet'):
    raise errors.UserError(
      f'--output={flags.output} must end in .csv or .parquet'
    )
  if not output.parent.is_dir():
    raise errors.UserError(f'there is no folder {output.parent}; make it first')
  keep = [x.strip() for x in flags.keep.split(',') if x.strip()]
  # JAX and Arrow only once the arguments are right.
  import pyarrow as pa
  from pyarrow import csv, parquet

  from jaxemb import embeddings
  from jaxemb.clicks import formats
  from jaxemb.prediction import predictor

  model = embeddings.load(flags.model)
  if not isinstance(model, predictor.ClickModel):
    raise errors.UserError(
      f'--model={flags.model} has vectors, and no model of clicks; give a run '
      'that was trained with --config=ctr'
    )
  given = formats.find(flags.data)
  if output.exists() and any(x.samefile(output) for x in given):
    raise errors.UserError(
      f'--output={flags.output} is a file of --data; give another name'
    )
  unknown: dict[str, int] = {}
  num_rows, writer = 0, None
  make = csv.CSVWriter if output.suffix == '.csv' else parquet.ParquetWriter
  try:
    with atomic.write(output) as file:
      for chances, table in model.predicted(flags.data, unknown):
        for name in keep:
          if name not in table.columns:
            raise errors.UserError(
              f'--keep={flags.keep}: there is no column {name}; there are '
              f'{", ".join([*table.columns][:30])}'
            )
        columns = *table.arrow(keep).columns, chances
        found = pa.table(columns, [*keep, 'prediction'])
        if writer is None:
          writer = make(file, found.schema)
        writer.write_table(found)
        num_rows += len(found)
      if writer is None:
        raise errors.UserError(f'{flags.data} has no rows')
      writer.close()
  except OSError as error:
    raise errors.UserError(
      f'cannot write {output}: {errors.one_line(error)}; free space there'
    ) from error
  print(f'{num_rows:,} rows in {output}', file=sys.stderr)
  if unknown:
    counted = ', '.join(f'{k} {v:,}' for k, v in unknown.items())
    line = f'categories that the model does not know: {counted}'
    print(line, file=sys.stderr)


if __name__ == '__main__':
  sys.exit(main())
