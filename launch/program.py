"""Runs the programs of this folder."""

import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from absl import app
from absl import logging as absl_logging

from seedrl_jax.runtime import process


def run(
  main: Callable[[Sequence[str]], Any],
  flags_parser: Callable[[list[str]], list[str]] = app.parse_flags_with_usage,
  huge_pages: bool = False,
) -> None:
  """Runs `main` with the process's command line.

  The outputs may be missing, closed early, or lack characters. Errors and log
  messages have their control characters escaped. `huge_pages` restarts the
  process with huge pages.
  """
  process.ensure_outputs()
  if huge_pages:
    process.restart_with_huge_pages()
  absl_logging.get_absl_handler().setFormatter(_Formatter())
  sys.excepthook = lambda *error: process.write(
    sys.stderr, ''.join(traceback.format_exception(*error))
  )
  try:
    app.run(main, flags_parser=flags_parser)
  except SystemExit as e:
    if isinstance(e.code, str):
      process.write(sys.stderr, e.code + '\n')
      sys.exit(1)
    raise
  finally:
    process.drop_unread()


class _Formatter(absl_logging.PythonFormatter):
  def format(self, record: logging.LogRecord) -> str:
    return process.printable(super().format(record))
