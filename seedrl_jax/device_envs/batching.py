"""Makes a `types.DeviceEnv` of the functions of a single environment."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from seedrl_jax import types


class Transition(NamedTuple):
  """What a step of one environment leads to.

  Attributes:
    observation: the true one, also at the episode's end.
    reward: scalar.
    terminated, truncated: bool; the second only counts without the first.
  """

  state: types.Nest
  observation: types.Nest
  reward: jax.Array
  terminated: jax.Array
  truncated: jax.Array


class _State(NamedTuple):
  """The state of N environments.

  Attributes:
    key: of the next step.
    states: leaves `[N, ...]`.
    observation: the last ones, `[N, ...]`.
    is_over: bool `[N]`, whether the next output is FIRST.
    turn: int32 scalar, the first environment to reset if it is over.
  """

  key: jax.Array
  states: types.Nest
  observation: types.Nest
  is_over: jax.Array
  turn: jax.Array


def batch(
  spec: types.StreamSpec,
  reset: Callable[[jax.Array], tuple[types.Nest, types.Nest]],
  step: Callable[[jax.Array, types.Nest, jax.Array], Transition],
  reset_share: float = 0.125,
) -> types.DeviceEnv:
  """Returns a batch of environments with resets inside.

  Args:
    spec: what one environment looks like; observations are cast to its dtypes.
    reset: key -> state and observation.
    step: (key, state, action) -> `Transition`; does not reset.
    reset_share: of the environments that one step can reset, as every reset is
      computed whether it is needed or not. The others repeat FIRST meanwhile.
      Take 1 if episodes may be shorter than its inverse.
  """

  envs = _Batch(spec, reset, step, reset_share)
  return types.DeviceEnv(spec, envs.init, envs.step_all)


@dataclasses.dataclass(frozen=True)
class _Batch:
  """The functions of a batch; see `batch` for the attributes."""

  spec: types.StreamSpec
  reset: Callable[[jax.Array], tuple[types.Nest, types.Nest]]
  step: Callable[[jax.Array, types.Nest, jax.Array], Transition]
  reset_share: float

  def init(self, key: jax.Array, n: int) -> tuple[_State, types.EnvOutput]:
    key, reset_key = jax.random.split(key)
    states, observation = self._reset(reset_key, n)
    state = _State(key, states, observation, jnp.zeros(n, bool), jnp.int32(0))
    no = jnp.zeros(n, bool)
    return state, _make_output(observation, jnp.zeros(n), ~no, no, no)

  def step_all(
    self, state: _State, action: jax.Array
  ) -> tuple[_State, types.EnvOutput]:
    n = len(state.is_over)
    key, step_key, reset_key = jax.random.split(state.key, 3)
    step_keys = jax.random.split(step_key, n)
    after = jax.vmap(self.step)(step_keys, state.states, action)
    after = after._replace(observation=self._cast(after.observation))
    # Those that wait for a reset do not move.
    is_over = state.is_over
    before = (state.states, state.observation)
    states, observation = _where(is_over, before, after[:2])
    count = min(n, max(1, round(n * self.reset_share)))
    rows = _rows_to_reset(is_over, state.turn, count)
    states, observation = jax.tree.map(
      lambda x, y: x.at[rows].set(y, mode='drop'),
      (states, observation),
      self._reset(reset_key, count),
    )
    waits = is_over.at[rows].set(False, mode='drop')
    ends = ~is_over & (after.terminated | after.truncated)
    output = _make_output(
      observation, after.reward, is_over, ends, after.terminated
    )
    turn = (state.turn + count) % n
    return _State(key, states, observation, waits | ends, turn), output

  def _reset(self, key: jax.Array, count: int) -> tuple[types.Nest, types.Nest]:
    keys = jax.random.split(key, count)
    states, observation = jax.vmap(self.reset)(keys)
    return states, self._cast(observation)

  def _cast(self, observation: types.Nest) -> types.Nest:
    return jax.tree.map(
      lambda x, s: jnp.asarray(x, s.dtype).reshape(len(x), *s.shape),
      observation,
      self.spec.observation,
    )


def _make_output(
  observation: types.Nest,
  reward: jax.Array,
  is_over: jax.Array,
  ends: jax.Array,
  terminated: jax.Array,
) -> types.EnvOutput:
  """Returns the output of N environments after a step.

  Args:
    observation, reward: `[N, ...]`, `[N]`; of the reset where `is_over`.
    is_over: bool `[N]`, whether the episode was over; then the output is FIRST.
    ends: bool `[N]`, whether the step ends the episode.
    terminated: bool `[N]`, whether the episode then terminates.
  """
  kind = jnp.where(ends, types.StepType.LAST, types.StepType.MID)
  step_type = jnp.where(is_over, types.StepType.FIRST, kind)
  discount = jnp.where(~is_over & terminated, 0.0, 1.0)
  return types.EnvOutput(
    observation,
    jnp.where(is_over, 0.0, reward).astype(jnp.float32),
    discount.astype(jnp.float32),
    step_type.astype(jnp.uint8),
    jnp.arange(len(reward), dtype=jnp.int32),
  )


def _rows_to_reset(
  is_over: jax.Array, turn: jax.Array, count: int
) -> jax.Array:
  """Returns the first `count` that are over from `turn` on, int32; else N.

  Round-robin, so that an environment waits for N / count steps at most.
  """
  n = len(is_over)
  (ahead,) = jnp.nonzero(jnp.roll(is_over, -turn), size=count, fill_value=n)
  return jnp.where(ahead < n, (ahead + turn) % n, n)


def _where(which: jax.Array, x: types.Nest, y: types.Nest) -> types.Nest:
  """Returns rows of `x` or `y`, nests `[N, ...]`, by bool `[N]`."""

  def choose(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(which.reshape(-1, *[1] * (a.ndim - 1)), a, b)

  return jax.tree.map(choose, x, y)
