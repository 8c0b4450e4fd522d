"""Wires the rooms for one run; `system` gives the parts their life."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.inference import assembler as assembler_lib
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import optimizers, publishing, topology, update
from seedrl_jax.learner import prefetch as prefetch_lib
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import factory as replay_factory
from seedrl_jax.replay import rules
from seedrl_jax.runtime import checks

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


@dataclasses.dataclass(frozen=True)
class StreamPlan:
  """The share of a run's environments that one stream has.

  Attributes:
    device: inference core that acts for it.
    num_train: training environments; the stream's first ids.
    global_env_id: int32 `[N]`, run-wide ids of all its environments.
    batch_size: environments per inference call.
  """

  device: jax.Device
  num_train: int
  global_env_id: np.ndarray
  batch_size: int


# Makes the environments of a stream from its number and its plan.
MakeStream = Callable[[int, StreamPlan], envs.EnvStream]


def make_env_spec(config: Any) -> types.EnvSpec:
  """Describes the environments of a run.

  Raises:
    ValueError: where the configuration asks for what there is not.
  """
  spec = env_factory.make_spec(config.env)
  return types.EnvSpec(
    env_id=spec.name,
    observation=spec.observation,
    num_actions=spec.num_actions,
    action_repeat=spec.action_repeat,
    num_envs=config.env.num_envs,
    num_eval_envs=config.num_eval_envs,
  )


def plan_streams(
  config: Any, inference: tuple[jax.Device, ...]
) -> list[StreamPlan]:
  """Divides the environments over inference streams, as evenly as can be.

  Raises:
    ValueError: where there are fewer environments than streams, or more in a
      batch than in a stream.
  """
  per_device = 1 if config.deterministic else config.topology.streams_per_device
  devices = inference[:1] if config.deterministic else inference
  count = per_device * len(devices)
  num_envs = config.env.num_envs
  if count > num_envs:
    raise ValueError(
      f'--config.env.num_envs={num_envs} cannot feed {count} inference '
      'streams; raise it or lower --config.topology.streams_per_device.'
    )
  train = np.array_split(np.arange(num_envs), count)
  # The streams that got fewer training environments take evaluation first.
  evaluation = np.array_split(
    num_envs + np.arange(config.num_eval_envs), count
  )[::-1]
  plans = []
  for i in range(count):
    ids = np.concatenate([train[i], evaluation[i]]).astype(np.int32)
    plans.append(
      StreamPlan(
        device=devices[i // per_device],
        num_train=len(train[i]),
        global_env_id=ids,
        batch_size=_batch_size(config, len(ids)),
      )
    )
  return plans


def _batch_size(config: Any, num_envs: int) -> int:
  wanted = config.env.batch_size
  if config.deterministic:
    return num_envs
  if not 0 <= wanted <= num_envs:
    raise ValueError(
      f'--config.env.batch_size={wanted}: a stream has {num_envs} environments '
      '(evaluation included); give fewer, or 0 for half of them.'
    )
  return wanted or (num_envs + 1) // 2


def check_batch(config: Any, num_training: int) -> int:
  """Returns the unrolls of a batch that each training device gets.

  Raises:
    ValueError: where the batch does not divide.
  """
  pieces = num_training * config.learner.micro_batches
  if config.batch_size % pieces:
    raise ValueError(
      f'--config.batch_size={config.batch_size} must be a multiple of '
      f'{pieces}: {num_training} training devices x '
      f'--config.learner.micro_batches={config.learner.micro_batches}.'
    )
  return config.batch_size // num_training


def unroll_spec(
  env_spec: types.EnvSpec,
  unroll_length: int,
  agent_output: types.Nest,
  core: types.Nest,
) -> types.Unroll:
  """Returns `ArraySpec`s of one unroll, as the store keeps it."""

  def step(spec: types.ArraySpec) -> types.ArraySpec:
    return types.ArraySpec((unroll_length + 1, *spec.shape), spec.dtype)

  def scalar(dtype: Any) -> types.ArraySpec:
    return types.ArraySpec((unroll_length + 1,), np.dtype(dtype))

  is_spec = functools.partial(_isinstance, types.ArraySpec)
  return types.Unroll(
    steps=types.Steps(
      observation=jax.tree.map(step, env_spec.observation, is_leaf=is_spec),
      reward=scalar(np.float32),
      discount=scalar(np.float32),
      step_type=scalar(np.uint8),
      previous_action=scalar(np.int32),
      agent_output=jax.tree.map(step, agent_output, is_leaf=is_spec),
      parameter_version=scalar(np.int32),
    ),
    initial_core=core,
    env_id=types.ArraySpec((), np.dtype(np.int32)),
  )


def _blank_batch(spec: types.Unroll, width: int) -> types.Batch:
  """Returns a batch of zeros for one training device, to compile with."""
  is_spec = functools.partial(_isinstance, types.ArraySpec)

  def steps(s: types.ArraySpec) -> np.ndarray:
    return np.zeros((s.shape[0], width, *s.shape[1:]), s.dtype)

  def rows(s: types.ArraySpec) -> np.ndarray:
    return np.zeros((width, *s.shape), s.dtype)

  return types.Batch(
    types.Unroll(
      jax.tree.map(steps, spec.steps, is_leaf=is_spec),
      jax.tree.map(rows, spec.initial_core, is_leaf=is_spec),
      rows(spec.env_id),
    ),
    probability=np.ones(width, np.float32),
    table_size=np.ones(width, np.float32),
  )


def _isinstance(cls: type, x: Any) -> bool:
  return isinstance(x, cls)


def build(
  config: Any,
  restore: Callable[[update.LearnerState], update.LearnerState],
  starts: Callable[[], int] = lambda: 0,
  streams: MakeStream | None = None,
  replay_folder: str | None = None,
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

  Raises:
    ValueError: where the configuration cannot be had; names the flag.
  """
  checks.check_numbers(config)
  env_spec = make_env_spec(config)
  devices = topology.make_topology(
    config.topology.inference_to_training,
    jax.local_devices(),
    config.topology.max_devices,
  )
  width = check_batch(config, len(devices.training))
  plans = plan_streams(config, devices.inference)
  agent = agents.load_agent(config, env_spec)
  optimizer = optimizers.make_optimizer(config, env_spec.action_repeat)
  keys = jax.random.split(jax.random.PRNGKey(config.seed), len(plans) + 1)
  state = restore(update.initial_state(agent, optimizer, keys[0]))
  steps = [
    device_step_lib.DeviceStep(agent, p.device, len(p.global_env_id), key)
    for p, key in zip(plans, keys[1:], strict=True)
  ]
  output_spec = steps[0].output_spec(state.params, env_spec.observation)
  spec = unroll_spec(
    env_spec, config.unroll_length, output_spec, steps[0].core_spec()
  )
  updater = update.Updater(
    agent, optimizer, devices.training, config.learner.micro_batches
  )
  publisher = publishing.ParameterPublisher(devices.inference)
  make_stream = streams or functools.partial(
    _make_stream, config, starts(), len(plans)
  )
  with contextlib.ExitStack() as opened:
    store = replay_factory.make_store(
      _replay_config(config), spec, width, agent.overlap, replay_folder
    )
    opened.callback(store.close)
    workers = []
    for i, (plan, step) in enumerate(zip(plans, steps, strict=True)):
      stream = make_stream(i, plan)
      opened.callback(stream.close)
      assembler = _make_assembler(config, agent, store, plan, width)
      parameters = functools.partial(publisher.latest, plan.device)
      workers.append(
        _make_worker(plan, stream, step, assembler, parameters, output_spec)
      )
    parts = Parts(
      env_spec=env_spec,
      topology=devices,
      agent=agent,
      updater=updater,
      publisher=publisher,
      learner=_make_learner(config, updater, state, publisher, store),
      prefetcher=_make_prefetcher(config, updater, store),
      store=store,
      workers=tuple(workers),
      blank_batch=[_blank_batch(spec, width)] * len(devices.training),
    )
    # Nothing failed: what is open stays open.
    opened.pop_all()
  return parts


def _make_learner(
  config: Any,
  updater: update.Updater,
  state: update.LearnerState,
  publisher: publishing.ParameterPublisher,
  store: replay.TrajectoryStore,
) -> learner_lib.Learner:
  return learner_lib.Learner(
    updater,
    state,
    publisher,
    functools.partial(store.update_priorities, rules.TABLE),
    config.learner.publish_period,
  )


def _make_prefetcher(
  config: Any, updater: update.Updater, store: replay.TrajectoryStore
) -> prefetch_lib.Prefetcher:
  sampler = store.sampler(rules.TABLE, config.batch_size, len(updater.devices))
  return prefetch_lib.Prefetcher(
    sampler, updater.shard, config.learner.prefetch
  )


def _make_worker(
  plan: StreamPlan,
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
  config: Any, starts: int, num_streams: int, index: int, plan: StreamPlan
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
  plan: StreamPlan,
  width: int,
) -> assembler_lib.UnrollAssembler:
  writer = store.writer(rules.TABLE)
  return assembler_lib.UnrollAssembler(
    allocate=writer.allocate,
    insert=writer.insert,
    global_env_id=plan.global_env_id[: plan.num_train],
    unroll_length=config.unroll_length,
    overlap=agent.overlap,
    block_width=width,
  )


def _replay_config(config: Any) -> Any:
  """In lock step, one step may complete an unroll of every environment.

  The queue must take them all, as nobody samples meanwhile.
  """
  if not config.deterministic or config.replay.sampler != 'fifo':
    return config
  config = config.copy_and_resolve_references()
  config.replay.max_size = max(
    config.replay.max_size or 0, config.env.num_envs + 2 * config.batch_size
  )
  return config
