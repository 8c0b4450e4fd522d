"""Helpers for tests of streams."""

from typing import Any

import chex
import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.configs import base as base_config
from seedrl_jax.envs import base, factory


def config(env_id: str, **values: Any) -> Any:
  """Returns an `env` section for `env_id`."""
  section = base_config.get_config().env
  section.id = env_id
  for name, value in values.items():
    section[name] = value
  return section


def toy(name: str, processes: int = 0, **kwargs: Any) -> Any:
  """Returns an `env` section for a factory in `toys`."""
  return config(
    'CartPole-v1',
    factory=f'tests.envs.toys:{name}',
    factory_kwargs=kwargs,
    processes=processes,
  )


def make(section: Any, num_envs: int = 1, batch_size: int = 0, seed: int = 1):
  """Makes a stream; batch size 0 means all environments."""
  return factory.make_stream(section, seed, num_envs, batch_size or num_envs)


def make_seven(name: str, processes: int, **kwargs: Any) -> Any:
  """Makes a stream of seven toys in batches of five and two."""
  return make(toy(name, processes, **kwargs), 7, 5)


def roll(stream: base.EnvStream, actions: np.ndarray) -> list[types.EnvOutput]:
  """Returns the outputs before each of the actions `[T, B]`."""
  outputs = []
  for action in actions:
    outputs.append(stream.recv())
    stream.send(action, outputs[-1].env_id)
  return outputs


def column(outputs: list[types.EnvOutput], field: str, env: int = 0) -> list:
  """Returns one environment's values of a field over time."""
  rows = (getattr(o, field)[o.env_id == env] for o in outputs)
  return [row[0].tolist() for row in rows if len(row)]


def assert_fits(output: types.EnvOutput, spec: types.StreamSpec) -> None:
  """Checks an output's shapes and dtypes against the spec."""
  size = len(output.env_id)
  observation = jax.tree.map(
    lambda s: np.empty((size, *s.shape), s.dtype),
    spec.observation,
    is_leaf=types.is_spec,
  )
  expected = types.EnvOutput(
    observation=observation,
    reward=np.empty(size, np.float32),
    discount=np.empty(size, np.float32),
    step_type=np.empty(size, np.uint8),
    env_id=np.empty(size, np.int32),
  )
  chex.assert_trees_all_equal_shapes_and_dtypes(output, expected)
  assert len(set(output.env_id.tolist())) == size
