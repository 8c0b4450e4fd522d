"""Makes batches of environments in JAX, of one task or of several."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import tasks as tasks_lib


class Transition(NamedTuple):
  """What a step of one environment leads to."""

  state: types.Nest
  observation: types.Nest  # the true one, also at the episode's end
  reward: jax.Array  # scalar
  terminated: jax.Array  # bool
  truncated: jax.Array  # bool; only counts if it has not terminated


class _State(NamedTuple):
  key: jax.Array  # of the next step
  states: types.Nest  # leaves `[N, ...]`
  observation: types.Nest  # the last ones, `[N, ...]`
  is_over: jax.Array  # bool `[N]`, whether the next output is FIRST
  turn: jax.Array  # int32, the first environment to reset if it is over


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

  def reset_all(key: jax.Array, count: int) -> tuple[types.Nest, types.Nest]:
    states, observation = jax.vmap(reset)(jax.random.split(key, count))
    return states, _cast(observation, spec)

  def init(key: jax.Array, n: int) -> tuple[_State, types.EnvOutput]:
    key, reset_key = jax.random.split(key)
    states, observation = reset_all(reset_key, n)
    no = jnp.zeros(n, bool)
    state = _State(key, states, observation, no, jnp.int32(0))
    return state, _make_output(observation, jnp.zeros(n), ~no, no, no)

  def step_all(
    state: _State, action: jax.Array
  ) -> tuple[_State, types.EnvOutput]:
    n = len(state.is_over)
    key, step_key, reset_key = jax.random.split(state.key, 3)
    step_keys = jax.random.split(step_key, n)
    after = jax.vmap(step)(step_keys, state.states, action)
    is_over = state.is_over
    # Those that wait for a reset do not move.
    states, observation = _where(
      is_over,
      (state.states, state.observation),
      (after.state, _cast(after.observation, spec)),
    )
    count = min(n, max(1, round(n * reset_share)))
    rows = _rows_to_reset(is_over, state.turn, count)
    states, observation = jax.tree.map(
      lambda x, y: x.at[rows].set(y, mode='drop'),
      (states, observation),
      reset_all(reset_key, count),
    )
    waits = is_over.at[rows].set(False, mode='drop')
    ends = ~is_over & (after.terminated | after.truncated)
    output = _make_output(
      observation, after.reward, is_over, ends, after.terminated
    )
    turn = (state.turn + count) % n
    return _State(key, states, observation, waits | ends, turn), output

  return types.DeviceEnv(spec, init, step_all)


def _cast(observation: types.Nest, spec: types.StreamSpec) -> types.Nest:
  return jax.tree.map(
    lambda x, s: jnp.asarray(x, s.dtype).reshape(len(x), *s.shape),
    observation,
    spec.observation,
  )


def _make_output(
  observation: types.Nest,
  reward: jax.Array,
  is_over: jax.Array,
  ends: jax.Array,
  terminated: jax.Array,
) -> types.EnvOutput:
  """Returns the output of a step: FIRST where the episode `is_over` before."""
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
  """Returns rows of `x` where `which`, bool `[n]`, is set, else of `y`."""

  def choose(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(which.reshape(-1, *[1] * (a.ndim - 1)), a, b)

  return jax.tree.map(choose, x, y)


def join(
  envs: Sequence[types.DeviceEnv], tasks: np.ndarray | None = None
) -> types.DeviceEnv:
  """Returns a batch that has environments of each of `envs`, of a task each.

  `tasks`, int `[n]`, are those of the environments; None means round-robin.
  Raises what `tasks.join_specs` does.
  """
  spec = tasks_lib.join_specs([env.spec for env in envs])

  def parts(n: int) -> list[tuple[int, np.ndarray]]:
    """Returns tasks, and which environments each has: at least one."""
    numbers = np.arange(n) % len(envs) if tasks is None else tasks
    assert len(numbers) == n
    return [
      (task, np.flatnonzero(numbers == task))
      for task in np.unique(numbers).tolist()
    ]

  def merge(outputs: Sequence[types.EnvOutput], n: int) -> types.EnvOutput:
    """Returns the outputs of all parts, in the order of environments."""
    numbered = []
    for output, (task, rows) in zip(outputs, parts(n), strict=True):
      column = jnp.full(len(rows), task, jnp.int32)
      observation = tasks_lib.with_task(output.observation, column)
      numbered.append(output._replace(observation=observation))
    order = np.argsort(np.concatenate([rows for _, rows in parts(n)]))
    joined = jax.tree.map(lambda *x: jnp.concatenate(x)[order], *numbered)
    return joined._replace(env_id=jnp.arange(n, dtype=jnp.int32))

  def init(key: jax.Array, n: int) -> tuple[types.Nest, types.EnvOutput]:
    keys = jax.random.split(key, len(envs))
    pairs = [envs[task].init(keys[task], len(rows)) for task, rows in parts(n)]
    states, outputs = zip(*pairs, strict=True)
    return states, merge(outputs, n)

  def step(
    state: types.Nest, action: jax.Array
  ) -> tuple[types.Nest, types.EnvOutput]:
    n = len(action)
    pairs = [
      envs[task].step(part, action[rows])
      for part, (task, rows) in zip(state, parts(n), strict=True)
    ]
    states, outputs = zip(*pairs, strict=True)
    return states, merge(outputs, n)

  return types.DeviceEnv(spec, init, step)
