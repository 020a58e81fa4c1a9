"""Has numba optimize what it compiles once, as one module.

numba optimizes each function, and everything that it calls, once more for every
caller, and makes machine code of each, which only Python would call. In a
process that compiles a kernel this is a fifth of the time.
"""

import contextlib
import gc
import os
import sys
from typing import Any

from numba.core import codegen, config, ir


class _Library(codegen.JITCodeLibrary):
  """A library that is linked to its callers as it was generated."""

  def get_pointer_to_function(self, name: str) -> int:
    """Returns the address of a function, 0 if it is not here."""
    if not (self._finalized or _defines(self._final_module, name)):
      return 0  # numba asks for Python's door to a function that has none
    return super().get_pointer_to_function(name)

  def add_linking_library(self, library: '_Library') -> None:
    """Adds a library to be linked, without having it optimized."""
    self._linking_libraries.append(library)

  def finalize(self) -> None:
    """Links all that is called, then optimizes it."""
    self._codegen._check_llvm_bugs()
    self._raise_if_finalized()
    for library in _all_called(self):
      self._reload_init.update(library._reload_init)
      module = library._get_module_for_linking()
      self._final_module.link_in(module, preserve=True)
    self._optimize_final_module()
    self._final_module.verify()
    self._finalize_final_module()

  def _optimize_functions(self, module: Any) -> None:
    # Only the module that they become part of is.
    module.data_layout = self._codegen._data_layout

  def _optimize_final_module(self) -> None:
    # Once; numba has a first round, which prepares to prune reference counts.
    passes, builder = self._codegen._module_pass_manager()
    passes.run(self._final_module, builder)

  def _get_module_for_linking(self) -> Any:
    if shared := self._shared_module:  # type: ignore[has-type] # of numba
      return shared
    if self._finalized:
      return super()._get_module_for_linking()
    module = self._final_module.clone()
    for function in module.functions:
      is_external = function.linkage == codegen.ll.Linkage.external
      if is_external and not function.is_declaration:
        function.linkage = 'linkonce_odr'
    self._shared_module = module
    return module


def _defines(module, name):
  try:
    return not module.get_function(name).is_declaration
  except NameError:
    return False


def _all_called(library):
  """Libraries that one calls, callers first: LLVM links what is called."""
  seen, order = set(), []

  def visit(caller):
    for called in caller._linking_libraries:
      if called not in seen:
        seen.add(called)
        visit(called)
        order.append(called)

  visit(library)
  return reversed(order)


def hurry() -> None:
  """Has numba compile quickly, in a process that does nothing else."""
  gc.disable()  # a seventh of the time, for garbage that ends with the process
  # numba imports it, .15 s, for products of matrices, which nothing here has.
  modules: dict[str, Any] = sys.modules
  modules.setdefault('scipy.linalg', None)
  config.reload_config = lambda: None  # it looks for a file with each function
  ir.Loc.strformat = lambda *_: ''  # of errors, which numba has caught mostly
  with contextlib.suppress(AttributeError):  # of another numba
    install()


def leave() -> None:
  """Ends the process, of which Python would free the garbage for .5 s."""
  os._exit(0)


def install() -> None:
  """Makes all that numba compiles in this process, from now on, one module."""
  target = codegen.JITCPUCodegen
  set_env = target.set_env

  def set_compiled(self, env_name: str, env: Any) -> None:
    # What Python cannot call is not compiled, and raises nothing.
    if self._engine.is_symbol_defined(env_name):
      set_env(self, env_name, env)

  target._library_class, target.set_env = _Library, set_compiled
