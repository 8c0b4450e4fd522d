"""The programs' flag --config, and what --help says of its keys."""

import contextlib
import copy
import difflib
import re
import shlex
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags import tuple_parser

from seedrl_jax import types
from seedrl_jax.configs import base as base_config
from seedrl_jax.envs import trust
from seedrl_jax.launch import program
from seedrl_jax.run import keys as run_keys
from seedrl_jax.runtime import config_files, keys, settings

DEFAULT = 'vtrace_cartpole'

# Names of other libraries.
_ELSEWHERE = {
  'ent_coef': 'loss.entropy_cost',
  'env_name': 'env.id',
  'gamma': 'loss.discount',
  'n_envs': 'env.num_envs',
  'n_steps': 'unroll_length',
  'num_steps': 'unroll_length',
  'total_timesteps': 'total_env_frames',
}

# So that the calling program's help shows the flag.
flags.disclaim_key_flags()


class _NamesParser(tuple_parser.TupleParser):
  """Parses a tuple, whose names need no quotation marks: csv,wandb.

  Names may have what ids of environments and patterns have.
  """

  def parse(self, argument: Any) -> Any:
    words = str(argument).split(',')
    if all(re.fullmatch(r'[A-Za-z_*][\w:./*?[\]-]*', x) for x in words):
      return tuple(words)
    return super().parse(argument)


config_flags.register_flag_parser_for_type(tuple, _NamesParser())


class _Parser(flags.ArgumentParser):
  """Returns a copy of `config`, whatever the argument."""

  def __init__(self, config: types.Config):
    self._config = config

  def parse(self, argument: str) -> types.Config:
    return copy.deepcopy(self._config)


def define(text: str) -> flags.FlagHolder:
  """Defines --config, described by `text`; `parse` sets its default."""
  return config_flags.DEFINE_config_file(
    'config',
    None,
    f'{text} A file with get_config(), or the name of one in configs/; any '
    'value may be overridden as --config.x.y=z.',
  )


def path_of(argv: Sequence[str], flag: str = 'config') -> str | None:
  """Returns the last value of a flag in a command line, or None."""
  path = None
  for i, argument in enumerate(argv):
    if match := re.fullmatch(rf'--?{flag}(?:=(.*))?', argument):
      path = match[1] or next(iter(argv[i + 1 :]), '')
  return path


def load(name: str) -> types.Config:
  """Returns the configuration of a name or path, or exits with a message."""
  try:
    return config_files.load(name)
  except ValueError as e:
    sys.exit(f'{program.NAME}: --config={name}: {e}')


def parse(
  argv: list[str],
  default: str | None = DEFAULT,
  run_config: types.Config | None = None,
) -> list[str]:
  """Parses the command line; exits with a message if it is wrong.

  Inserts `default` into `argv`, in place; None: --config is required. Overrides
  change `run_config`, if given, and not the file's. Returns the program's name
  and the arguments that are no flags.
  """
  path = path_of(argv)
  if path is None and default:
    # Before the overrides, which apply to it.
    argv.insert(1, f'--config={default}')
  name = path or DEFAULT
  config = run_config or load(name)
  flags.FLAGS['config'].parser = _Parser(config)
  try:
    with _exit_on_error(argv, config, '' if run_config else name):
      rest = flags.FLAGS(argv)
  except SystemExit as e:
    if isinstance(e.code, str):
      raise
    # The program's help was printed, perhaps into `head`.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    file = config_files.find(name.partition(':')[0])
    print(describe(config, file.stem))
    sys.exit()
  if path_of(argv) is None:
    sys.exit(
      f'{program.NAME}: --config is missing; name a file, or one of configs/.'
    )
  return rest


@contextlib.contextmanager
def _exit_on_error(
  argv: Sequence[str], config: types.Config, name: str
) -> Iterator[None]:
  """Exits with a message if a command line that changes `config` is wrong."""
  try:
    yield
  except flags.UnrecognizedFlagError as e:
    hint = _meant_key(e, config)
    sys.exit(f'{program.NAME}: {e}{hint}')
  except flags.Error as e:
    sys.exit(f'{program.NAME}: {str(e).removeprefix("flag ")}')
  except (AttributeError, KeyError, TypeError):
    # ml_collections raises these for an unknown key, but a file may, too.
    sentence = _unknown_key(argv, config, name)
    if sentence is None:
      raise
    sys.exit(f'{program.NAME}: {sentence}')


def overrides() -> dict[str, Any]:
  """Returns the keys that the command line has set, and their values."""
  return config_flags.get_override_values(flags.FLAGS['config'])


def override(
  config: types.Config, arguments: Sequence[str], name: str = ''
) -> types.Config:
  """Returns a copy with '--config.x.y=z' arguments applied; exits if wrong.

  The error message calls the configuration `name`.
  """
  argv, values = [program.NAME, *arguments], flags.FlagValues()
  with _exit_on_error(argv, config, name):
    holder = config_flags.DEFINE_config_dict(
      'config', copy.deepcopy(config), flag_values=values, sys_argv=argv
    )
    values(argv)
  return holder.value


def shipped() -> dict[str, types.Config]:
  """Returns the configurations of `configs` by name."""
  # That of benchmarks is for short measurements, and needs a case.
  return {
    name: config_files.load(name)
    for name in config_files.names()
    if name != 'benchmark'
  }


def _keys(config: types.Config, prefix: str = '') -> Iterator[str]:
  for name, value in config.items():
    yield prefix + name
    if isinstance(value, types.Config):
      yield from _keys(value, f'{prefix}{name}.')


def _meant_key(e: flags.UnrecognizedFlagError, config: types.Config) -> str:
  """Returns a hint if a flag is named as a key, such as --seed or --env_id."""
  name = e.flagname.replace('-', '_')
  keys_of_runs = dict(settings.leaves(config))
  meant = [key for key in keys_of_runs if key.replace('.', '_') == name]
  meant += [key for key in keys_of_runs if key.rpartition('.')[2] == name]
  # --env is env.id, and --optimizer is optimizer.name.
  meant += [x for x in (f'{name}.id', f'{name}.name') if x in keys_of_runs]
  if name in _ELSEWHERE:
    meant.append(_ELSEWHERE[name])
  # absl gives the whole argument.
  _, equals, value = str(e.flagvalue or '').partition('=')
  return f'; did you mean --config.{meant[0]}{equals}{value}?' if meant else ''


def _unknown_key(
  argv: Sequence[str], config: types.Config, name: str
) -> str | None:
  """Returns a message on the first key in a command line not in `config`."""
  known = set(_keys(config))
  for argument in argv:
    match = re.match(r'--?(no)?config\.([^=]+)', argument)
    if match is None or match[2] in known:
      continue
    section = match[2].rpartition('.')[0]
    if section in known and not any(k.startswith(section + '.') for k in known):
      return (
        f'--config.{match[2]}: give all of this section at once, as '
        f'--config.{section}="{{\'name\': value}}".'
      )
    near = difflib.get_close_matches(match[2], known, n=1, cutoff=0.0)
    return (
      f'--config.{match[2]}: {name or "the configuration"} has no such key; '
      f'the nearest is --config.{near[0]}.'
    )
  return None


def key_table(agent: str) -> keys.Table:
  """Returns the keys of all runs and of an agent, as far as they are known."""
  name = f'seedrl_jax.agents.{agent}.keys' if agent in trust.AGENTS else agent
  agent_keys: keys.Table = {}
  with contextlib.suppress(ValueError):
    module = settings.load_module(f'--config.agent={agent}', name)
    agent_keys = getattr(module, 'KEYS', {})
  # New keys of the agent come before environments and all else.
  new = {k: x for k, x in agent_keys.items() if k not in base_config.KEYS}
  return {**run_keys.KEYS, **new, **base_config.KEYS, **agent_keys}


def describe(config: types.Config, name: str, width: int = 0) -> str:
  """Returns the help on a configuration, by section.

  `width` is the columns of text; 0 means the terminal's.
  """
  width = width or shutil.get_terminal_size().columns
  table = key_table(config.agent)
  order = {key: i for i, key in enumerate(['', *table])}
  helps = {key: entry.help for key, entry in table.items()}
  values = dict(settings.leaves(config, keys.allowed(table)))
  title = f'The configuration {name}, which --config.KEY=VALUE changes:'
  lines = {'': ['', title, '']}

  def place(key: str) -> list[int]:
    return [order.get(x, len(order)) for x in (key.rpartition('.')[0], key)]

  for key in sorted(values, key=place):
    section = key.rpartition('.')[0]
    if section not in lines:
      title = f'{section}: {helps.get(section, "")}'.removesuffix(': ')
      lines[section] = ['', *textwrap.wrap(title, width)]
    lines[section] += _entry(key, values[key], helps.get(key, ''), width)
  return '\n'.join(line for group in lines.values() for line in group)


def _entry(key: str, value: Any, help_text: str, width: int) -> list[str]:
  value_text = ' (not set)'
  if value is not None:
    text = str(dict(value) if hasattr(value, 'items') else value)
    value_text = f'="{text}"' if "'" in text else f'={shlex.quote(text)}'
  lines = [' ' * 6 + line for line in textwrap.wrap(help_text, width - 6)]
  return [f'  --config.{key}{value_text}', *lines]
