"""The share of a run that one process has."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from seedrl_jax.agents import base
from seedrl_jax.learner import update


@dataclasses.dataclass(frozen=True)
class Placement:
  """The share of a run that one process has, and the devices it uses."""

  index: int = 0  # of this process; process 0 evaluates, reports and saves
  count: int = 1  # number of processes
  # Whether they divide `batch_size` among them; otherwise it is per process.
  shares_batch: bool = True
  has_environments: bool = True  # whether this process acts
  lock_step: bool = False  # acting and learning take turns in one thread
  # Values of configuration keys that only this process's agent gets.
  agent_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  devices: Sequence[jax.Device] = ()  # of this process; () for all of JAX's
  # Makes the gradient step from the agent and the training devices.
  make_step: Callable[
    [base.Agent, Sequence[jax.Device]], update.GradientStep
  ] = update.PmapStep


SINGLE = Placement()
