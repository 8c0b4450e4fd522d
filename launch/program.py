"""Runs the programs of this folder."""

import contextlib
import logging
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags
from absl import logging as absl_logging

from seedrl_jax.runtime import process

NAME = pathlib.Path(sys.argv[0]).stem

_convert = flags.IntegerParser.convert


def _whole_number(parser: flags.IntegerParser, argument: Any) -> int:
  """Converts a flag's text, also 1e5 and 1_000_000."""
  try:
    return _convert(parser, argument)
  except ValueError:
    with contextlib.suppress(ValueError):
      if (value := float(argument)).is_integer():
        return int(value)
    raise


# For flags of integers and keys of configurations alike.
flags.IntegerParser.convert = _whole_number  # type: ignore[assignment]


class CheckpointParser(flags.ArgumentParser):
  """Parses the number of a checkpoint, or 'best'."""

  def parse(self, argument: Any) -> int | str:
    return argument if argument == 'best' else int(argument)


def parse_flags(argv: list[str]) -> list[str]:
  """Parses the command line; exits with a message if it is wrong."""
  try:
    return flags.FLAGS(argv)
  except flags.Error as e:
    sys.exit(f'{NAME}: {str(e).removeprefix("flag ")}')
  except SystemExit:
    # The help was printed, after which absl exits with 1.
    sys.exit()


def parse_workdirs(argv: list[str]) -> list[str]:
  """Parses as `parse_flags`; other arguments are values of --workdir."""
  name, *folders = parse_flags(argv)
  flag = flags.FLAGS['workdir']
  if isinstance(flag.value, list):
    flag.value = [*flag.value, *folders]
  elif len(folders) == 1 and not flag.value:
    (flag.value,) = folders
  else:
    refuse_arguments([name, *folders])
  return [name]


def refuse_arguments(argv: Sequence[str], hint: str = '') -> None:
  """Exits with a message if there are arguments that are no flags."""
  if len(argv) > 1:
    sys.exit(f'{NAME}: unexpected arguments: {" ".join(argv[1:])}{hint}')


def start(
  main: Callable[[], Any],
  flags_parser: Callable[[list[str]], list[str]] = parse_flags,
  errors: tuple[type[BaseException], ...] = (ValueError,),
) -> None:
  """Runs a program that takes only flags; see `run`.

  The message of one of `errors` suffices for the user.
  """

  def call(argv: Sequence[str]) -> None:
    refuse_arguments(argv)
    try:
      main()
    except errors as e:
      sys.exit(f'{NAME}: {e}')
    except KeyboardInterrupt:
      sys.exit(f'{NAME}: interrupted')

  run(call, flags_parser)


def run(
  main: Callable[[Sequence[str]], Any],
  flags_parser: Callable[[list[str]], list[str]] = parse_flags,
  huge_pages: bool = False,
) -> None:
  """Runs `main` with the process's command line.

  The outputs may be missing, closed early, or lack characters. Errors and log
  messages have their control characters escaped. `huge_pages` restarts the
  process with huge pages.
  """
  for name, number in ('stdout', 1), ('stderr', 2):
    if getattr(sys, name) is None:
      # Otherwise the first file that is opened would get its number.
      os.dup2(os.open(os.devnull, os.O_WRONLY), number)
      setattr(sys, name, os.fdopen(number, 'w'))
    getattr(sys, name).reconfigure(errors='backslashreplace')
  if huge_pages:
    process.restart_with_huge_pages()
  absl_logging.get_absl_handler().setFormatter(_Formatter())
  sys.excepthook = lambda *error: process.write_error(
    ''.join(traceback.format_exception(*error)).rstrip('\n')
  )
  try:
    app.run(main, flags_parser=flags_parser)
  except SystemExit as e:
    if isinstance(e.code, str):
      process.write_error(e.code)
      sys.exit(1)
    raise
  finally:
    process.drop_unread()


class _Formatter(absl_logging.PythonFormatter):
  def format(self, record: logging.LogRecord) -> str:
    return process.printable(super().format(record))
