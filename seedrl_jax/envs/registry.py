"""What EnvPool offers, and clear errors if it cannot be imported.

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
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from seedrl_jax.runtime import process

# A step costs about 1 us there, so a second thread only adds contention:
# CartPole, 128 environments in batches of 64, makes 1.45M steps/s with one
# thread on two cores and 1.10M with two.
_CHEAP_FAMILIES = frozenset({'classic_control', 'minigrid', 'toy_text'})

# Families whose episodes go on past `max_episode_steps`; EnvPool still reports
# their ends as truncations.
_UNLIMITED_FAMILIES = frozenset({'jumanji', 'pgx', 'procgen'})
_NO_TIME_LIMIT = 2**31 - 1

# Frames per second that look natural; Atari's is the console's.
DEFAULT_STEPS_PER_SECOND = 30.0
_FRAMES_PER_SECOND = {
  'atari': 60.0,
  'minigrid': 6.0,
  'procgen': 15.0,
  'toy_text': 4.0,
}

# Each line: a library or program, its package, and what needs it.
_LIBRARIES = pathlib.Path(__file__).with_name('libraries.txt')


class MissingLibraryError(ImportError):
  """A system library that EnvPool needs is not installed."""


def load_envpool() -> Any:
  """Imports EnvPool; raises MissingLibraryError with advice if that fails."""
  process.defer_packages()
  with explain_import_errors():
    return importlib.import_module('envpool')


@contextlib.contextmanager
def explain_import_errors() -> Iterator[None]:
  """Turns EnvPool's ImportErrors into MissingLibraryErrors with advice."""
  try:
    yield
  except MissingLibraryError:
    raise
  except ImportError as e:
    raise MissingLibraryError(_import_advice(e)) from e


def _import_advice(error: ImportError) -> str:
  text = str(error)
  if isinstance(error, ModuleNotFoundError):
    return (
      f'EnvPool cannot be imported because Python has no module {error.name}: '
      'install this project with its dependencies (launch/setup.sh does).'
    )
  who = 'Procgen' if 'Procgen' in text else 'EnvPool'
  # List them all: usually several are missing.
  if packages := _missing_packages({'EnvPool', who}):
    return (
      f'{who} needs libraries of the system: install them with '
      f'`apt install {" ".join(packages)}`.'
    )
  if missing := re.search(r'(lib[\w+-]+\.so[\w.]*): cannot open', text):
    return (
      f'EnvPool needs {missing[1]} of the system: install the package that '
      f'`apt-file search {missing[1]}` names.'
    )
  return f'EnvPool cannot be imported: {text}'


def _missing_packages(users: Collection[str]) -> list[str]:
  """Returns the packages of libraries that cannot be loaded."""
  packages = []
  for line in _LIBRARIES.read_text().splitlines():
    library, package, user = line.split(maxsplit=2)
    if user in users:
      try:
        ctypes.CDLL(library)
      except OSError:
        packages.append(package)
  return packages


@contextlib.contextmanager
def quiet_spaces() -> Iterator[None]:
  """Hides Gymnasium's warnings about bounds that it rounds to float32."""
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', message='.*precision lowered.*')
    yield


def nearest(name: str, names: Iterable[str]) -> str:
  """Returns the one of `names` that is spelled most like `name`."""
  by_lower_case = {candidate.lower(): candidate for candidate in names}
  (found,) = difflib.get_close_matches(name.lower(), by_lower_case, 1, 0.0)
  return by_lower_case[found]


def check_id(env_id: str) -> None:
  """Raises ValueError with the nearest ids if EnvPool lacks the environment."""
  ids = load_envpool().list_all_envs()
  if env_id not in ids:
    first, second, third = nearest_ids(env_id, ids)
    raise ValueError(
      f'--config.env.id={env_id}: EnvPool has no such environment; the '
      f'nearest are {first}, {second} and {third}.'
    )


def nearest_ids(env_id: str, ids: Iterable[str]) -> list[str]:
  """Returns the three of `ids` that are most likely meant, best first.

  Ranks by the name without decoration, then spelling, then newest version.
  """
  meant, spelled = _meaning(env_id), env_id.lower()

  def likeness(candidate: str) -> tuple[float, float, str]:
    spelling = difflib.SequenceMatcher(None, candidate.lower(), spelled)
    meaning = difflib.SequenceMatcher(None, _meaning(candidate), meant)
    return meaning.ratio(), spelling.ratio(), candidate

  by_lower_case = {candidate.lower(): candidate for candidate in ids}
  return sorted(by_lower_case.values(), key=likeness, reverse=True)[:3]


def _meaning(env_id: str) -> str:
  """Returns 'pong' for 'Pong-v5', 'ALE/Pong-v5', 'Pong-ramNoFrameskip-v4'."""
  name = re.split(r'[/: ]', env_id.lower())[-1]
  name = re.sub(
    r'-v\d+$|-ram(?=-|no|det|$)|noframeskip|deterministic', '', name
  )
  return re.sub(r'^(procgen|dm_control)|[^a-z0-9]', '', name)


def family(env_id: str) -> str:
  """Returns the family of a known id, such as 'atari' or 'toy_text'."""
  module = importlib.import_module('envpool.registration')
  import_path = module.registry.specs[env_id][0]
  return import_path.split('.')[1]


def steps_per_second(env_id: str, action_repeat: int) -> float:
  """Returns the playback speed of a known id for human viewers."""
  frames = _FRAMES_PER_SECOND.get(family(env_id))
  return frames / action_repeat if frames else DEFAULT_STEPS_PER_SECOND


def obeys_time_limit(env_id: str, default_limit: int) -> bool:
  """Returns whether EnvPool ends episodes of `env_id` at `max_episode_steps`.

  `default_limit` is its default `max_episode_steps`.
  """
  return (
    default_limit < _NO_TIME_LIMIT and family(env_id) not in _UNLIMITED_FAMILIES
  )


def default_num_threads(
  env_id: str, num_envs: int, batch_size: int, num_streams: int
) -> int:
  """Returns the threads for one of `num_streams` pools on this machine."""
  cores = len(os.sched_getaffinity(0)) // num_streams
  if family(env_id) in _CHEAP_FAMILIES:
    # One thread keeps up with inference. If all environments step at once,
    # inference waits for them, so a second one helps.
    cores = min(cores, 2 if batch_size == num_envs else 1)
  return max(1, min(batch_size, cores))
