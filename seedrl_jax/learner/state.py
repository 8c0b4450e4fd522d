"""The state that a run trains and checkpoints."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from seedrl_jax.agents import base


class LearnerState(NamedTuple):
  """What training changes; on the devices every leaf leads with `[D]`."""

  agent: base.State
  step: jax.Array  # int32, optimiser steps so far
  key: jax.Array  # uint32 [2]


def initial_state(agent: base.Agent, key: jax.Array) -> LearnerState:
  """Returns the state before the first update, without a device axis."""

  # One program: else each of many operations would be compiled alone.
  @jax.jit
  def make(key: jax.Array) -> LearnerState:
    init_key, key = jax.random.split(key)
    return LearnerState(agent.init(init_key), jnp.zeros((), jnp.int32), key)

  return make(key)
