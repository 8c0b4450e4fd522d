"""Steps an environment with random actions and reports all of its faults."""

import dataclasses
import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

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
from seedrl_jax.networks import observations
from seedrl_jax.runtime import nest, settings

_T = TypeVar('_T')
# The arrays of an observation, `[1, ...]`; None for one that cannot be read.
_Arrays = list[np.ndarray | None]


@dataclasses.dataclass
class EnvReport:
  """The results of an environment's check.

  Attributes:
    name: of the environment.
    faults: errors that would end a training.
    warnings: what training accepts, but may be a mistake.
    episodes, steps: number of those played.
    steps_per_second: of a single environment, without resets.
    is_deterministic: whether two resets with the same seed gave the same
      observation; None if they could not be compared.
    network: what `--config.network.torso=auto` takes; '' if nothing can be
      taken.
  """

  name: str
  faults: tuple[str, ...] = ()
  warnings: tuple[str, ...] = ()
  episodes: int = 0
  steps: int = 0
  steps_per_second: float = 0.0
  is_deterministic: bool | None = None
  network: str = ''

  def report(self) -> str:
    """Returns the findings in a few lines."""
    resets = {True: 'the same', False: 'different', None: 'not compared'}
    lines = [
      f'{self.name}: {self.steps} steps in {self.episodes} episodes of random '
      f'actions, {self.steps_per_second:,.0f} steps/s without resets.',
      f'Resets with the same seed: {resets[self.is_deterministic]}.',
      self.network,
      f'Faults: {len(self.faults)}; warnings: {len(self.warnings)}.',
      *(f'Fault: {text}' for text in self.faults),
      *(f'Warning: {text}' for text in self.warnings),
    ]
    return '\n'.join(filter(None, lines))


class _Findings:
  """Sentences and their counts; those that differ in numbers are of a kind."""

  def __init__(self) -> None:
    self._kinds: dict[str, tuple[str, int]] = {}

  def add(self, text: str) -> None:
    # Lines of a file are different places.
    kind = re.sub(r'(?<!line )\b\d[\d.,e+-]*', '', text)
    first, count = self._kinds.get(kind, (text, 0))
    self._kinds[kind] = first, count + 1

  def attempt(self, call: Callable[[], _T], method: str = '') -> _T | None:
    """Returns what `call` returns; if it raises, adds that and returns None.

    `method` is the environment's own, if `call` calls one.
    """
    try:
      return call()
    except Exception as e:
      text = f'{settings.error_text(e)}.'
      if method:
        text = f'The environment failed in {method}: {text}'
      elif isinstance(e, step_checks.InvalidStep):
        text = f'The environment {e}'
      elif isinstance(e, ValueError | registry.MissingLibraryError):
        text = str(e)
      self.add(text)
    return None

  def sentences(self) -> tuple[str, ...]:
    return tuple(
      f'{text} ({count} times)' if count > 1 else text
      for text, count in self._kinds.values()
    )


class _PoolEnv(gymnasium.Env):
  """One of EnvPool, or in JAX, with the methods of Gymnasium's."""

  def __init__(self, config: types.Config):
    self._config = config
    self._stream: base.LocalStream | None = None
    self._seed = 0

  def reset(
    self, *, seed: int | None = None, options: Any = None
  ) -> tuple[Any, dict[str, Any]]:
    del options
    self.close()
    self._seed = self._seed + 1 if seed is None else seed
    self._stream = factory.make_stream(self._config, self._seed, 1, 1)
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

  def __init__(self, config: types.Config, max_steps: int):
    self._config = config
    self._max_steps = max_steps
    self._report = EnvReport(config.env.factory or config.env.id)
    self._faults, self._warnings = _Findings(), _Findings()
    self._seconds = 0.0
    self._last: _Arrays = []

  def check(
    self, make: Callable[[], gymnasium.Env], episodes: int, seed: int
  ) -> EnvReport:
    """Makes an environment and plays it."""
    env = self._faults.attempt(make)
    if env is not None:
      description = self._faults.attempt(lambda: self._describe(env))
      if description is not None:
        self._prepare(*description)
        rng = np.random.default_rng(seed)
        for number in range(episodes):
          # As in training, later resets have no seed.
          self._play(env, None if number else seed, rng)
        self._compare_resets(env, seed)
      self._faults.attempt(env.close)
    report = self._report
    report.faults = self._faults.sentences()
    report.warnings = self._warnings.sentences()
    report.steps_per_second = report.steps / max(self._seconds, 1e-9)
    return report

  def _describe(self, env: gymnasium.Env) -> gymnasium_envs.Description:
    section = self._config.env
    if isinstance(env, _PoolEnv):
      spec = factory.make_spec(section)
      bounds = [None] * len(nest.flatten(spec.observation))
      return gymnasium_envs.Description(spec, spec.action.dtype, bounds)
    flag = gymnasium_envs.flag_of(section)
    for text in gymnasium_envs.lost_statistics(env, flag):
      self._warnings.add(text)
    return gymnasium_envs.describe_env(env, section)

  def _prepare(
    self,
    spec: types.StreamSpec,
    action_dtype: np.dtype,
    bounds: Sequence[step_checks.Bounds | None],
  ) -> None:
    """Notes what a step must be like, and which network would take it."""
    self._spec = spec
    self._action_dtype = action_dtype
    self._report.name = spec.name
    # Each array as a nest of its own, so that one fault hides no other.
    singles = _single_arrays(spec.observation)
    self._arrays = list(zip(singles, bounds, strict=True))
    network = self._config.copy_and_resolve_references().network
    network.torso = 'auto'
    env_spec = types.EnvSpec(specs.joined_spec(spec), 1, 0)
    self._faults.attempt(lambda: agents.check_first_action(env_spec))
    leaves = self._faults.attempt(
      lambda: observations.make_leaves(network, env_spec)
    )
    if leaves is not None:
      self._report.network = observations.describe(network, env_spec)

  def _play(
    self, env: gymnasium.Env, seed: int | None, rng: np.random.Generator
  ) -> None:
    """Plays an episode, as far as the environment can go on."""
    self._report.episodes += 1
    if self._reset(env, seed) is None:
      return
    for _ in range(self._max_steps):
      action = self._sample(env, rng)
      action = np.asarray(action, self._action_dtype)[()]
      start = time.perf_counter()
      result = self._faults.attempt(functools.partial(env.step, action), 'step')
      self._seconds += time.perf_counter() - start
      if result is None or self._is_over(result):
        return
    self._warnings.add(
      f'An episode had not ended after {self._max_steps} steps; end it with '
      "Gymnasium's TimeLimit or --config.env.max_episode_steps, or raise "
      '--max_steps.',
    )

  def _sample(self, env: gymnasium.Env, rng: np.random.Generator) -> np.ndarray:
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
    """Returns the arrays after a reset; None if it failed."""
    result = self._faults.attempt(lambda: env.reset(seed=seed), 'reset')
    if result is None:
      return None
    return self._faults.attempt(
      lambda: self._observe(step_checks.values('reset', result)[0])
    )

  def _compare_resets(self, env: gymnasium.Env, seed: int) -> None:
    first, again = self._reset(env, seed), self._reset(env, seed)
    if first is None or again is None:
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

  def _is_over(self, result: Any) -> bool:
    """Checks what a step returned; returns whether the episode is over."""
    self._report.steps += 1
    values = self._faults.attempt(lambda: step_checks.values('step', result))
    if values is None:
      return True
    observation, reward, terminated, truncated, _ = values
    self._observe(observation)
    self._faults.attempt(lambda: step_checks.reward(reward))
    is_over = self._faults.attempt(lambda: bool(terminated or truncated))
    return is_over is not False

  def _observe(self, observation: Any) -> _Arrays:
    self._last = [
      self._faults.attempt(functools.partial(self._read, observation, *array))
      for array in self._arrays
    ]
    return self._last

  def _read(
    self,
    observation: Any,
    spec: types.Nest,
    bounds: step_checks.Bounds | None,
  ) -> np.ndarray:
    (array,) = step_checks.read(observation, spec)
    if bounds is not None and (violation := bounds.violation(array)):
      findings = self._faults if bounds.is_strict else self._warnings
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
  make: Callable[[], Any] | None = None,
) -> EnvReport:
  """Steps an environment and reports its faults; see `api.check_env`.

  If `make` does not make it, the section `env` says which it is, and a thread
  of its own makes and steps it, as in training.

  Raises ValueError if the section has several tasks.
  """
  if make is None and factory.task_names(config.env):
    raise ValueError(
      '--config.env.tasks: names several environments; check one after the '
      'other with --config.env.id.'
    )

  def make_env() -> gymnasium.Env:
    if make is not None:
      return gymnasium_envs.adapt(make(), config.env)
    if factory.is_gymnasium(config.env):
      return gymnasium_envs.load_factory(config.env)()
    return _PoolEnv(config.env)

  def call() -> EnvReport:
    return _Checker(config, max_steps).check(make_env, episodes, seed)

  # `make` may return an environment of the caller's thread.
  return call() if make else env_thread.call_in_thread('check-env', call)
