"""Errors that a user can cause, apart from bugs.

Every entry point turns a `UserError` into one line on stderr and exit code 2;
anything else that escapes is a bug and keeps its traceback.
"""


class UserError(Exception):
  """Unusable input or configuration.

  The message is one line: what is wrong, where, and what to do.
  """
