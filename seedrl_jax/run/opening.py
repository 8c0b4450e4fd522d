"""The parts of a run: opens and connects them."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from seedrl_jax.actors import handshake, local_messages
from seedrl_jax.actors.learner_side import server as actor_server
from seedrl_jax.actors.learner_side import slot_allocator
from seedrl_jax.agents import base as agents
from seedrl_jax.demonstrations import mixing
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.inference import assembler as assembler_lib
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import device_worker, lag_gate, specs
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import prefetch as prefetch_lib
from seedrl_jax.learner import update
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import device as device_replay
from seedrl_jax.replay import factory as replay_factory
from seedrl_jax.replay import table_configs
from seedrl_jax.run import layout as layout_lib
from seedrl_jax.run import plan as plan_lib
from seedrl_jax.runtime import progress, report
from seedrl_jax.runtime import workdir as workdir_lib

# Makes a stream's environments from its index and its share.
MakeStream = Callable[[int, layout_lib.StreamShare], envs.EnvStream]
# Environment i of stream s has the seed s * this + i; streams are numbered over
# all starts, and one start has fewer than the second.
_SEED_STRIDE = 1_000_003
_STREAMS_OF_START = 1 << 10

Worker = worker_lib.InferenceWorker | device_worker.DeviceWorker


@dataclasses.dataclass(frozen=True)
class Parts:
  """The parts of a run, connected but not started."""

  plan: plan_lib.Plan
  publisher: learner_lib.ParameterPublisher
  learner: learner_lib.Learner
  prefetcher: prefetch_lib.Prefetcher
  store: replay.TrajectoryStore
  workers: tuple[Worker, ...]
  actors: actor_server.ActorServer | None
  gate: lag_gate.LagGate | None

  def metrics(self) -> dict[str, float]:
    actors = self.actors.metrics() if self.actors is not None else {}
    return actors | self.plan.updater.step.metrics()

  @property
  def num_connected(self) -> int:
    """The number of environments that actors bring now."""
    return 0 if self.actors is None else self.actors.num_connected

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


@dataclasses.dataclass
class Opener:
  """Opens a host's parts of a run.

  Attributes:
    state: of the learner, without device axis.
    streams: makes the environments; None: those of the configuration.
    record: of the checkpoint to go on from.
    workdir: for the files of a Reverb server and the actors' unix socket; None:
      a temporary folder, and the current one.
    replay_path: checkpoint that the store will be restored from.
  """

  plan: plan_lib.Plan
  state: update.LearnerState
  streams: MakeStream | None = None
  record: report.RunRecord = dataclasses.field(default_factory=report.RunRecord)
  workdir: workdir_lib.Workdir | None = None
  replay_path: str | None = None

  def __post_init__(self) -> None:
    plan, record = self.plan, self.record
    self._publisher = learner_lib.ParameterPublisher(plan.topology.inference)
    keys = plan.keys[1:]
    saved = jnp.array(record.inference_keys, jnp.uint32)
    if saved.shape == keys.shape:
      keys = saved
    elif plan.placement.index:
      # Only process 0 has saved its keys; the others take new ones.
      keys = jax.vmap(jax.random.fold_in, (0, None))(keys, record.starts)
    self._keys = keys

  def open(self) -> Parts:
    """Opens all parts, or none; raises `ValueError` naming a flag."""
    workers: list[Worker] = []
    with contextlib.ExitStack() as cleanup:
      self._store = self._open_store()
      cleanup.callback(self._store.close)
      progress.ready('store')
      actors = self._open_actor_server()
      if actors is not None:
        cleanup.callback(actors.close, False)
      self._gate = self._make_gate()
      make_stream = self.streams or self._make_stream
      remote = iter(actors.streams if actors is not None else ())
      is_in_jax = self.streams is None and self.plan.device_env is not None
      for i, share in enumerate(self.plan.shares):
        if is_in_jax and not share.is_remote:
          workers.append(self._make_worker(i, share, None))
          continue
        stream = next(remote) if share.is_remote else make_stream(i, share)
        cleanup.callback(stream.close)
        workers.append(self._make_worker(i, share, stream))
      progress.ready('environments')
      parts = self._connect(workers, actors)
      progress.ready('learner')
      # Nothing failed: leave them open.
      cleanup.pop_all()
    return parts

  def _open_store(self) -> replay.TrajectoryStore:
    plan, config = self.plan, self.plan.config
    return replay_factory.make_store(
      config.replay,
      plan.tables,
      plan.unroll_spec,
      plan.block_width,
      config.batch_size,
      config.seed,
      plan.agent.overlap,
      str(self.workdir.reverb) if self.workdir else None,
      self.replay_path,
      plan.lock_step,
      has_single_steps=config.unroll_length == 1,
      local_inference=config.actors.local_inference,
      on_device=plan.on_device,
    )

  def _open_actor_server(self) -> actor_server.ActorServer | None:
    plan, config = self.plan, self.plan.config
    shares = [share for share in plan.shares if share.is_remote]
    if not shares:
      return None
    return actor_server.make_server(
      config.actors,
      config.env,
      plan.env_spec,
      [(len(share.global_env_id), share.batch_size) for share in shares],
      (config.seed, self.record.starts),
      str(self.workdir.actor_socket) if self.workdir else 'actors.sock',
      self._local_offer(shares),
    )

  def _local_offer(
    self, shares: Sequence[layout_lib.StreamShare]
  ) -> slot_allocator.LocalOffer | None:
    """Returns what actors need to act themselves; None without Reverb."""
    plan, store = self.plan, self._store
    if store.address is None:
      return None

    def latest() -> tuple[int, list[jax.Array]]:
      device = plan.topology.inference[0]
      version, params = self._publisher.latest(device)
      return version, jax.tree.leaves(params)

    parameters = agents.parameter_specs(plan.agent.params_shapes())
    return slot_allocator.LocalOffer(
      handshake.local_config(plan.config),
      plan.env_spec,
      [share.global_env_id for share in shares],
      plan.block_width,
      lambda: store.address or '',
      local_messages.ParameterFeed(parameters, latest),
    )

  def _make_gate(self) -> lag_gate.LagGate | None:
    """Makes the gate of `learner.max_lag`; None if inference need not wait."""
    config, store = self.plan.config, self._store
    max_lag, patience = config.learner.max_lag, None
    if max_lag is None:
      return None
    # A server that comes back may have lost unrolls; without patience the run
    # ends instead.
    if store.address is not None:
      patience = config.replay.patience or None
    table = store.table(table_configs.TABLE)
    return lag_gate.LagGate(table, config.batch_size, max_lag, patience)

  def _make_stream(
    self, index: int, share: layout_lib.StreamShare
  ) -> envs.EnvStream:
    plan = self.plan
    return env_factory.make_stream(
      plan.config.env,
      seed=self._env_seed(index),
      num_envs=len(share.global_env_id),
      batch_size=share.batch_size,
      num_streams=sum(not share.is_remote for share in plan.shares),
      tasks=plan.task_numbers(share),
    )

  def _env_seed(self, index: int) -> int:
    number = self.record.starts * _STREAMS_OF_START + index
    return (self.plan.config.seed + number * _SEED_STRIDE) % 2**31

  def _make_worker(
    self,
    index: int,
    share: layout_lib.StreamShare,
    stream: envs.EnvStream | None,
  ) -> Worker:
    """Makes what acts in a stream; None: in environments in JAX."""
    plan, agent, spec = self.plan, self.plan.agent, self.plan.env_spec.stream
    table = table_configs.TABLE
    if plan.on_device and stream is not None:
      table = device_replay.REMOTE_TABLE
    writer = self._gate or self._store.table(table)
    parameters = functools.partial(self._publisher.latest, share.device)
    gate = self._gate if share.num_train else None
    if stream is None:
      return device_worker.DeviceWorker(
        plan.unroll_program(share),
        share.device,
        self._env_seed(index),
        self._keys[index],
        parameters,
        writer,
        None if plan.cuts_blocks else self._make_assembler(share, writer),
        gate,
      )
    step = device_step_lib.DeviceStep(
      agent,
      spec,
      specs.output_spec(agent, spec, agent.params_shapes()),
      share.device,
      len(share.global_env_id),
      self._keys[index],
    )
    return worker_lib.InferenceWorker(
      stream=stream,
      device_step=step,
      sink=self._make_assembler(share, writer),
      parameters=parameters,
      global_env_id=share.global_env_id,
      gate=gate,
    )

  def _make_assembler(
    self, share: layout_lib.StreamShare, writer: assembler_lib.BlockWriter
  ) -> assembler_lib.UnrollAssembler | None:
    if not share.num_train:
      return None
    plan, agent = self.plan, self.plan.agent
    return assembler_lib.UnrollAssembler(
      writer,
      share.global_env_id[: share.num_train],
      agent.num_transitions(plan.config.unroll_length),
      agent.overlap,
      plan.block_width,
      assembler_lib.make_priorities(
        agent, plan.unroll_spec, plan.block_width, share.device
      ),
      # A gate counts on every environment's unroll.
      burn_in=None if plan.config.replay.sampler == 'fifo' else agent.burn_in,
    )

  def _connect(
    self, workers: Sequence[Worker], actors: actor_server.ActorServer | None
  ) -> Parts:
    plan, config, gate = self.plan, self.plan.config, self._gate
    max_lag, too_old = config.learner.max_lag, None
    if max_lag is not None:
      too_old = prefetch_lib.LagFilter(
        max_lag, int(self.state.step), plan.agent.updates_per_batch
      )
    learner = learner_lib.Learner(
      plan.updater,
      self.state,
      self._publisher,
      config.learner.publish_period,
      None if gate is None else gate.count_batch,
      is_reporting=plan.placement.index == 0,
    )
    prefetcher = prefetch_lib.Prefetcher(
      mixing.make_sampler(
        self._store,
        config.batch_size,
        len(plan.topology.training),
        plan.demonstrations_per_block,
      ),
      plan.updater.shard,
      config.learner.prefetch,
      config.replay.importance_exponent,
      too_old,
    )
    return Parts(
      plan=plan,
      publisher=self._publisher,
      learner=learner,
      prefetcher=prefetcher,
      store=self._store,
      workers=tuple(workers),
      actors=actors,
      gate=gate,
    )
