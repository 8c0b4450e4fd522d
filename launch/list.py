"""Lists environments, configurations or agents: `seedrl list envs [PATTERN]`.

  seedrl list envs '*Pong*'    ids for --config.env.id
  seedrl list configs lander   names for --config
  seedrl list agents

A pattern without * or ? matches anywhere, in upper or lower case.
"""

import ast
import contextlib
import fnmatch
import os
import sys
from collections.abc import Callable, Iterable, Sequence

from absl import app

from seedrl_jax.envs import factory, registry, trust
from seedrl_jax.launch import config_flag, program
from seedrl_jax.runtime import config_files, process


def _configs() -> Iterable[tuple[str, str]]:
  """Yields configurations and the first lines of their docstrings."""
  for name in config_files.names():
    tree = ast.parse((config_files.FOLDER / f'{name}.py').read_text())
    yield name, (ast.get_docstring(tree) or '').partition('\n')[0]


def _agents() -> list[tuple[str, str]]:
  configs = config_flag.shipped().items()
  return [
    (agent, ', '.join(name for name, x in configs if x.agent == agent))
    for agent in trust.AGENTS
  ]


def _envs() -> Iterable[tuple[str, str]]:
  """Yields ids of EnvPool, of suites that are installed, and of Gymnasium."""
  # The suites import JAX, which needs no accelerator here.
  os.environ['JAX_PLATFORMS'] = 'cpu'
  for source in factory.SOURCES:
    text = 'in JAX' if source in factory.SUITES else ''
    with contextlib.suppress(registry.MissingLibraryError):
      yield from ((name, text) for name in factory.ids(source))


_KINDS: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
  'envs': _envs,
  'configs': _configs,
  'agents': _agents,
}


def main(argv: Sequence[str]) -> None:
  """Prints the names that match; exits with 1 if there are none."""
  if len(argv) not in (2, 3) or argv[1] not in _KINDS:
    raise app.UsageError(f'Give one of {", ".join(_KINDS)}, and a pattern.')
  pattern = (argv[2] if len(argv) == 3 else '*').lower()
  if not {*pattern} & {*'*?'}:
    pattern = f'*{pattern}*'
  rows = [
    row for row in _KINDS[argv[1]]() if fnmatch.fnmatch(row[0].lower(), pattern)
  ]
  width = max((len(name) for name, _ in rows), default=0)
  for name, text in rows:
    process.say(f'{name:{width}}  {text}'.rstrip())
  if not rows:
    sys.exit(f'{program.NAME}: no {argv[1]} match {argv[2]}.')


if __name__ == '__main__':
  program.run(main)
