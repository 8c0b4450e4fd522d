"""The configuration keys of a run as a whole."""

from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import (
  COUNT,
  FLAG,
  LARGE,
  SECONDS,
  STEPS,
  TEXT,
  Allowed,
  each,
  integer,
  number,
  one_of,
  optional,
)
from seedrl_jax.runtime.writers import base as writers

_WRITER = each(one_of(*writers.BUILT_IN, or_function=True))
_WRITERS = Allowed(
  lambda x: _WRITER.admits(x) and 'csv' in x and len({*x}) == len(x),
  f'give csv and any of {", ".join(x for x in writers.BUILT_IN if x != "csv")} '
  "and 'module:function', each once, as csv,jsonl",
)

KEYS: Table = {
  'agent': Key(
    '',
    TEXT,
    'A folder of seedrl_jax/agents, or the dotted name of a module with '
    'make_agent(config, env_spec), which may be in the current folder.',
  ),
  'seed': Key(
    1,
    # Seeds 2^32 apart give the same JAX key, 2^31 apart the same EnvPool seed.
    integer(0, 2**31 - 1),
    'Seed of networks, actions, environments and replay sampling.',
  ),
  'total_env_frames': Key(
    2_000_000,
    integer(1, 10**15),
    'Length of the run in frames: steps × action repeat, without the steps '
    'that reset environments.',
  ),
  'target_return': Key(
    None,
    optional(number()),
    'Ends the run when the mean return of the last 100 training episodes '
    'reaches this value.',
    float,
  ),
  'num_eval_envs': Key(
    8,
    integer(0, COUNT),
    'Number of evaluation environments. They act greedily (R2D2, Dyna-Q and '
    'PQN: with `exploration.eval_epsilon`), do not train, and are reported '
    'separately.',
  ),
  'unroll_length': Key(
    20,
    integer(1, STEPS),
    "Number of trained transitions per unroll. R2D2's sequences have "
    '`burn_in` + `lookahead` more steps.',
  ),
  'batch_size': Key(
    32,
    integer(1, COUNT),
    'Unrolls per update, over all training devices.',
  ),
  'deterministic': Key(
    False,
    FLAG,
    'Alternates one inference stream with the learner, so that runs with '
    'equal seeds give bit-equal parameters. Slow. On GPUs, a run sets '
    'XLA_FLAGS=--xla_gpu_deterministic_ops=true, unless JAX has started '
    'before.',
  ),
}

# After those of the other packages.
LAST_KEYS: Table = {
  'checkpoint': Section('Checkpoints, from which a run resumes.'),
  'checkpoint.every_seconds': Key(
    300.0, SECONDS, 'Seconds between two checkpoints.'
  ),
  'checkpoint.keep': Key(
    3, integer(1, LARGE), 'Number of most recent checkpoints to keep.'
  ),
  'checkpoint.keep_best': Key(
    False,
    FLAG,
    'Also keeps the checkpoint with the best mean return of 20 evaluation '
    'episodes, in the folder `best`.',
  ),
  'checkpoint.replay': Key(True, FLAG, 'Saves the replay with the checkpoint.'),
  'checkpoint.keep_every_hours': Key(
    0.0,
    # About a century.
    number(0, 10**6),
    'Hours between two checkpoints that are kept forever. 0 keeps none.',
  ),
  'log': Section('Progress and curves.'),
  'log.every_seconds': Key(
    2.0, number(0.01, 10**9), 'Seconds between two reports.'
  ),
  'log.writers': Key(
    ('csv', 'tensorboard'),
    _WRITERS,
    "The destinations of each report: 'csv' (required; seedrl plot reads "
    "it), 'tensorboard', 'jsonl', 'wandb', 'mlflow', or 'module:function' that "
    'returns a writer. The module may be in the current folder.',
  ),
}
