"""Settings: defaults, checks, and what is chosen where they leave it open."""

from jaxemb.config.checks import check, default
from jaxemb.config.files import load
from jaxemb.config.kinds import check_replaced, find, settings
from jaxemb.config.resolve import (
  Tuning,
  can_fuse,
  fitted_batch_words,
  fitted_passes,
  left_open,
  resolve,
  thread_words,
  with_step,
)
from jaxemb.config.schema import Setting, flat, room_bytes, sizes

__all__ = [
  'Setting',
  'Tuning',
  'can_fuse',
  'check',
  'check_replaced',
  'default',
  'find',
  'fitted_batch_words',
  'fitted_passes',
  'flat',
  'left_open',
  'load',
  'resolve',
  'room_bytes',
  'settings',
  'sizes',
  'thread_words',
  'with_step',
]
