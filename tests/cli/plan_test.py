"""Plans for devices that are not here, and what their compilers make of steps.

Compiled in a process of its own: libtpu starts once in each.
"""

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import types

import jax
import pytest

from jaxemb import errors
from jaxemb.cli import plan
from jaxemb.cli import train as main
from jaxemb.runtime import hlo
from tests import marking

needs_libtpu = pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None,
  reason='needs the extra tpu: pip install jaxemb[tpu]',
)
needs_cuda = pytest.mark.skipif(
  not any(map(plan.has, plan.CUDA_COMPILERS)),
  reason='needs the extra cuda: pip install jaxemb[cuda]',
)
# Topology, dim and words, settings of a plan.
SYNC = '--config.strategy.name=sync'
ROW = '--config.table.layout=row'
CASES = [
  ('v5e:1x1', 100, 1e6, [SYNC]),
  # Tables that would fit in a core's memory.
  ('v5e:2x2', 128, 1e5, [SYNC, ROW]),
  ('v6e:1x1', 300, 1e6, [SYNC, '--config.optimizer.name=adagrad']),
  ('tpu7x:2x2x1', 128, 1e6, [SYNC, ROW]),
  ('v5e:2x2', 300, 1e6, [SYNC, '--config.table.layout=column']),
]


def _plan(path, topology, dim, vocab, flags):
  command = [
    sys.executable, '-m', 'jaxemb.plan', f'--topology={topology}',
    f'--vocab={vocab}', f'--config.model.dim={dim}', f'--json={path}', *flags,
  ]  # fmt: skip
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return json.loads(path.read_text()), done.stdout


@needs_libtpu
@pytest.mark.parametrize(
  ('topology', 'dim', 'vocab', 'flags'),
  [CASES[0], *(marking.slow(*x) for x in CASES[1:])],
)
def test_programs_for_tpus_copy_no_table(topology, dim, vocab, flags, tmp_path):
  found, shown = _plan(tmp_path / 'plan.json', topology, dim, vocab, flags)
  assert found['table_copies_by_loop_depth'] == {}
  assert 'copies of whole tables: none' in shown
  memory = found['memory']
  planned, peak = memory['planned_bytes'], memory['peak_bytes']
  assert planned == pytest.approx(peak, rel=0.05) or peak - planned < 20e6
  held = memory['tables_bytes'] + memory['slots_bytes']
  assert peak < 1.1 * held or peak - held < 40e6
  if ROW in flags:
    assert found['collectives']['all-to-all']
    assert found['sent_bytes_per_word'] > 100
    assert 0 < found['link_share'] < 0.5


GPU_CASES = [
  ('cuda:h100x1', 100, 1e6, [SYNC]),
  ('cuda:h200x1', 128, 1e5, [SYNC, '--config.optimizer.name=adagrad']),
  ('cuda:h100x1', 300, 1e6, [SYNC, '--config.table.dtype=bfloat16']),
  ('cuda:h100x1', 128, 1e6, [SYNC, '--config.table.dtype=int8']),
  ('cuda:h200x8', 128, 1e6, [SYNC, ROW]),
  ('cuda:h200x8', 128, 1e6, [SYNC, ROW, '--config.table.dtype=int8']),
  ('cuda:h200x8', 128, 1e6, [SYNC, '--config.table.layout=column']),
  ('cuda:h200x8', 128, 1e6, ['--config.strategy.name=partition']),
]


@needs_cuda
@pytest.mark.parametrize(
  ('topology', 'dim', 'vocab', 'flags'),
  [
    GPU_CASES[0],
    *(marking.slow(*x) for x in GPU_CASES[1:]),
  ],
)
def test_programs_for_gpus_copy_no_table_and_add_in_order(
  topology, dim, vocab, flags, tmp_path
):
  found, shown = _plan(tmp_path / 'plan.json', topology, dim, vocab, flags)
  assert found['table_copies_by_loop_depth'] == {}
  kernels = found['kernels']
  assert kernels['atomics'] == {} and 'atomic operations: none' in shown
  # Rows that do not fit the first exchange are exchanged in a loop.
  assert kernels['waits_per_step'] == 1 / 16 + (8 if ROW in flags else 0)
  assert 20 < kernels['per_step'] < (200 if ROW in flags else 90)
  memory = found['memory']
  planned, peak = memory['planned_bytes'], memory['peak_bytes']
  assert planned == pytest.approx(peak, rel=0.05) or peak - planned < 80e6


@needs_cuda
def test_the_kernels_of_rows_move_less(tmp_path):
  flags = [SYNC, '--config.train.batch_words=65536']
  both = []
  for more in [], ['--config.train.fused=false']:
    path = tmp_path / 'plan.json'
    found, _ = _plan(path, 'cuda:h200x1', 128, 1e6, flags + more)
    both.append(found)
  own, xla = both
  assert own['kernels']['atomics'] == own['table_copies_by_loop_depth'] == {}
  assert own['rows_per_step'] == xla['rows_per_step']
  assert own['words_per_sec']['kernels'] > 1.9 * xla['words_per_sec']['kernels']
  for x, most in ('bytes_per_step', 0.45), ('per_step', 0.7):
    assert own['kernels'][x] < most * xla['kernels'][x]


@needs_cuda
@pytest.mark.slow
def test_graphsage_adds_in_order_on_gpus(tmp_path):
  args = tmp_path / 'plan.json', 'cuda:h100x1', 16, 0
  found, _ = _plan(*args, ['--config=graphsage', SYNC])
  assert found['kernels']['atomics'] == {}


_SENT = """
import sys
from jaxemb import main, plan
from jaxemb.runtime import hlo
from tests import sending
topology, layout, dim, *settings = sys.argv[1:]
settings = [f'--config.{x}' for x in settings]
settings += ['--config.strategy.name=sync', f'--config.table.layout={layout}']
config, *_ = main.parse([f'--config.model.dim={dim}', *settings])
job = plan.make(plan.topology(topology), config, 200_000)
text = plan.compiled(job, plan.trace(job)).as_text()
found = hlo.traffic(text, job.trainer.strategy.loop)
mesh = job.mesh.shape['data'], job.mesh.shape['table']
args = job.trainer, layout, mesh, job.centers
formula = sending.bytes_per_step(*args)
print(found['bytes_per_step_per_device']['total'] / formula)
"""


@pytest.mark.parametrize(
  'case',
  [
    pytest.param(['v5e:2x4', 'row', '128'], marks=needs_libtpu),
    pytest.param(
      ['v5e:2x4', 'row', '128', 'mesh.data=2', 'mesh.table=4'],
      marks=[needs_libtpu, pytest.mark.slow],
    ),
    pytest.param(
      ['v5e:2x2', 'column', '512'], marks=[needs_libtpu, pytest.mark.slow]
    ),
    pytest.param(
      ['v6e:2x2', 'replicated', '128', 'mesh.data=4'],
      marks=[needs_libtpu, pytest.mark.slow],
    ),
    pytest.param(
      ['cuda:h100x8', 'row', '128'], marks=[needs_cuda, pytest.mark.slow]
    ),
  ],
)
def test_compiled_programs_send_what_the_formula_says(case):
  command = [sys.executable, '-c', _SENT, *case]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-2000:]
  assert float(done.stdout) == pytest.approx(1, abs=0.01)


_ADD = """
import pathlib, sys, tempfile
import jax, numpy as np
from jaxemb import plan
from jaxemb.runtime import gpu
device = plan.topology('cuda:h100x1').devices[:1]
mesh = jax.sharding.Mesh(np.array(device), 'x')
here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
def shape(*sizes, dtype='float32'):
  return jax.ShapeDtypeStruct(sizes, dtype, sharding=here)
args = shape(9000, 128), shape(300, dtype='int32'), shape(300, 128)
for unique in False, True:
  add = jax.jit(lambda x, i, y: x.at[i].add(y, unique_indices=unique))
  with tempfile.TemporaryDirectory() as folder:
    add.lower(*args).compile({'xla_dump_to': folder})
    found = gpu.atomics(pathlib.Path(folder))
  assert bool(found) != unique, found
"""


@needs_cuda
def test_atomic_operations_of_a_gpu_are_seen():
  command = [sys.executable, '-c', _ADD]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-2000:]


_COMPILE = """
import functools, sys
import jax, numpy as np
from jax.experimental import layout
from jaxemb.cli import plan
from jaxemb.kernels.tpu import row_copies, sorted_sums
for name in sys.argv[1:]:
  devices = np.array(plan.topology(name).devices[:1])
  mesh = jax.sharding.Mesh(devices, 'x')
  here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  def shape(*sizes, dtype='float32'):
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=here)
  for dim in 100, 128, 300:
    table = shape(500_000, dim)
    rows = layout.Layout((0, 1))
    placed = layout.Format(rows, here)
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
def test_kernels_that_copy_rows_compile_for_each_generation():
  names = 'v4:1x1x1', 'v5e:1x1', 'v5p:1x1x1', 'v6e:1x1', 'tpu7x:1x1x1'
  command = [sys.executable, '-c', _COMPILE, *names]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-2000:]


def test_cycles_of_a_core_are_counted_by_loops():
  config = '{"estimated_cycles":"100"}'
  target = 'custom_call_target="tpu_custom_call"'
  text = f"""HloModule m, num_partitions=1

%body (p: (s32[], f32[9,4])) -> (s32[], f32[9,4]) {{
  %p = (s32[], f32[9,4]) parameter(0)
  %ids = s32[6] constant(0)
  %t = f32[9,4] get-tuple-element(%p), index=1
  %g = f32[6,4] gather(%t, %ids), slice_sizes={{1,4}}
  %k = f32[9,4] custom-call(%ids, %ids, %g, %t), {target}
  %w = f32[6,256] constant(0)
  %a = (f32[6,256], f32[6,256]) custom-call(%ids, %ids, %w, %w), {target}
  %s = s32[6] sort(%ids), dimensions={{0}}
  %f = f32[9,4] fusion(%k), kind=kLoop, backend_config={config}
  ROOT %r = (s32[], f32[9,4]) tuple(%p, %f)
}}

ENTRY %main (a: (s32[], f32[9,4])) -> (s32[], f32[9,4]) {{
  %a = (s32[], f32[9,4]) parameter(0)
  %b = f32[9,4] fusion(%a), kind=kLoop, backend_config={config}
  ROOT %w = (s32[], f32[9,4]) while(%a), condition=%c, body=%body
}}
"""
  # The loop has two steps in a turn; what is outside counts for none.
  found = plan.core_cycles(text, hlo.Loop(2))
  each = 6 * (5.3 + 4.8 + 11 + 1) + 100
  assert found == pytest.approx(each / 2)


@pytest.mark.parametrize(
  ('dim', 'dtype', 'expected'),
  [(128, 'float32', 512), (100, 'float32', 512), (300, 'bfloat16', 768),
   (16, 'float32', 8192), (16, 'bfloat16', 4096), (1, 'float32', 512)],
)  # fmt: skip
def test_what_a_tpu_reads_for_a_row(dim, dtype, expected):
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  x = jax.ShapeDtypeStruct((1000, dim), dtype, sharding=here)
  assert plan.row_bytes(x, True) == expected
  assert plan.row_bytes(x, False) == dim * x.dtype.itemsize


def test_zipf_counts_fall():
  counts = plan.zipf_counts(1000)
  assert len(counts) == 1000 and counts.min() >= 1
  assert (counts[1:] <= counts[:-1]).all()


@pytest.mark.parametrize('name', ['', 'v5e', 'v5e:3x3', 'cuda:h200x3', 'v6e-8'])
def test_a_topology_that_does_not_exist(name):
  with pytest.raises(errors.UserError) as error:
    plan.topology(name)
  line = str(error.value)
  assert '\n' not in line and 'v5e: 1x1 2x2' in line and 'h200x8' in line


@pytest.mark.parametrize(
  ('name', 'extra'), [('v5e:2x4', 'tpu'), ('cuda:h200x8', 'cuda')]
)
def test_a_compiler_that_is_missing(monkeypatch, name, extra):
  monkeypatch.setattr(plan, 'has', lambda module: False)
  with pytest.raises(errors.UserError, match=f'pip install .jaxemb.{extra}'):
    plan.topology(name)


@pytest.mark.parametrize('version', ['0.0.17', '0.0.421'])
def test_a_compiler_of_another_version(monkeypatch, version):
  monkeypatch.setattr(plan, 'has', lambda module: True)
  monkeypatch.setattr(importlib.metadata, 'version', lambda name: version)
  wanted = ['numpy>=1; extra == "tpu"', 'libtpu==0.0.42.*; extra == "tpu"']
  monkeypatch.setattr(importlib.metadata, 'requires', lambda name: wanted)
  with pytest.raises(errors.UserError) as error:
    plan.topology('v5e:1x1')
  line = str(error.value)
  assert f'libtpu {version} is installed' in line and 'needs 0.0.42;' in line
  assert '\n' not in line and "pip install --upgrade 'jaxemb[tpu]'" in line


def test_several_topologies_are_compared(monkeypatch, capsys, tmp_path):
  def examine(job):
    memory = {'device_bytes': 17e9, 'peak_bytes': 2e9}
    rate = {'v5e:1x1': 3e6, 'v5e:2x2': 9e6}[job]
    rates = {'memory': 2 * rate, 'core': rate}
    return {
      'topology': job, 'memory': memory, 'words_per_sec': rates,
      'unit': 'words', 'idle_devices': 0,
    }  # fmt: skip

  def make(where, config, num_words):
    if where.name == 'v4:1x1x1':
      raise errors.UserError('has 17 GB; would fit: v4:2x2x1')
    return where.name

  def topology(name):
    shape = name.partition(':')[2]
    return plan.Topology(name, 'v5e', range(eval(shape.replace('x', '*'))))

  held = plan.Held(10**9, 0, 0, 0)
  for name, value in {'examine': examine, 'make': make, 'topology': topology,
                      'held': lambda job: held}.items():  # fmt: skip
    monkeypatch.setattr(plan, name, value)
  path = tmp_path / 'plans.json'
  names = 'v4:1x1x1,v5e:1x1, v5e:2x2'
  assert plan.main([f'--topology={names}', f'--json={path}']) == 0
  *_, small, large, last = capsys.readouterr().out.splitlines()
  assert '3.0 M words/s, by core' in small and '9.0 M' in large
  assert last == 'fewest devices: v5e:1x1; most for each device: v5e:1x1'
  found = json.loads(path.read_text())
  assert [x['all_devices'] for x in found] == [1, 1, 4]
  assert 'v4:2x2x1' in found[0]['obstacle']


def test_a_number_of_words_that_is_none(capsys):
  assert plan.main(['--topology=v5e:1x1', '--vocab=many']) == 2
  assert 'such as 1e6' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('setting', 'message'),
  [
    ('table.store=memory', 'without it and config.table.store all rows'),
    ('table.device_bytes=1MB', 'config.table.device_bytes says'),
    ('strategy.name=workers', '--config.strategy.name=sync'),
    ('data.source=graph', '--vocab is of words'),
  ],
)
def test_what_is_not_planned_is_told(setting, message):
  where = plan.Topology('v5e:1x1', 'v5e', ())
  config, *_ = main.parse([f'--config.{setting}'])
  with pytest.raises(errors.UserError, match=message) as error:
    plan.make(where, config, 1000)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  ('met', 'expected'),
  [({}, 'v5e:2x2 with --config.table.layout=row '),
   ({'x': None}, 'v5e:1x1 with --config.table.layout=replicated ')],
)  # fmt: skip
def test_what_fits_without_the_rows_of_a_meeting(met, expected):
  config, *_ = main.parse(['--config.strategy.name=replicas'])
  job = types.SimpleNamespace(
    topology=plan.Topology('v5e:2x2', 'v5e', range(4)),
    config=config,
    mesh=types.SimpleNamespace(shape={'table': 1}),
    state=types.SimpleNamespace(met=met),
  )
  with pytest.raises(errors.UserError) as error:
    plan.check_fits(job, 20e9)
  line = f'--topology={expected}--config.strategy.name=sync; or lower'
  assert line in str(error.value)


@needs_libtpu
def test_what_would_fit(tmp_path):
  command = [
    sys.executable, '-m', 'jaxemb', 'plan', '--topology=v5e:1x1',
    '--vocab=5e7', SYNC, '--config.model.dim=128',
  ]  # fmt: skip
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 2
  assert 'would fit: --topology=v5e:2x2' in done.stderr
  assert done.stderr.count('\n') == 1
