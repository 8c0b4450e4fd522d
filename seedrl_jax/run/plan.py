"""Works out what a run computes with and how large it is.

Nothing is opened here.
"""

import dataclasses
from collections.abc import Sequence

import jax
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.demonstrations import mixing
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.inference import device_worker, specs
from seedrl_jax.learner import placement as placement_lib
from seedrl_jax.learner import topology, update
from seedrl_jax.replay import table_configs
from seedrl_jax.run import layout as layout_lib


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a run computes with and how large it is; nothing here is open.

  Attributes:
    config: of this process, see `layout.local_config`.
    device_env: the local environments, if they are in JAX.
    on_device: whether their unrolls stay on the devices.
    cuts_blocks: whether a queue takes such unrolls, which share one step.
    lock_step: whether acting and learning take turns in one thread.
    env_spec: of all processes, as `updater`.
    topology: of this process, as `shares`.
    tables: rules of the store's tables, the unrolls' first.
    keys: PRNG keys of the initial state and of each stream.
    batch_width: unrolls of a batch that each training device gets.
    demonstrations_per_block: how many of those are demonstrations.
    block_width: unrolls that are assembled side by side.
    unroll_spec: `ArraySpec`s of a stored unroll.
  """

  config: ml_collections.ConfigDict
  device_env: types.DeviceEnv | None
  on_device: bool
  cuts_blocks: bool
  placement: placement_lib.Placement
  lock_step: bool
  env_spec: types.EnvSpec
  topology: topology.Topology
  shares: list[layout_lib.StreamShare]
  agent: agents.Agent
  updater: update.Updater
  tables: Sequence[table_configs.TableConfig]
  keys: jax.Array
  batch_width: int
  demonstrations_per_block: int
  block_width: int
  unroll_spec: types.Unroll

  def blank_batch(self) -> list[types.Batch]:
    """Returns zeros for each of this process's training devices."""
    blank = specs.blank_batch(self.unroll_spec, self.batch_width)
    return [blank] * len(self.topology.training)

  def initial_state(self) -> update.LearnerState:
    """Returns the learner's state before the first update."""
    return update.initial_state(self.agent, self.keys[0])

  def task_numbers(self, share: layout_lib.StreamShare) -> np.ndarray | None:
    """Returns the tasks, int32 `[N]`, of a share; None in a run of one."""
    return env_factory.task_numbers(
      self.config.env, share.global_env_id, self.env_spec.num_envs
    )

  def unroll_program(
    self, share: layout_lib.StreamShare
  ) -> device_worker.UnrollProgram:
    """Returns what acts in a share of the environments, which are in JAX."""
    # Not `device_env`, as the order of tasks is that of the share.
    env = env_factory.device_env(self.config.env, self.task_numbers(share))
    assert env is not None
    return device_worker.UnrollProgram(
      self.agent,
      env,
      share.global_env_id,
      share.num_train,
      self.config.unroll_length,
      self.block_width if self.cuts_blocks else None,
    )


def make_plan(
  config: ml_collections.ConfigDict,
  placement: placement_lib.Placement = placement_lib.SINGLE,
  devices: Sequence[jax.Device] = (),
) -> Plan:
  """Works out a process's share of a run; raises `ValueError` naming a flag.

  `devices` take the place of JAX's, if `placement` has none.
  """
  local_config = layout_lib.local_config(config, placement)
  lock_step = config.deterministic or placement.lock_step
  env_spec = env_factory.make_env_spec(config, placement.count)
  split, training = _split_devices(local_config, placement.devices or devices)
  batch_width = layout_lib.check_batch(config, len(training))
  demonstrations_per_block = mixing.demonstrations_per_block(
    local_config, len(split.training)
  )
  shares = layout_lib.plan_streams(
    local_config, split.inference, placement, lock_step
  )
  agent = agents.load_agent(
    _agent_config(config, training[0], placement), env_spec
  )
  agent.check_share(batch_width)
  tables = mixing.run_tables(local_config, lock_step)
  num_envs = min((x.num_train for x in shares if x.num_train), default=1)
  block_width = tables[0].writer_width(batch_width, num_envs, lock_step)
  layout_lib.check_max_lag(local_config, shares, block_width)
  device_env = env_factory.device_env(local_config.env)
  cuts_blocks = local_config.replay.sampler == 'fifo' and agent.overlap == 1
  if device_env is not None and cuts_blocks:
    layout_lib.check_blocks(shares, block_width)
  key = jax.random.PRNGKey(local_config.seed)
  return Plan(
    config=local_config,
    device_env=device_env,
    on_device=layout_lib.stays_on_device(
      local_config, device_env is not None, agent.overlap
    ),
    cuts_blocks=cuts_blocks,
    placement=placement,
    lock_step=lock_step,
    env_spec=env_spec,
    topology=split,
    shares=shares,
    agent=agent,
    updater=update.Updater(
      agent, training, placement.make_step(agent, training)
    ),
    tables=tables,
    keys=jax.random.split(key, len(shares) + 1),
    batch_width=batch_width,
    demonstrations_per_block=demonstrations_per_block,
    block_width=block_width,
    unroll_spec=specs.unroll_spec(
      env_spec.stream,
      agent.num_transitions(config.unroll_length),
      specs.output_spec(agent, env_spec.stream, agent.params_shapes()),
      specs.core_spec(agent),
    ),
  )


def _split_devices(
  config: ml_collections.ConfigDict, devices: Sequence[jax.Device]
) -> tuple[topology.Topology, Sequence[jax.Device]]:
  """Returns this host's devices by use, and the training devices of all.

  `config` is that of this process; without `devices`, JAX's are taken.
  """
  local_devices = list(devices) or jax.local_devices()
  most = config.topology.max_devices
  ratio = config.topology.inference_to_training or topology.default_ratio(
    most or len(local_devices),
    config.batch_size // config.learner.micro_batches,
  )
  return (
    topology.make_topology(ratio, local_devices, most),
    topology.all_training(ratio, devices or jax.devices(), most),
  )


def _agent_config(
  config: ml_collections.ConfigDict,
  device: jax.Device,
  placement: placement_lib.Placement,
) -> ml_collections.ConfigDict:
  config = config.copy_and_resolve_references()
  if device.platform != 'tpu':
    config.network.tpu_chunk = 0
  config.update_from_flattened_dict(placement.agent_settings)
  return config
