"""Makes streams of environments in this process, and their specs.

The config says which kind: EnvPool's, or Gymnasium's if `factory` names a
function or `id` is one of Gymnasium's.
"""

import ml_collections

from seedrl_jax import types
from seedrl_jax.envs import (
  base,
  envpool_stream,
  gymnasium_stream,
  local_stream,
  making,
)


def make_spec(config: ml_collections.ConfigDict) -> base.StreamSpec:
  """Describes the configured environment.

  EnvPool tells without making one; of Gymnasium's, one is made and closed.

  Args:
    config: the `env` section of a run's config (`configs/base.py`).

  Returns:
    `base.StreamSpec(observation, action, action_repeat, name)`.

  Raises:
    ValueError: if the config asks for what there is not; one sentence that
      names the flag.
    registry.MissingLibraryError: if EnvPool cannot be loaded; says what to
      install.
  """
  if making.is_gymnasium(config):
    return gymnasium_stream.make_spec(config)
  return envpool_stream.make_spec(config)


def make_env_spec(
  config: ml_collections.ConfigDict, num_hosts: int = 1
) -> types.EnvSpec:
  """Describes the environments of a run, those of all its hosts.

  Args:
    config: of the whole run.
    num_hosts: learner hosts, with as many training environments each.

  Raises:
    ValueError, registry.MissingLibraryError: as `make_spec`.
  """
  spec = make_spec(config.env)
  # Runs from before there were actors can still be evaluated.
  actors = config.get('actors')
  num_remote = actors.max_envs if actors else 0
  return types.EnvSpec(
    env_id=spec.name,
    observation=spec.observation,
    action=spec.action,
    action_repeat=spec.action_repeat,
    num_envs=num_hosts * (config.env.num_envs + num_remote),
    num_eval_envs=config.num_eval_envs,
  )


def make_stream(
  config: ml_collections.ConfigDict,
  seed: int,
  num_envs: int,
  batch_size: int,
  num_streams: int = 1,
  rendered: bool = False,
) -> local_stream.LocalStream:
  """Makes the configured environments and resets them.

  Args:
    config: the `env` section of a run's config; its `num_envs` and
      `batch_size` are for all streams together, so they are not read here.
    seed: environment i is seeded with `seed + i`: keep the seeds of streams
      at least `num_envs` apart.
    num_envs: environments of this stream.
    batch_size: environments per `recv`. Fewer than `num_envs` lets the others
      step meanwhile.
    num_streams: streams of this process, which share its cores where
      `config.num_threads` is 0. Cheap families of EnvPool (classic control,
      toy text, MiniGrid) have one thread by default, all others one per core.
    rendered: make them so that `LocalStream.render` can draw them, where they
      can be drawn.

  Raises:
    ValueError, registry.MissingLibraryError: as `make_spec`.
  """
  if making.is_gymnasium(config):
    return gymnasium_stream.make_stream(
      config, seed, num_envs, batch_size, rendered
    )
  if config.get('processes', 0):
    raise ValueError(
      f'--config.env.processes={config.processes}: is for environments of '
      f'Gymnasium; {config.id} is of EnvPool, which has threads '
      '(--config.env.num_threads).'
    )
  return envpool_stream.make_stream(
    config, seed, num_envs, batch_size, num_streams, rendered
  )
