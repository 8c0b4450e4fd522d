"""Makes streams of local environments, and their specs.

They are of EnvPool or Gymnasium, or in JAX.
"""

import contextlib
import fnmatch
import functools
import importlib
import json
import types as types_lib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import (
  action_masks,
  base,
  env_thread,
  envpool_stream,
  gymnasium_envs,
  gymnasium_stream,
  keys,
  registry,
  specs,
)
from seedrl_jax.envs import tasks as tasks_lib
from seedrl_jax.runtime import settings

# Of environments in JAX, `suite:name`.
SUITES = ('gymnax', 'craftax', 'jumanji')
# What they do not heed of the section `env`.
_UNHEEDED = [*registry.NAMED, 'batch_size', 'num_threads', 'processes']
_UNHEEDED += ['thread_affinity_offset']
# What environments are of; '' is EnvPool.
SOURCES = ('', *SUITES, 'gymnasium')


def ids(source: str) -> list[str]:
  """Returns the names of the environments of one of `SOURCES`, sorted.

  Raises registry.MissingLibraryError if it is not installed.
  """
  if not source:
    with registry.use_envpool() as envpool:
      return sorted(envpool.list_all_envs())
  is_suite = source in SUITES
  names = _suite(source).names() if is_suite else gymnasium.registry
  return [f'{source}:{name}' for name in sorted(names)]


def task_names(config: types.Config) -> tuple[str, ...]:
  """Returns the names that `env.tasks` stands for; () if it is not set.

  Raises ValueError if a pattern matches nothing, or a name comes twice.
  """
  patterns, flag = tuple(config.tasks), '--config.env.tasks'
  if patterns and config.factory:
    raise ValueError(
      f'{flag} names environments, and --config.env.factory makes others; '
      'leave one of them out.'
    )
  names: list[str] = []
  for pattern in patterns:
    matches = [pattern]
    if {*pattern} & {*'*?['}:
      source = pattern.rpartition(':')[0]
      known = ids(source) if source in SOURCES else []
      matches = fnmatch.filter(known, pattern)
    if not matches:
      raise ValueError(
        f'{flag}: nothing matches {pattern}; `seedrl list envs` shows all.'
      )
    names += matches
  if len({*names}) < len(names):
    raise ValueError(f'{flag}: a name comes twice in {", ".join(names)}.')
  weights = config.task_weights
  if weights and (len(weights) != len(names) or min(weights) <= 0):
    raise ValueError(
      f'--config.env.task_weights={tuple(weights)}: give one positive number '
      f'for each of the {len(names)} tasks.'
    )
  return tuple(names)


def task_numbers(
  config: types.Config, env_id: np.ndarray, num_train: int
) -> np.ndarray | None:
  """Returns the tasks, int32 `[N]`, of environments with run-wide ids `[N]`.

  Evaluation environments, from `num_train` on, get the tasks round-robin. None
  if the run has only one task.
  """
  count = len(task_names(config))
  if not count:
    return None
  weights = config.task_weights or (1.0,) * count
  trained = tasks_lib.assign(num_train, weights)
  evaluated = np.arange(max(0, int(env_id.max()) + 1 - num_train)) % count
  return np.concatenate([trained, evaluated]).astype(np.int32)[env_id]


def equal_tasks(
  config: types.Config, task: str, num_envs: int
) -> np.ndarray | None:
  """Returns a named task, int32 `[num_envs]`; None if the name is empty.

  Raises ValueError if the `env` section lacks the task.
  """
  if not task:
    return None
  names = task_names(config)
  if task not in names:
    known = ', '.join(names) or 'not several; leave the flag out'
    raise ValueError(f'--task={task}: the tasks of the run are {known}.')
  return np.full(num_envs, names.index(task), np.int32)


def device_env(
  config: types.Config, tasks: np.ndarray | None = None
) -> types.DeviceEnv | None:
  """Returns the environments of an `env` section if they are in JAX.

  `tasks`, int `[N]`, are those of all environments, if the section has several;
  None means round-robin.

  Raises ValueError if they cannot be made, or do not heed a key that is set,
  and registry.MissingLibraryError if the suite is not installed.
  """
  if names := task_names(config):
    envs = [device_env(tasks_lib.task_config(config, name)) for name in names]
    in_jax = [env for env in envs if env is not None]
    if in_jax and len(in_jax) < len(envs):
      raise ValueError(
        f'--config.env.tasks: {in_jax[0].spec.name} is in JAX, and '
        f'{names[envs.index(None)]} is not; train them apart.'
      )
    batching = importlib.import_module('seedrl_jax.device_envs.batching')
    return batching.join(in_jax, tasks) if in_jax else None
  env: types.DeviceEnv | None = None
  if config.factory:
    flag = gymnasium_envs.flag_of(config)
    function = settings.load_function(flag, config.factory)
    env = _of_factory(function, config.factory_kwargs.to_json())
  elif config.id.partition(':')[0] in SUITES:
    for name in _UNHEEDED:
      default = getattr(keys.KEYS[f'env.{name}'], 'default', None)
      value = config.get(name, default)
      if value != default:
        raise ValueError(
          f'--config.env.{name}={value}: has no effect on {config.id}, which '
          f'is in JAX; leave it at {default}.'
        )
    dropped = tuple(config.drop_observations)
    env = _of_suite(config.id, config.options.to_json(), dropped)
  return env and env._replace(spec=action_masks.with_mask(config, env.spec))


def _suite(name: str) -> types_lib.ModuleType:
  # By name, as the others need no JAX.
  try:
    return importlib.import_module(f'seedrl_jax.device_envs.{name}_envs')
  except ImportError as e:
    raise registry.MissingLibraryError(
      f'--config.env.id={name}:…: {str(e).rstrip(".")}; install it with '
      f'`pip install "seedrl-jax[{name}]"`.'
    ) from e


@functools.lru_cache(8)
def _of_suite(
  env_id: str, options_json: str, dropped: tuple[str, ...]
) -> types.DeviceEnv:
  suite, _, name = env_id.partition(':')
  module, flag = _suite(suite), f'--config.env.id={env_id}'
  if name not in module.names():
    near = [f'{suite}:{x}' for x in registry.nearest(name, module.names())]
    raise ValueError(
      f'{flag}: {suite} has no such environment; the nearest are '
      f'{", ".join(near)}.'
    )
  try:
    return module.make(name, flag, json.loads(options_json), dropped)
  except TypeError as e:
    raise ValueError(
      f'--config.env.options={options_json}: {env_id} cannot take them: {e}.'
    ) from e


@functools.lru_cache(8)
def _of_factory(
  function: Callable[..., Any], kwargs_json: str
) -> types.DeviceEnv | None:
  def call() -> types.DeviceEnv | None:
    env = function(**json.loads(kwargs_json))
    if isinstance(env, types.DeviceEnv):
      return env
    env.close()
    return None

  try:
    return env_thread.call_in_thread('describe-factory', call)
  except Exception:
    # `gymnasium_envs` says what is wrong.
    return None


def is_gymnasium(config: types.Config) -> bool:
  """Returns whether Gymnasium makes the environments."""
  if config.factory:
    return device_env(config) is None
  return config.id.startswith(gymnasium_envs.PREFIX)


def is_cheap(config: types.Config) -> bool:
  """Returns whether a step takes microseconds, far less than an inference."""
  if names := task_names(config):
    return all(is_cheap(tasks_lib.task_config(config, x)) for x in names)
  is_envpool = not (config.factory or ':' in config.id)
  return is_envpool and registry.is_cheap(config.id)


def make_spec(config: types.Config) -> types.StreamSpec:
  """Returns the spec of the environment in the `env` section of a config.

  Raises ValueError, which names the flag, if the config is invalid, and
  registry.MissingLibraryError if EnvPool cannot be loaded.
  """
  if names := task_names(config):
    sections = [tasks_lib.task_config(config, name) for name in names]
    return tasks_lib.join_specs(list(map(make_spec, sections)))
  if env := device_env(config):
    return env.spec
  if is_gymnasium(config):
    return specs.joined_spec(gymnasium_envs.describe(config).spec)
  return envpool_stream.make_spec(config)


def make_env_spec(config: types.Config, num_hosts: int = 1) -> types.EnvSpec:
  """Returns the spec of all environments of a run on all hosts.

  Raises what `make_spec` does.
  """
  num_train = config.env.num_envs + config.actors.max_envs
  return types.EnvSpec(
    make_spec(config.env), num_hosts * num_train, config.num_eval_envs
  )


def make_stream(
  config: types.Config,
  seed: int,
  num_envs: int,
  batch_size: int,
  num_streams: int = 1,
  rendered: bool = False,
  tasks: np.ndarray | None = None,
) -> base.LocalStream:
  """Makes the configured environments and resets them.

  Args:
    config: the `env` section; its `num_envs` and `batch_size` are of all
      streams together and not read.
    seed: environment i is seeded with `seed + i`: keep the seeds of streams at
      least `num_envs` apart.
    num_envs: environments of this stream.
    batch_size: environments per `recv`. If fewer than `num_envs`, the others
      step meanwhile.
    num_streams: streams that share this process's cores if `config.num_threads`
      is 0; cheap families of EnvPool then get one or two threads.
    rendered: let `LocalStream.render` draw them, if they can be drawn.
    tasks: int `[num_envs]`, the task of each, if there are several; None means
      round-robin.

  Raises what `make_spec` does.
  """
  names = task_names(config)
  if names and tasks is None:
    tasks = np.arange(num_envs, dtype=np.int32) % len(names)
  if env := device_env(config, tasks):
    stream = importlib.import_module('seedrl_jax.device_envs.stream')
    return stream.DeviceEnvStream(env, seed, num_envs, tasks)
  if tasks is not None:
    return _make_task_stream(
      config, seed, batch_size, num_streams, rendered, tasks
    )
  if is_gymnasium(config):
    return gymnasium_stream.GymnasiumStream(
      config, seed, num_envs, batch_size, rendered
    )
  if config.processes:
    raise ValueError(
      f'--config.env.processes={config.processes}: is for environments of '
      f'Gymnasium; {config.id} is of EnvPool, which has threads '
      '(--config.env.num_threads).'
    )
  return envpool_stream.EnvPoolStream(
    config, seed, num_envs, batch_size, num_streams, rendered
  )


def _make_task_stream(
  config: types.Config,
  seed: int,
  batch_size: int,
  num_streams: int,
  rendered: bool,
  tasks: np.ndarray,
) -> tasks_lib.TaskStream:
  names, n = task_names(config), len(tasks)
  streams: dict[int, base.LocalStream] = {}
  start = 0
  with contextlib.ExitStack() as cleanup:
    for task in np.unique(tasks).tolist():
      size = int(np.sum(tasks == task))
      section = tasks_lib.task_config(config, names[task])
      # Of what is set for the stream, a part gets its share.
      for key in ('num_threads', 'processes'):
        section[key] = -(-config[key] * size // n)
      if config.thread_affinity_offset >= 0:
        section.thread_affinity_offset += config.num_threads * start // n
      streams[task] = make_stream(
        section,
        seed + start,
        size,
        -(-size * batch_size // n),
        num_streams * len(names),
        rendered,
      )
      cleanup.callback(streams[task].close)
      start += size
    cleanup.pop_all()
  return tasks_lib.TaskStream(make_spec(config), tasks, streams)
