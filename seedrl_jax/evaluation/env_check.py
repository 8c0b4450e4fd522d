"""Steps an environment with random actions and reports all of its faults."""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import (
  action_masks,
  base,
  env_thread,
  factory,
  gymnasium_envs,
  registry,
  specs,
  step_checks,
)
from seedrl_jax.evaluation import env_report
from seedrl_jax.networks import observations
from seedrl_jax.runtime import nest

MakeEnv = Callable[[], gymnasium.Env]
# Those of an observation; None for one that cannot be read.
_Arrays = list[np.ndarray | None]


class _PoolEnv(gymnasium.Env):
  """One of EnvPool, or in JAX, with the methods of Gymnasium's."""

  def __init__(self, config: types.Config):
    self._config = config
    self._stream: base.LocalStream | None = None
    self._num_resets = 0

  def reset(
    self, *, seed: int | None = None, options: Any = None
  ) -> tuple[Any, dict[str, Any]]:
    del options
    self.close()
    self._num_resets += 1
    number = self._num_resets if seed is None else seed
    self._stream = factory.make_stream(self._config, number, 1, 1)
    return self._row(self._stream.recv()), {}

  def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    assert self._stream is not None
    self._stream.send(action[None], np.zeros(1, np.int32))
    output = self._stream.recv()
    is_last = output.step_type[0] == types.StepType.LAST
    terminated = not output.discount[0]
    reward = float(output.reward[0])
    return self._row(output), reward, terminated, bool(is_last), {}

  def close(self) -> None:
    if self._stream is not None:
      self._stream.close()

  def _row(self, output: types.EnvOutput) -> types.Nest:
    return jax.tree.map(lambda x: x[0], output.observation)


class _Checker:
  """Plays one environment, and fills in a report."""

  def __init__(self, config: types.Config, episodes: int, max_steps: int):
    self._config = config
    self._num_episodes = episodes
    self._max_steps = max_steps
    self._report = env_report.EnvReport(config.env.factory or config.env.id)
    self._faults, self._warnings = env_report.Findings(), env_report.Findings()
    self._seconds = 0.0
    self._last: _Arrays = []

  def check(self, make: MakeEnv, seed: int) -> env_report.EnvReport:
    """Makes an environment and plays it."""
    env = self._faults.attempt(lambda: self._make(make))
    if env is not None:
      if self._describe(env):
        rng = np.random.default_rng(seed)
        first = self._play(env, seed, rng)
        for _ in range(1, self._num_episodes):
          # As in training, later resets have no seed.
          self._play(env, None, rng)
        self._compare_resets(first, env, make, seed)
      self._faults.attempt(env.close)
    report = self._report
    report.faults = self._faults.sentences()
    report.warnings = self._warnings.sentences()
    report.steps_per_second = report.steps / max(self._seconds, 1e-9)
    return report

  def _make(self, make: Callable[[], Any]) -> gymnasium.Env:
    with registry.quiet_spaces():
      env = make()
    if not isinstance(env, gymnasium.Env):
      raise ValueError(
        f'{self._report.name} must be or make a gymnasium.Env, not a '
        f'{type(env).__name__}.'
      )
    if isinstance(env, _PoolEnv):
      return env
    key = gymnasium_envs.mask_key(self._config.env)
    return gymnasium_envs.with_info_mask(env, key)

  def _describe(self, env: gymnasium.Env) -> bool:
    """Reads spaces; returns whether agents can use all of them."""
    description = self._faults.attempt(lambda: self._read_spaces(env))
    if description is None:
      return False
    self._spec = description.spec
    self._report.name = self._spec.name
    self._action_dtype = description.action_dtype
    observation = self._spec.observation
    # Each array as a nest of its own, so that one fault hides no other.
    self._arrays = [
      (key, single, specs.find_bounds(space, spec.dtype, key))
      for single, (key, spec), space in zip(
        _single_arrays(observation),
        nest.flatten_with_paths(observation),
        nest.flatten(description.space),
        strict=True,
      )
    ]
    network = self._config.copy_and_resolve_references().network
    network.torso = 'auto'
    env_spec = types.EnvSpec(specs.joined_spec(self._spec), 1, 0)
    self._faults.attempt(lambda: agents.check_first_action(env_spec))
    leaves = self._faults.attempt(
      lambda: observations.make_leaves(network, env_spec)
    )
    if leaves is not None:
      self._report.network = observations.describe(network, env_spec)
    return True

  def _read_spaces(
    self, env: gymnasium.Env
  ) -> gymnasium_envs.Description | None:
    """Returns what the environment looks like; None after a fault."""
    section = self._config.env
    if isinstance(env, _PoolEnv):
      spec = factory.make_spec(section)
      return gymnasium_envs.Description(
        spec, spec.action.dtype, spec.observation
      )
    for text in gymnasium_envs.lost_statistics(
      env, gymnasium_envs.flag_of(section)
    ):
      self._warnings.add(text)
    # All of them, as each may add a fault.
    calls = gymnasium_envs.spec_calls(env, section)
    if None in [self._faults.attempt(call) for call in calls]:
      return None
    return gymnasium_envs.describe_env(env, section)

  def _play(
    self, env: gymnasium.Env, seed: int | None, rng: np.random.Generator
  ) -> _Arrays | None:
    """Plays an episode, as far as the environment can go on.

    Returns the arrays of its first observation, or None if the reset failed.
    """
    self._report.episodes += 1
    first = self._reset(env, seed)
    if first is None:
      return None
    for _ in range(self._max_steps):
      action = self._sample(env, rng)
      action = np.asarray(action, self._action_dtype)[()]
      start = time.perf_counter()
      result = self._faults.attempt(functools.partial(env.step, action), 'step')
      self._seconds += time.perf_counter() - start
      if result is None or self._step(result):
        return first
    self._warnings.add(
      f'An episode had not ended after {self._max_steps} steps; end it with '
      "Gymnasium's TimeLimit or --config.env.max_episode_steps, or raise "
      '--max_steps.',
    )
    return first

  def _sample(self, env: gymnasium.Env, rng: np.random.Generator) -> np.ndarray:
    """Returns a random action; a legal one, if there is a mask."""
    spec = self._spec
    if not spec.action_mask or any(x is None for x in self._last):
      return spec.action.sample(rng)
    observation = nest.unflatten(spec.observation, self._last)
    # Streams check it themselves.
    if not isinstance(env, _PoolEnv) and action_masks.lacks_choice(
      spec, observation
    ):
      self._faults.add(f'The environment {action_masks.NO_CHOICE}')
    return action_masks.sample(spec, rng, observation)[0]

  def _reset(self, env: gymnasium.Env, seed: int | None) -> _Arrays | None:
    """Resets; returns the observation's arrays, or None if that failed."""
    result = self._faults.attempt(
      functools.partial(env.reset, seed=seed), 'reset'
    )
    if result is None:
      return None
    return self._faults.attempt(
      lambda: self._observe(step_checks.reset_observation(result))
    )

  def _compare_resets(
    self, first: _Arrays | None, env: gymnasium.Env, make: MakeEnv, seed: int
  ) -> None:
    """Compares a first observation with that of another environment."""
    other = self._faults.attempt(lambda: self._make(make))
    if first is None or other is None:
      return
    again = self._reset(other, seed)
    if other is not env:
      self._faults.attempt(other.close)
    if again is None:
      return
    self._report.is_deterministic = all(
      a is None or b is None or np.array_equal(a, b)
      for a, b in zip(first, again, strict=True)
    )
    if not self._report.is_deterministic:
      self._warnings.add(
        f'Resets with seed {seed} differ; draw all random numbers from '
        'self.np_random.',
      )

  def _step(self, result: Any) -> bool:
    """Checks what a step returned; returns whether the episode is over."""
    self._report.steps += 1
    if not isinstance(result, tuple) or len(result) != 5:
      self._faults.attempt(lambda: step_checks.step_values(result))
      return True
    observation, reward, terminated, truncated, _ = result
    self._observe(observation)
    self._faults.attempt(lambda: step_checks.reward(reward))
    is_over = self._faults.attempt(
      lambda: bool(terminated) or bool(truncated), 'step'
    )
    return is_over is not False

  def _observe(self, observation: Any) -> _Arrays:
    """Checks an observation; returns its arrays `[1, ...]`, None if wrong."""
    self._last = [
      self._faults.attempt(
        functools.partial(self._read, observation, key, *rest)
      )
      for key, *rest in self._arrays
    ]
    return self._last

  def _read(
    self,
    observation: Any,
    key: str,
    spec: types.Nest,
    bounds: step_checks.Bounds | None,
  ) -> np.ndarray:
    """Returns an array of an observation, `[1, ...]`."""
    rows = step_checks.new_rows(spec, 1)
    step_checks.write_observation(observation, spec, rows, 0)
    (array,) = nest.flatten(rows)
    if array.dtype.kind == 'f' and not np.isfinite(array).all():
      raise step_checks.InvalidStep(
        f'gave an observation{f" for the key {key!r}" if key else ""} that is '
        'not finite.'
      )
    if bounds is not None and (violation := bounds.violation(array)):
      findings = self._faults if bounds.is_discrete else self._warnings
      findings.add(f'The environment {violation[1]}')
    return array


def _single_arrays(spec: types.Nest) -> Iterator[types.Nest]:
  """Yields a nest for each array, which has only that one."""
  if types.is_spec(spec):
    yield spec
    return
  for key in sorted(spec):
    for single in _single_arrays(spec[key]):
      yield {key: single}


def check(
  config: types.Config,
  episodes: int = 10,
  max_steps: int = 10_000,
  seed: int = 0,
  make: MakeEnv | None = None,
) -> env_report.EnvReport:
  """Steps an environment and reports its faults.

  Args:
    max_steps: maximum number of steps of an episode.
    seed: of environment and actions.
    make: makes the environment; None: the section `env` of the configuration
      says which, and a thread of its own makes and steps it, as in training.

  Raises:
    ValueError: if the section has several tasks.
  """
  if make is None and factory.task_names(config.env):
    raise ValueError(
      '--config.env.tasks: names several environments; check one after the '
      'other with --config.env.id.'
    )
  checker = _Checker(config, episodes, max_steps)
  if make is not None:
    # It may return an environment of the caller's thread.
    return checker.check(make, seed)

  def make_configured() -> gymnasium.Env:
    if factory.is_gymnasium(config.env):
      return gymnasium_envs.load_factory(config.env)()
    return _PoolEnv(config.env)

  return env_thread.call_in_thread(
    'check-env', lambda: checker.check(make_configured, seed)
  )
