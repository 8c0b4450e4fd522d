"""Local EnvPool environments as an `EnvStream`.

How EnvPool 1.2 behaves (tests pin each point):

*   It ignores the action after an episode's end; the next output is the new
    episode's first observation, with reward 0.
*   `step_type` is right, also at a lost life (`episodic_life`), but
    `elapsed_step` goes on counting there.
*   `discount` is 0 at each episode's end, even if it was only truncated.
*   `trunc` is set at the time limit, even if the episode terminated in that
    step. Only Atari tells the two apart, by `info:terminated`, which is set at
    the real end and not at a lost life.
*   The pool's threads read a sent action array after `send` returns.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base, local_stream, options, registry, specs


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
  options.check_pool_size(num_envs, batch_size)
  pool_spec, pool_options = _pool_spec(config)
  spec = _stream_spec(config, pool_spec)
  num_threads = config.num_threads or registry.default_num_threads(
    config.id, num_envs, batch_size, num_streams
  )
  if rendered:
    pool_options = {**pool_options, 'render_mode': 'rgb_array'}
  with registry.explain_import_errors(), registry.quiet_spaces():
    pool = registry.load_envpool().make_dm(
      config.id,
      num_envs=num_envs,
      batch_size=batch_size,
      num_threads=num_threads,
      thread_affinity_offset=config.thread_affinity_offset,
      seed=seed % 2**31,
      **pool_options,
    )
  dropped = specs.check_dropped(config.drop_observations)
  return EnvPoolStream(pool, spec, num_envs, batch_size, dropped)


def _pool_spec(config: ml_collections.ConfigDict) -> tuple[Any, dict[str, Any]]:
  """Returns EnvPool's spec of the environment, and the options."""
  registry.check_id(config.id)
  envpool = registry.load_envpool()
  with registry.explain_import_errors(), registry.quiet_spaces():
    # Fails, with EnvPool's message, if the id needs a file of the user's.
    default = envpool.make_spec(config.id)
    known = dict(zip(default._config_keys, default._config_values, strict=True))
    pool_options = options.envpool_options(config, known)
    try:
      return envpool.make_spec(config.id, **pool_options), pool_options
    except TypeError as e:
      raise ValueError(
        f'--config.env: {config.id} takes no such values: {pool_options}.'
      ) from e


def _stream_spec(
  config: ml_collections.ConfigDict, pool_spec: Any
) -> base.StreamSpec:
  values = dict(
    zip(pool_spec._config_keys, pool_spec._config_values, strict=True)
  )
  if values['max_num_players'] > 1:
    raise ValueError(
      f'--config.env.id={config.id}: has {values["max_num_players"]} players, '
      'but an agent plays alone here; choose a single-player environment.'
    )
  arrays = pool_spec.state_array_spec
  paths = _observation_keys(arrays)
  return base.StreamSpec(
    observation=specs.drop_keys(
      specs.map_nest(lambda key: _array_spec(arrays[key]), paths),
      specs.check_dropped(config.drop_observations),
    ),
    # Not of the array, which gives scalars an axis of their own.
    action=specs.action_spec(
      pool_spec.action_space, f'--config.env.id={config.id}'
    ),
    action_repeat=values.get('frame_skip', 1),
    name=config.id,
  )


def _array_spec(array: Any) -> types.ArraySpec:
  shape = tuple(array.shape)
  # The leading axis counts players; it joins the batch.
  if shape[:1] == (-1,):
    shape = shape[1:]
  return types.ArraySpec(shape, specs.agent_dtype(array.dtype))


def _observation_keys(state_keys: Collection[str]) -> types.Nest:
  """Returns the observation nest, with each array's key as leaf."""
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


class _Leaf(NamedTuple):
  """An observation's index in EnvPool's state, and its dtype if cast."""

  position: int
  cast: np.dtype | None


def _gather(leaves: types.Nest, state: list[np.ndarray]) -> types.Nest:
  if isinstance(leaves, dict):
    return {key: _gather(leaf, state) for key, leaf in leaves.items()}
  array = state[leaves.position]
  return array if leaves.cast is None else array.astype(leaves.cast)


class EnvPoolStream(local_stream.LocalStream):
  """An EnvPool pool as a stream.

  It skips the dm_env wrapper, which costs several microseconds per batch.
  """

  def __init__(
    self,
    pool: Any,
    spec: base.StreamSpec,
    num_envs: int,
    batch_size: int,
    dropped: Collection[str] = (),
  ):
    """Resets the environments of a new pool, from `envpool.make_dm`.

    `dropped` are keys of a dict observation to leave out.
    """
    # Often float64, unlike the agent's.
    action_dtype = np.dtype(pool.spec.action_array_spec['action'].dtype)
    super().__init__(spec, action_dtype, num_envs, batch_size)
    self._find_columns(list(pool._state_keys))
    self._find_observation(pool, dropped)
    self._pool = pool
    pool.async_reset()
    # Environments that step or wait to be received. EnvPool's recv cannot be
    # interrupted, so call it only once it is sure to return.
    self._in_flight = num_envs

  def _find_columns(self, keys: list[str]) -> None:
    """Finds the indices that `_output` reads in EnvPool's state."""
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

  def _find_observation(self, pool: Any, dropped: Collection[str]) -> None:
    """Finds the observation's arrays, and the floats to check for nan."""
    keys, arrays = list(pool._state_keys), pool.spec.state_array_spec

    def leaf(key: str) -> _Leaf:
      dtype = np.dtype(arrays[key].dtype)
      cast = specs.agent_dtype(dtype)
      return _Leaf(keys.index(key), None if cast == dtype else cast)

    self._leaves = specs.drop_keys(
      specs.map_nest(leaf, _observation_keys(keys)), dropped
    )
    self._floats = [
      leaf.position
      for leaf in specs.leaves(self._leaves)
      if np.issubdtype(arrays[keys[leaf.position]].dtype, np.floating)
    ]

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
      observation=_gather(self._leaves, state),
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
