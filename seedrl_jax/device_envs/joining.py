"""Environments in JAX of several tasks, as one batch."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import tasks as tasks_lib


def join(
  envs: Sequence[types.DeviceEnv], tasks: np.ndarray | None = None
) -> types.DeviceEnv:
  """Returns a batch that has environments of each of `envs`.

  Args:
    envs: of one task each.
    tasks: int `[n]`, the task of each environment; None means round-robin.

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
