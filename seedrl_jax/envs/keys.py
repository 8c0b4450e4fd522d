"""The configuration keys of environments."""

from seedrl_jax.runtime import settings
from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import (
  COUNT,
  FLAG,
  LARGE,
  PROCESSOR,
  TEXT,
  each,
  integer,
  number,
  optional,
)

KEYS: Table = {
  'env': Section(
    "The environments. Optional keys that are not set have EnvPool's "
    'defaults for the environment.'
  ),
  'env.id': Key(
    'CartPole-v1',
    TEXT,
    "Name of the environment: EnvPool's, Gymnasium's as 'gymnasium:NAME', or "
    "one in JAX as 'gymnax:NAME', 'craftax:NAME' or 'jumanji:NAME'.",
  ),
  'env.factory': Key(
    '',
    TEXT,
    "A function 'module:function' that returns a Gymnasium environment or a "
    '`DeviceEnv`. It replaces `id`. The module may be in the current folder.',
  ),
  'env.factory_kwargs': Key(
    {}, settings.SECTION, 'The keyword arguments of `factory`.'
  ),
  'env.tasks': Key(
    (),
    each(TEXT),
    'Names of environments, as for `id`, on which one agent trains; they '
    'replace `id`. A name may be a pattern, such as MiniGrid-Empty-*. '
    'Observations and actions must be equal. Each environment has one task.',
  ),
  'env.task_weights': Key(
    (),
    each(number(0)),
    'Relative numbers of training environments of `tasks`, all positive. () '
    'means equal numbers.',
  ),
  'env.num_envs': Key(
    128,
    integer(0, COUNT),
    "Number of training environments in the learner's process.",
  ),
  'env.batch_size': Key(
    0,
    integer(0, COUNT),
    'Environments per inference call of a stream. 0 means half of the '
    "stream's, so that one half steps while the network runs on the other. "
    'It means all if `learner.max_lag` is 0 or 1, because unrolls should '
    'begin together, and for fewer than 256 environments as cheap as '
    'CartPole, because two calls cost more than one.',
  ),
  'env.num_threads': Key(
    0,
    # With more than the system allows, EnvPool ends the process.
    integer(0, 1024),
    'Threads of EnvPool per stream. 0 chooses by the number of cores.',
  ),
  'env.thread_affinity_offset': Key(
    -1,
    PROCESSOR,
    "Pins EnvPool's threads to processors, starting with this one. -1 pins "
    'none.',
  ),
  'env.processes': Key(
    0,
    integer(0, 1024),
    'Worker processes of a stream of Gymnasium environments, at least one per '
    'batch. 0 steps them in a thread of the stream.',
  ),
  'env.max_episode_steps': Key(
    None,
    optional(integer(1, LARGE)),
    'Maximum number of steps of an episode, which is then truncated.',
    int,
  ),
  'env.frame_skip': Key(
    None,
    optional(integer(1, 10**4)),
    'Frames per step. With MuJoCo, steps of the physics.',
    int,
  ),
  'env.stack_num': Key(
    None,
    optional(integer(1, 1000)),
    'Frames that EnvPool stacks. None means 1, because `network.frame_stack` '
    'stacks on the device.',
    int,
  ),
  'env.noop_max': Key(
    None,
    optional(integer(1, COUNT)),
    'Maximum number of no-ops at the start of an Atari game.',
    int,
  ),
  'env.episodic_life': Key(
    None, optional(FLAG), 'A lost life ends the episode.', bool
  ),
  'env.zero_discount_on_life_loss': Key(
    None,
    optional(FLAG),
    'A lost life ends the return, but not the episode.',
    bool,
  ),
  'env.reward_clip': Key(
    None, optional(FLAG), 'Trains on the sign of each reward.', bool
  ),
  'env.use_fire_reset': Key(
    None, optional(FLAG), 'Presses FIRE at each reset. None means True.', bool
  ),
  'env.full_action_space': Key(
    None, optional(FLAG), 'Offers all 18 actions of Atari in every game.', bool
  ),
  'env.repeat_action_probability': Key(
    None,
    optional(number(0, 1)),
    'Probability of a sticky action: the environment repeats the last one.',
    float,
  ),
  'env.options': Key(
    {},
    settings.SECTION,
    'More options of EnvPool, or parameters of an environment in JAX. '
    '`use_contact_force` (Ant, Humanoid) is False unless it is set here.',
  ),
  'env.drop_observations': Key(
    ('mission',),
    each(TEXT),
    'Keys of a dict observation that the agent does not see. A dict of only '
    'floats and vectors of floats (DeepMind Control) becomes one vector, in '
    'the order of its keys.',
  ),
  'env.action_mask': Key(
    'auto',
    TEXT,
    'The key of the array of a dict observation that says which discrete '
    "actions are legal. 'auto' takes `action_mask` or `legal_action_mask`, if "
    'it fits the actions. An empty string means none. If the observation of a '
    'Gymnasium environment lacks the key, `info` must have it.',
  ),
}
