"""How tests compile: as quickly as can be had, where only results count.

Most of what tests take is XLA. LLVM's optimizations take longer than what they
are for, and loops that are made by MLIR half as long again as by the other way
that XLA had for CPUs until jax 0.11. What is read of a compiled program is to
be as users' programs are.
"""

import jax

_HAS_OTHER_LOOPS = jax.__version_info__ < (0, 11)

# Options of a program that is to be read.
AS_USERS_DO = {'xla_cpu_use_fusion_emitters': True} if _HAS_OTHER_LOOPS else {}
# Of a process.
XLA_FLAGS = '--xla_cpu_use_fusion_emitters=false' if _HAS_OTHER_LOOPS else ''
ENVIRONMENT = {'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'} | (
  {'XLA_FLAGS': XLA_FLAGS} if XLA_FLAGS else {}
)
