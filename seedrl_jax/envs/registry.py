"""What EnvPool offers: its environments, their options and families.

The only place that imports EnvPool, on first use: the import fails if system
libraries are missing.
"""

import contextlib
import ctypes
import difflib
import importlib
import os
import pathlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from seedrl_jax import types
from seedrl_jax.envs import base, keys
from seedrl_jax.runtime import process
from seedrl_jax.runtime.keys import Key

# Gymnasium warns of bounds that it rounds to float32.
warnings.filterwarnings('ignore', message='.*precision lowered.*')

# Options with a config key of their own; None keeps EnvPool's default.
NAMED = [
  name.removeprefix('env.')
  for name, key in keys.KEYS.items()
  if isinstance(key, Key) and key.default is None
]

# A step costs about 1 us there, so a second thread only adds contention:
# CartPole, 128 environments in batches of 64, makes 1.45M steps/s with one
# thread on two cores and 1.10M with two.
_CHEAP_FAMILIES = frozenset({'classic_control', 'minigrid', 'toy_text'})

# Families whose episodes go on past `max_episode_steps`; EnvPool still reports
# their ends as truncations.
_UNLIMITED_FAMILIES = frozenset({'jumanji', 'pgx', 'procgen'})
_NO_TIME_LIMIT = 2**31 - 1

# Defaults that differ from EnvPool's.
_DEFAULTS = {'stack_num': 1, 'use_contact_force': False}

# Frames per second that look natural; Atari's is the console's.
_FRAMES_PER_SECOND = {
  'atari': 60.0,
  'box2d': 50.0,
  'minigrid': 6.0,
  'procgen': 15.0,
  'toy_text': 4.0,
}

# Each line: a library or program, its package, and what needs it.
_LIBRARIES = pathlib.Path(__file__).with_name('libraries.txt')


class MissingLibraryError(types.Explained, ImportError):
  """EnvPool, or a library that it or a drawing needs, is not installed."""


@contextlib.contextmanager
def use_envpool() -> Iterator[Any]:
  """Yields EnvPool.

  Raises MissingLibraryError, with advice, if an import fails, also of a family.
  """
  process.defer_packages()
  try:
    yield importlib.import_module('envpool')
  except ImportError as e:
    raise MissingLibraryError(
      f'EnvPool cannot be imported: {str(e).rstrip(".")}. '
      f'{_install("EnvPool", "Procgen")} installs libraries of the system '
      'that may be missing; launch/setup.sh also modules of Python.'
    ) from e


def _install(*users: str) -> str:
  lines = map(str.split, _LIBRARIES.read_text().splitlines())
  packages = [x[1] for x in lines if x[-1] in users]
  return f'`apt install {" ".join(packages)}`'


def prepare_drawing(env_id: str) -> None:
  """Lets EnvPool draw an environment whose spec has been made."""
  if family(env_id) != 'mujoco':
    return
  with use_envpool() as envpool:
    site = pathlib.Path(envpool.__file__).parents[1]
  # EnvPool 1.2.5 looks for the functions of its libEGL among the global ones,
  # and ends the process if they are not there.
  for library in site.glob('envpool.libs/libEGL*'):
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def cannot_draw(name: str, error: Exception) -> MissingLibraryError:
  """Returns the error to raise if drawing an environment failed."""
  return MissingLibraryError(
    f'{name} cannot be drawn: {str(error).rstrip(".")}. Install what is '
    f'missing; {_install("MuJoCo")} is what MuJoCo draws with without a GPU.'
  )


def nearest(name: str, names: Iterable[str], count: int = 3) -> list[str]:
  """Returns those of `names` that are most likely meant, best first."""
  # Of equal meanings, the shortest name with the newest version counts.
  by_length = sorted(names, key=lambda x: (-len(x), x))
  by_meaning = {_meaning(candidate): candidate for candidate in by_length}
  matches = difflib.get_close_matches(_meaning(name), by_meaning, count, 0.0)
  return [by_meaning[meaning] for meaning in matches]


def _meaning(name: str) -> str:
  """Returns 'pong' for 'Pong-v5', 'ALE/Pong-v5', 'Pong-ramNoFrameskip-v4'."""
  decoration = r'^.*[/: ]|-ram|noframeskip|deterministic|-v\d+$'
  return re.sub(decoration, '', name.lower())


def check_id(env_id: str) -> None:
  """Raises ValueError with the nearest ids if EnvPool lacks the environment."""
  with use_envpool() as envpool:
    ids = envpool.list_all_envs()
  if env_id not in ids:
    # As in gym:CartPole-v1.
    suites = '; suites are gymnasium:, gymnax:, craftax: and jumanji:'
    raise ValueError(
      f'--config.env.id={env_id}: EnvPool has no such environment; the '
      f'nearest are {", ".join(nearest(env_id, ids))}'
      f'{suites * (":" in env_id)}.'
    )


def family(env_id: str) -> str:
  """Returns the family of a known id, such as 'atari' or 'toy_text'.

  DeepMind Control is of 'mujoco', too.
  """
  module = importlib.import_module('envpool.registration')
  import_path = module.registry.specs[env_id][0]
  return import_path.split('.')[1]


def is_cheap(env_id: str) -> bool:
  """Returns whether a known id's step takes about a microsecond."""
  return family(env_id) in _CHEAP_FAMILIES


def steps_per_second(env_id: str, action_repeat: int) -> float:
  """Returns the playback speed of a known id for human viewers."""
  default = base.LocalStream.steps_per_second * action_repeat
  return _FRAMES_PER_SECOND.get(family(env_id), default) / action_repeat


def default_num_threads(
  env_id: str, num_envs: int, batch_size: int, num_streams: int
) -> int:
  """Returns the threads for one of `num_streams` pools on this machine."""
  cores = len(os.sched_getaffinity(0)) // num_streams
  if is_cheap(env_id):
    # One thread keeps up with inference. If all environments step at once,
    # inference waits for them, so a second one helps.
    cores = min(cores, 2 if batch_size == num_envs else 1)
  return max(1, min(batch_size, cores))


def set_options(config: types.Config) -> dict[str, Any]:
  """Returns the options that are set by a config key of their own."""
  values = {name: config.get(name) for name in NAMED}
  return {name: value for name, value in values.items() if value is not None}


def envpool_options(
  config: types.Config, defaults: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the checked options for `envpool.make`; `defaults` has all.

  Two defaults differ from EnvPool's. `stack_num` is 1: the agent stacks frames
  on the device, so that each frame is stored once. `use_contact_force` is
  False, as in published results: in Ant and Humanoid contacts then cost no
  reward, and Ant does not observe them.

  Raises ValueError if the id does not know an option or would ignore it.
  """
  options = set_options(config)
  for name, value in config.options.items():
    flag = f'--config.env.options.{name}'
    if name in ('env_seed', 'seed'):
      raise ValueError(f'{flag}: use --config.seed.')
    if name in config:
      raise ValueError(f'{flag}: use --config.env.{name}.')
    options[name] = value
  for name in options:
    if name not in defaults:
      raise ValueError(
        f'--config.env: {config.id} has no option {name}; leave it unset, or '
        f'give {nearest(name, defaults, 1)[0]}, the nearest.'
      )
  if 'max_episode_steps' in options and (
    defaults['max_episode_steps'] == _NO_TIME_LIMIT
    or family(config.id) in _UNLIMITED_FAMILIES
  ):
    raise ValueError(
      f'--config.env.max_episode_steps: EnvPool does not end episodes of '
      f'{config.id} by it; leave it unset.'
    )
  ours = {name: x for name, x in _DEFAULTS.items() if name in defaults}
  return ours | options
