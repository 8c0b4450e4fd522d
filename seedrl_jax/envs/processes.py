"""Gymnasium environments that step in processes of their own."""

import atexit
import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium import vector

from seedrl_jax import types
from seedrl_jax.envs import base, registry, specs

# Forks from a process without threads and JAX.
_CONTEXT = multiprocessing.get_context('forkserver')
# Time for processes to end, or for an ended one to be noticed.
END_SECONDS = 10.0
# Sent to whole process groups; only the main process acts on them.
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class SyncEnvs:
  """Environments that step one after another in this process."""

  def __init__(
    self,
    make_env: Callable[[], gymnasium.Env],
    spec: base.StreamSpec,
    seed: int,
    env_id: np.ndarray,
  ):
    """Makes the environments `env_id`, int32 `[n]`; i has seed `seed + i`."""
    with registry.quiet_spaces():
      # NEXT_STEP resets in the step after the last one, as EnvPool does.
      self.vector = vector.SyncVectorEnv(
        [make_env] * len(env_id),
        copy=False,
        autoreset_mode=vector.AutoresetMode.NEXT_STEP,
      )
    self._spec = spec
    self._env_id = env_id
    self._seeds = (seed + env_id.astype(np.int64)).tolist()
    # Which environments the next step resets; None before the first.
    self._ended: np.ndarray | None = None

  def start(self, action: np.ndarray) -> None:
    """Takes the actions of the next step; the first step only resets."""
    self._action = action

  def finish(self) -> types.EnvOutput:
    """Returns the step that was started."""
    size = len(self._env_id)
    if self._ended is None:
      observation, _ = self.vector.reset(seed=self._seeds)
      reward, first = np.zeros(size), np.ones(size, bool)
      terminated = truncated = np.zeros(size, bool)
    else:
      first = self._ended
      observation, reward, terminated, truncated, _ = self.vector.step(
        self._action
      )
    self._ended = terminated | truncated
    step_type = np.full(size, types.StepType.MID, np.uint8)
    step_type[first] = types.StepType.FIRST
    step_type[self._ended] = types.StepType.LAST
    return types.EnvOutput(
      observation=_copy(observation, self._spec.observation),
      reward=reward.astype(np.float32),
      discount=1.0 - terminated.astype(np.float32),
      step_type=step_type,
      env_id=self._env_id.copy(),
    )

  def kill(self) -> None:
    """Does nothing: a step in this process cannot be interrupted."""

  def close(self) -> None:
    self.vector.close()


def _copy(observation: Any, spec: types.Nest) -> types.Nest:
  """Returns a copy as the spec says, without keys that it lacks."""
  if isinstance(spec, dict):
    return {key: _copy(observation[key], spec[key]) for key in spec}
  specs.check_fits(observation, spec.dtype)
  return np.array(observation, spec.dtype)


def _serve(pipe: connection.Connection, *arguments: Any) -> None:
  """Steps `SyncEnvs` of these arguments in a process, until the pipe ends."""
  for number in _SIGNALS:
    signal.signal(number, signal.SIG_IGN)
  # An environment that uses JAX must not take the accelerator.
  os.environ['JAX_PLATFORMS'] = 'cpu'
  envs: SyncEnvs | None = None
  # The pipe ends with the main process, too.
  with contextlib.suppress(EOFError, OSError):
    while True:
      action = pipe.recv()
      # As text: an exception may not survive pickling.
      try:
        envs = envs or SyncEnvs(*arguments)
        envs.start(action)
        answer: types.EnvOutput | str = envs.finish()
      except Exception:
        answer = traceback.format_exc()
      pipe.send(answer)
  if envs is not None:
    envs.close()


class ProcessEnvs:
  """Environments that step together, divided among processes."""

  def __init__(
    self,
    make_env: Callable[[], gymnasium.Env],
    spec: base.StreamSpec,
    seed: int,
    env_id: np.ndarray,
    num_processes: int,
  ):
    """Starts at most `num_processes` processes; others as of `SyncEnvs`.

    `make_env` must be picklable.
    """
    self._name = spec.name
    self._pipes: list[connection.Connection] = []
    self._processes: list[Any] = []
    _CONTEXT.set_forkserver_preload([__name__])
    parts = np.array_split(env_id, min(num_processes, len(env_id)))
    self._splits = np.cumsum([len(part) for part in parts])[:-1]
    # Otherwise the interpreter waits for those started when it exits.
    atexit.register(self.close)
    for part in parts:
      pipe, end = _CONTEXT.Pipe()
      process = _CONTEXT.Process(
        target=_serve, args=(end, make_env, spec, seed, part), daemon=True
      )
      process.start()
      end.close()
      self._pipes.append(pipe)
      self._processes.append(process)

  def start(self, action: np.ndarray) -> None:
    """Starts a step; does not wait. The first step only resets."""
    for pipe, part in zip(
      self._pipes, np.split(action, self._splits), strict=True
    ):
      # `finish` says which process has ended.
      with contextlib.suppress(OSError):
        pipe.send(part)

  def finish(self) -> types.EnvOutput:
    """Waits for the step that was started.

    Raises:
      EnvironmentFailed: if an environment raised, or a process has ended.
    """
    try:
      parts = [pipe.recv() for pipe in self._pipes]
    except (EOFError, OSError) as e:
      raise self._lost() from e
    for part in parts:
      if isinstance(part, str):
        raise base.EnvironmentFailed(
          f'{part}\nAn environment of {self._name} failed in its process, as '
          'the traceback above says.'
        )
    return types.EnvOutput(*map(_join, zip(*parts, strict=True)))

  def kill(self) -> None:
    """Kills the processes, also in a step that hangs; `finish` then raises."""
    for process in self._processes:
      process.kill()

  def close(self) -> None:
    """Ends the processes; kills those that do not end in time."""
    atexit.unregister(self.close)
    for pipe in self._pipes:
      pipe.close()
    deadline = time.monotonic() + END_SECONDS
    for process in self._processes:
      process.join(max(0.0, deadline - time.monotonic()))
      process.kill()
      process.join()

  def _lost(self) -> base.EnvironmentFailed:
    connection.wait([p.sentinel for p in self._processes], END_SECONDS)
    codes = [p.exitcode for p in self._processes if p.exitcode is not None]
    return base.EnvironmentFailed(
      f'A process that steps environments of {self._name} has ended (exit code '
      f'{", ".join(map(str, codes))}; negative: killed by that signal).'
    )


def _join(nests: Any) -> types.Nest:
  """Returns nests of `[n, ...]` as one, joined along the first axis."""
  if isinstance(nests[0], dict):
    return {key: _join([nest[key] for nest in nests]) for key in nests[0]}
  return np.concatenate(nests)
