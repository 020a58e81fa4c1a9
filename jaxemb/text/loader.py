"""Text as a source: written, downloaded or read, and encoded."""

import functools

from jaxemb import errors
from jaxemb.data import base
from jaxemb.data import blocks as blocks_lib
from jaxemb.io import download, roles
from jaxemb.runtime import resources
from jaxemb.text import encode
from jaxemb.text.toywiki import toywiki

# Paths of an embedded corpus of another size, and of downloads.
_EMBEDDED, _WIKIPEDIA = 'toywiki:', 'wikipedia:'

_MOST_FREE_WORDS = 1 << 20  # of a step, however small the text
_BATCHES = 4  # that are prefetched, or in use
_CENTER_BYTES = 6  # of a `windows.Batch`


class TextSource(blocks_lib.BlockSource):
  """An encoded corpus as a `data.base.Source`; progress is in its words."""

  @property
  def inputs(self) -> list[roles.Input]:
    """Returns the files as they were understood, for log and report."""
    return [roles.Input(**x) for x in self.corpus.manifest['inputs']]

  def describe(self) -> list[str]:
    """Returns lines about the corpus for the log."""
    manifest = self.corpus.manifest
    lines = []
    if self.corpus.phrases:
      numbers = ' + '.join(f'{x:,}' for x in manifest['num_phrases'])
      lines.append(
        f'phrases: {numbers} different ones, joined '
        f'{manifest["joined_phrases"]:,} times'
      )
    return [
      f'corpus: {self.corpus.num_words:,} words, vocabulary '
      f'{len(self.keys):,}, {manifest["text_bytes"]:,} bytes of text in '
      f'{self.corpus.folder}',
      f'this process read {manifest["read_bytes"]:,} of '
      f'{manifest["size_bytes"]:,} bytes in {manifest["num_read_files"]} '
      'file(s)',
      *lines,
    ]


def make(spec: base.SourceSpec) -> TextSource:
  """Returns the encoded text that the settings name.

  It is written or downloaded first if needed. Raises a `UserError` for input
  that cannot be used.
  """
  path, cache = spec.path, spec.cache
  written = None
  if not path or path.startswith(_EMBEDDED):
    written = embedded(spec)
    path = str(written.xml)
  elif path.startswith(_WIKIPEDIA):
    name = path.removeprefix(_WIKIPEDIA)
    progress = functools.partial(spec.progress, 'downloading')
    path = str(download.wikipedia(name, cache, progress))
  settings = encode.settings_of(spec.settings)
  corpus = encode.encode(
    path,
    settings,
    cache,
    progress=spec.progress,
    num_parts=spec.num_parts,
    readers=spec.readers,
    known=spec.known,
  )
  check_step(spec, corpus.num_words)

  def eval_paths() -> list[str]:
    sets = written and written.eval_paths
    return list(map(str, sets or toywiki.write_evaluations(cache)))

  return TextSource(corpus, spec, eval_paths)


def embedded(spec: base.SourceSpec) -> toywiki.Corpus:
  """Writes the embedded corpus that the path names, if it is not there."""
  size = spec.path.removeprefix(_EMBEDDED)
  spec.progress('writing the embedded corpus', 0, 1)
  return toywiki.write(spec.cache, int(size or toywiki.DEFAULT_WORDS))


def check_step(spec: base.SourceSpec, num_words: int) -> None:
  """Raises a `UserError` for steps larger than the text or the memory."""
  step = spec.part_words
  if step > max(num_words, _MOST_FREE_WORDS):
    raise errors.UserError(
      f'a step of {step:,} words is more than the text has, {num_words:,} in '
      'its vocabulary; lower --config.train.batch_words'
    )
  if spec.device_words:  # the device is asked when the step is compiled
    return
  parts = len(spec.readers.local_parts)
  needed = (
    _BATCHES * parts * _CENTER_BYTES * blocks_lib.batch_words(spec.part_words)
  )
  if needed > (free := resources.available_bytes()):
    raise errors.UserError(
      f'batches with steps of {step:,} words need {needed / 1e9:,.1f} GB and '
      f'{free / 1e9:,.1f} GB are free; lower --config.train.batch_words'
    )
