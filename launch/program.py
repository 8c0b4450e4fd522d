"""Runs the programs of this folder."""

from collections.abc import Callable, Sequence
from typing import Any

from absl import app

from seedrl_jax.runtime import process


def run(
  main: Callable[[Sequence[str]], Any],
  flags_parser: Callable[[list[str]], list[str]] = app.parse_flags_with_usage,
  huge_pages: bool = False,
) -> None:
  """Runs `main` with the process's command line.

  The outputs may be missing, closed early, or lack characters. `huge_pages`
  restarts the process with huge pages.
  """
  process.ensure_outputs()
  if huge_pages:
    process.restart_with_huge_pages()
  try:
    app.run(main, flags_parser=flags_parser)
  finally:
    process.drop_unread()
