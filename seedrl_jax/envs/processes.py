"""Gymnasium environments that step in processes of their own.

`AsyncVectorEnv` starts one process for each environment. Here each of its
environments is a slice of several, so that there may be fewer processes.
"""

import atexit
import contextlib
import functools
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from multiprocessing import connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces, vector

from seedrl_jax.envs import base, registry, specs

# Observation and reward `[n, ...]`, terminated and truncated bool `[n]`.
Steps = tuple[Any, np.ndarray, np.ndarray, np.ndarray]

# Forks from a process without threads and JAX.
_CONTEXT = 'forkserver'
# Time for processes to end, or for an ended one to be noticed.
END_SECONDS = 10.0
# Sent to whole process groups; only the main process acts on them.
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def make_sync(
  make_env: Callable[[], gymnasium.Env], num_envs: int, copy: bool = True
) -> vector.SyncVectorEnv:
  """Makes environments that step one after another in this process."""
  with registry.quiet_spaces():
    # NEXT_STEP resets in the step after the last one, as EnvPool does.
    return vector.SyncVectorEnv(
      [make_env] * num_envs,
      copy=copy,
      autoreset_mode=vector.AutoresetMode.NEXT_STEP,
    )


class _Slice(gymnasium.Env):
  """The environments of a process, which Gymnasium sees as one.

  Reports failures as text: an exception may not survive pickling.
  """

  def __init__(
    self,
    make_env: Callable[[], gymnasium.Env],
    observation_space: spaces.Space,
    action_space: spaces.Space,
    dropped: Collection[str],
    size: int,
    seeds: list[int | None],
  ):
    """Makes no environments yet: Gymnasium makes a slice in the parent, too.

    Arrays have `size` rows, more than the seeds in a shorter last slice.
    """
    self.observation_space = vector.utils.batch_space(observation_space, size)
    self.action_space = vector.utils.batch_space(action_space, size)
    self._make_env = make_env
    self._dropped = dropped
    self._size = size
    self._seeds = seeds
    self._envs: vector.SyncVectorEnv | None = None

  def reset(
    self, *, seed: int | None = None, options: dict | None = None
  ) -> tuple[Any, dict]:
    """Makes the environments and resets them; called once."""
    del seed, options
    for number in _SIGNALS:
      signal.signal(number, signal.SIG_IGN)
    # An environment that uses JAX must not take the accelerator.
    os.environ['JAX_PLATFORMS'] = 'cpu'
    try:
      self._envs = make_sync(self._make_env, len(self._seeds), copy=False)
      observation, _ = self._envs.reset(seed=self._seeds)
      return self._fill(observation), {}
    except Exception:
      return self.observation_space.sample(), {
        'failure': traceback.format_exc()
      }

  def step(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict]:
    """Steps all environments; the last return value may hold a failure."""
    assert self._envs is not None, 'reset comes first'
    try:
      observation, *rest, _ = self._envs.step(action[: len(self._seeds)])
      reward, terminated, truncated = (np.resize(x, self._size) for x in rest)
      return self._fill(observation), reward, terminated, truncated, {}
    except Exception:
      none = np.zeros(self._size)
      failure = {'failure': traceback.format_exc()}
      return self.observation_space.sample(), none, none, none, failure

  def close(self) -> None:
    if self._envs is not None:
      self._envs.close()

  def _fill(self, observation: Any) -> Any:
    """Returns observations padded to `[size, ...]`, without dropped keys."""
    return specs.map_nest(
      lambda x: np.resize(x, (self._size, *x.shape[1:])),
      specs.drop_keys(observation, self._dropped),
    )


class ProcessEnvs:
  """Environments that step together, divided among processes."""

  def __init__(
    self,
    make_env: Callable[[], gymnasium.Env],
    env_spaces: tuple[spaces.Space, spaces.Space],
    dropped: Collection[str],
    seeds: np.ndarray,
    num_processes: int,
    name: str,
  ):
    """Starts at most `num_processes` processes; `seeds` is int `[n]`.

    `env_spaces` are those of an observation, without the `dropped` keys, and an
    action. `make_env` must be picklable.

    Raises:
      EnvironmentFailed: if a process does not start.
    """
    self._name = name
    parts = np.array_split(seeds, min(num_processes, len(seeds)))
    size = len(parts[0])
    # Each process returns `size` rows; these are environments, not padding.
    self._rows = np.flatnonzero([
      row < len(part) for part in parts for row in range(size)
    ])
    _, action_space = env_spaces
    shape = (len(parts), size, *(action_space.shape or ()))
    self._action = np.zeros(shape, action_space.dtype)
    multiprocessing.get_context(_CONTEXT).set_forkserver_preload([__name__])
    slices = [
      functools.partial(
        _Slice, make_env, *env_spaces, dropped, size, part.tolist()
      )
      for part in parts
    ]
    self._vector = self._start_processes(slices)
    # Otherwise the interpreter waits for them when it exits.
    atexit.register(self.close)

  def _start_processes(
    self, slices: Sequence[Callable[[], gymnasium.Env]]
  ) -> vector.AsyncVectorEnv:
    try:
      return vector.AsyncVectorEnv(
        slices,
        copy=False,
        context=_CONTEXT,
        # A slice resets its environments by itself.
        autoreset_mode=vector.AutoresetMode.DISABLED,
      )
    except (EOFError, OSError) as e:
      raise base.EnvironmentFailed(
        f'A process for environments of {self._name} does not start; what it '
        'said is above.'
      ) from e

  def start(self, action: np.ndarray | None) -> None:
    """Starts a step, or a reset if `action` is None; does not wait."""
    try:
      if action is None:
        self._vector.reset_async()
        return
      shape = self._action.shape
      self._action.reshape(-1, *shape[2:])[self._rows] = action
      self._vector.step_async(self._action)
    except OSError as e:
      raise self._lost() from e

  def finish(self, is_reset: bool) -> Steps:
    """Waits for the step, or the reset, that was started.

    Raises:
      EnvironmentFailed: if an environment raised, or a process has ended.
    """
    try:
      if is_reset:
        observation, info = self._vector.reset_wait()
        reward = np.zeros(self._action.shape[:2])
        terminated = truncated = reward.astype(bool)
      else:
        observation, reward, terminated, truncated, info = (
          self._vector.step_wait()
        )
    except (EOFError, OSError) as e:
      raise self._lost() from e
    if 'failure' in info:
      text = '\n'.join(filter(None, info['failure']))
      raise base.EnvironmentFailed(
        f'{text}\nAn environment of {self._name} failed in its process, as the '
        'traceback above says.'
      )
    return (
      specs.map_nest(self._flat, observation),
      self._flat(reward),
      self._flat(terminated),
      self._flat(truncated),
    )

  def kill(self) -> None:
    """Kills the processes, also in a step that hangs; `finish` then raises."""
    for process in self._vector.processes:
      process.kill()

  def close(self) -> None:
    """Ends the processes; kills those that do not end in time."""
    atexit.unregister(self.close)
    for pipe in self._vector.parent_pipes:
      # Takes effect after the step under way.
      with contextlib.suppress(OSError):
        pipe.send(('close', None))
    deadline = time.monotonic() + END_SECONDS
    for process in self._vector.processes:
      process.join(max(0.0, deadline - time.monotonic()))
      process.kill()
      process.join()
    for pipe in self._vector.parent_pipes:
      pipe.close()
    self._vector.closed = True

  def _flat(self, x: np.ndarray) -> np.ndarray:
    """Returns a copy of `[processes, size, ...]` as `[n, ...]`."""
    return x.reshape((-1, *x.shape[2:]))[self._rows]

  def _lost(self) -> base.EnvironmentFailed:
    processes = self._vector.processes
    connection.wait([p.sentinel for p in processes], END_SECONDS)
    codes = [p.exitcode for p in processes if p.exitcode is not None]
    return base.EnvironmentFailed(
      f'A process that steps environments of {self._name} has ended (exit code '
      f'{", ".join(map(str, codes))}; negative: killed by that signal).'
    )
