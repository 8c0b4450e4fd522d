"""Makes streams of local environments, of EnvPool or Gymnasium, and specs."""

from seedrl_jax import types
from seedrl_jax.envs import (
  base,
  envpool_stream,
  gymnasium_envs,
  gymnasium_stream,
  registry,
  specs,
)


def is_gymnasium(config: types.Config) -> bool:
  """Returns whether Gymnasium, not EnvPool, makes the environments."""
  return bool(config.factory) or config.id.startswith(gymnasium_envs.PREFIX)


def is_cheap(config: types.Config) -> bool:
  """Returns whether a step takes microseconds, far less than an inference."""
  return not is_gymnasium(config) and registry.is_cheap(config.id)


def make_spec(config: types.Config) -> types.StreamSpec:
  """Returns the spec of the environment in the `env` section of a config.

  Raises:
    ValueError: if the config is invalid; names the flag.
    registry.MissingLibraryError: if EnvPool cannot be loaded.
  """
  if is_gymnasium(config):
    return specs.joined_spec(gymnasium_envs.describe(config).spec)
  return envpool_stream.make_spec(config)


def make_env_spec(config: types.Config, num_hosts: int = 1) -> types.EnvSpec:
  """Returns the spec of all environments of a run on all hosts.

  Raises what `make_spec` does.
  """
  num_train = config.env.num_envs + config.actors.max_envs
  return types.EnvSpec(
    make_spec(config.env), num_hosts * num_train, config.num_eval_envs
  )


def make_stream(
  config: types.Config,
  seed: int,
  num_envs: int,
  batch_size: int,
  num_streams: int = 1,
  rendered: bool = False,
) -> base.LocalStream:
  """Makes the configured environments and resets them.

  Args:
    config: the `env` section; its `num_envs` and `batch_size` are of all
      streams together and not read.
    seed: environment i is seeded with `seed + i`: keep the seeds of streams at
      least `num_envs` apart.
    num_envs: environments of this stream.
    batch_size: environments per `recv`. If fewer than `num_envs`, the others
      step meanwhile.
    num_streams: streams that share this process's cores if `config.num_threads`
      is 0; cheap families of EnvPool then get one or two threads.
    rendered: let `LocalStream.render` draw them, if they can be drawn.

  Raises what `make_spec` does.
  """
  if is_gymnasium(config):
    return gymnasium_stream.GymnasiumStream(
      config, seed, num_envs, batch_size, rendered
    )
  if config.processes:
    raise ValueError(
      f'--config.env.processes={config.processes}: is for environments of '
      f'Gymnasium; {config.id} is of EnvPool, which has threads '
      '(--config.env.num_threads).'
    )
  return envpool_stream.EnvPoolStream(
    config, seed, num_envs, batch_size, num_streams, rendered
  )
