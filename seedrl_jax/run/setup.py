"""Works out what a run computes with and how large it is.

Nothing is opened here.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import ml_collections

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.demonstrations import mixing
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.inference import specs
from seedrl_jax.learner import topology, update
from seedrl_jax.run import layout as layout_lib

# Makes what updates an agent's state on training devices.
MakeUpdater = Callable[[agents.Agent, Sequence[jax.Device]], update.Updater]


@dataclasses.dataclass(frozen=True)
class Setup:
  """What a run computes with and how large it is; nothing here is open.

  Attributes:
    config: of this host, as `topology` and `plans`.
    env_spec: of all hosts, as `updater`.
    keys: PRNG keys of the initial state and of each stream.
    batch_width: unrolls of a batch that each training device gets.
    block_width: unrolls that are assembled side by side.
  """

  config: ml_collections.ConfigDict
  host: layout_lib.HostIndex
  env_spec: types.EnvSpec
  topology: topology.Topology
  plans: list[layout_lib.StreamPlan]
  agent: agents.Agent
  updater: update.Updater
  keys: jax.Array
  batch_width: int
  block_width: int


def plan(
  config: ml_collections.ConfigDict,
  host: layout_lib.HostIndex = layout_lib.ONLY_HOST,
  devices: Sequence[jax.Device] = (),
  make_updater: MakeUpdater = update.Updater,
) -> Setup:
  """Works out a host's part of a run; raises `ValueError` naming a flag.

  `devices` are those of this part alone; without them, all that JAX has.
  """
  own = layout_lib.host_config(config, host)
  env_spec = env_factory.make_env_spec(config, host.count)
  own_devices = list(devices) or jax.local_devices()
  most = config.topology.max_devices
  ratio = config.topology.inference_to_training or topology.default_ratio(
    most or len(own_devices), own.batch_size // config.learner.micro_batches
  )
  split = topology.make_topology(ratio, own_devices, most)
  training = topology.all_training(ratio, devices or jax.devices(), most)
  batch_width = layout_lib.check_batch(config, len(training))
  if mixing.is_configured(config):
    # Raises before anything is opened.
    mixing.demonstrations_per_block(own, len(split.training))
  plans = layout_lib.plan_streams(own, split.inference, host)
  agent = agents.load_agent(_for_agent(config, training[0], host), env_spec)
  agent.check_share(batch_width)
  block_width = layout_lib.block_width(config, batch_width, plans)
  layout_lib.check_max_lag(own, plans, block_width)
  return Setup(
    config=own,
    host=host,
    env_spec=env_spec,
    topology=split,
    plans=plans,
    agent=agent,
    updater=make_updater(agent, training),
    keys=jax.random.split(jax.random.PRNGKey(own.seed), len(plans) + 1),
    batch_width=batch_width,
    block_width=block_width,
  )


def _for_agent(
  config: ml_collections.ConfigDict,
  device: jax.Device,
  host: layout_lib.HostIndex,
) -> ml_collections.ConfigDict:
  """Returns the configuration for the agent of this device and host."""
  config = config.copy_and_resolve_references()
  if device.platform != 'tpu':
    config.network.tpu_chunk = 0
  if host.num_models:
    config.planning.role = 'act' if host.has_environments else 'model'
  return config


def initial_state(setup: Setup) -> update.LearnerState:
  """Returns the learner's state before the first update."""
  return update.initial_state(setup.agent, setup.keys[0])


def unroll_spec(setup: Setup) -> types.Unroll:
  """Returns the `ArraySpec`s of a stored unroll."""
  agent, env_spec = setup.agent, setup.env_spec
  return specs.unroll_spec(
    env_spec.stream,
    agent.num_transitions(setup.config.unroll_length),
    specs.output_spec(agent, env_spec.stream, agent.params_shapes()),
    specs.core_spec(agent),
  )
