"""Set-up shared by all tests: devices, strictness, optional real data."""

import contextlib
import gc
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator

# Threads of NumPy's products wait for each other by spinning: small products,
# such as those of each step of a classifier, took four times the CPU time. It
# reads this as it is loaded, here, by xdist's workers and by what tests start.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
# Ray would run its processes behind those of all other tests, for minutes.
os.environ.setdefault('RAY_worker_niceness', '0')

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

import jaxemb.__main__ as jaxemb_command  # noqa: E402
from jaxemb import errors  # noqa: E402
from jaxemb.run import metrics  # noqa: E402
from tests import compiling  # noqa: E402

_DEVICE_TESTS = pathlib.Path(__file__).parent / 'device'

jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_rank_promotion', 'raise')
# Tracing makes many objects that stay: a tenth of Python's time is looking
# through them.
gc.set_threshold(100_000, 50, 100)

# Examples are the same in every run, and a loaded machine may be slow.
hypothesis.settings.register_profile(
  'jaxemb', deadline=None, derandomize=True, database=None
)
hypothesis.settings.load_profile('jaxemb')


def pytest_addoption(parser: pytest.Parser) -> None:
  """Adds --device; 'cpu' tries the set for a GPU without one."""
  parser.addoption(
    '--device',
    choices=('gpu', 'cpu'),
    metavar='gpu',
    help='run tests/device on a GPU in one process, and nothing else',
  )


def pytest_configure(config: pytest.Config) -> None:
  """Starts JAX; lets all tests and their processes share what they compiled."""
  _start_jax(config.getoption('device'))
  cache = getattr(config, 'cache', None)
  if cache is None or os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    return
  for name, value in (
    ('jax_compilation_cache_dir', str(cache.mkdir('programs'))),
    ('jax_persistent_cache_min_compile_time_secs', 0.0),
  ):
    os.environ[name.upper()] = str(value)
    jax.config.update(name, value)


def _start_jax(device: str | None) -> None:
  """Starts JAX on the CPU, whatever the machine has, or on a GPU.

  The processes that tests start find the same devices.
  """
  if device == 'gpu':
    # Several processes take turns at the memory of the GPU.
    os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
    try:
      jax.devices('gpu')
    except RuntimeError as error:
      raise pytest.UsageError(
        f'--device=gpu: JAX finds no GPU ({errors.one_line(error)}); install '
        'jaxemb[cuda], or leave the option out to test on the CPU'
      ) from error
    return
  os.environ['JAX_PLATFORMS'] = 'cpu'
  jax.config.update('jax_platforms', 'cpu')
  # What runs in processes of its own is compiled as users' programs are, but
  # for experiments and where several processes train.
  jax.config.update('jax_disable_most_optimizations', True)
  with pytest.MonkeyPatch.context() as patch:
    # For this process, not for those that it starts.
    patch.setenv('XLA_FLAGS', compiling.environment()['XLA_FLAGS'])
    jax.jit(lambda: 0)()  # flags are read once


def pytest_ignore_collect(
  collection_path: pathlib.Path, config: pytest.Config
) -> bool | None:
  """Leaves out the set for devices, or all others."""
  if not config.getoption('device'):
    return True if collection_path == _DEVICE_TESTS else None
  is_other = collection_path.is_file() and collection_path.suffix == '.py'
  return True if is_other and collection_path.parent != _DEVICE_TESTS else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
  """As many as cores; one more where slow tests wait for their processes.

  None share a device.
  """
  if config.getoption('device'):
    return 0
  has_slow = 'not slow' not in config.option.markexpr
  return (os.cpu_count() or 1) + has_slow


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Puts whole runs on Ray first: they wait while others compute."""
  items.sort(key=lambda x: x.path.name != 'workers_test.py')


@pytest.fixture(scope='module', autouse=True)
def _forget() -> Iterator[None]:
  """Frees the programs of a module: workers grew to 4 GB."""
  yield
  jax.clear_caches()


@pytest.fixture(scope='session', autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """The cache folder of all runs, of processes that tests start too."""
  folder = tmp_path_factory.mktemp('cache')
  os.environ['JAXEMB_CACHE'] = str(folder)
  return folder


@pytest.fixture
def shared_data() -> pathlib.Path:
  """Folder of real data beside the checkout; skips where it is absent."""
  beside = pathlib.Path(__file__).parents[2] / 'shared' / 'data'
  folder = pathlib.Path(os.environ.get('JAXEMB_TEST_DATA', beside))
  if not folder.is_dir():
    pytest.skip(f'real data not found at {folder}')
  return folder


@pytest.fixture
def command(capsys) -> Callable[[str], tuple[int, str, str]]:
  """Runs a command line: its exit code, what it prints, and its messages."""

  def run(line: str) -> tuple[int, str, str]:
    try:
      code = jaxemb_command.main(line.split())
    except SystemExit as stop:
      code = stop.code
    return code, *capsys.readouterr()

  return run


def _die() -> None:
  raise KeyboardInterrupt


@pytest.fixture
def interrupting(monkeypatch) -> Callable:
  """A context in which runs are killed as a dispatch is counted.

  Its arguments: how many are counted before, and what is done then.
  """

  @contextlib.contextmanager
  def patched(after: int, how: Callable[[], None] = _die) -> Iterator[None]:
    numbers, real = itertools.count(), metrics.Meter.count

    def count(self, *args):
      if next(numbers) == after:
        how()
      real(self, *args)

    with monkeypatch.context() as patch:
      patch.setattr(metrics.Meter, 'count', count)
      yield

  return patched
