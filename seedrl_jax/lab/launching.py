"""Runs the programs of launch/ as processes that end with this one."""

import contextlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from seedrl_jax.runtime import bound_child

LAUNCH = pathlib.Path(__file__).parents[1] / 'launch'


def start(
  program: str, arguments: Sequence[str], processors: str = '', **options: Any
) -> subprocess.Popen[Any]:
  """Starts a program.

  Args:
    program: name of its file, such as 'train'.
    processors: for `bound_child`.
    options: for `subprocess.Popen`.
  """
  command = [sys.executable, str(LAUNCH / f'{program}.py'), *arguments]
  bound = [sys.executable, bound_child.__file__, str(os.getpid()), processors]
  return subprocess.Popen([*bound, *command], **options)


@contextlib.contextmanager
def running(
  program: str, arguments: Sequence[str], **options: Any
) -> Iterator[subprocess.Popen[Any]]:
  """Yields a program as `start` does, and terminates it at the end."""
  with start(program, arguments, **options) as process:
    try:
      yield process
    finally:
      process.terminate()
