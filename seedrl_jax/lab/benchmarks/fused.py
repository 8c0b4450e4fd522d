"""Times environments in JAX alone, with acting, and with all in one program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax.agents import base as agents
from seedrl_jax.lab.benchmarks import timing
from seedrl_jax.learner import update
from seedrl_jax.run import plan as plan_lib


def time_envs(plan: plan_lib.Plan, windows: timing.Windows) -> timing.Timing:
  """Times the environments of the first stream with random actions."""
  env, n = plan.device_env, len(plan.shares[0].global_env_id)
  assert env is not None
  rng = np.random.default_rng(0)
  actions = env.spec.action.sample(rng, plan.config.unroll_length, n)

  def unroll(state: Any) -> Any:
    def step(state: Any, action: Any) -> Any:
      state, output = env.step(state, action)
      # Else the compiler leaves out what nothing needs.
      return state, (output.reward, output.step_type)

    return jax.lax.scan(step, state, actions)

  program = jax.jit(unroll, donate_argnums=0)
  state, _ = env.init(jax.random.PRNGKey(0), n)
  return _time(program, state, actions.shape[0] * n, windows)


def time_with_inference(
  plan: plan_lib.Plan, windows: timing.Windows
) -> timing.Timing:
  """Times the program that acts in the environments of the first stream."""
  share = plan.shares[0]
  program = plan.unroll_program(share)
  params = plan.agent.acting_params(plan.initial_state().agent)
  jitted = jax.jit(program, donate_argnums=3)

  def call(state: Any) -> Any:
    key, carry = state
    carry, acted = jitted(params, np.int32(0), key, carry)
    return (acted.key, carry), acted.unrolls

  key = jax.random.PRNGKey(0)
  steps = plan.config.unroll_length * len(share.global_env_id)
  return _time(call, (key, jax.jit(program.init)(key)), steps, windows)


def time_with_training(
  plan: plan_lib.Plan, windows: timing.Windows
) -> timing.Timing:
  """Times one program for a device that acts in all and trains on all of it.

  Nothing is handed over in it, and training waits for nothing: what a run could
  reach at most on one device that does both.
  """
  share = plan.shares[0]
  program = plan.unroll_program(share)

  def act_and_train(learner: Any, rest: Any) -> Any:
    key, carry = rest
    params = plan.agent.acting_params(learner.agent)
    carry, acted = program(params, jnp.int32(0), key, carry)
    for batch in acted.unrolls:
      batch = jax.tree.map(lambda x: x[0], batch)
      learner, output, _ = update.update(plan.agent, learner, batch, 0.0)
    return (learner, (acted.key, carry)), output.metrics

  mapped = jax.pmap(act_and_train, axis_name=agents.AXIS, donate_argnums=(0, 1))
  key = jax.random.PRNGKey(0)
  state = (plan.initial_state(), (key, program.init(key)))
  state = jax.tree.map(lambda x: x[None], state)
  steps = plan.config.unroll_length * share.num_train
  return _time(lambda state: mapped(*state), state, steps, windows)


def _time(
  program: Callable[[Any], tuple[Any, Any]],
  state: Any,
  steps: int,
  windows: timing.Windows,
) -> timing.Timing:
  """Times `program`, state -> state and results, of this many steps."""

  def work() -> int:
    nonlocal state
    state, results = program(state)
    jax.block_until_ready(results)
    return steps

  # Compiles once more for where the first call has left its results.
  work()
  return timing.measure(work, windows)
