"""The share of a run that one process has."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from seedrl_jax.agents import base
from seedrl_jax.learner import update


@dataclasses.dataclass(frozen=True)
class Placement:
  """The share of a run that one process has, and the devices it uses.

  Attributes:
    index: of this process. Process 0 evaluates, reports and saves.
    count: number of processes.
    shares_batch: whether the processes divide `batch_size` among them;
      otherwise it is per process.
    has_environments: whether this process acts.
    lock_step: whether acting and learning take turns in one thread.
    agent_settings: values of configuration keys that only this process's agent
      gets.
    devices: of this process alone; () for all that JAX has.
    make_step: makes the gradient step from the agent and the training devices.
  """

  index: int = 0
  count: int = 1
  shares_batch: bool = True
  has_environments: bool = True
  lock_step: bool = False
  agent_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  devices: Sequence[jax.Device] = ()
  make_step: Callable[
    [base.Agent, Sequence[jax.Device]], update.GradientStep
  ] = update.PmapStep


SINGLE = Placement()
