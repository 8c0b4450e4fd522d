"""EnvPool's cheap environments within a compiled program, on a CPU.

A program calls EnvPool's threads itself (its `xla` interface), which saves two
calls from Python for each step. It cannot be interrupted.
"""

from typing import Any

import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.envs import envpool_stream


def load(config: types.Config) -> types.DeviceEnv:
  """Returns the environments of an `env` section.

  `init` makes a pool of them, whose seed is the key's last number; within a
  trace that seed is 0. `step` belongs to the newest pool, so each program needs
  environments of its own.
  """
  spec = envpool_stream.make_spec(config)
  dtype = envpool_stream.action_dtype(config)
  pool: Any = None

  def init(key: jax.Array, n: int) -> tuple[types.Nest, types.EnvOutput]:
    nonlocal pool
    seed = 0 if isinstance(key, jax.core.Tracer) else int(key[-1])
    pool = envpool_stream.make_compiled_pool(config, seed, n)
    pool.async_reset()
    handle, *_ = pool.xla()
    return receive(jnp.asarray(handle), jnp.ones(n, bool))

  def receive(
    handle: jax.Array, is_over: jax.Array
  ) -> tuple[types.Nest, types.EnvOutput]:
    n = len(is_over)
    _, recv, *_ = pool.xla()
    handle, (observation, reward, terminated, truncated, _) = recv(handle)
    # The time limit truncates, also where the episode terminates in that step.
    ends = (terminated | truncated) & ~is_over
    kind = jnp.where(ends, types.StepType.LAST, types.StepType.MID)
    output = types.EnvOutput(
      observation=observation.astype(spec.observation.dtype).reshape(
        n, *spec.observation.shape
      ),
      reward=jnp.where(is_over, 0.0, reward).astype(jnp.float32),
      discount=jnp.where(ends & ~truncated, 0.0, 1.0).astype(jnp.float32),
      step_type=jnp.where(is_over, types.StepType.FIRST, kind).astype(
        jnp.uint8
      ),
      env_id=jnp.arange(n, dtype=jnp.int32),
    )
    return (handle, ends), output

  def step(
    state: types.Nest, action: jax.Array
  ) -> tuple[types.Nest, types.EnvOutput]:
    handle, is_over = state
    n = len(is_over)
    _, _, send, _ = pool.xla()
    env_id = jnp.arange(n, dtype=jnp.int32)
    return receive(send(handle, action.astype(dtype), env_id), is_over)

  return types.DeviceEnv(spec, init, step)
