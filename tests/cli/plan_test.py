"""Plans for devices that are not here, and what their compilers make of steps.

Compiled in a process of its own: libtpu starts once in each.
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from jaxemb.cli import plan
from jaxemb.cli import train as main
from jaxemb.run import plan as run_plan
from jaxemb.runtime import topologies
from tests import marking

needs_libtpu = pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None,
  reason='needs the extra tpu: pip install jaxemb[tpu]',
)
needs_cuda = pytest.mark.skipif(
  not any(map(topologies.has, topologies.CUDA_COMPILERS)),
  reason='needs the extra cuda: pip install jaxemb[cuda]',
)
SYNC = '--config.strategy.name=sync'
ROW = '--config.table.layout=row'
COLUMN = '--config.table.layout=column'
# Sums of floats by atomic operations, whose order changes from run to run; some
# are a loop that compares and swaps (jax issue 38806).
_ATOMIC = re.compile(
  r'(?<![\w.%])(?:atom|red)\.(?:\S+\.)?(?:cas\.\S+|b?f16\S*|f32\S*|f64)'
)


def _python(*arguments, dump=None):
  """Standard output of a Python process, of which XLA may dump programs."""
  env = dict(os.environ)
  if dump:
    env['XLA_FLAGS'] = f'--xla_dump_to={dump}'
  command = [sys.executable, *arguments]
  done = subprocess.run(command, capture_output=True, text=True, env=env)
  assert done.returncode == 0, done.stderr[-2000:]
  return done.stdout


def _atomics(folder):
  texts = (path.read_text() for path in folder.glob('*.ptx'))
  return [x for text in texts for x in _ATOMIC.findall(text)]


def _plan(folder, topology, vocab, *flags):
  path = folder / 'plan.json'
  shown = _python(
    '-m', 'jaxemb.plan', f'--topology={topology}', f'--vocab={vocab}',
    f'--json={path}', SYNC, *flags, dump=folder,
  )  # fmt: skip
  assert 'copies of whole tables: none' in shown
  found = json.loads(path.read_text())
  assert found['table_copies_by_loop_depth'] == {}
  return found


@needs_libtpu
@pytest.mark.parametrize(
  ('topology', 'vocab', 'flags'),
  [
    ('v5e:1x1', 1e6, []),
    marking.slow(
      'v6e:1x1',
      1e6,
      ['--config.model.dim=300', '--config.optimizer.name=adagrad'],
    ),
    marking.slow('tpu7x:2x2x1', 1e6, ['--config.model.dim=128', ROW]),
    marking.slow('v5e:2x2', 1e6, ['--config.model.dim=512', COLUMN]),
  ],
)
def test_programs_for_tpus_copy_no_table(topology, vocab, flags, tmp_path):
  found = _plan(tmp_path, topology, vocab, *flags)
  memory, is_row = found['memory'], ROW in flags
  held = memory['tables_bytes'] + memory['optimizer_bytes']
  # Rows of 100 numbers take 128.
  assert memory['peak_bytes'] < 1.4 * held or memory['peak_bytes'] - held < 40e6
  assert bool(found['collectives']['all-to-all']) == is_row


@needs_cuda
@pytest.mark.parametrize(
  ('topology', 'vocab', 'flags'),
  [
    ('cuda:h100x1', 1e6, ['--config.train.fused=false']),
    marking.slow('cuda:h100x1', 1e6, ['--config.table.dtype=int8']),
    marking.slow('cuda:h200x8', 1e6, ['--config.model.dim=128', COLUMN]),
    marking.slow('cuda:h100x1', 0, ['--config=graphsage']),
    marking.slow(
      'cuda:h100x1',
      1e5,
      ['--config=mixture', '--config.senses.method=likelihoods'],
    ),
    # A kernel for rows with sums that need neither squares nor counts.
    marking.slow(
      'cuda:h100x1',
      1e5,
      [
        '--config.model.shared_negatives=1000',
        '--config.optimizer.max_duplicates=0',
      ],
    ),
  ],
)
def test_programs_for_gpus_copy_no_table_and_add_in_order(
  topology, vocab, flags, tmp_path
):
  _plan(tmp_path, topology, vocab, *flags)
  assert list(tmp_path.glob('*.ptx')) and not _atomics(tmp_path)


@needs_cuda
@pytest.mark.parametrize(
  ('topology', 'has_kernel', 'flags'),
  [
    ('cuda:h100x1', True, []),
    marking.slow(
      'cuda:h100x1', True,
      ['--config.model.name=cbow', '--config.optimizer.name=adagrad',
       '--config.table.dtype=bfloat16', '--config.model.dim=512'],
    ),
    marking.slow(
      'cuda:h100x1', True, ['--config.model.loss=hierarchical_softmax']
    ),
    marking.slow(
      'cuda:h100x8', True,
      ['--config.strategy.name=replicas', '--config.mesh.data=8'],
    ),
    # More negatives than a block has room for.
    marking.slow(
      'cuda:h100x1', False, ['--config.model.shared_negatives=1000']
    ),
  ],
)  # fmt: skip
def test_a_kernel_on_gpus_changes_tables_in_place(
  topology, has_kernel, flags, tmp_path
):
  _plan(tmp_path, topology, 1e5, *flags)
  texts = [
    path.read_text() for path in tmp_path.glob('*after_optimizations.txt')
  ]
  assert texts
  assert any('jaxemb_gpu_kernel' in x for x in texts) == has_kernel


_SORTS = """
import re, sys
from jaxemb.cli import plan
from jaxemb.cli import train as main
from jaxemb.run import plan as run_plan
vocab, *flags = sys.argv[1:]
config, *_ = main.parse(flags)
job = plan.prepare('cuda:h100x1', config, int(vocab))
text = run_plan.compiled(job).as_text()
print([x.count('[') for x in re.findall(r'= (.*) sort[(]', text)])
"""


@needs_cuda
@pytest.mark.parametrize(
  ('vocab', 'flags', 'operands'),
  [
    # Both tables look up the same ids, which have room in a number with their
    # positions.
    (
      0,
      ['--config=ctr', '--config.model.name=wide_deep',
       '--config.data.path=toyclicks:20000'],
      [1],
    ),
    # Each table looks up and updates the same ids, whose holder sorts them.
    marking.slow(
      60_000, ['--config=wiki', '--config.optimizer.name=adam', SYNC, ROW],
      [1, 1, 1, 1],
    ),
  ],
)  # fmt: skip
def test_programs_for_gpus_sort_ids_once(vocab, flags, operands):
  found = _python('-c', _SORTS, str(vocab), *flags).splitlines()[-1]
  assert json.loads(found) == operands


_SENT = """
import sys
from jaxemb.cli import plan
from jaxemb.cli import train as main
from jaxemb.run import plan as run_plan
from jaxemb.runtime import hlo
from tests import sending
topology, layout, dim, *settings = sys.argv[1:]
settings = [f'--config.{x}' for x in settings]
settings += ['--config.strategy.name=sync', f'--config.table.layout={layout}']
config, *_ = main.parse([f'--config.model.dim={dim}', *settings])
job = plan.prepare(topology, config, 200_000)
text = run_plan.compiled(job).as_text()
found = hlo.traffic(text, job.trainer.strategy.loop)
formula = sending.bytes_per_step(
  job.trainer,
  layout,
  mesh=tuple(job.setup.mesh.shape.values()),
  batch_words=job.setup.tuning.parts * job.setup.tuning.part_words,
  num_parts=job.setup.tuning.parts,
)
print(found['bytes_per_step_per_device']['total'] / formula)
"""


@pytest.mark.parametrize(
  'case',
  [
    pytest.param(['v5e:2x4', 'row', '128'], marks=needs_libtpu),
    *(
      pytest.param(x, marks=[needs_libtpu, pytest.mark.slow])
      for x in (
        ['v5e:2x4', 'row', '128', 'mesh.data=2', 'mesh.table=4'],
        ['v5e:2x2', 'column', '512'],
        ['v6e:2x2', 'replicated', '128', 'mesh.data=4'],
      )
    ),
    pytest.param(
      ['cuda:h100x8', 'row', '128'], marks=[needs_cuda, pytest.mark.slow]
    ),
  ],
)
def test_compiled_programs_send_what_the_formula_says(case):
  ratio = float(_python('-c', _SENT, *case))
  assert ratio == pytest.approx(1, abs=0.01)


_COMPILE = """
import functools, sys
import jax, numpy as np
from jax.experimental import layout
from jaxemb.kernels.tpu import row_copies, sorted_sums
from jaxemb.runtime import topologies
for name in sys.argv[1:]:
  devices = np.array(topologies.topology(name).devices[:1])
  mesh = jax.sharding.Mesh(devices, 'x')
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  def shape(*sizes, dtype='float32'):
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)
  for dim in 100, 128, 300:
    table = shape(500_000, dim)
    placed = layout.Format(layout.Layout((0, 1)), sharding)
    table = jax.ShapeDtypeStruct(table.shape, 'float32', sharding=placed)
    ids, rows = shape(3000, dtype='int32'), shape(3000, dim)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
      @functools.partial(jax.jit, donate_argnums=0, out_shardings=placed)
      def put(table, ids, rows):
        def body(i, table):
          return row_copies.put(table, ids + i, rows)
        return jax.lax.fori_loop(0, 3, body, table)
      programs = [put.lower(table, ids, rows).compile()]
      programs.append(jax.jit(row_copies.take).lower(table, ids).compile())
      sums = jax.jit(sorted_sums.running_sums)
      programs.append(sums.lower(rows, ids, ids, rows).compile())
    for x in programs:
      assert x.memory_analysis().temp_size_in_bytes < 10e6, (name, dim)
    aliased = programs[0].memory_analysis().alias_size_in_bytes
    assert aliased >= 4 * 500_000 * dim, (name, dim)
"""


@needs_libtpu
@pytest.mark.slow
def test_kernels_that_copy_rows_compile_for_each_generation():
  _python('-c', _COMPILE, 'v4:1x1x1', 'v5e:1x1', 'tpu7x:1x1x1')


@needs_libtpu
def test_what_would_fit():
  command = [
    sys.executable, '-m', 'jaxemb', 'plan', '--topology=v5e:1x1',
    '--vocab=5e7', SYNC, '--config.model.dim=128',
  ]  # fmt: skip
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 2
  assert 'would fit: --topology=v5e:2x2' in done.stderr
  assert done.stderr.count('\n') == 1


@pytest.mark.slow
def test_programs_are_planned_from_data(tmp_path, capsys):
  """With the only compiler that is always there, that for this CPU."""
  import jax

  where = topologies.Topology('cpu', 'v5e', jax.devices()[:1])
  text = tmp_path / 'text.txt'
  pathlib.Path(text).write_text('some words of some text ' * 300)
  config, *_ = main.parse(
    [SYNC, f'--config.data.path={text}', '--config.train.fused=false']
  )
  found = run_plan.examine(run_plan.prepare(where, config))
  assert found['vocab'] == 4 and found['memory']['peak_bytes'] > 0
  assert list(plan.describe(found))[2] == 'copies of whole tables: none'
