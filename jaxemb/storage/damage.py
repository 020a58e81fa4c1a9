"""What readers of Python's and NumPy's raise for damaged files."""

import tokenize
import zipfile
import zlib

# Beside `OSError`, which may also say that a file is missing or the disk fails.
ERRORS = (
  ValueError,
  LookupError,
  EOFError,
  OverflowError,
  MemoryError,  # of a header that promises more than any machine has
  RecursionError,  # of JSON and of headers with thousands of brackets
  NotImplementedError,  # of archives packed in another way
  tokenize.TokenError,  # of headers of arrays that are cut
  zipfile.BadZipFile,
  zlib.error,
)
