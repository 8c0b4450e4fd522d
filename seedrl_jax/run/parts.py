"""The parts of a run, which `opening` makes."""

import contextlib
import dataclasses

from seedrl_jax import types
from seedrl_jax.actors.learner_side import server as actor_server
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import device_worker, lag_gate
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import placement as placement_lib
from seedrl_jax.learner import prefetch as prefetch_lib
from seedrl_jax.learner import topology, update
from seedrl_jax.replay import base as replay
from seedrl_jax.run import lag as lag_lib

Worker = worker_lib.InferenceWorker | device_worker.DeviceWorker


@dataclasses.dataclass(frozen=True)
class Parts:
  """The parts of a run, connected but not started.

  `steps_envs`: whether inference steps the environments, which are in JAX.
  """

  env_spec: types.EnvSpec
  placement: placement_lib.Placement
  lock_step: bool
  steps_envs: bool
  topology: topology.Topology
  agent: agents.Agent
  updater: update.Updater
  publisher: learner_lib.ParameterPublisher
  learner: learner_lib.Learner
  prefetcher: prefetch_lib.Prefetcher
  store: replay.TrajectoryStore
  workers: tuple[Worker, ...]
  blank_batch: list[types.Batch]
  actors: actor_server.ActorServer | None
  gate: lag_gate.LagGate | None
  lag: lag_lib.Prediction | None

  def metrics(self) -> dict[str, float]:
    actors = self.actors.metrics() if self.actors is not None else {}
    return actors | self.updater.step.metrics()

  def env_steps(self) -> int:
    """Returns the steps of the training environments since the start."""
    steps = 0 if self.actors is None else self.actors.reported.env_steps
    for worker in self.workers:
      steps += worker.counters.env_steps
    return steps

  def interrupt(self) -> None:
    """Closes what threads wait for; the store can still be saved."""
    with contextlib.ExitStack() as stack:
      # Closes all even if one raises.
      for worker in self.workers:
        stack.callback(worker.interrupt)
      stack.callback(self.store.interrupt)
      stack.callback(self.prefetcher.close)
      if self.gate is not None:
        stack.callback(self.gate.close)

  def close_streams(self) -> None:
    """Closes the environments; raises EnvironmentFailed once if one hangs."""
    with contextlib.ExitStack() as stack:
      for worker in self.workers:
        stack.callback(worker.close)

  def release(self, ended: bool = False) -> None:
    """Closes the rest after `interrupt`; actors end if training `ended`."""
    with contextlib.ExitStack() as stack:
      stack.callback(self.store.close)
      # An environment that hangs must not hide why the run ends here.
      stack.enter_context(contextlib.suppress(envs.EnvironmentFailed))
      stack.callback(self.close_streams)
      if self.actors is not None:
        stack.callback(self.actors.close, ended)

  def close(self) -> None:
    with contextlib.ExitStack() as stack:
      stack.callback(self.release)
      stack.callback(self.interrupt)
