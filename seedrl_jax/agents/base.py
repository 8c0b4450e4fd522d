"""The interface between agents and the rest of the system.

An agent is a module with `make_agent(config, env_spec)`, which returns an
`Agent`, and, optionally, a table `KEYS` of its own keys, and `ACTIONS`,
the kinds of actions that it can choose (`types.ActionSpec.kind`). `sgd` makes
an `update` of a loss; agents that need several optimisers, epochs or
minibatches write their own.
"""

import dataclasses
import pathlib
import types as types_lib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import flatten_util

from seedrl_jax import types
from seedrl_jax.networks import health
from seedrl_jax.runtime import keys, settings

# The axis over the training devices of all hosts.
AXIS = 'learner'

State = types.Nest
Params = types.Nest
Core = types.Nest
AgentOutput = types.Nest


class UpdateOutput(NamedTuple):
  """What an update returns besides the next state."""

  # Scalars, the same on all devices, which are read as float32. Names without a
  # group go to `losses/`.
  metrics: Mapping[str, jax.Array]
  # Bool, the same on all devices; if False, the learner keeps the previous
  # state and stops.
  finite: jax.Array
  # Float32 [B], of the device's unrolls; None: not prioritised.
  priorities: jax.Array | None = None


# Maps (params, key, `[B]` steps, core, env_id) to `[B]` outputs and the next
# core. `env_id` is int32 `[B]`, global; evaluation environments (ids from
# `EnvSpec.num_envs` on) act greedily or nearly so.
ActFn = Callable[
  [Params, jax.Array, types.AgentInput, Core, jax.Array],
  tuple[AgentOutput, Core],
]
# Maps (state, batch, key, progress) to the next state, on every training device
# under `AXIS`. Batch and key are those of the device; `progress` of the run is
# float32 in [0, 1]. The new state must be the same on all devices
# (`mean_over_devices`).
UpdateFn = Callable[
  [State, types.Batch, jax.Array, jax.Array], tuple[State, UpdateOutput]
]
# Maps new unrolls' steps `[T + 1, W, ...]`, whose observation is `()`, to their
# priorities, float32 `[W]`, finite and not negative.
PrioritiesFn = Callable[[types.Steps], jax.Array]


@dataclasses.dataclass(frozen=True)
class UpdateInPieces:
  """An update that the learner runs as separate calls, for less memory.

  Within one program XLA works on all pieces at once, despite barriers.
  """

  # (state, batch, key) -> (initial total, list of pieces).
  cut: Callable[..., tuple[Any, list[Any]]]
  # (total, state, piece) -> (total, result of the piece).
  accumulate: Callable[..., tuple[Any, Any]]
  # (state, total, results, progress) -> (state, `UpdateOutput`).
  finish: Callable[..., tuple[State, UpdateOutput]]


@dataclasses.dataclass(frozen=True)
class Agent:
  """Pure functions that define an agent.

  Attributes:
    init: key -> state, with all that training changes.
    acting_params: state -> the parameters of `act`, published to inference;
      include exploration schedules here.
    initial_core: batch size -> core state, nest of `[batch, ...]` zeros.
    act: leaves of its `AgentOutput` are `[B, ...]` and of a four-byte type;
      `action` conforms to `EnvSpec.action`.
    overlap: steps that consecutive unrolls of an environment share. An unroll
      has `unroll_length + overlap` steps.
    burn_in: first transitions of an unroll that do not train.
    updates_per_batch: optimiser steps per `update`, the unit of parameter
      versions; policy lag is in batches.
    initial_priorities: None if all new unrolls have the same priority.
    trainer: the `sgd.Trainer` that `update` belongs to; None if an update is
      not one gradient step.
    measure: `(acting_params, inputs [T, B, ...], core) -> metrics`; see
      `health.make_measure`. None if the network is not measured.
    check_share: called with the unrolls that each training device gets of a
      batch; raises ValueError naming the flag if `update` cannot cut them.
  """

  init: Callable[[jax.Array], State]
  acting_params: Callable[[State], Params]
  initial_core: Callable[[int], Core]
  act: ActFn
  update: UpdateFn | UpdateInPieces
  overlap: int = 1
  burn_in: int = 0
  updates_per_batch: int = 1
  initial_priorities: PrioritiesFn | None = None
  trainer: Any = None
  measure: health.MeasureFn | None = None
  check_share: Callable[[int], None] = lambda unrolls: None

  def num_transitions(self, unroll_length: int) -> int:
    """Returns T, one less than the steps of an unroll."""
    return unroll_length + self.overlap - 1

  def state_shapes(self) -> State:
    """Returns the `ShapeDtypeStruct`s of a state."""
    return jax.eval_shape(self.init, jax.random.PRNGKey(0))

  def params_shapes(self) -> Params:
    """Returns the `ShapeDtypeStruct`s of the acting parameters."""
    return jax.eval_shape(self.acting_params, self.state_shapes())


def make_act(
  module: nn.Module,
  choose: Callable[..., AgentOutput],
  network_params: Callable[[Params], Params] | None = None,
) -> ActFn:
  """Returns an `ActFn` that applies `choose` to the outputs of `module`.

  Args:
    module: maps `[T, B, ...]` and a core to outputs and the next core.
    choose: gets (key, outputs `[B, ...]`, env_id).
    network_params: picks the parameters of `module` from the acting parameters,
      which `choose` then gets as first argument. None: they are the same.
  """

  def act(
    params: Params,
    key: jax.Array,
    step: types.AgentInput,
    core: Core,
    env_id: jax.Array,
  ) -> tuple[AgentOutput, Core]:
    inputs = jax.tree.map(lambda x: x[None], step)
    network, first = params, []
    if network_params is not None:
      network, first = network_params(params), [params]
    outputs, core = module.apply({'params': network}, inputs, core)
    outputs = jax.tree.map(lambda x: x[0], outputs)
    return choose(*first, key, outputs, env_id), core

  return act


def with_evaluation(
  training: jax.Array,
  evaluating: jax.Array | float,
  env_spec: types.EnvSpec,
  env_id: jax.Array,
) -> jax.Array:
  """Returns `training`, but `evaluating` for evaluation environments.

  Both broadcast to `[B, ...]`, as the result; `env_id` is int32 `[B]`.
  """
  axes = tuple(range(1, training.ndim))
  is_eval = jnp.expand_dims(env_id >= env_spec.num_envs, axes)
  return jnp.where(is_eval, evaluating, training)


def select_unrolls(batch: types.Batch, which: slice | jax.Array) -> types.Batch:
  """Returns some unrolls of a batch, by a slice or by their indices."""
  unroll = batch.unroll
  return types.Batch(
    unroll=types.Unroll(
      steps=jax.tree.map(lambda x: x[:, which], unroll.steps),
      initial_core=jax.tree.map(lambda x: x[which], unroll.initial_core),
      env_id=unroll.env_id[which],
    ),
    weight=batch.weight[which],
  )


def mean_over_devices(tree: types.Nest) -> types.Nest:
  """Returns the mean of a nest over all training devices."""
  if jax.process_count() == 1:
    return jax.lax.pmean(tree, AXIS)
  # One message for all: between hosts latency dominates.
  flat, restore = flatten_util.ravel_pytree(tree)
  return restore(jax.lax.pmean(flat, AXIS))


def parameter_specs(params: Params) -> dict[str, types.ArraySpec]:
  """Returns the specs of parameters, by name, in `jax.tree.leaves` order."""
  return {
    jax.tree_util.keystr(path): types.ArraySpec(x.shape, np.dtype(x.dtype))
    for path, x in jax.tree_util.tree_leaves_with_path(params)
  }


def load_agent(config: types.Config, env_spec: types.EnvSpec) -> Agent:
  """Makes the agent that `config.agent` names.

  Raises:
    ValueError: if there is no such module, or if it cannot act in the
      environment; names the flag.
  """
  check_first_action(env_spec)
  kind, name = env_spec.action.kind, config.agent
  if kind not in getattr(_find(name, 'keys'), 'ACTIONS', (kind,)):
    able = [x for x in _built_in() if kind in _find(x, 'keys').ACTIONS]
    raise ValueError(
      f'--config.agent={name}: the actions of {env_spec.env_id} are '
      f'{kind.replace("_", "-")}; take {" or ".join(able)}.'
    )
  return _find(name, 'agent').make_agent(config, env_spec)


def check_first_action(env_spec: types.EnvSpec) -> None:
  """Raises ValueError if discrete actions do not begin at 0."""
  action = env_spec.action
  discrete = [x for x in action.parts or (action,) if x.is_discrete]
  if any(any(x.minimum) for x in discrete):
    raise ValueError(
      f'--config.env: the actions of {env_spec.env_id} begin at '
      f'{action.minimum}, not at 0; wrap it.'
    )


def check_fixed(
  config: types.Config, values: Mapping[str, Any], reason: str
) -> None:
  """Raises ValueError if a key differs from its only supported value."""
  current = dict(settings.leaves(config))
  for key, value in values.items():
    if current[key] != value:
      raise ValueError(
        f'--config.{key}={current[key]}: {reason}; give {value}.'
      )


def allowed(config: types.Config) -> Mapping[str, settings.Allowed] | None:
  """Returns the allowed values of the agent's keys, or None.

  Reads the table `KEYS`, or else `RANGES`, which maps names to allowed values.

  Raises:
    ValueError: if there is no such agent.
  """
  module = _find(config.agent, 'keys')
  if hasattr(module, 'KEYS'):
    return keys.allowed(module.KEYS)
  return getattr(module, 'RANGES', None)


def _built_in() -> list[str]:
  folder = pathlib.Path(__file__).parent
  return sorted(path.parent.name for path in folder.glob('*/agent.py'))


def _find(name: str, part: str) -> types_lib.ModuleType:
  """Returns `part` of a built-in agent, or the user's module."""
  flag = f'--config.agent={name}'
  built_in = _built_in()
  if name in built_in:
    return settings.load_module(flag, f'{__package__}.{name}.{part}')
  hint = f'; built in are {" and ".join(built_in)}'
  module = settings.load_module(flag, name, hint)
  settings.find_function(flag, module, 'make_agent')
  return module
