"""Where XLA's frames hold what, by the header that comes with jaxlib."""

import pathlib
import re

import jax

from jaxemb.kernels import ffi

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
  offsets = _offsets(_header())
  (base,) = (
    x
    for struct, x in offsets.items()
    if struct.startswith('XLA_FFI_') and 'next' in x and 'type' in x
  )
  assert base['type'] == ffi._KIND
  start = offsets['XLA_FFI_Metadata']['api_version']
  for struct, fields in {
    'CallFrame': {
      'extension_start': ffi._EXTENSION, 'api': ffi._INTERFACE,
      'ctx': ffi._CONTEXT, 'stage': ffi._STAGE, 'args': ffi.ARGUMENTS,
      'rets': ffi.RESULTS, 'attrs': ffi._ATTRIBUTES,
    },
    'Api': {
      'XLA_FFI_ThreadPool_Schedule': ffi._SCHEDULE,
      'XLA_FFI_Error_Create': ffi._CREATE_ERROR,
      'XLA_FFI_Error_Destroy': ffi._DESTROY_ERROR,
      'XLA_FFI_Stream_Get': ffi._STREAM,
    },
    'ThreadPool_Schedule_Args': {'ctx': 16, 'task': 24, 'data': 32},
    'Error_Create_Args': {'message': 16, 'errc': 24},
    'Error_Destroy_Args': {'error': 16},
    'Stream_Get_Args': {'ctx': 16, 'stream': 24},
    'Args': {'size': ffi._SIZE, 'args': ffi._ARRAYS},
    'Rets': {'size': ffi._SIZE, 'rets': ffi._ARRAYS},
    'Attrs': {'attrs': ffi._VALUES},
    'Array': {'size': 8, 'data': ffi._NUMBERS},
    'Buffer': {'data': ffi._DATA, 'dims': ffi._DIMS},
    'Metadata_Extension': {'extension_base': 0, 'metadata': ffi._METADATA},
    'Metadata': {'traits': ffi._TRAITS},
    'Api_Version': {
      'major_version': ffi._MAJOR - start, 'minor_version': ffi._MINOR - start,
    },
  }.items():  # fmt: skip
    found = offsets[f'XLA_FFI_{struct}']
    assert {name: found[name] for name in fields} == fields


def test_constants_are_those_of_the_header():
  text = _header()
  major, minor = ffi._VERSION
  assert _constant(text, 'XLA_FFI_API_MAJOR') == major
  assert _constant(text, 'XLA_FFI_API_MINOR') >= minor
  assert _constant(text, 'XLA_FFI_Extension_Metadata') == ffi._IS_METADATA
  assert _constant(text, 'XLA_FFI_ExecutionStage_EXECUTE') == ffi._EXECUTE
  assert _constant(text, 'XLA_FFI_Error_Code_INTERNAL') == ffi._INTERNAL
