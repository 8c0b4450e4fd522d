"""Initialisation and acting of agents with one network."""

from collections.abc import Callable
from typing import Any, Protocol

import flax.linen as nn
import jax

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.networks import network as network_lib


class ChooseFn(Protocol):
  """Chooses actions from the network's outputs `[B, ...]`."""

  def __call__(
    self, key: jax.Array, outputs: Any, env_id: jax.Array
  ) -> base.AgentOutput: ...


def make_init(
  module: nn.Module, network: network_lib.Network, env_spec: types.EnvSpec
) -> Callable[[jax.Array], base.Params]:
  """Returns a function that makes the parameters of `module` from a key.

  `module` maps `[T, B, ...]` and a core of `network` to outputs and a core.
  """

  def init(key: jax.Array) -> base.Params:
    inputs = network_lib.dummy_inputs(env_spec)
    return module.init(key, inputs, network.initial_core(1))['params']

  return init


def make_act(module: nn.Module, choose: ChooseFn) -> base.ActFn:
  """Returns an `ActFn` that applies `choose` to the outputs of `module`."""

  def act(
    params: base.Params,
    key: jax.Array,
    step: types.AgentInput,
    core: base.Core,
    env_id: jax.Array,
  ) -> tuple[base.AgentOutput, base.Core]:
    inputs = jax.tree.map(lambda x: x[None], step)
    outputs, core = module.apply({'params': params}, inputs, core)
    outputs = jax.tree.map(lambda x: x[0], outputs)
    return choose(key, outputs, env_id), core

  return act
