"""EnvPool's cheap environments within a compiled program, on a CPU.

A program calls EnvPool's threads itself (its `xla` interface), which saves two
calls from Python for each step. It cannot be interrupted.
"""

from typing import Any

import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.device_envs import batching
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
    shape = (n, *spec.observation.shape)
    observation = observation.astype(spec.observation.dtype).reshape(shape)
    output = batching.make_output(
      observation, reward, is_over, ends, terminated & ~truncated
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
