"""What NVRTC makes of a source, where it is installed."""

import sys

import pytest

from jaxemb.kernels import ffi
from jaxemb.kernels.gpu import nvrtc

_SOURCE = """
extern "C" __global__ void train(const float* numbers, float* sums) {
  sums[threadIdx.x] += SCALE * numbers[threadIdx.x];
}
"""
GENERATIONS = 75, 80, 86, 89, 90, 100, 120


def _has_nvrtc():
  try:
    nvrtc.library()
  except ffi.Unavailable:
    return False
  return True


needs_nvrtc = pytest.mark.skipif(
  not _has_nvrtc(), reason='needs NVRTC: pip install nvidia-cuda-nvrtc'
)


@needs_nvrtc
@pytest.mark.parametrize('capability', GENERATIONS)
def test_programs_are_compiled_for_each_generation(capability):
  assert nvrtc.cubin(_SOURCE, {'SCALE': 2}, capability)[:4] == b'\x7fELF'


@needs_nvrtc
@pytest.mark.parametrize('damage', [lambda x: x[:-9], lambda x: b'?' + x[1:]])
def test_damaged_programs_are_compiled_again(damage, tmp_path):
  args = _SOURCE, {'SCALE': 2}, 90
  made = nvrtc.cubin(*args, folder=tmp_path)
  (path,) = tmp_path.iterdir()
  kept = path.read_bytes()
  path.write_bytes(damage(kept))
  assert nvrtc.cubin(*args, folder=tmp_path) == made
  assert path.read_bytes() == kept


@needs_nvrtc
def test_programs_are_kept_by_all_that_they_depend_on(tmp_path, monkeypatch):
  folder = tmp_path / 'programs'

  def make(source=_SOURCE, scale=2, capability=90, options=()):
    return nvrtc.cubin(
      source, {'SCALE': scale}, capability, options=options, folder=folder
    )

  programs = [make()]
  for change in (
    {'source': _SOURCE + '\n'}, {'scale': 3}, {'capability': 80},
    {'options': ['--use_fast_math']},
  ):  # fmt: skip
    programs.append(make(**change))
    assert len(list(folder.iterdir())) == len(programs)

  def fail(*args):
    raise AssertionError('compiled again')

  monkeypatch.setattr(nvrtc, '_compiled', fail)
  assert make() == programs[0] and make(scale=3) == programs[2]


@needs_nvrtc
def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
  (tmp_path / 'file').touch()
  folder = tmp_path / 'file' / 'programs'
  assert nvrtc.cubin(_SOURCE, {'SCALE': 2}, 90, folder=folder)


@needs_nvrtc
def test_errors_of_the_compiler_are_one_line():
  with pytest.raises(ffi.Unavailable) as caught:
    nvrtc.cubin(_SOURCE, {}, 90)
  assert 'SCALE' in str(caught.value) and '\n' not in str(caught.value)


@needs_nvrtc
def test_a_gpu_that_is_too_old_is_one_line():
  with pytest.raises(ffi.Unavailable, match='does not compile for sm_61'):
    nvrtc.cubin(_SOURCE, {'SCALE': 2}, 61)


@needs_nvrtc
def test_later_gpus_of_a_generation_run_its_programs():
  library = nvrtc.library()
  assert nvrtc.architecture(library, 109) // 10 == 10
  assert nvrtc.architecture(library, 90) == 90


def test_without_nvrtc_one_line_says_what_to_install(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'path', [str(tmp_path)])
  names = {x: 'lib' + 'none' * x for x in (12, 13)}
  monkeypatch.setattr(nvrtc, '_PACKAGES', names)
  monkeypatch.setattr(nvrtc, '_SYSTEM', 'libnone.so.{}')
  find = nvrtc.library.__wrapped__
  for newest, extra in ((13, 'cuda13'), (12, 'cuda12')):
    with pytest.raises(ffi.Unavailable, match=rf'jax\[{extra}\]'):
      find(newest)
