"""All keys of a run but the agent's own, with their defaults.

None in `env` means EnvPool's default for the environment.
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
  """Returns CartPole-v1 with all defaults, and the keys of `set_agent`."""
  config = ml_collections.ConfigDict()
  # A folder of seedrl_jax/agents, or the dotted name of a module with
  # make_agent(config, env_spec), also in the current folder.
  config.agent = ''
  # Seeds networks, action sampling, environments and replay sampling.
  config.seed = 1
  # Frames are steps x action repeat, without reset pseudo-steps.
  config.total_env_frames = 2_000_000
  # Ends the run earlier, when the mean return of the last 100 training episodes
  # reaches it.
  config.target_return = config_dict.placeholder(float)
  # Extra environments that act greedily (R2D2, Dyna-Q and PQN: but for
  # exploration.eval_epsilon), do not train and are reported separately.
  config.num_eval_envs = 8
  # Trained transitions of an unroll; R2D2's sequences have burn_in + lookahead
  # more steps.
  config.unroll_length = 20
  # Unrolls per update, over all training devices.
  config.batch_size = 32
  # One inference stream in lock step with the learner: runs with equal seeds
  # give bit-equal parameters. Slow. GPUs need
  # XLA_FLAGS=--xla_gpu_deterministic_ops=true, which a run sets unless JAX has
  # started before.
  config.deterministic = False
  config.env = _env()
  config.network = _network()
  config.replay = _replay()
  config.demonstrations = _demonstrations()
  config.topology = _topology()
  config.actors = _actors()
  config.learner = _learner()
  config.hosts = _hosts()
  config.asynchronous = _asynchronous()
  config.checkpoint = _checkpoint()
  config.log = _log()
  set_agent(config)
  return config


def set_atari_protocol(config: ml_collections.ConfigDict) -> None:
  """Sets the environment conventions that the Atari configurations share.

  From Machado et al. 2018 (arXiv 1709.06009): sticky actions with probability
  0.25, all 18 actions, and no end of the episode or return at a lost life.

  From Cleanba (arXiv 2310.00036): one no-op and FIRE at each reset, at most
  108,000 frames per episode, and rewards clipped to their sign for training.
  Reported returns are not clipped.
  """
  env = config.env
  env.id = 'Pong-v5'
  env.frame_skip = 4
  env.repeat_action_probability = 0.25
  env.full_action_space = True
  env.noop_max = 1
  env.use_fire_reset = True
  env.episodic_life = False
  env.zero_discount_on_life_loss = False
  env.max_episode_steps = 27_000
  env.reward_clip = True
  config.network.frame_stack = 4


def _env() -> ml_collections.ConfigDict:
  """Environments; unset keys are as EnvPool has them for this id."""
  # One placeholder per key: keys that share one would be set together.
  return ml_collections.ConfigDict({
    'id': 'CartPole-v1',  # EnvPool's, or 'gymnasium:CartPole-v1'
    # 'module:function' that returns a Gymnasium environment; replaces `id`. The
    # module may be in the current folder.
    'factory': '',
    'factory_kwargs': ml_collections.ConfigDict(),  # its arguments
    'num_envs': 128,  # training, in this process
    # Environments per inference call and stream. 0: half of the stream's, so
    # that one half steps while the network runs on the other; all with a
    # learner.max_lag of 0 or 1, as unrolls should begin together, and of fewer
    # than 256 with steps as cheap as CartPole's, as two calls cost more.
    'batch_size': 0,
    'num_threads': 0,  # EnvPool's, per stream; 0: as the cores allow
    # Pins EnvPool's threads to processors from this one on; -1: no pinning.
    'thread_affinity_offset': -1,
    # Worker processes of a stream for Gymnasium's environments; at least one
    # per batch. 0: they step in a thread of the stream.
    'processes': 0,
    'max_episode_steps': config_dict.placeholder(int),
    'frame_skip': config_dict.placeholder(int),  # MuJoCo: steps of the physics
    # None: 1; network.frame_stack stacks on the device.
    'stack_num': config_dict.placeholder(int),
    'noop_max': config_dict.placeholder(int),
    'episodic_life': config_dict.placeholder(bool),
    # A lost life ends the return but not the episode.
    'zero_discount_on_life_loss': config_dict.placeholder(bool),
    'reward_clip': config_dict.placeholder(bool),
    # EnvPool presses FIRE at each reset unless False.
    'use_fire_reset': config_dict.placeholder(bool),
    'full_action_space': config_dict.placeholder(bool),
    'repeat_action_probability': config_dict.placeholder(float),
    # Further EnvPool options. use_contact_force (Ant, Humanoid) is False unless
    # set.
    'options': ml_collections.ConfigDict(),
    # Keys of a dict observation that the agent does not see. A dict of nothing
    # but floats and vectors of floats (DeepMind Control) becomes one vector, in
    # the order of its keys.
    'drop_observations': ('mission',),
  })


def _network() -> ml_collections.ConfigDict:
  """From observations to features."""
  return ml_collections.ConfigDict({
    # 'auto' (by the observation's shape), 'mlp', 'shallow', 'nature', 'resnet',
    # 'tiny', 'grid', or 'module:function' that maps this section to a Flax
    # module from [N, ...] to [N, F]. The start of a run says what it takes.
    'torso': 'auto',
    'hidden_sizes': (64, 64),  # of 'mlp'
    # Of all torsos but 'resnet', whose layers are ReLU without layer norm.
    'activation': 'relu',  # 'relu', 'tanh'
    'layer_norm': False,  # before each activation
    # Output size of a convolutional torso. 0: as published (256; Nature 512).
    'dense_size': 0,
    'width': 1,  # multiplies the ResNet's channels
    'resnet_channels': (16, 32, 32),
    'frame_stack': 1,  # frames in the agent's state; 1: no stacking
    # On TPUs, passes this many images at once through a torso, forwards and,
    # again, backwards: their features stay on the chip. 0: all at once.
    'tpu_chunk': 0,
    # 'auto' (height and width are the adjacent axes whose smaller one is
    # largest, of several a square pair), 'channels_first', 'channels_last'
    'image_layout': 'auto',
    # Whether bytes of images under 32 pixels a side are categories, which get
    # 16 one-hot levels per channel: 'on', 'off', or 'auto' for the
    # environments known for it (MiniGrid, BabyAI, Sokoban).
    'categories': 'auto',
    # Subtracts each patch's mean before the first convolution and multiplies
    # the differences by this (vtrace_atari: 4). The mean is over the patch's
    # pixels, channels and stacked frames, so uniform brightness has no effect.
    # Only the torsos 'shallow', 'nature' and 'tiny' use it; 0 turns it off.
    'contrast': 0.0,
    'lstm_size': 0,  # 0: no recurrent core
    'use_previous_action': False,  # and reward, to core or heads
    'previous_reward_clip': 1.0,  # in [-x, x]; 0: not clipped
    'compute_dtype': 'float32',  # 'float32', 'bfloat16'
  })


def _replay() -> ml_collections.ConfigDict:
  """The store of unrolls to train on."""
  return ml_collections.ConfigDict({
    # 'reverb': a server process, started and monitored; 'embedded': in this
    # process; 'auto': embedded for a queue (sampler 'fifo') and for single
    # transitions (unroll_length 1) that only this process fills, else Reverb if
    # available.
    'backend': 'auto',
    'address': '',  # host:port of a running launch/reverb_server.py
    'patience': 60.0,  # seconds to reconnect to a lost server
    'sampler': 'fifo',  # 'fifo', 'uniform', 'prioritized'
    # Unrolls. None: two batches for a queue.
    'max_size': config_dict.placeholder(int),
    'max_times_sampled': 1,  # of an unroll; 0: any number
    'samples_per_insert': 1.0,
    'tolerance': 0.1,  # of samples_per_insert, as a share of min_size
    'min_size': 1,  # unrolls before the first update
    'priority_exponent': 0.9,  # sampling goes by priority ^ this
    # Correction of prioritized sampling's bias in the loss: 1 full, 0 none.
    'importance_exponent': 0.0,
  })


def _demonstrations() -> ml_collections.ConfigDict:
  """Demonstrations that an R2D3 run also learns from."""
  return ml_collections.ConfigDict({
    # Folder written by launch/record.py; fills a separate table if that is
    # empty.
    'path': '',
    'fraction': 0.0,  # share of each batch; 0: no such table
    # Sequences. None: as many as the folder holds.
    'max_size': config_dict.placeholder(int),
  })


def _topology() -> ml_collections.ConfigDict:
  """Which devices act and which train."""
  return ml_collections.ConfigDict({
    # Ratio of local devices for inference and training, as 1:3. '': one device
    # does both; several are split 1:3 if they and the batch divide, else 1:1.
    'inference_to_training': '',
    'streams_per_device': 1,  # environment pools, each with a thread
    'max_devices': 0,  # uses only the first n; 0: all
    # Pins the inference threads to the host's processors from this one on; -1:
    # no pinning. With env.thread_affinity_offset one higher, cheap
    # environments' threads keep off them: a quarter faster with halves on two
    # quiet cores, slower on a host that others use, too.
    'inference_affinity_offset': -1,
  })


def _actors() -> ml_collections.ConfigDict:
  """Environments of other processes (launch/actor.py)."""
  return ml_collections.ConfigDict({
    # Most environments of remote actors, in addition to env.num_envs, which may
    # then be 0. 0: no actors.
    'max_envs': 0,
    # With replay.backend='auto': takes Reverb, to which actors with
    # --inference=local write their unrolls.
    'local_inference': False,
    # The learner's addresses, each 'unix:/path' or 'host:port'. (): the socket
    # <workdir>/actors.sock.
    'addresses': (),
    # Most environments per inference call and stream, and of any group of an
    # actor; 0: any number.
    'batch_size': 0,
    'min_batch_size': 1,  # calls with so many do not wait for more
    'batch_timeout_ms': 5.0,  # how long to wait for min_batch_size
    'timeout': 60.0,  # seconds of silence after which an actor is dropped
    # PEM files of the learner's certificate and key. Other machines need these
    # and a token to connect, unless `insecure`.
    'tls_certificate': '',
    'tls_key': '',
    # File with the secret that actors must show, over TLS or a unix socket.
    'token_file': '',
    'insecure': False,  # lets other machines connect without
  })


def _learner() -> ml_collections.ConfigDict:
  """How updates are made."""
  return ml_collections.ConfigDict({
    'micro_batches': 1,  # equal pieces of a device's share of the batch
    'prefetch': 1,  # batches on the devices ahead of the update
    'publish_period': 1,  # updates between publications to inference
    # Keeps a queue's agent on-policy: batches that the learner may train on
    # between the parameters that act and the batch that holds their steps.
    # Inference waits for newer ones before an unroll, and unrolls that are
    # older all the same (as with several streams) are dropped. A version counts
    # once, however many optimiser steps its batch takes. 0: acting and training
    # alternate; take one stream, a batch_size that is a multiple of
    # env.num_envs, and env.batch_size 0, which is all of them then. None: no
    # bound (a flag cannot say it: give a large number).
    'max_lag': config_dict.placeholder(int),
  })


def _hosts() -> ml_collections.ConfigDict:
  """Hosts that train together (launch/learner.py --coordinator=…).

  They share batch_size; environments, actors and replay sizes are per host.
  """
  return ml_collections.ConfigDict({
    'timeout': 60.0,  # seconds of silence after which a host is dead
    'check_period': 100,  # updates between comparisons of parameters
  })


def _asynchronous() -> ml_collections.ConfigDict:
  """Workers that train the same parameters (launch/train_async.py).

  Environments, batch_size and replay sizes are per worker.
  """
  return ml_collections.ConfigDict({
    'workers': 2,  # processes, each on one processor or device
    # Of these, workers without environments that train Dyna-Q's model, and
    # values by what it imagines, while the others act and train by what is
    # real. They need the others' replay, so --config.replay.backend=reverb.
    # What they sample is not in replay.samples_per_insert, but comes on top:
    # each makes at most as many updates as an acting worker does on average.
    'model_workers': 0,
    # 'hogwild': gradients are applied in shared memory, without locks; 'lock':
    # one at a time; 'sync': the mean of one gradient of each worker; 'server':
    # by a parameter server.
    'share': 'hogwild',
    # Shares the optimiser's statistics, too, as A3C; else each worker has its
    # own. Servers have one for all.
    'shared_statistics': True,
    # Discards gradients of parameters that are more versions old; 0: none.
    'max_staleness': 0,
    # Discards gradients whose loss is so many deviations above its running
    # mean; 0: none.
    'outlier_deviations': 0.0,
    # Processes of the parameter server, each with a slice of the parameters.
    'shards': 1,
    # The shards' addresses, each 'unix:/path' or 'host:port', with certificate,
    # token and `insecure` as in `actors`; workers trust that certificate alone.
    # (): sockets in a temporary folder.
    'addresses': (),
    # Seconds between two saves of a shard, which begins with the last of them
    # when it is started again.
    'snapshot_seconds': 10.0,
    'patience': 60.0,  # seconds to wait for a shard that is gone
  })


def _checkpoint() -> ml_collections.ConfigDict:
  """Checkpoints to resume from."""
  return ml_collections.ConfigDict({
    'every_seconds': 300.0,
    'keep': 3,  # the newest so many
    'replay': True,  # save the replay with the learner
    'keep_every_hours': 0.0,  # hours between those kept forever; 0: none
  })


def _log() -> ml_collections.ConfigDict:
  """Progress and curves."""
  return ml_collections.ConfigDict({
    'every_seconds': 2.0,
    # What each report goes to: 'csv' (always; launch/plot.py reads it),
    # 'tensorboard', 'jsonl', 'wandb', 'mlflow', or 'module:function' that
    # returns a writer. The module may be in the current folder.
    'writers': ('csv', 'tensorboard'),
  })
