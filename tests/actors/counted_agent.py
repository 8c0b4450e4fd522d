"""V-trace that records which steps of `counted` it is trained on."""

import dataclasses
from typing import Any

import jax

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.agents.vtrace import agent as vtrace
from tests.actors import counted


def make_agent(config: Any, env_spec: types.EnvSpec) -> base.Agent:
  """Makes the agent; see `agents.base.load_agent`."""
  agent = vtrace.make_agent(config, env_spec)

  def update(
    state: base.State,
    batch: types.Batch,
    key: jax.Array,
    progress: jax.Array,
  ) -> tuple[base.State, base.UpdateOutput]:
    observation = batch.unroll.steps.observation
    jax.debug.callback(counted.note_unrolls, observation)
    return agent.update(state, batch, key, progress)

  return dataclasses.replace(agent, update=update)
