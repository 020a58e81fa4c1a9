"""How tests compile: as quickly as can be had, where only results count.

Most of what tests take is XLA. LLVM's optimizations take longer than what they
are for; and until jax 0.11 XLA for CPUs has a way to make loops that takes two
thirds of the time of the usual one. It scatters by a loop over rows, so what is
read of a compiled program, and how rows of few bits are scattered, is tested
with programs that are made as users' are. XLA also cuts programs into up to 32
pieces that threads compile, which takes a tenth more of all cores' time; they
are busy with other tests.
"""

import os

import jax

_HAS_OTHER_LOOPS = jax.__version_info__ < (0, 11)

# Of a program.
AS_USERS_DO = {'xla_cpu_use_fusion_emitters': True} if _HAS_OTHER_LOOPS else {}
# Of a process.
_LOOPS = ' --xla_cpu_use_fusion_emitters=false' if _HAS_OTHER_LOOPS else ''
XLA_FLAGS = '--xla_cpu_parallel_codegen_split_count=1' + _LOOPS
WITHOUT_OPTIMIZATIONS = {'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'}


def text(lowered: jax.stages.Lowered) -> str:
  """A program as users have it."""
  return lowered.compile(compiler_options=AS_USERS_DO).as_text()


def environment(*flags: str) -> dict[str, str]:
  """This process's, for one that is to compile quickly, with flags for XLA."""
  given = os.environ.get('XLA_FLAGS', '')
  flags = ' '.join([given, *flags, XLA_FLAGS]).strip()
  return {**os.environ, **WITHOUT_OPTIMIZATIONS, 'XLA_FLAGS': flags}
