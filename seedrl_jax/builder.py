"""Wires the rooms for one run; `system` gives the parts their life."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from seedrl_jax import plan as plan_lib
from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.inference import assembler as assembler_lib
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import insertion
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import optimizers, publishing, topology, update
from seedrl_jax.learner import prefetch as prefetch_lib
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import factory as replay_factory
from seedrl_jax.replay import mixing, rules
from seedrl_jax.runtime import checks

# Makes the environments of a stream from its number and its plan.
MakeStream = Callable[[int, plan_lib.StreamPlan], envs.EnvStream]

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
    """Interrupts, and closes the store for good."""
    with contextlib.ExitStack() as stack:
      stack.callback(self.store.close)
      stack.callback(self.interrupt)


def build(
  config: Any,
  restore: Callable[[update.LearnerState], update.LearnerState],
  starts: Callable[[], int] = lambda: 0,
  streams: MakeStream | None = None,
  replay_folder: str | None = None,
  replay_checkpoint: Callable[[], str | None] = lambda: None,
) -> Parts:
  """Makes and connects all parts of a run.

  Args:
    config: the run's configuration.
    restore: takes the learner's initial state (no device axis) and returns
      the one to start from.
    starts: tells, after `restore`, how often this run was started before;
      environments then take other seeds.
    streams: makes the stream of a `StreamPlan`; None: as configured.
    replay_folder: for the files of a Reverb server; None: temporary.
    replay_checkpoint: tells, after `restore`, what the store is about to be
      restored from, if anything.

  Raises:
    ValueError: where the configuration cannot be had; names the flag.
  """
  checks.check_numbers(config)
  env_spec = plan_lib.make_env_spec(config)
  devices = topology.make_topology(
    config.topology.inference_to_training,
    jax.local_devices(),
    config.topology.max_devices,
  )
  width = plan_lib.check_batch(config, len(devices.training))
  plans = plan_lib.plan_streams(config, devices.inference)
  agent = agents.load_agent(config, env_spec)
  optimizer = optimizers.make_optimizer(config, env_spec.action_repeat)
  keys = jax.random.split(jax.random.PRNGKey(config.seed), len(plans) + 1)
  state = restore(update.initial_state(agent, optimizer, keys[0]))
  steps = [
    device_step_lib.DeviceStep(agent, p.device, len(p.global_env_id), key)
    for p, key in zip(plans, keys[1:], strict=True)
  ]
  output_spec = steps[0].output_spec(state.params, env_spec.observation)
  spec = plan_lib.unroll_spec(
    env_spec,
    agent.num_transitions(config.unroll_length),
    output_spec,
    steps[0].core_spec(),
  )
  block_width = plan_lib.block_width(config, width, plans)
  updater = update.Updater(
    agent, optimizer, devices.training, config.learner.micro_batches
  )
  publisher = publishing.ParameterPublisher(devices.inference)
  make_stream = streams or functools.partial(
    _make_stream, config, starts(), len(plans)
  )
  with contextlib.ExitStack() as opened:
    store = replay_factory.make_store(
      plan_lib.replay_config(config),
      spec,
      block_width,
      agent.overlap,
      replay_folder,
      replay_checkpoint(),
    )
    opened.callback(store.close)
    workers = []
    for i, (plan, step) in enumerate(zip(plans, steps, strict=True)):
      stream = make_stream(i, plan)
      opened.callback(stream.close)
      assembler = _make_assembler(config, agent, store, plan, spec, block_width)
      parameters = functools.partial(publisher.latest, plan.device)
      workers.append(
        _make_worker(plan, stream, step, assembler, parameters, output_spec)
      )
    source = mixing.make_source(config, store, len(devices.training))
    parts = Parts(
      env_spec=env_spec,
      topology=devices,
      agent=agent,
      updater=updater,
      publisher=publisher,
      learner=_make_learner(
        config, updater, state, publisher, source.update_priorities
      ),
      prefetcher=_make_prefetcher(config, updater, source.sampler),
      store=store,
      workers=tuple(workers),
      blank_batch=[plan_lib.blank_batch(spec, width)] * len(devices.training),
    )
    # Nothing failed: what is open stays open.
    opened.pop_all()
  return parts


def _make_learner(
  config: Any,
  updater: update.Updater,
  state: update.LearnerState,
  publisher: publishing.ParameterPublisher,
  update_priorities: mixing.UpdatePriorities,
) -> learner_lib.Learner:
  return learner_lib.Learner(
    updater,
    state,
    publisher,
    update_priorities,
    config.learner.publish_period,
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
  plan: plan_lib.StreamPlan,
  stream: envs.EnvStream,
  step: device_step_lib.DeviceStep,
  assembler: assembler_lib.UnrollAssembler,
  parameters: worker_lib.ParameterSource,
  output_spec: types.Nest,
) -> worker_lib.InferenceWorker:
  return worker_lib.InferenceWorker(
    stream=stream,
    device_step=step,
    assembler=assembler,
    parameters=parameters,
    global_env_id=plan.global_env_id,
    num_train_envs=plan.num_train,
    output_spec=output_spec,
  )


def _make_stream(
  config: Any,
  starts: int,
  num_streams: int,
  index: int,
  plan: plan_lib.StreamPlan,
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
  agent: agents.Agent,
  store: replay.TrajectoryStore,
  plan: plan_lib.StreamPlan,
  spec: types.Unroll,
  block_width: int,
) -> assembler_lib.UnrollAssembler:
  writer = store.writer(rules.TABLE)
  insert: Callable[[replay.Block], None] = writer.insert
  if agent.initial_priorities is not None:
    insert = insertion.PrioritizedInsertion(
      writer, agent.initial_priorities, spec, block_width, plan.device
    )
  return assembler_lib.UnrollAssembler(
    allocate=writer.allocate,
    insert=insert,
    global_env_id=plan.global_env_id[: plan.num_train],
    num_transitions=agent.num_transitions(config.unroll_length),
    overlap=agent.overlap,
    block_width=block_width,
  )
