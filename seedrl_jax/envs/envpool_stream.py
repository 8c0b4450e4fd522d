"""Local EnvPool environments as an `EnvStream`.

How EnvPool 1.2 behaves (tests pin each point):

*   It ignores the action after an episode's end; the next output is the new
    episode's first observation, with reward 0.
*   `step_type` is right, also at a lost life (`episodic_life`).
*   `discount` is 0 at each episode's end, even if it was only truncated.
*   `trunc` is set at the time limit, even if the episode terminated in that
    step. Only Atari tells the two apart, by `info:terminated`, which is set at
    the real end and not at a lost life.
*   The pool's threads read a sent action array after `send` returns.
"""

import os
from typing import Any

import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base, registry, specs
from seedrl_jax.runtime import nest as nest_lib


def make_spec(config: ml_collections.ConfigDict) -> base.StreamSpec:
  """Returns the spec without making an environment; see `factory.make_spec`."""
  pool_spec, _ = _pool_spec(config)
  return _stream_spec(config, pool_spec)


def make_stream(
  config: ml_collections.ConfigDict,
  seed: int,
  num_envs: int,
  batch_size: int,
  num_streams: int,
  rendered: bool = False,
) -> 'EnvPoolStream':
  """Makes a pool of environments; see `factory.make_stream`."""
  pool_spec, options = _pool_spec(config)
  spec = _stream_spec(config, pool_spec)
  if rendered:
    options = {**options, 'render_mode': 'rgb_array'}
  if registry.family(config.id) == 'vizdoom':
    # Several games that start at once would each try to make it, and may fail.
    os.makedirs('_vizdoom', exist_ok=True)
  with registry.use_envpool() as envpool:
    pool = envpool.make_dm(
      config.id,
      num_envs=num_envs,
      batch_size=batch_size,
      num_threads=config.num_threads
      or registry.default_num_threads(
        config.id, num_envs, batch_size, num_streams
      ),
      thread_affinity_offset=config.thread_affinity_offset,
      seed=seed % 2**31,
      **options,
    )
  paths = specs.keep_keys(config, _observation_keys(pool_spec))
  return EnvPoolStream(pool, spec, num_envs, batch_size, paths)


def _pool_spec(config: ml_collections.ConfigDict) -> tuple[Any, dict[str, Any]]:
  """Returns EnvPool's spec of the environment, and the options."""
  registry.check_id(config.id)
  with registry.use_envpool() as envpool:
    # Fails, with EnvPool's message, if the id needs a file of the user's.
    default = envpool.make_spec(config.id)
    options = registry.envpool_options(config, _values(default))
    try:
      return envpool.make_spec(config.id, **options), options
    except TypeError as e:
      raise ValueError(
        f'--config.env: {config.id} takes no such values: {options}.'
      ) from e


def _values(pool_spec: Any) -> dict[str, Any]:
  """Returns the names and values of a spec's options."""
  return dict(
    zip(pool_spec._config_keys, pool_spec._config_values, strict=True)
  )


def _stream_spec(
  config: ml_collections.ConfigDict, pool_spec: Any
) -> base.StreamSpec:
  values = _values(pool_spec)
  if values['max_num_players'] > 1:
    raise ValueError(
      f'--config.env.id={config.id}: has {values["max_num_players"]} players, '
      'but an agent plays alone here; choose a single-player environment.'
    )

  def array_spec(key: str) -> types.ArraySpec:
    array = pool_spec.state_array_spec[key]
    # A leading axis of -1 counts players; it joins the batch.
    shape = array.shape[1:] if -1 in array.shape[:1] else array.shape
    return specs.array_spec(shape, array.dtype)

  paths = specs.keep_keys(config, _observation_keys(pool_spec))
  return base.StreamSpec(
    observation=specs.map_nest(array_spec, paths),
    # Not of the array, which gives scalars an axis of their own.
    action=specs.action_spec(
      pool_spec.action_space, f'--config.env.id={config.id}'
    ),
    action_repeat=values.get('frame_skip', 1),
    name=config.id,
  )


def _observation_keys(pool_spec: Any) -> types.Nest:
  """Returns the observation nest, with each array's key as leaf."""
  state_keys = pool_spec.state_array_spec
  if 'obs' in state_keys:
    return 'obs'
  nest: dict[str, Any] = {}
  for key in state_keys:
    if key.startswith('obs:'):
      *path, name = key.removeprefix('obs:').split('.')
      node = nest
      for part in path:
        node = node.setdefault(part, {})
      node[name] = key
  return nest


def _gather(
  indices: types.Nest, spec: types.Nest, state: list[np.ndarray]
) -> types.Nest:
  """Returns the arrays at `indices`, in the dtypes of `spec`."""
  if isinstance(indices, dict):
    return {key: _gather(indices[key], spec[key], state) for key in indices}
  return np.asarray(state[indices], spec.dtype)


class EnvPoolStream(base.LocalStream):
  """An EnvPool pool as a stream.

  It skips the dm_env wrapper, which costs several microseconds per batch.
  """

  def __init__(
    self,
    pool: Any,
    spec: base.StreamSpec,
    num_envs: int,
    batch_size: int,
    paths: types.Nest,
  ):
    """Resets the environments of a new pool, from `envpool.make_dm`.

    `paths` are the keys of the observation's arrays in EnvPool's state.
    """
    # Often float64, unlike the agent's.
    action_dtype = np.dtype(pool.spec.action_array_spec['action'].dtype)
    super().__init__(spec, action_dtype, num_envs, batch_size)
    self._find_columns(list(pool._state_keys), paths)
    self._pool = pool
    pool.async_reset()
    # Environments that step or wait to be received. EnvPool's recv cannot be
    # interrupted, so call it only once it is sure to return.
    self._in_flight = num_envs

  def _find_columns(self, keys: list[str], paths: types.Nest) -> None:
    """Finds the indices that `_output` reads in EnvPool's state."""
    self._observation = specs.map_nest(keys.index, paths)
    self._floats = [
      index
      for index, leaf in zip(
        nest_lib.flatten(self._observation),
        nest_lib.flatten(self.spec.observation),
        strict=True,
      )
      if leaf.dtype.kind == 'f'
    ]
    self._env_id = keys.index('info:env_id')
    self._reward = keys.index('reward')
    self._discount = keys.index('discount')
    self._step_type = keys.index('step_type')
    self._done = keys.index('done')
    self._trunc = keys.index('trunc')
    # Only Atari has these: the unclipped reward, and the real end.
    self._score = keys.index(
      'info:reward' if 'info:reward' in keys else 'reward'
    )
    self._game_over = (
      keys.index('info:terminated') if 'info:terminated' in keys else None
    )

  def recv(self) -> types.EnvOutput:
    with self._changed:
      while self._in_flight < self.batch_size and not self._closed:
        self._changed.wait()
      self._check_open()
      pool = self._pool
      self._in_flight -= self.batch_size
    state = pool._recv()
    self._check_open()
    return self._output(state)

  def _output(self, state: list[np.ndarray]) -> types.EnvOutput:
    env_id = state[self._env_id]
    truncated = state[self._trunc]
    done = state[self._done]
    discount = state[self._discount]
    self._check_finite([state[i] for i in self._floats], env_id)
    over = None
    if self._game_over is not None:
      game_over = state[self._game_over] != 0
      over = game_over | truncated
      truncated = truncated & ~game_over
    if np.count_nonzero(done):
      # Keeps a 0 in mid-episode, as with zero_discount_on_life_loss.
      discount = np.maximum(discount, truncated)
    self._statistics.update(env_id, state[self._score], done, truncated, over)
    return types.EnvOutput(
      observation=_gather(self._observation, self.spec.observation, state),
      reward=state[self._reward],
      discount=discount,
      step_type=state[self._step_type].astype(np.uint8),
      env_id=env_id,
    )

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    """See `EnvStream.send`.

    If `batch_size == num_envs`, all must be sent at once (else ValueError):
    EnvPool then sorts results by position.
    """
    env_id = np.ascontiguousarray(env_id, np.int32)
    # A copy: the pool's threads read it after we return.
    action = self._env_action(action, env_id)
    if self.batch_size == self.num_envs != len(env_id):
      raise ValueError(
        f'All {self.num_envs} environments of a synchronous stream must be '
        f'sent at once, not {len(env_id)}.'
      )
    with self._changed:
      self._check_open()
      self._pool._send([env_id, env_id, action])
      self._in_flight += len(env_id)
      self._changed.notify()

  @property
  def steps_per_second(self) -> float:
    return registry.steps_per_second(self.spec.name, self.spec.action_repeat)

  def render(self, env_id: int) -> np.ndarray | None:
    self._check_open()
    try:
      return self._pool.render(env_id)[0]
    # Also raised if this id has no drawing.
    except RuntimeError:
      return None

  def close(self) -> None:
    """See `EnvStream.close`; the pool's threads end with the last `recv`."""
    with self._changed:
      self._closed = True
      self._pool = None
      self._changed.notify_all()
