"""Merges models that were trained apart, ours or other people's, into one.

    python -m jaxemb.merge PART PART ... --output=FOLDER

A PART is what `jaxemb.load` reads (a workdir, an export folder, a word2vec,
GloVe or .vec file), or a folder of orbax checkpoints with a vocab.txt in or
around it. Vocabularies and dimensions may differ. Where words have several
vectors (config.model.name=mixture), it is found out which senses of the parts
are the same. FOLDER gets an export/ like that of a run, and merge.json: figures
of each part, and all that was warned of.
"""

import argparse
import json
import logging
import os
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from jaxemb import errors
from jaxemb.runtime import hosts
from jaxemb.senses import table
from jaxemb.storage import atomic, word2vec_format

# Flags that the other methods have no use for.
_OF_ALIR = (
  'start', 'weights', 'restore', 'align_words', 'max_iterations', 'tolerance',
  'trainable',
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code, 2 for unusable input."""
  flags = _parse(argv)
  logging.captureWarnings(True)
  logging.basicConfig(format='%(message)s', stream=sys.stderr)
  try:
    report = _run(flags)
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  print(_table(report))
  return 0


def _run(flags: argparse.Namespace) -> dict[str, Any]:
  # JAX only once the arguments are right.
  import jax

  from jaxemb.merging import combine, sources
  from jaxemb.runtime import mesh as mesh_lib
  from jaxemb.senses import merge as senses

  started = time.monotonic()
  output = pathlib.Path(flags.output).expanduser()
  _check_output(output, flags.parts)
  spec = combine.Spec(
    method=flags.method,
    dim=flags.dim,
    start=flags.start,
    weights=flags.weights,
    normalize=flags.normalize,
    restore=flags.restore,
    power=flags.power,
    align_words=flags.align_words,
    max_iterations=flags.max_iterations,
    tolerance=flags.tolerance,
  )
  with _scratch(output) as scratch:
    scratch = pathlib.Path(scratch)
    parts, skipped = sources.open_all(
      flags.parts, scratch, flags.trainable, flags.skip_bad
    )
    read_secs = time.monotonic() - started
    mesh = mesh_lib.make(mesh_lib.Shape(len(jax.devices()), 1))
    merged = senses.merge(
      parts, spec, mesh, scratch / 'merged', flags.skip_bad, _Progress()
    )
    report = merged.report | {'read_secs': read_secs}
    report['skipped'] = skipped + report['skipped']
    told = [f'left out: {x["reason"]}' for x in skipped]
    report['warnings'] = told + report['warnings']
    for line in report['warnings']:
      print(f'warning: {line}', file=sys.stderr)
    exported = time.monotonic()
    # Tables and senses of an earlier merge would not have these words.
    shutil.rmtree(output / 'tables', ignore_errors=True)
    table.remove(output / 'export')
    word2vec_format.export(
      output / 'export', merged.words, merged.vectors, merged.counts
    )
    if merged.senses is not None:
      table.write(output / 'export', merged.senses)
    if merged.others:
      os.replace(scratch / 'merged' / 'tables', output / 'tables')
    report |= {
      'tables': sorted(merged.others),
      'export_secs': time.monotonic() - exported,
      'total_secs': time.monotonic() - started,
      'peak_rss_bytes': hosts.peak_rss_bytes(),
      'output': str(output),
    }
  with atomic.write(output / 'merge.json') as file:
    file.write(json.dumps(report, indent=2).encode())
  return report


def _check_output(output: pathlib.Path, parts: Sequence[str]) -> None:
  """Refuses to write over a part, and parts that come twice."""
  folder, met = output.resolve(), set()
  for part in parts:
    path = pathlib.Path(part).expanduser().resolve()
    if path in met:
      raise errors.UserError(f'{part} is given twice; give each part once')
    met.add(path)
    inside = [path, *path.parents]
    written = (folder / x for x in ('export', 'tables', 'checkpoints'))
    if path == folder or any(x in inside for x in written):
      raise errors.UserError(
        f'--output={output} is one of the parts; give another folder'
      )
  if (output / 'config.json').exists():
    raise errors.UserError(
      f'--output={output} is the folder of a run; give another one'
    )


def _scratch(output: pathlib.Path) -> tempfile.TemporaryDirectory:
  try:
    output.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix='.merging-', dir=output)
  except OSError as error:
    raise errors.UserError(
      f'cannot write in {output}: {error.strerror or error}; give another '
      '--output'
    ) from error


class _Progress:
  """Says on a terminal what is being done."""

  def __init__(self):
    self._is_shown = sys.stderr.isatty()

  def __call__(self, what: str, done: int, total: int) -> None:
    if self._is_shown:
      end = '\n' if done >= total else ''
      print(f'\r{what} {done / max(total, 1):4.0%}', end=end, file=sys.stderr)


def _table(report: dict[str, Any]) -> str:
  """The result, and a line for each part."""
  lines = [
    f'{report["output"]}: {report["words"]:,} words x {report["dim"]}, '
    f'{report["method"]} of {len(report["parts"])} parts in '
    f'{report["total_secs"]:.1f} s'
  ]
  width = max(len(x['name']) for x in report['parts'])
  lines.append(
    f'{"part":<{width}}{"words":>11}{"dim":>6}{"missing":>10}{"residual":>10}'
    f'{"agreement":>11}'
  )
  for x in report['parts']:
    line = f'{x["name"]:<{width}}{x["words"]:11,}{x["dim"]:6}'
    line += f'{x["missing_words"]:10,}'
    if x['residual'] is not None:
      line += f'{x["residual"]:10.3f}{x["agreement"]:11.3f}'
    lines.append(line)
  if 'senses' in report:
    from jaxemb.senses import merge as senses

    lines.append(senses.line(report['senses']))
  if report['displacements']:
    moved = ' '.join(f'{x:.1e}' for x in report['displacements'])
    lines.append(f'displacement of each iteration: {moved}')
  return '\n'.join(lines)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='python -m jaxemb.merge',
    description='Merges models that were trained apart into one.',
  )
  add = parser.add_argument
  add(
    'parts',
    nargs='+',
    metavar='PART',
    help='workdir, export folder, word2vec, GloVe or .vec file, or orbax '
    'checkpoint with a vocab.txt',
  )
  add('--output', required=True, help='folder for export/ and merge.json')
  _add_choices(add)
  flags = parser.parse_args(argv)
  if flags.dim < 0:
    parser.error('--dim must be 0 (that of the largest part) or more')
  if flags.align_words < 0:
    parser.error('--align_words must be 0 or more')
  if flags.max_iterations < 1:
    parser.error('--max_iterations must be 1 or more')
  if not 0 < flags.power <= 10:
    parser.error('--power must be above 0, and 10 at most')
  if not flags.tolerance >= 0:
    parser.error('--tolerance must be 0 or more')
  if flags.method != 'alir':
    for name in _OF_ALIR:
      if getattr(flags, name) != parser.get_default(name):
        flag = 'no-restore' if name == 'restore' else name
        parser.error(
          f'--{flag} means nothing with --method={flags.method}; leave it out'
        )
  return flags


def _add_choices(add: Callable[..., object]) -> None:
  """Flags on how to merge."""
  add(
    '--method',
    choices=('alir', 'pca', 'concat'),
    default='alir',
    help='alir: aligned and averaged, words of any part; pca, concat: only '
    'words of all parts (%(default)s)',
  )
  add('--dim', type=int, default=0, help='0 = that of the largest part')
  add(
    '--start',
    choices=('zero', 'pca', 'random'),
    default='zero',
    help='where alir starts (%(default)s)',
  )
  add(
    '--weights',
    choices=('counts', 'equal'),
    default='counts',
    help='of the parts in the mean of a word: as often as each saw it, where '
    'all know, or alike (%(default)s)',
  )
  add(
    '--normalize',
    action='store_true',
    help='bring all vectors to length 1 first, as the paper does',
  )
  _add_lengths(add)
  _add_limits(add)
  add(
    '--trainable',
    action='store_true',
    help='merge context vectors and optimizer state too (of runs and merges), '
    'for config.train.init_from',
  )
  add(
    '--skip-bad',
    '--skip_bad',
    action='store_true',
    help='go on without parts that cannot be used',
  )


def _add_lengths(add: Callable[..., object]) -> None:
  """Flags on what becomes of lengths."""
  add(
    '--restore',
    action=argparse.BooleanOptionalAction,
    default=True,
    help='bring the directions in which the parts disagree back to the length '
    'that they have in the parts',
  )
  add(
    '--power',
    type=float,
    default=1.0,
    help='raise the lengths of the principal directions of the result (concat: '
    'of each part) to this power: below 1, similarities depend less on a few '
    'of them (%(default)s)',
  )


def _add_limits(add: Callable[..., object]) -> None:
  """Flags on how far to go."""
  add(
    '--align_words',
    type=int,
    default=0,
    help='words that alir fits rotations on, frequent and rare ones alike; 0 = '
    '500 for each dimension (%(default)s)',
  )
  add('--max_iterations', type=int, default=20, help='of alir (%(default)s)')
  add(
    '--tolerance',
    type=float,
    default=5e-3,
    help='alir stops once an iteration moves vectors by less, relative to '
    'their length (%(default)s); scores change little beyond that, the fit '
    'of parts without noise does',
  )


if __name__ == '__main__':
  sys.exit(main())
