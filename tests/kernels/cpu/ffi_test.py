"""Where XLA's frames hold what, by the header that comes with jaxlib."""

import pathlib
import re

import jax

from jaxemb.kernels.cpu import ffi

_POINTER = 8
_SIZES = {'size_t': 8, 'int64_t': 8, 'int': 4, 'int32_t': 4, 'uint32_t': 4}


def _header():
  path = pathlib.Path(jax.ffi.include_dir(), 'xla/ffi/api/c_api.h')
  text = re.sub(r'//.*', '', path.read_text())
  return re.sub(r'_XLA_FFI_API_STRUCT_FIELD\((\w+)\);', r'void* \1;', text)


def _structs(text):
  """Of each struct by name, (type, name) of its fields."""
  found = re.findall(r'struct (XLA_FFI_\w+) \{([^{}]*)\}', text)
  field = re.compile(r'([\w ]+?(?:\s*\*+)?)\s*\b(\w+);')
  return {name: field.findall(body) for name, body in found}


def _offsets(text):
  """Of each struct by name, the offset of each field, and in all, in bytes."""
  sizes, offsets = dict(_SIZES), {}
  sizes |= dict.fromkeys(re.findall(r'typedef enum \{[^}]*\} (\w+);', text), 4)
  sizes |= {y: sizes[x] for x, y in re.findall(r'typedef (\w+) (\w+);', text)
            if x in sizes}  # fmt: skip
  for struct, fields in _structs(text).items():
    end, places = 0, {}
    for kind, name in fields:
      size = _POINTER if '*' in kind else sizes.get(kind.split()[-1])
      if size is None:
        break  # what no handler reads
      alignment = min(size, 8)
      places[name] = -(-end // alignment) * alignment
      end = places[name] + size
    offsets[struct] = places
    sizes[struct] = -(-end // 8) * 8
  return offsets


def _constant(text, name):
  return int(re.search(rf'\b{name}\s*=?\s*(\d+)', text)[1])


def test_frames_have_the_layout_that_is_read():
  text = _header()
  offsets = _offsets(text)
  frame = offsets['XLA_FFI_CallFrame']
  assert frame['extension_start'] == ffi._EXTENSION
  assert frame['api'] == ffi._INTERFACE and frame['ctx'] == ffi._CONTEXT
  interface = offsets['XLA_FFI_Api']
  assert interface['XLA_FFI_ThreadPool_Schedule'] == ffi._SCHEDULE
  assert interface['XLA_FFI_Error_Destroy'] == ffi._DESTROY_ERROR
  asked = offsets['XLA_FFI_ThreadPool_Schedule_Args']
  assert list(asked.values()) == [0, 8, 16, 24, 32]
  assert list(asked)[2:] == ['ctx', 'task', 'data']
  assert list(offsets['XLA_FFI_Error_Destroy_Args'])[2:] == ['error']
  assert frame['stage'] == ffi._STAGE
  assert (frame['args'], frame['rets']) == (ffi.ARGUMENTS, ffi.RESULTS)
  for struct, name in (('XLA_FFI_Args', 'args'), ('XLA_FFI_Rets', 'rets')):
    assert offsets[struct][name] == ffi._ARRAYS
  buffer = offsets['XLA_FFI_Buffer']
  assert (buffer['data'], buffer['dims']) == (ffi._DATA, ffi._DIMS)
  extension = offsets['XLA_FFI_Metadata_Extension']
  assert extension['extension_base'] == 0
  assert extension['metadata'] == ffi._METADATA
  (base,) = (
    places
    for struct, places in offsets.items()
    if struct.startswith('XLA_FFI_') and 'next' in places and 'type' in places
  )
  assert base['type'] == ffi._KIND
  metadata, version = (
    offsets[f'XLA_FFI_{x}'] for x in ('Metadata', 'Api_Version')
  )
  start = metadata['api_version']
  assert start + version['major_version'] == ffi._MAJOR
  assert start + version['minor_version'] == ffi._MINOR
  assert metadata['traits'] == ffi._TRAITS


def test_constants_are_those_of_the_header():
  text = _header()
  major, minor = ffi._VERSION
  assert _constant(text, 'XLA_FFI_API_MAJOR') == major
  assert _constant(text, 'XLA_FFI_API_MINOR') >= minor
  assert _constant(text, 'XLA_FFI_Extension_Metadata') == ffi._IS_METADATA
  assert _constant(text, 'XLA_FFI_ExecutionStage_EXECUTE') == ffi._EXECUTE
