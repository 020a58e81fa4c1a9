"""Devices that are not here: their memory, shapes and compilers."""

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies as jax_topologies

from jaxemb import errors

# Modules that compile for GPUs: any one of them does.
CUDA_COMPILERS = 'jax_plugins.xla_cuda13', 'jax_plugins.xla_cuda12'


class Chip(NamedTuple):
  """A device as its maker describes it."""

  gigabytes: float
  shapes: tuple[str, ...]  # topologies
  # What XLA wants to know of a GPU.
  gpu_name: str = ''
  memory_gbps: float = 0.0  # bytes


_SMALL = tuple('1x1 2x2 4x4'.split())
_FLAT = tuple('1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16'.split())
_CUBES = tuple('1x1x1 2x2x1 2x2x2 2x2x4 2x4x4 4x4x4'.split())
_H100, _H200 = (
  tuple(f'{gpu}x{n}' for n in (1, 2, 4, 8)) for gpu in ('h100', 'h200')
)
CHIPS = {
  'v2': Chip(8.6, _SMALL),
  'v3': Chip(17.2, _SMALL),
  'v4': Chip(17.2, _CUBES),
  'v5e': Chip(17.2, _FLAT),
  'v5p': Chip(102.0, _CUBES),
  'v6e': Chip(34.4, _FLAT),
  'tpu7x': Chip(103.0, _CUBES),
  'h100': Chip(85.0, _H100, 'NVIDIA H100 80GB HBM3', memory_gbps=3350),
  'h200': Chip(151.0, _H200, 'NVIDIA H200 141GB HBM3e', memory_gbps=4800),
}

# XLA's description of a Hopper GPU, from published figures.
_HOPPER = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 threads_per_core_limit: 2048
  core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  memory_bandwidth: {bandwidth} l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: {num_bytes}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  device_address_bits: 64 driver_version: "12.8.0"
  runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0"
  cuda_compute_capability {{ major: 9 }}
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability 9.0" name: "{name}"
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{name}"
"""


class Topology(NamedTuple):
  """Devices that are not here."""

  name: str
  kind: str  # of `CHIPS`
  devices: Sequence[Any]

  @property
  def chip(self) -> Chip:
    """One of the devices."""
    return CHIPS[self.kind]


def known() -> list[str]:
  """Returns the names of all topologies."""
  return [
    f'cuda:{x}' if chip.gpu_name else f'{kind}:{x}'
    for kind, chip in CHIPS.items()
    for x in chip.shapes
  ]


def topology(name: str) -> Topology:
  """Returns the devices of a name; starts JAX on the CPU.

  Raises a `UserError` for one that is not known, or whose compiler is missing.
  """
  if name not in known():
    lines: dict[str, list[str]] = {}
    for x in known():
      lines.setdefault(x.partition(':')[0], []).append(x.partition(':')[2])
    names = '; '.join(f'{k}: {" ".join(x)}' for k, x in lines.items())
    raise errors.UserError(
      f'there is no topology {name!r}; give --topology=KIND:SHAPE, of {names}'
    )
  kind, _, shape = name.partition(':')
  is_tpu = kind != 'cuda'
  extra = 'tpu' if is_tpu else 'cuda'
  if not any(map(has, ('libtpu',) if is_tpu else CUDA_COMPILERS)):
    raise errors.UserError(
      f'{name} needs the compiler of the extra {extra}: pip install '
      f"'jaxemb[{extra}]'"
    )
  if is_tpu:
    _check_version(name)
    options: dict[str, Any] = {'platform': 'tpu', 'topology_name': name}
    if set(shape) <= set('1x'):
      options['topology_name'] = f'{kind}:1x1x1'
      options |= {'chips_per_host_bounds': (1, 1, 1), 'num_slices': 1}
  else:
    kind, _, num = shape.rpartition('x')
    options = {'platform': 'cuda', 'topology': f'1x1x{num}'}
    options['target_config'] = _HOPPER.format(
      bandwidth=round(CHIPS[kind].memory_gbps * 1e9),
      num_bytes=round(CHIPS[kind].gigabytes * 1e9),
      name=CHIPS[kind].gpu_name,
    )
  # libtpu asks the cloud what it runs on, and is for one process at a time,
  # unless it is told otherwise.
  for prefix in 'TPU_MIN', 'TPU_STDERR', 'TF_CPP_MIN':
    os.environ.setdefault(f'{prefix}_LOG_LEVEL', '3')
  for key in 'TPU_SKIP_MDS_QUERY', 'ALLOW_MULTIPLE_LIBTPU_LOAD':
    os.environ.setdefault(key, '1')
  jax.config.update('jax_platforms', 'cpu')
  try:
    with silent_compilers():
      devices = jax_topologies.get_topology_desc(**options).devices
  except Exception as error:
    raise errors.UserError(
      f'the compiler of the extra {extra} does not know {name}: '
      f'{errors.one_line(error)}; install a newer one'
    ) from error
  return Topology(name, kind, devices)


def has(module: str) -> bool:
  """Returns whether a module is installed."""
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:
    return False


def _check_version(name: str) -> None:
  """Raises a `UserError` for another libtpu than that of this JAX."""
  try:
    installed = importlib.metadata.version('libtpu')
  except importlib.metadata.PackageNotFoundError:
    return  # built by hand
  requirements = ''.join(importlib.metadata.requires('jax') or [])
  wanted = re.search(r'libtpu==([\d.]+?)[.*]*;', requirements)
  if wanted and not f'{installed}.'.startswith(f'{wanted[1]}.'):
    raise errors.UserError(
      f'{name}: libtpu {installed} is installed, and JAX '
      f'{importlib.metadata.version("jax")} needs {wanted[1]}; pip install '
      "--upgrade 'jaxemb[tpu]'"
    )


@contextlib.contextmanager
def silent_compilers() -> Iterator[None]:
  """Keeps warnings that there is no device off stderr."""
  sys.stderr.flush()
  saved = os.dup(2)
  with tempfile.TemporaryFile() as file:
    os.dup2(file.fileno(), 2)
    try:
      yield
    finally:
      os.dup2(saved, 2)
      os.close(saved)
