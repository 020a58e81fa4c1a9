"""Numbers of file formats, and what happens to files of other numbers.

Each format of a file that jaxemb writes and reads again has a number, which
grows when an earlier version would misread the file. The module of the writer
declares it as a `Format`. A file has the number as `format` in its JSON, and as
`jaxemb` the version that wrote it. Files without a number are of format 1.
"""

import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jaxemb
from jaxemb import errors

_MAX_CHARS = 20  # of a version


class Format(NamedTuple):
  """A format of files, and which of its numbers this version reads."""

  content: str  # what such a file has, with an article
  number: int  # of what this version writes
  remedy: str  # for files that are too old
  oldest: int = 0  # number that is still read; 0 = `number` alone

  def stamp(self) -> dict[str, Any]:
    """Returns what a file says of its format."""
    return {'format': self.number, 'jaxemb': jaxemb.__version__}

  def check(
    self, path: pathlib.Path | str | os.PathLike, record: Mapping[str, Any]
  ) -> dict[str, Any]:
    """Returns a record of the file or folder `path` without its stamp.

    Raises a `UserError` if this version does not read files of its number, and
    a `ValueError` if that is no number or the record no JSON object.
    """
    if not isinstance(record, Mapping):
      raise ValueError('it has no JSON object')
    number = record.get('format', 1)
    if type(number) is not int or number < 1:
      raise ValueError(f'its format {str(number)[:_MAX_CHARS]!r} is no number')
    oldest = self.oldest or self.number
    if oldest <= number <= self.number:
      return {k: x for k, x in record.items() if k not in self.stamp()}
    writer = ''
    if 'jaxemb' in record:
      writer = f', written by jaxemb {str(record["jaxemb"])[:_MAX_CHARS]!r}'
    known = f'{oldest} to {self.number}' if oldest < self.number else oldest
    remedy = 'upgrade jaxemb' if number > self.number else self.remedy
    raise errors.UserError(
      f'{path} has {self.content} of format {number}{writer}, and jaxemb '
      f'{jaxemb.__version__} reads format {known}; {remedy}'
    )


# Of config.json, and with it of all that a run keeps beside its checkpoints and
# export: metrics.jsonl, evaluation.jsonl, best/, parts/*/part.json.
RUN = Format(
  'a run', number=1, remedy='go on with that version, or give another folder'
)
