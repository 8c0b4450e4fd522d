"""Every key of a run with its default; other configs change what they need.

An agent's keys are in its own `config.py`.

A value of None in `env` means "EnvPool's own default for this environment";
in `network` and `replay`, "derived" as the comment says.
"""

from collections.abc import Callable

import ml_collections
from ml_collections import config_dict

from seedrl_jax.agents.vtrace import config as vtrace_config


def get_config(
  set_agent: Callable[
    [ml_collections.ConfigDict], None
  ] = vtrace_config.set_defaults,
) -> ml_collections.ConfigDict:
  """Returns an agent on CartPole-v1 with everything at its default.

  Args:
    set_agent: sets the agent's keys; V-trace's.
  """
  config = ml_collections.ConfigDict()
  # A folder of seedrl_jax/agents, or the dotted name of any module that has
  # make_agent(config, env_spec), also of one in the current folder.
  config.agent = ''
  # Of networks, sampling, environments and the replay's draws.
  config.seed = 1
  # Frames are steps x action repeat, without reset pseudo-steps.
  config.total_env_frames = 2_000_000
  # Environments beside the training ones that act greedily, feed no unrolls
  # and are reported apart.
  config.num_eval_envs = 8
  # Transitions of an unroll that are trained on; R2D2's sequences have
  # burn_in + lookahead steps more.
  config.unroll_length = 20
  # Unrolls per update, over all training devices.
  config.batch_size = 32
  # One inference stream in lock step with the learner: two runs with one seed
  # give bit-equal parameters. Slow.
  config.deterministic = False
  config.env = _env()
  config.network = _network()
  config.replay = _replay()
  config.demonstrations = _demonstrations()
  config.topology = _topology()
  config.actors = _actors()
  config.learner = _learner()
  config.hosts = _hosts()
  config.checkpoint = _checkpoint()
  config.log = _log()
  set_agent(config)
  return config


def _env() -> ml_collections.ConfigDict:
  """Environments; what is not set is as EnvPool has it for this id."""
  # A placeholder each: keys that share one would be set together.
  return ml_collections.ConfigDict({
    # Of EnvPool; 'gymnasium:CartPole-v1' is Gymnasium's, in Python.
    'id': 'CartPole-v1',
    # 'module:function' that returns a Gymnasium environment, in place of
    # EnvPool; `id` is then not read. The module may lie in the current folder.
    'factory': '',
    'factory_kwargs': ml_collections.ConfigDict(),  # its arguments
    # Environments that train, in this process.
    'num_envs': 128,
    # Environments per inference call and stream. 0: half of the stream's, so
    # that one half steps while the other half is acted for.
    'batch_size': 0,
    # Of EnvPool, per stream. 0: what the cores allow.
    'num_threads': 0,
    # Pins these threads to this processor and those after it; -1: to none.
    'thread_affinity_offset': -1,
    # Of a stream, that Gymnasium's environments step in, at least one for each
    # batch. 0: none, they step in the inference thread.
    'processes': 0,
    'max_episode_steps': config_dict.placeholder(int),
    'frame_skip': config_dict.placeholder(int),
    'stack_num': config_dict.placeholder(int),
    'noop_max': config_dict.placeholder(int),
    'episodic_life': config_dict.placeholder(bool),
    # A lost life cuts the return off, in an episode that goes on.
    'zero_discount_on_life_loss': config_dict.placeholder(bool),
    'reward_clip': config_dict.placeholder(bool),
    # EnvPool presses FIRE at each reset unless this is False.
    'use_fire_reset': config_dict.placeholder(bool),
    'full_action_space': config_dict.placeholder(bool),
    'repeat_action_probability': config_dict.placeholder(float),
    # Any further option of this id, by its own name.
    'options': ml_collections.ConfigDict(),
    # Keys of a dict observation that the agent does not see.
    'drop_observations': ('mission',),
  })


def _network() -> ml_collections.ConfigDict:
  """What turns observations into features."""
  return ml_collections.ConfigDict({
    # 'auto': by the observation's rank; 'mlp', 'shallow', 'nature', 'resnet',
    # 'tiny'; 'module:function' that takes this section and returns a Flax
    # module from [N, ...] to [N, F].
    'torso': 'auto',
    'hidden_sizes': (64, 64),  # of 'mlp'
    # Output of a convolutional torso. 0: as published (256; Nature 512).
    'dense_size': 0,
    # Width multiplier of the deep ResNet's channels (16, 32, 32).
    'width': 1,
    'resnet_channels': (16, 32, 32),
    # Frames stacked in the agent's state. 1: none.
    'frame_stack': 1,
    # 'auto', 'channels_first', 'channels_last'.
    'image_layout': 'auto',
    # 0: no recurrent core.
    'lstm_size': 0,
    # Feed previous action and reward to the core (or heads).
    'use_previous_action': False,
    # Clip the reward that is fed to [-x, x]; 0 leaves it.
    'previous_reward_clip': 1.0,
    'compute_dtype': 'float32',  # 'float32', 'bfloat16'
  })


def _replay() -> ml_collections.ConfigDict:
  """Where unrolls wait to be trained on."""
  return ml_collections.ConfigDict({
    # 'reverb': a server process, which is started and watched; 'embedded': in
    # this process; 'auto': embedded for a queue (sampler 'fifo') that only
    # this process fills, else Reverb if it can be had.
    'backend': 'auto',
    # host:port of a Reverb server that runs already (launch/reverb_server.py).
    'address': '',
    # Seconds to keep looking for a Reverb server that was lost.
    'patience': 60.0,
    'sampler': 'fifo',  # 'fifo', 'uniform', 'prioritized'
    # Unrolls. None: two batches for a queue.
    'max_size': config_dict.placeholder(int),
    # How often an unroll is trained on at most; 0: any number of times.
    'max_times_sampled': 1,
    'samples_per_insert': 1.0,
    # How far samples may run ahead of or behind samples_per_insert, as a
    # share of min_size.
    'tolerance': 0.1,
    # Unrolls before the first update.
    'min_size': 1,
    # An unroll is drawn with a chance of priority ^ this.
    'priority_exponent': 0.9,
    # How far the loss makes up for prioritized unrolls being drawn more
    # often: 1 wholly, 0 not at all.
    'importance_exponent': 0.0,
  })


def _demonstrations() -> ml_collections.ConfigDict:
  """What an R2D3 run learns from beside its own experience."""
  return ml_collections.ConfigDict({
    # Folder that launch/record.py wrote; a table of its own is filled from it
    # if that is empty.
    'path': '',
    # Share of each batch that is demonstrations. 0: there is no such table.
    'fraction': 0.0,
    # Sequences. None: as many as the folder holds.
    'max_size': config_dict.placeholder(int),
  })


def _topology() -> ml_collections.ConfigDict:
  """Which devices act and which train."""
  return ml_collections.ConfigDict({
    # Local devices for inference : for training, as 1:3. '': one device does
    # both; several are split 1:3 if four divide them, else 1:1.
    'inference_to_training': '',
    # Environment pools (each with its thread) per inference device.
    'streams_per_device': 1,
    # Use only the first n local devices; 0: all.
    'max_devices': 0,
    # Pins the inference threads to this processor of the host and those after
    # it; -1: to none. With env.thread_affinity_offset one higher, threads of
    # cheap environments keep out of their way: a quarter faster on two cores.
    # Not if two runs share a host: both would take the same processors.
    'inference_affinity_offset': -1,
  })


def _actors() -> ml_collections.ConfigDict:
  """Environments that other processes bring (launch/actor.py)."""
  return ml_collections.ConfigDict({
    # Environments of remote actors (launch/actor.py) at most, beside the
    # env.num_envs of this process, which may then be 0. 0: no actors.
    'max_envs': 0,
    # With replay.backend='auto': takes Reverb, which actors that act themselves
    # (launch/actor.py --inference=local) write their unrolls to.
    'local_inference': False,
    # Where they find the learner: 'unix:/path' or 'host:port', as many as
    # wanted. (): the socket <workdir>/actors.sock.
    'addresses': (),
    # Environments per inference call and stream: the most, which no group of
    # an actor may exceed (0: any), and how many are enough not to wait for
    # more.
    'batch_size': 0,
    'min_batch_size': 1,
    # Milliseconds after which fewer than that are acted for.
    'batch_timeout_ms': 5.0,
    # Seconds after which an actor that says nothing is given up.
    'timeout': 60.0,
    # Files, in PEM: the learner's certificate and its key. Other machines may
    # reach it only with these and a token, unless `insecure`.
    'tls_certificate': '',
    'tls_key': '',
    # A file with the secret that actors must show, over TLS or a unix socket.
    'token_file': '',
    'insecure': False,  # whether other machines may do without
  })


def _learner() -> ml_collections.ConfigDict:
  """How an update is made."""
  return ml_collections.ConfigDict({
    # Equal pieces that a device's share of the batch is worked through in.
    'micro_batches': 1,
    # Batches on the training devices ahead of the running update.
    'prefetch': 1,
    # Updates between publications of parameters to inference.
    'publish_period': 1,
  })


def _hosts() -> ml_collections.ConfigDict:
  """Several that train together (launch/learner.py --coordinator=…).

  They share out batch_size; environments, actors and the replay's sizes are
  of each.
  """
  return ml_collections.ConfigDict({
    # Seconds after which one that says nothing is taken for dead.
    'timeout': 60.0,
    # Updates between comparisons of the hosts' parameters.
    'check_period': 100,
  })


def _checkpoint() -> ml_collections.ConfigDict:
  """What a run can go on from."""
  return ml_collections.ConfigDict({
    'every_seconds': 300.0,
    'keep': 3,  # the newest so many
    # Whether the replay is saved with the learner.
    'replay': True,
    # Keep one for good every so many hours; 0: none.
    'keep_every_hours': 0.0,
  })


def _log() -> ml_collections.ConfigDict:
  """Progress and curves."""
  return ml_collections.ConfigDict({
    'every_seconds': 2.0,
    'tensorboard': True,  # write its events
  })
