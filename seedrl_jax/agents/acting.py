"""What agents with one network have in common: its parameters and its steps.

Each agent's `make_agent` binds these to its network and to its way to choose
actions.
"""

from collections.abc import Callable
from typing import Any, Protocol

import flax.linen as nn
import jax

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.networks import network as network_lib


class ChooseFn(Protocol):
  """Chooses actions by what the network says of B steps, `[B, ...]`.

  `env_id` is as in `base.ActFn`.
  """

  def __call__(
    self, key: jax.Array, outputs: Any, env_id: jax.Array
  ) -> base.AgentOutput: ...


def make_init(
  module: nn.Module, network: network_lib.Network, env_spec: types.EnvSpec
) -> Callable[[jax.Array], base.Params]:
  """Returns what makes the parameters of `module` from a key.

  Args:
    module: heads on `network`; maps inputs `[T, B, ...]` and the core before
      them to outputs `[T, B, ...]` and the core after.
    network: whose core it is.
    env_spec: the environments; only observation and actions matter.
  """

  def init(key: jax.Array) -> base.Params:
    inputs = network_lib.dummy_inputs(env_spec)
    return module.init(key, inputs, network.initial_core(1))['params']

  return init


def make_act(module: nn.Module, choose: ChooseFn) -> base.ActFn:
  """Returns what acts by `choose` on the outputs of `module`.

  Its acting parameters are those of the module.
  """

  def act(
    params: base.Params,
    key: jax.Array,
    step: types.AgentInput,
    core: base.Core,
    env_id: jax.Array,
  ) -> tuple[base.AgentOutput, base.Core]:
    # Acting is an unroll of one step.
    inputs = jax.tree.map(lambda x: x[None], step)
    outputs, core = module.apply({'params': params}, inputs, core)
    outputs = jax.tree.map(lambda x: x[0], outputs)
    return choose(key, outputs, env_id), core

  return act
