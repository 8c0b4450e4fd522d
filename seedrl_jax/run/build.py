"""Wires the rooms for one run; `system` gives the parts their life."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from seedrl_jax import types
from seedrl_jax.actors.learner_side import offer as offer_lib
from seedrl_jax.actors.learner_side import server as actor_server
from seedrl_jax.agents import base as agents
from seedrl_jax.agents import optimizers
from seedrl_jax.demonstrations import mixing
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.inference import assembler as assembler_lib
from seedrl_jax.inference import assembling, unrolls
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import prefetch as prefetch_lib
from seedrl_jax.learner import publishing, topology, update
from seedrl_jax.learner import state as state_lib
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import factory as replay_factory
from seedrl_jax.replay import table_configs
from seedrl_jax.run import layout as layout_lib

# Makes the environments of a stream from its number and its plan.
MakeStream = Callable[[int, layout_lib.StreamPlan], envs.EnvStream]

# Environment i of stream s is seeded with s * this + i.
_SEED_STRIDE = 1_000_003


@dataclasses.dataclass(frozen=True)
class Parts:
  """Everything that works in a run, connected and not yet started."""

  env_spec: types.EnvSpec
  topology: topology.Topology
  agent: agents.Agent
  updater: update.Updater
  publisher: publishing.ParameterPublisher
  learner: learner_lib.Learner
  prefetcher: prefetch_lib.Prefetcher
  store: replay.TrajectoryStore
  workers: tuple[worker_lib.InferenceWorker, ...]
  blank_batch: list[types.Batch]
  actors: actor_server.ActorServer | None

  def describe(self) -> str:
    """Returns what the run works on and with, for people."""
    text = f'{self.env_spec.env_id} on {self.topology.describe()}'
    if self.actors is not None:
      text += f'; actors at {", ".join(self.actors.addresses)}'
    return text

  def metrics(self) -> dict[str, float]:
    """Returns what is to be reported of the parts beside the learner's."""
    if self.actors is None:
      return {}
    return offer_lib.metrics(self.actors)

  def env_steps(self) -> int:
    """Returns the training environments' steps since the parts were made."""
    acted = sum(worker.counters.env_steps for worker in self.workers)
    if self.actors is None:
      return acted
    return acted + self.actors.reported.env_steps

  def interrupt(self) -> None:
    """Closes what threads wait in, and so wakes them.

    The store can still be saved.
    """
    with contextlib.ExitStack() as stack:
      # All are closed even where one raises.
      for worker in self.workers:
        stack.callback(worker.stream.close)
      stack.callback(self.store.interrupt)
      stack.callback(self.prefetcher.close)

  def close(self) -> None:
    """Interrupts, and closes all for good."""
    with contextlib.ExitStack() as stack:
      stack.callback(self.release)
      stack.callback(self.interrupt)

  def release(self, ended: bool = False) -> None:
    """Closes for good what `interrupt`, to be called before, leaves open.

    Args:
      ended: whether the training has reached its end, so that actors need not
        wait for it to go on.
    """
    with contextlib.ExitStack() as stack:
      stack.callback(self.store.close)
      if self.actors is not None:
        stack.callback(self.actors.close, ended)


@dataclasses.dataclass(frozen=True)
class _Prepared:
  """What is computed with and how large it is; nothing here is open.

  Attributes:
    plans: of the streams; `steps` has the device step of each.
    learning_rate: see `optimizers.learning_rate`.
    state: that the learner starts from, without device axis.
    output_spec: `ArraySpec`s of one step's agent output.
    unroll_spec: `ArraySpec`s of one unroll.
    batch_width: unrolls of a batch that each training device gets.
    block_width: unrolls that are assembled side by side.
  """

  env_spec: types.EnvSpec
  topology: topology.Topology
  plans: list[layout_lib.StreamPlan]
  agent: agents.Agent
  updater: update.Updater
  learning_rate: Callable[[float], float]
  state: state_lib.LearnerState
  steps: list[device_step_lib.DeviceStep]
  output_spec: types.Nest
  unroll_spec: types.Unroll
  batch_width: int
  block_width: int


def build(
  config: Any,
  restore: Callable[[state_lib.LearnerState], state_lib.LearnerState],
  starts: Callable[[], int] = lambda: 0,
  streams: MakeStream | None = None,
  replay_folder: str | None = None,
  replay_checkpoint: Callable[[], str | None] = lambda: None,
  actor_socket: str = 'actors.sock',
  place: layout_lib.Place = layout_lib.ALONE,
) -> Parts:
  """Makes and connects all parts of a run that are on this host.

  Args:
    config: the configuration of the whole run.
    restore: takes the learner's initial state (no device axis) and returns
      the one to start from.
    starts: tells, after `restore`, how often this run was started before;
      environments then take other seeds.
    streams: makes the stream of a `StreamPlan`; None: as configured.
    replay_folder: for the files of a Reverb server; None: temporary.
    replay_checkpoint: tells, after `restore`, what the store is about to be
      restored from, if anything.
    actor_socket: path of the unix socket for actors, where they have no other
      address.
    place: of this host.

  Raises:
    ValueError: where the configuration cannot be had; names the flag.
  """
  prepared = _prepare(config, restore, starts, place)
  config = layout_lib.host_config(config, place)
  publisher = publishing.ParameterPublisher(prepared.topology.inference)
  with contextlib.ExitStack() as opened:
    store = replay_factory.make_store(
      layout_lib.replay_config(config),
      prepared.unroll_spec,
      prepared.block_width,
      prepared.agent.overlap,
      replay_folder,
      replay_checkpoint(),
    )
    opened.callback(store.close)
    actors = _make_actor_server(
      config, prepared, starts, actor_socket, store, publisher
    )
    if actors is not None:
      opened.callback(actors.close, False)
    opening = _open_streams(config, prepared.plans, actors, starts, streams)
    workers = []
    for stream, plan, step in zip(
      opening, prepared.plans, prepared.steps, strict=True
    ):
      opened.callback(stream.close)
      workers.append(
        _make_worker(config, prepared, plan, stream, step, store, publisher)
      )
    parts = _connect(config, prepared, publisher, store, workers, actors)
    # Nothing failed: what is open stays open.
    opened.pop_all()
  return parts


def _connect(
  config: Any,
  prepared: _Prepared,
  publisher: publishing.ParameterPublisher,
  store: replay.TrajectoryStore,
  workers: Sequence[worker_lib.InferenceWorker],
  actors: actor_server.ActorServer | None,
) -> Parts:
  """Puts the learner to what is open."""
  training = prepared.topology.training
  source = mixing.make_source(config, store, len(training))
  blank = unrolls.blank_batch(prepared.unroll_spec, prepared.batch_width)
  return Parts(
    env_spec=prepared.env_spec,
    topology=prepared.topology,
    agent=prepared.agent,
    updater=prepared.updater,
    publisher=publisher,
    learner=learner_lib.Learner(
      prepared.updater,
      prepared.state,
      publisher,
      source.update_priorities,
      prepared.learning_rate,
      config.learner.publish_period,
    ),
    prefetcher=_make_prefetcher(config, prepared.updater, source.sampler),
    store=store,
    workers=tuple(workers),
    blank_batch=[blank] * len(training),
    actors=actors,
  )


def _prepare(
  config: Any,
  restore: Callable[[state_lib.LearnerState], state_lib.LearnerState],
  starts: Callable[[], int],
  place: layout_lib.Place,
) -> _Prepared:
  """Checks the configuration and makes what needs no closing; see `build`."""
  own = layout_lib.host_config(config, place)
  env_spec = layout_lib.make_env_spec(config, place)
  split = (config.topology.inference_to_training, config.topology.max_devices)
  devices = topology.make_topology(split[0], jax.local_devices(), split[1])
  training = topology.all_training(split[0], jax.devices(), split[1])
  batch_width = layout_lib.check_batch(config, len(training))
  # Refused before anything is opened.
  mixing.demonstrations_per_block(own, len(devices.training))
  plans = layout_lib.plan_streams(own, devices.inference, place)
  agent = agents.load_agent(config, env_spec)
  optimizer = optimizers.make_optimizer(config)
  keys = jax.random.split(jax.random.PRNGKey(own.seed), len(plans) + 1)
  state = restore(state_lib.initial_state(agent, optimizer, keys[0]))
  if place.index:
    # Host 0 goes on with keys that it saved; the others take new ones.
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, starts())
  steps = [
    device_step_lib.DeviceStep(
      agent, env_spec, p.device, len(p.global_env_id), key
    )
    for p, key in zip(plans, keys[1:], strict=True)
  ]
  output_spec = steps[0].output_spec(state.params)
  return _Prepared(
    env_spec=env_spec,
    topology=devices,
    plans=plans,
    agent=agent,
    updater=update.Updater(
      agent, optimizer, training, config.learner.micro_batches
    ),
    learning_rate=optimizers.learning_rate(config),
    state=state,
    steps=steps,
    output_spec=output_spec,
    unroll_spec=unrolls.unroll_spec(
      env_spec,
      agent.num_transitions(config.unroll_length),
      output_spec,
      steps[0].core_spec(),
    ),
    batch_width=batch_width,
    block_width=layout_lib.block_width(config, batch_width, plans),
  )


def _make_prefetcher(
  config: Any, updater: update.Updater, sampler: replay.TrajectorySampler
) -> prefetch_lib.Prefetcher:
  # A queue's unrolls are each drawn once: there is nothing to make up for.
  is_queue = config.replay.sampler == 'fifo'
  return prefetch_lib.Prefetcher(
    sampler,
    updater.shard,
    config.learner.prefetch,
    0.0 if is_queue else config.replay.importance_exponent,
  )


def _make_worker(
  config: Any,
  prepared: _Prepared,
  plan: layout_lib.StreamPlan,
  stream: envs.EnvStream,
  step: device_step_lib.DeviceStep,
  store: replay.TrajectoryStore,
  publisher: publishing.ParameterPublisher,
) -> worker_lib.InferenceWorker:
  assembler = _make_assembler(config, prepared, plan, store)
  return worker_lib.InferenceWorker(
    stream=stream,
    device_step=step,
    assembler=assembler,
    parameters=functools.partial(publisher.latest, plan.device),
    global_env_id=plan.global_env_id,
    num_train_envs=plan.num_train,
    output_spec=prepared.output_spec,
    drop=None if assembler is None else assembler.reset,
  )


def _make_actor_server(
  config: Any,
  prepared: _Prepared,
  starts: Callable[[], int],
  socket: str,
  store: replay.TrajectoryStore,
  publisher: publishing.ParameterPublisher,
) -> actor_server.ActorServer | None:
  """Makes the server of the remote streams, where some are planned."""
  plans = [plan for plan in prepared.plans if plan.is_remote]
  if not plans:
    return None
  offer = offer_lib.make_local_offer(
    config,
    prepared.env_spec,
    plans,
    store,
    agents.parameter_specs(prepared.state.params),
    prepared.block_width,
    functools.partial(publisher.latest, prepared.topology.inference[0]),
  )
  return offer_lib.make_server(
    config, prepared.env_spec, plans, starts(), socket, offer
  )


def _open_streams(
  config: Any,
  plans: Sequence[layout_lib.StreamPlan],
  actors: actor_server.ActorServer | None,
  starts: Callable[[], int],
  streams: MakeStream | None,
) -> Iterator[envs.EnvStream]:
  """Opens a plan's stream when asked for it, so that each can be closed."""
  num_local = sum(not plan.is_remote for plan in plans)
  make_stream = streams or functools.partial(
    _make_stream, config, starts(), num_local
  )
  remote = iter(actors.streams if actors is not None else ())
  for i, plan in enumerate(plans):
    yield next(remote) if plan.is_remote else make_stream(i, plan)


def _make_stream(
  config: Any,
  starts: int,
  num_streams: int,
  index: int,
  plan: layout_lib.StreamPlan,
) -> envs.EnvStream:
  run = starts * num_streams + index
  return env_factory.make_stream(
    config.env,
    seed=(config.seed + run * _SEED_STRIDE) % 2**31,
    num_envs=len(plan.global_env_id),
    batch_size=plan.batch_size,
    num_streams=num_streams,
  )


def _make_assembler(
  config: Any,
  prepared: _Prepared,
  plan: layout_lib.StreamPlan,
  store: replay.TrajectoryStore,
) -> assembler_lib.UnrollAssembler | None:
  """Makes a stream's assembler, unless all it has is for evaluation."""
  if not plan.num_train:
    return None
  agent, block_width = prepared.agent, prepared.block_width
  writer = store.writer(table_configs.TABLE)
  return assembling.make_assembler(
    agent,
    writer,
    assembling.make_insertion(
      agent, writer, prepared.unroll_spec, block_width, plan.device
    ),
    plan.global_env_id[: plan.num_train],
    config.unroll_length,
    block_width,
  )
