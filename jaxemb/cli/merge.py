"""Merges models that were trained separately into one model.

    jaxemb merge PART PART ... --output=FOLDER

A PART is an input: a workdir, an export folder, a word2vec, GloVe or .vec file,
or a folder of orbax checkpoints with a vocab.txt in or above it. Vocabularies
and dimensions may differ. If words have several vectors (model.name=mixture),
the command matches the senses of the inputs. It writes an export/ like that of
a run to FOLDER, and merge.json with statistics and warnings.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from jaxemb import errors
from jaxemb.evaluation import multivectors
from jaxemb.merging import merge as merging
from jaxemb.merging import multivectors as senses
from jaxemb.merging import parts as parts_lib
from jaxemb.report import pages
from jaxemb.run import progress, rundir
from jaxemb.runtime import process
from jaxemb.storage import atomic, export

_PART = (
  'workdir, export folder, word2vec, GloVe or .vec file, or orbax checkpoint '
  'with a vocab.txt'
)
_HELP = {
  'method': 'alir: mean of the inputs after rotations that align them, for '
  'all words of all inputs; pca: principal components of the concatenated '
  'inputs; concat: concatenated inputs; pca and concat keep only words that '
  'all inputs have',
  'dim': 'dimension of the result; 0 = the largest dimension of an input '
  '(concat: the sum of all dimensions)',
  'start': 'start from the largest input, to which the others are rotated one '
  'at a time, the most closely related first (zero), from the PCA of the '
  'inputs (pca), or from random vectors (random)',
  'weights': 'weight of an input in the mean vector of a word: the count of '
  'the word in the input, if all inputs have counts (counts), or 1 (equal)',
  'normalize': 'scale vectors to length 1, as in Anand et al. 2019',
  'restore': 'scale directions in which the inputs disagree, to undo the '
  'shrinking by averaging',
  'power': 'raise the singular values of the result (concat: of each input) to '
  'this power; values below 1 weaken dominant directions',
  'align_words': 'number of frequent and rare words on which rotations are '
  'fitted; 0 = 500 per dimension',
  'max_iterations': 'largest number of iterations',
  'tolerance': 'stop when an iteration moves vectors by less than this '
  'fraction of their length',
  'trainable': 'also merge context vectors and optimizer state, so that '
  'config.train.init_from can continue training; only for runs and merged '
  'models, with alir and without --normalize',
  'skip_bad': 'skip inputs that cannot be read',
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code, 2 for unusable input."""
  return process.exit_code(_run, argv)


def _run(argv: Sequence[str] | None) -> None:
  started = time.monotonic()
  flags = _parse(argv)
  names = [x.name for x in dataclasses.fields(merging.Spec)]
  spec = merging.Spec(**{name: getattr(flags, name) for name in names})
  if flags.trainable and (spec.method != 'alir' or spec.normalize):
    raise errors.UserError(
      '--trainable wants --method=alir without --normalize, which keeps inner '
      'products'
    )
  output = rundir.named(flags.output, '--output')
  _check_output(output, flags.parts)
  scratch = _scratch(output)
  # JAX only once the arguments are right.
  from jaxemb.runtime import mesh, resources
  from jaxemb.storage import orbax_export

  mesh.all_devices()
  with atomic.removed(scratch):
    parts, skipped = parts_lib.open_all(
      flags.parts,
      scratch,
      flags.trainable,
      skip_bad=flags.skip_bad,
      encoding=flags.encoding,
    )
    read_secs = time.monotonic() - started
    with contextlib.closing(progress.Progress()) as shown:
      merged = senses.merge(
        parts, spec, folder=scratch / 'merged', progress=shown
      )
    left_out = [f'left out: {x["reason"]}' for x in skipped]
    warnings = left_out + merged.report['warnings']
    for line in warnings:
      print(f'warning: {line}', file=sys.stderr)
    exported = time.monotonic()
    rows = export.Encoded(merged.vectors)
    arrays = _arrays(merged)
    with atomic.together(output) as new:
      export.write(new / 'export', merged.words, rows, counts=merged.counts)
      multivectors.write(new / 'export', merged.senses)
      orbax_export.write(new / 'export' / 'orbax', arrays)
      report = {
        **pages.FORMAT.stamp(),
        **merged.report,
        'warnings': warnings,
        'skipped': skipped,
        'tables': sorted(merged.trainable),
        'read_secs': read_secs,
        'export_secs': time.monotonic() - exported,
        'total_secs': time.monotonic() - started,
        'peak_rss_bytes': resources.peak_rss_bytes(),
        'output': str(output),
      }
      with atomic.write(new / 'merge.json') as file:
        file.write(json.dumps(report, indent=2).encode())
  print(_table(report))


def _arrays(merged: Any) -> dict[str, Any]:
  """Returns what export/orbax has of a merge: vectors and other tables."""
  from flax import traverse_util  # with JAX, once the arguments are right

  arrays = {'vectors': merged.vectors}
  for path, table in merged.trainable.items():
    arrays[path] = table[:, 0] if table.shape[1] == 1 else table
  return traverse_util.unflatten_dict(arrays, sep='/')


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='jaxemb merge',
    description='Merges models that were trained separately into one model.',
  )
  add = parser.add_argument
  add('parts', nargs='+', metavar='PART', help=_PART)
  add('--output', required=True, help='folder for export/ and merge.json')
  text = 'encoding of the words in files (default: %(default)s)'
  add('--encoding', default='utf-8', help=text)
  for name, text in _HELP.items():
    default = getattr(merging.Spec, name, False)
    form: dict[str, Any] = {
      'type': type(default),
      'choices': merging.CHOICES.get(name),
    }
    if isinstance(default, bool):
      form = {'action': argparse.BooleanOptionalAction}
    text = f'{text} (default: {default})'
    text = f'alir: {text}' if name in merging.ALIR_ONLY else text
    spellings = dict.fromkeys((f'--{name}', f'--{name.replace("_", "-")}'))
    add(*spellings, default=default, help=text, **form)
  return parser.parse_args(argv)


def _check_output(output: pathlib.Path, parts: Sequence[str]) -> None:
  """Raises a `UserError` if a part or a run would be overwritten."""
  # Links that lead in a circle are told where they are opened.
  folder, seen = pathlib.Path(os.path.realpath(output)), set()
  for part in parts:
    path = pathlib.Path(os.path.realpath(os.path.expanduser(part)))
    if path in seen:
      raise errors.UserError(f'{part} is given twice; give each part once')
    seen.add(path)
    written = {folder / 'export', folder / 'checkpoints'}
    if path == folder or written & {path, *path.parents}:
      raise errors.UserError(
        f'--output={output} is one of the parts; give another folder'
      )
  if (output / 'config.json').exists():
    raise errors.UserError(
      f'--output={output} is the folder of a run; give another one'
    )


def _scratch(output: pathlib.Path) -> pathlib.Path:
  """Makes the folder of the result, and in it one for rows."""
  scratch = atomic.temporary_of(output / 'merging')
  try:
    output.mkdir(parents=True, exist_ok=True)
    atomic.remove_leftovers(output)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    return scratch
  except OSError as error:
    raise errors.UserError(
      f'cannot write in {output}: {error.strerror}; give another --output'
    ) from error


def _table(report: dict[str, Any]) -> str:
  """The result, and a line per part."""
  width = max(len(x['name']) for x in report['parts'])
  lines = [
    f'{report["output"]}: {report["words"]:,} words x {report["dim"]}, '
    f'{report["method"]} of {len(report["parts"])} parts in '
    f'{report["total_secs"]:.1f} s',
    f'{"part":<{width}}{"words":>11}{"dim":>6}{"missing":>10}{"residual":>10}'
    f'{"agreement":>11}',
  ]
  for x in report['parts']:
    line = f'{x["name"]:<{width}}{x["words"]:11,}{x["dim"]:6}'
    line += f'{x["missing_words"]:10,}'
    if x['residual'] is not None:
      line += f'{x["residual"]:10.3f}{x["agreement"]:11.3f}'
    lines.append(line)
  if line := senses.line(report):
    lines.append(line)
  if report['displacements']:
    moved = ' '.join(f'{x:.1e}' for x in report['displacements'])
    lines.append(f'displacement of each iteration: {moved}')
  return '\n'.join(lines)
