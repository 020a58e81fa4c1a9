"""What the network carries: bytes per word for each table layout and mesh.

  python experiments/comm_volume.py

The training step of skip-gram (vocabulary 100,000 of Zipf counts, 8192 centers
per step of all devices together, SGD, float32) is compiled for meshes of 1 to
64 simulated devices; jaxemb/runtime/hlo.py says how the bytes of its
collectives are counted. Bytes are those that all devices together send per
corpus word, before frequent-word subsampling.

  compiled   inside the loop over steps. The row layout sends rows in buffers of
             a fixed size, some of it empty; a step that needs a second round,
             about one in ten thousand, sends twice
  formula    the same from the sizes alone (`closed_form`); a test compares them
  published  parameter servers after Ordentlich et al. 2016: rows that travel,
             (2 + w n) d 4, and for `column` products that do, w (n + 1) S 4; w
             contexts and n negatives of a center, S devices
  column / row   wanted is at most 1 / 3 on eight devices at dim 512
  of vocabulary size   collectives that move an array with all rows of a table,
             or a device's share of them, as an axis; wanted are none

Nothing is run. What processes really send is in report.json of their run, as
the kernel counts it: `loopback_sent_bytes` or `network_sent_bytes` of `hosts`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import experiment
import numpy as np
import zipf

from jaxemb.runtime import hlo
from jaxemb.tables import row_sharded

_FLOAT_BYTES = 4
# Only the text is needed: LLVM, which comes after it, may be quick.
_COMPILER_OPTIONS = {
  'xla_backend_optimization_level': 0,
  'xla_llvm_disable_expensive_passes': True,
}


class Point(NamedTuple):
  """One program."""

  layout: str
  data: int  # devices along the axes of the mesh
  table: int
  dim: int


def _full_plan() -> list[Point]:
  points = []
  for layout in ('replicated', 'row', 'column'):
    for n in (1, 2, 4, 8, 16, 64):
      shape = (n, 1) if layout == 'replicated' else (1, n)
      points += [Point(layout, *shape, dim) for dim in (128, 512)]
    points += [Point(layout, 2, 4, dim) for dim in (128, 512)]
  return points


_QUICK_PLAN = [
  *(Point(layout, 1, 4, 8) for layout in ('row', 'column')),
  *(Point(layout, 2, 2, 8) for layout in ('row', 'column')),
  Point('replicated', 4, 1, 8),
  Point('column', 1, 1, 8),
  Point('column', 1, 4, 24),
]


def make(point: Point, vocab: int, batch_words: int) -> zipf.Job:
  """What trains at a point; JAX needs as many devices."""
  return zipf.make(
    {
      'strategy.name': 'sync',
      'optimizer.name': 'sgd',
      'table.layout': point.layout,
      'model.dim': point.dim,
      'mesh.data': point.data,
      'mesh.table': point.table,
      'train.batch_words': batch_words,
    },
    vocab,
    loss_every_steps=1,  # as on accelerators: no program of its own
  )


def compiled_text(job: zipf.Job) -> str:
  """The program of a dispatch, compiled from shapes alone."""
  return zipf.lower(job).compile(compiler_options=_COMPILER_OPTIONS).as_text()


def traffic(
  job: zipf.Job, text: str
) -> tuple[dict[str, float], list[tuple[int, ...]]]:
  """What the compiled program sends.

  Returns bytes that a device sends in a step, by kind and in `total`; and the
  shapes of arrays that travel and have an axis as long as the vocabulary, or as
  a device's share of it.
  """
  sent = hlo.traffic(text, job.strategy.loop)['bytes_per_step_per_device']
  lengths = _vocabulary_lengths(job)
  shapes = [y for x in hlo.collectives(text) for y in x.shapes]
  return (
    {kind: x for kind, x in sent.items() if x or kind == 'total'},
    [shape for shape in shapes if lengths & set(shape)],
  )


def _vocabulary_lengths(job: zipf.Job) -> set[int]:
  """Lengths of an axis that has all rows or a device's share of them."""
  if job.config.table.layout != 'row':
    return {len(job.counts)}
  groups = -(-len(job.counts) // row_sharded.NUM_CLASSES)
  rows = groups * row_sharded.NUM_CLASSES
  return {len(job.counts), groups, rows, rows // job.config.mesh.table}


def closed_form(job: zipf.Job) -> float:
  """Bytes that one device sends in a step, from the sizes alone.

  With L centers per step in chunks of c, which look up L rows of one table and
  r L, r = (c + 2 W + N) / c, of the other; D x T devices; rings.
  """
  config, dim = job.config, job.config.model.dim
  d, t = config.mesh.data, config.mesh.table
  width = _width(job)
  lookups = sum(_lookups(job).values()) * d * t  # of all devices
  if config.table.layout == 'replicated':
    # The ids and gradients of a device's lookups go to all others.
    return _FLOAT_BYTES * (d * t - 1) * lookups / (d * t) * (1 + dim)
  if config.table.layout == 'column':
    columns, own = -(-dim // t), lookups / d
    summed = job.step_words / d * width
    gathered = (d - 1) * own * (1 + columns)
    return _FLOAT_BYTES * (2 * (t - 1) / t * summed + gathered)
  if d * t == 1:
    return 0.0
  total = 0.0
  for rows in buffers(job).values():
    # Ids and rows on the way there; ids, lookups, gradients on the way back,
    # which other devices that hold the row need as well.
    back = 2 + dim
    total += (t - 1) * rows * (1 + dim + back) + (d - 1) * t * rows * back
    # All agree on when rounds end, both times.
    total += 2 * 2 * (d * t - 1) / (d * t)
  return _FLOAT_BYTES * total


def _width(job: zipf.Job) -> int:
  """Rows that a chunk of centers meets: c + 2 W + N."""
  spec = job.trainer.trainable.model.spec
  return spec.chunk + 2 * spec.window + spec.shared_negatives


def _lookups(job: zipf.Job) -> dict[str, int]:
  """Of each table, by one device in a step."""
  centers, chunk = job.step_words // job.mesh.size, job.steps.chunk
  return {'input': centers, 'output': centers * _width(job) // chunk}


def buffers(job: zipf.Job) -> dict[str, int]:
  """By table, rows of a buffer of the row layout; there is one per device."""
  lookups, centers = _lookups(job), job.step_words / job.mesh.size
  return {
    name: min(
      lookups[name],
      row_sharded.buffer_rows(
        spec.lookups_per_center, centers, job.config.mesh.table
      ),
    )
    for name, spec in job.trainer.trainable.model.specs().items()
  }


def published(job: zipf.Job) -> float:
  """Bytes per center of parameter servers, of Ordentlich et al. 2016."""
  m = job.config.model
  contexts = m.window + 1  # a window of 1..W on both sides, within sentences
  if job.config.table.layout == 'column':
    servers = job.config.mesh.table
    return contexts * (m.negatives + 1) * servers * _FLOAT_BYTES
  return (2 + contexts * m.negatives) * m.dim * _FLOAT_BYTES


def examine(point: Point, vocab: int, batch_words: int) -> dict[str, Any]:
  """Compiles a point, and compares."""
  job = make(point, vocab, batch_words)
  sent, of_vocabulary = traffic(job, compiled_text(job))
  per_word = job.mesh.size * job.kept_fraction / job.step_words
  result = point._asdict() | {
    'devices': job.mesh.size,
    'bytes_per_step_per_device': sent,
    'bytes_per_word': sent['total'] * per_word,
    'formula_bytes_per_word': closed_form(job) * per_word,
    'published_bytes_per_word': published(job) * job.kept_fraction,
    'travels_with_vocabulary_axis': of_vocabulary,
    'kept_fraction': job.kept_fraction,
  }
  if point.layout == 'row' and job.mesh.size > 1:
    centers = job.step_words / job.mesh.size
    distinct_rows = sum(
      np.sum(-np.expm1(-spec.lookups_per_center * centers))
      for spec in job.trainer.trainable.model.specs().values()
    )
    rows = point.table * sum(buffers(job).values())
    result['buffer_fill'] = distinct_rows / rows
  return result


def table(points: Sequence[dict[str, Any]]) -> str:
  """A line per point, and of the columns' bytes per word those of the rows."""
  rows, found = [], {Point(*(p[k] for k in Point._fields)): p for p in points}
  for point, p in found.items():
    sent = dict(p['bytes_per_step_per_device'])
    total = sent.pop('total')
    largest = max(sent, key=sent.get, default='none')
    note = f'{largest} {sent[largest] / total:.1%}' if sent else largest
    if 'buffer_fill' in p:
      note += f', buffers {p["buffer_fill"]:.0%} full'
    keys = ('bytes', 'formula_bytes', 'published_bytes')
    sizes = [p[f'{key}_per_word'] for key in keys]
    same = found.get(point._replace(layout='row'), {'bytes_per_word': 0})
    ratio = None
    if point.layout == 'column' and same['bytes_per_word']:
      ratio = p['bytes_per_word'] / same['bytes_per_word']
    num_large = len(p['travels_with_vocabulary_axis'])
    mesh = f'{point.data} x {point.table}'
    rows.append((point.layout, mesh, point.dim, *sizes, ratio, num_large, note))
  head = {
    'layout': '', 'data x table': '', 'dim': '', 'compiled': ',.0f',
    'formula': ',.0f', 'published': ',.0f', 'column / row': '.3f',
    'of vocabulary size': '', 'largest collective': '',
  }  # fmt: skip
  title = 'bytes per word, all devices together'
  return f'{title}\n{experiment.table(head, rows)}'


def main() -> None:
  """Compiles all points and prints the tables."""
  parser = experiment.parser(__doc__)
  parser.add_argument('--quick', action='store_true', help='tiny, for tests')
  args = parser.parse_args()
  plan, vocab, batch_words = _full_plan(), 100_000, 8192
  if args.quick:
    plan, vocab, batch_words = _QUICK_PLAN, 3001, 256
  results = experiment.Results('comm-volume', args)
  experiment.simulate_devices(max(p.data * p.table for p in plan))
  points: list[dict[str, Any]] = []
  results.found = {'vocab': vocab, 'batch_words': batch_words, 'points': points}
  for point in plan:
    experiment.progress('compiling', point)
    points.append(examine(point, vocab, batch_words))
  results.finish(table(points))


if __name__ == '__main__':
  experiment.main(main)
