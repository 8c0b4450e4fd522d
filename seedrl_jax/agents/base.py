"""The seam between agents and everything that runs them.

`inference` calls `act`, `learner` calls `init` and `loss`; neither knows an
agent by name. An agent is a module with `make_agent(config, env_spec)`, and
perhaps `RANGES`, of the keys that only its configurations have (`settings`);
`load_agent` finds it from `config.agent`.
"""

import dataclasses
import pathlib
import types as types_lib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.runtime import loading, settings

Params = types.Nest
Core = types.Nest
AgentOutput = types.Nest


class LossOutput(NamedTuple):
  """What a loss says besides its value.

  Attributes:
    metrics: scalars by name, averaged over training devices. One without a
      group goes to `losses/`; see `runtime.columns` for the others' names.
    priorities: float32 `[B]`, new priorities of the sampled unrolls, or None
      where the agent does not prioritise.
  """

  metrics: Mapping[str, jax.Array]
  priorities: jax.Array | None = None


class ActFn(Protocol):
  """`[B]` steps in, `[B]` actions and the next core state out.

  `env_id` is int32 `[B]` and global: ids from `EnvSpec.num_envs` on are
  evaluation environments, which act greedily or nearly so.
  """

  def __call__(
    self,
    params: Params,
    key: jax.Array,
    step: types.AgentInput,
    core: Core,
    env_id: jax.Array,
  ) -> tuple[AgentOutput, Core]: ...


class LossFn(Protocol):
  """Mean loss of a batch; linear in equal pieces of the batch.

  A batch that is split evenly over devices (or micro-batches) must give, on
  average over the pieces, the loss of the whole.
  """

  def __call__(
    self,
    params: Params,
    target_params: Params,
    batch: types.Batch,
    key: jax.Array,
  ) -> tuple[jax.Array, LossOutput]: ...


class PrioritiesFn(Protocol):
  """Priorities of new unrolls from what acting recorded of them.

  `steps` is `[T + 1, W, ...]` and has no observation: `()` stands in its
  place, as pictures need not travel to a device for this. Returns float32
  `[W]`, finite and not negative.
  """

  def __call__(self, steps: types.Steps) -> jax.Array: ...


@dataclasses.dataclass(frozen=True)
class Agent:
  """Pure functions of arrays that say what to do with a network.

  Attributes:
    init: key -> params (float32 leaves).
    initial_core: batch size -> core state, nest of `[batch, ...]` zeros.
    act: see `ActFn`. Every leaf of its `AgentOutput` is `[B, ...]` and of a
      four-byte type; the field `action` is as `EnvSpec.action` says.
    loss: see `LossFn`.
    overlap: steps that consecutive unrolls of an environment share: 1 for
      V-trace, `burn_in + lookahead + 1` for R2D2. An unroll has
      `unroll_length + overlap` steps, so that each brings `unroll_length` new
      ones.
    target_update_period: updates between copies of `params` to
      `target_params`; 0 where the agent has no target network.
    initial_priorities: see `PrioritiesFn`; None where new unrolls are all
      worth the same.
    project: params after an update -> the nearest that are allowed.
  """

  init: Callable[[jax.Array], Params]
  initial_core: Callable[[int], Core]
  act: ActFn
  loss: LossFn
  overlap: int = 1
  target_update_period: int = 0
  initial_priorities: PrioritiesFn | None = None
  project: Callable[[Params], Params] = lambda params: params

  def num_transitions(self, unroll_length: int) -> int:
    """Returns T, one less than the steps of an unroll."""
    return unroll_length + self.overlap - 1


def parameter_specs(params: Params) -> dict[str, types.ArraySpec]:
  """Returns the leaves' specs by name, in the order of `jax.tree.leaves`.

  Args:
    params: of `Agent.init`, or their shapes (`jax.eval_shape`).
  """
  named, _ = jax.tree_util.tree_flatten_with_path(params)
  return {
    jax.tree_util.keystr(path): types.ArraySpec(
      tuple(leaf.shape), np.dtype(leaf.dtype)
    )
    for path, leaf in named
  }


def load_agent(config: Any, env_spec: types.EnvSpec) -> Agent:
  """Makes the agent that `config.agent` names.

  Args:
    config: the run's configuration. `config.agent` is a folder of
      `seedrl_jax.agents` (`vtrace`), or else the dotted name of any module with
      `make_agent`, which may lie in the current folder.
    env_spec: the environments it will act in.

  Raises:
    ValueError: if there is no such module.
  """
  flag, module = _find(config.agent)
  return loading.find_function(flag, module, 'make_agent')(config, env_spec)


def ranges(config: Any) -> Mapping[str, settings.Allowed] | None:
  """Returns what the agent's own keys may be; None if it does not say.

  Raises:
    ValueError: if there is no such agent.
  """
  flag, module = _find(config.agent)
  loading.find_function(flag, module, 'make_agent')
  return getattr(module, 'RANGES', None)


def _find(name: str) -> tuple[str, types_lib.ModuleType]:
  """Returns an agent's whole flag and its module."""
  flag = f'--config.agent={name}'
  folder = pathlib.Path(__file__).parent
  built_in = sorted(path.parent.name for path in folder.glob('*/__init__.py'))
  module = loading.load_module(
    flag,
    f'seedrl_jax.agents.{name}' if name in built_in else name,
    f'; built in are {" and ".join(built_in)}',
  )
  return flag, module
