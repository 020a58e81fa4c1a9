"""Prefetch instructions for functions of numba.

A cache line that is requested while other work goes on is there when it is
read: with many reads under way, nothing waits for each of them.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE = 64  # bytes of a line of the cache


def _prefetch(writes):
  """Returns an intrinsic that requests the cache line of any address."""

  @intrinsic
  def prefetch(typing_context, address):
    def generate(context, builder, signature, args):
      number = ir.IntType(32)
      pointer = builder.inttoptr(args[0], cgutils.voidptr_t)
      form = ir.FunctionType(ir.VoidType(), [pointer.type, *[number] * 3])
      function = cgutils.get_or_insert_function(
        builder.module, form, 'llvm.prefetch.p0'
      )
      # Kept in all caches, data.
      builder.call(function, [pointer, *map(number, (writes, 3, 1))])
      return context.get_dummy_value()

    return types.void(types.uintp), generate

  return prefetch


prefetch_to_read, prefetch_to_write = _prefetch(0), _prefetch(1)
