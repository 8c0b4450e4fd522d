"""Gymnasium environments that step together, in this process or others."""

import asyncio
import atexit
import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
import types as python_types
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base, env_thread, step_checks
from seedrl_jax.runtime import nest

# Forks from a process without threads and JAX.
_CONTEXT = multiprocessing.get_context('forkserver')
# Time for an ended or killed process to be noticed.
END_SECONDS = 10.0
# Plain numbers are faster than the enum.
_FIRST, _MID, _LAST = map(int, types.StepType)
# In place of an environment's id.
_NONE = -1
# Sent to whole process groups; only the main process acts on them.
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class _State(ctypes.Structure):
  """State of environments, which processes can share."""

  running: int  # id of the environment that is called, or `_NONE`
  is_stopped: bool  # whether to make no more steps
  _fields_ = (('running', ctypes.c_int), ('is_stopped', ctypes.c_bool))


class _Envs:
  """Environments that step together; one of each state may be called."""

  def __init__(self, env_id: np.ndarray, spec: types.StreamSpec):
    self.env_id = env_id
    self._spec = spec
    self._states: list[_State] = []

  def running(self) -> list[int]:
    """Returns the ids of the environments that are called now."""
    return [i for s in self._states if (i := s.running) != _NONE]

  def stop(self) -> None:
    """Lets `finish` raise StreamClosed before it calls another environment."""
    for state in self._states:
      state.is_stopped = True


class SyncEnvs(_Envs):
  """Environments that step one after another in this process."""

  def __init__(
    self,
    make_env: Callable[[], gymnasium.Env],
    spec: types.StreamSpec,
    seed: int,
    env_id: np.ndarray,
    state: _State | None = None,
  ):
    """Makes the environments `env_id`, int32 `[n]`; i has seed `seed + i`."""
    super().__init__(env_id, spec)
    self._ids: list[int] = env_id.tolist()
    self._state = state or _State(_NONE)
    self._states.append(self._state)
    self.envs: list[gymnasium.Env] = []
    for i in self._ids:
      self._state.running = i
      self.envs.append(make_env())
    self._state.running = _NONE
    self._action = np.zeros(0)
    # For the first episodes; later ones continue with the same generators.
    self._seeds: list[int | None] = [seed + i for i in self._ids]
    self._is_over = [True] * len(env_id)

  def start(self, action: np.ndarray) -> None:
    """Takes the actions of the next step; the first step only resets."""
    self._action = action

  def finish(self) -> types.EnvOutput:
    """Returns the step that was started.

    Raises:
      EnvironmentFailed: if an environment returns what cannot be used.
      StreamClosed: after `stop`, also between two environments.
      Exception: what an environment raised.
    """
    size = len(self.env_id)
    spec = self._spec.observation
    observation = step_checks.new_rows(spec, size)
    reward, discount = np.zeros(size, np.float32), np.ones(size, np.float32)
    step_type = np.full(size, _MID, np.uint8)
    state, is_over, seeds = self._state, self._is_over, self._seeds
    try:
      for row, env in enumerate(self.envs):
        if state.is_stopped:
          raise base.StreamClosed(f'The stream of {self._spec.name} is closed.')
        state.running = self._ids[row]
        if is_over[row]:
          x, _ = step_checks.values('reset', env.reset(seed=seeds[row]))
          step_type[row] = _FIRST
          seeds[row], is_over[row] = None, False
        else:
          x, value, terminated, truncated, _ = step_checks.values(
            'step', env.step(self._action[row])
          )
          reward[row] = step_checks.reward(value)
          if terminated or truncated:
            step_type[row], is_over[row] = _LAST, True
            discount[row] = not terminated
        step_checks.write_observation(x, spec, observation, row)
    except step_checks.InvalidStep as e:
      raise base.EnvironmentFailed(
        f'Environment {state.running} of {self._spec.name} {e}'
      ) from e
    finally:
      state.running = _NONE
    return types.EnvOutput(
      observation, reward, discount, step_type, self.env_id.copy()
    )

  def close(self) -> None:
    """Closes all environments, even if one raises."""
    with contextlib.ExitStack() as closing:
      # In reverse order.
      closing.callback(setattr, self._state, 'running', _NONE)
      for i, env in zip(self._ids, self.envs, strict=True):
        closing.callback(env.close)
        closing.callback(setattr, self._state, 'running', i)


def _serve(
  pipe: connection.Connection,
  pickled: bytes,
  spec: types.StreamSpec,
  *arguments: Any,
) -> None:
  """Steps `SyncEnvs` of these arguments in a process, until the pipe ends."""
  for number in _SIGNALS:
    signal.signal(number, signal.SIG_IGN)
  # An environment that uses JAX must not take the accelerator.
  os.environ['JAX_PLATFORMS'] = 'cpu'
  # As in `EnvThread`.
  asyncio.set_event_loop(asyncio.new_event_loop())
  envs: SyncEnvs | None = None
  # The pipe ends with the main process, too.
  with contextlib.suppress(EOFError, OSError):
    while True:
      action = pipe.recv()
      answer: types.EnvOutput | Exception
      try:
        envs = envs or SyncEnvs(cloudpickle.loads(pickled), spec, *arguments)
        envs.start(action)
        answer = envs.finish()
      except (base.EnvironmentFailed, base.StreamClosed) as e:
        answer = e
      except Exception:
        # As text: an exception may not survive pickling.
        text = traceback.format_exc()
        answer = base.EnvironmentFailed(
          f'{text}An environment of {spec.name} failed in its process: '
          f'{text.splitlines()[-1]}.'
        )
      pipe.send(answer)
  if envs is not None:
    envs.close()


# Two threads may each start a run.
_script_lock = threading.Lock()


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
  """Hides the script that runs, which new processes would run again.

  multiprocessing imports it for functions defined there, which cloudpickle
  sends by value.
  """
  with _script_lock:
    script = sys.modules['__main__']
    sys.modules['__main__'] = python_types.ModuleType('__main__')
    try:
      yield
    finally:
      sys.modules['__main__'] = script


class ProcessEnvs(_Envs):
  """Environments that step together, divided among processes."""

  def __init__(
    self,
    make_env: Callable[[], gymnasium.Env],
    spec: types.StreamSpec,
    seed: int,
    env_id: np.ndarray,
    num_processes: int,
  ):
    """Starts at most `num_processes` processes; others as of `SyncEnvs`.

    Raises ValueError if `make_env` cannot be pickled, or a process cannot be
    started.
    """
    super().__init__(env_id, spec)
    try:
      pickled = cloudpickle.dumps(make_env)
    # Whatever the objects that it refers to raise.
    except Exception as e:
      raise ValueError(
        f'--config.env.processes: {spec.name} cannot be sent to other '
        f'processes: {e}; give 0, or move it to a module.'
      ) from e
    self._pipes: list[connection.Connection] = []
    self._processes: list[Any] = []
    _CONTEXT.set_forkserver_preload([__name__])
    parts = np.array_split(env_id, min(num_processes, len(env_id)))
    self._splits = np.cumsum([len(part) for part in parts])[:-1]
    # Otherwise the interpreter waits for those started when it exits.
    atexit.register(self.close)
    for part in parts:
      pipe, end = _CONTEXT.Pipe()
      state = _CONTEXT.RawValue(_State, _NONE)
      process = _CONTEXT.Process(
        target=_serve,
        args=(end, pickled, spec, seed, part, state),
        daemon=True,
      )
      try:
        with _without_script():
          process.start()
      except OSError as e:
        raise ValueError(
          f'--config.env.processes: a process cannot be started ({e}); give '
          f'fewer, or a shorter TMPDIR than {tempfile.gettempdir()}, which has '
          'their socket.'
        ) from e
      end.close()
      self._pipes.append(pipe)
      self._processes.append(process)
      self._states.append(state)

  def start(self, action: np.ndarray) -> None:
    """Starts a step; does not wait. The first step only resets."""
    for pipe, part in zip(
      self._pipes, np.split(action, self._splits), strict=True
    ):
      # `finish` says which process has ended. TypeError: a signal's handler
      # let the pipe be closed meanwhile.
      with contextlib.suppress(OSError, TypeError):
        pipe.send(part)

  def finish(self) -> types.EnvOutput:
    """Waits for the step that was started.

    Raises EnvironmentFailed if an environment raised, or a process has ended,
    and StreamClosed after `stop`.
    """
    try:
      parts = [pipe.recv() for pipe in self._pipes]
    except (EOFError, OSError) as e:
      connection.wait([p.sentinel for p in self._processes], END_SECONDS)
      codes = [p.exitcode for p in self._processes if p.exitcode is not None]
      raise base.EnvironmentFailed(
        f'A process that steps environments of {self._spec.name} has ended '
        f'(exit code {", ".join(map(str, codes))}; negative: killed by that '
        'signal).'
      ) from e
    for part in parts:
      if isinstance(part, Exception):
        raise part
    columns = zip(*map(nest.flatten, parts), strict=True)
    output = nest.unflatten(parts[0], map(np.concatenate, columns))
    assert isinstance(output, types.EnvOutput)
    return output

  def kill(self) -> None:
    """Kills the processes, also in a step that hangs; `finish` then raises."""
    for process in self._processes:
      process.kill()

  def close(self) -> None:
    """Ends the processes; kills them if they hang.

    Raises EnvironmentFailed if they hang.
    """
    atexit.unregister(self.close)
    for pipe in self._pipes:
      pipe.close()
    try:
      env_thread.wait_while_busy(self._join, self.running, self._spec.name)
    finally:
      self.kill()
      for process in self._processes:
        process.join()

  def _join(self, seconds: float) -> bool:
    for process in self._processes:
      process.join(seconds)
    return not any(process.is_alive() for process in self._processes)
