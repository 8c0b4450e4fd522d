"""What training changes, and what an update gives besides.

`device_update` makes both; checkpoints hold the former.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from seedrl_jax.agents import base


class LearnerState(NamedTuple):
  """What training changes; on the devices every leaf leads with `[D]`.

  Attributes:
    params: of the agent.
    target_params: of its target network, or () where it has none.
    opt_state: of the optimiser.
    step: int32, updates so far.
    key: PRNG key, uint32 `[2]`.
  """

  params: base.Params
  target_params: base.Params
  opt_state: Any
  step: jax.Array
  key: jax.Array


class UpdateOutput(NamedTuple):
  """What an update gives besides the next state; leaves lead with `[D]`.

  Attributes:
    params: a copy of the new parameters that no later update donates.
    metrics: float32 scalars by name.
    finite: bool, whether loss, gradient and what the optimiser made of it
      were; if not, the state is as it was before.
    priorities: `[B / D]` of the device's unrolls, or None.
  """

  params: base.Params
  metrics: Mapping[str, jax.Array]
  finite: jax.Array
  priorities: jax.Array | None


def initial_state(
  agent: base.Agent, optimizer: optax.GradientTransformation, key: jax.Array
) -> LearnerState:
  """Returns the state before the first update, without a device axis."""

  # As one program: each of its many operations would be compiled alone.
  @jax.jit
  def make(key: jax.Array) -> LearnerState:
    init_key, key = jax.random.split(key)
    params = agent.init(init_key)
    return LearnerState(
      params=params,
      target_params=params if agent.target_update_period else (),
      opt_state=optimizer.init(params),
      step=jnp.zeros((), jnp.int32),
      key=key,
    )

  return make(key)
