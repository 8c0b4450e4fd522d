"""Local EnvPool environments as an `EnvStream`.

How EnvPool 1.2 behaves (tests pin each point):

*   It ignores the action after an episode's end; the next output is the new
    episode's first observation, with reward 0.
*   `step_type` is right, also at a lost life (`episodic_life`).
*   `discount` is 0 at each episode's end, even if it was only truncated.
*   `trunc` is set at the time limit, even if the episode terminated in that
    step. Only Atari distinguishes them, by `info:terminated`, which is set at
    the real end and not at a lost life.
*   In MuJoCo the reward of an episode's first observation is undefined.
*   The pool's threads read a sent action array after `send` returns.
"""

import os
from typing import Any

import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import action_masks, base, registry, specs
from seedrl_jax.runtime import nest

# An integer with more possible values is a quantity.
_MOST_VALUES = 1 << 16


def make_spec(config: types.Config) -> types.StreamSpec:
  """Returns the spec without making an environment; see `factory.make_spec`."""
  pool_spec, _ = _pool_spec(config)
  return _stream_spec(config, pool_spec)


def _pool_spec(config: types.Config) -> tuple[Any, dict[str, Any]]:
  registry.check_id(config.id)
  with registry.use_envpool() as envpool:
    # Fails, with EnvPool's message, if the id needs a file of the user's.
    default = envpool.make_spec(config.id)
    options = registry.envpool_options(config, default.config._asdict())
    try:
      return envpool.make_spec(config.id, **options), options
    except TypeError as e:
      raise ValueError(
        f'--config.env: {config.id} takes no such values: {options}.'
      ) from e


def _stream_spec(config: types.Config, pool_spec: Any) -> types.StreamSpec:
  values, flag = pool_spec.config, f'--config.env.id={config.id}'
  if values.max_num_players > 1:
    raise ValueError(
      f'{flag}: has {values.max_num_players} players, but an agent plays alone '
      'here; choose a single-player environment.'
    )

  def array_spec(key: str) -> types.ArraySpec:
    array = pool_spec.state_array_spec[key]
    # A leading axis of -1 counts players; it joins the batch.
    shape = array.shape[1:] if -1 in array.shape[:1] else array.shape
    low, high = array.minimum, array.maximum
    # Its Gymnasium interface calls bounded integers Discrete, too.
    is_choice = not shape and high - low < _MOST_VALUES
    return specs.array_spec(shape, array.dtype, low, high, flag, is_choice)

  keys = _observation_keys(config, pool_spec)
  # MuJoCo's frame skip is of the physics; results are counted in steps.
  is_mujoco = registry.family(config.id) == 'mujoco'
  spec = types.StreamSpec(
    observation=nest.unflatten(keys, map(array_spec, nest.flatten(keys))),
    # Not of the array, which gives scalars an axis of their own.
    action=specs.action_spec(pool_spec.action_space, flag),
    action_repeat=1 if is_mujoco else getattr(values, 'frame_skip', 1),
    name=config.id,
  )
  return specs.joined_spec(action_masks.with_mask(config, spec))


def _observation_keys(config: types.Config, pool_spec: Any) -> types.Nest:
  """Returns the observation nest, with each array's key as leaf.

  An action mask that is in `info` (board games) joins it.
  """
  state_keys = pool_spec.state_array_spec
  keys: types.Nest = {}
  for key in state_keys:
    if key.startswith('obs:'):
      *path, name = key.removeprefix('obs:').split('.')
      node = keys
      for part in path:
        node = node.setdefault(part, {})
      node[name] = key
  keys = specs.keep_keys(config.drop_observations, keys or 'obs')
  for key in action_masks.candidates(config):
    if f'info:{key}' in state_keys and key not in keys:
      root = keys if isinstance(keys, dict) else {'observation': keys}
      return {**root, key: f'info:{key}'}
  return keys


class EnvPoolStream(base.LocalStream):
  """An EnvPool pool as a stream.

  It skips the dm_env wrapper, which costs several microseconds per batch.
  """

  def __init__(
    self,
    config: types.Config,
    seed: int,
    num_envs: int,
    batch_size: int,
    num_streams: int = 1,
    rendered: bool = False,
  ):
    """Makes a pool and resets it; see `factory.make_stream`."""
    pool_spec, options = _pool_spec(config)
    spec = _stream_spec(config, pool_spec)
    action_dtype = np.dtype(pool_spec.action_array_spec['action'].dtype)
    super().__init__(spec, action_dtype, num_envs, batch_size)
    if rendered:
      registry.prepare_drawing(config.id)
      options = {**options, 'render_mode': 'rgb_array'}
    family = registry.family(config.id)
    if family == 'vizdoom':
      # Games that start at once would each try to make it, and may fail.
      os.makedirs('_vizdoom', exist_ok=True)
    num_threads = registry.default_num_threads(
      config.id, num_envs, batch_size, num_streams
    )
    with registry.use_envpool() as envpool:
      self._pool: Any = envpool.make(
        config.id,
        env_type='dm',
        num_envs=num_envs,
        batch_size=batch_size,
        num_threads=config.num_threads or num_threads,
        thread_affinity_offset=config.thread_affinity_offset,
        seed=seed % 2**31,
        **options,
      )
    self._keys = list(self._pool._state_keys)
    self._observation_keys = nest.flatten(_observation_keys(config, pool_spec))
    self._dtypes = [leaf.dtype for leaf in nest.flatten(spec.observation)]
    self._is_mujoco = family == 'mujoco'
    self.needs_choice = family != action_masks.LENIENT
    self.steps_per_second = registry.steps_per_second(
      spec.name, spec.action_repeat
    )
    self._pool.async_reset()
    # Environments that step or wait to be received. EnvPool's recv cannot be
    # interrupted, so call it only once it is sure to return.
    self._in_flight = num_envs

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

  def _output(self, columns: list[np.ndarray]) -> types.EnvOutput:
    state: dict[str, Any] = dict(zip(self._keys, columns, strict=True))
    env_id, reward = state['info:env_id'], state['reward']
    done, truncated = state['done'], state['trunc']
    discount = state['discount']
    if self._is_mujoco:
      reward[state['step_type'] == types.StepType.FIRST] = 0.0
    self._check_rewards(reward, env_id)
    arrays = [state[key] for key in self._observation_keys]
    self._check_finite(arrays, env_id)
    over = None
    # Atari has the real end, and the unclipped reward.
    if 'info:terminated' in state:
      game_over = state['info:terminated'] != 0
      over = game_over | truncated
      truncated = truncated & ~game_over
    if np.count_nonzero(done):
      # Keeps a 0 in mid-episode, as with zero_discount_on_life_loss.
      discount = np.maximum(discount, truncated)
    score = state.get('info:reward', reward)
    self._statistics.update(env_id, score, done, truncated, over)
    if self.spec.parts is None:
      pairs = zip(arrays, self._dtypes, strict=True)
      leaves = [x.astype(dtype, copy=False) for x, dtype in pairs]
      observation = nest.unflatten(self.spec.observation, leaves)
    else:
      observation = nest.join(arrays)
    self._check_choices(observation, done, env_id)
    return types.EnvOutput(
      observation=observation,
      reward=reward,
      discount=discount,
      step_type=state['step_type'].astype(np.uint8),
      env_id=env_id,
    )

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    env_id = np.ascontiguousarray(env_id, np.int32)
    # A copy: the pool's threads read it after we return.
    action = self._env_action(action, env_id)
    # If all are in a batch, EnvPool sorts results by position.
    assert self.batch_size < self.num_envs or len(env_id) == self.num_envs
    with self._changed:
      self._check_open()
      self._pool._send([env_id, env_id, action])
      self._in_flight += len(env_id)
      self._changed.notify()

  def render(self, env_id: int) -> np.ndarray | None:
    self._check_open()
    try:
      return self._pool.render(env_id)[0]
    # Also raised if this id has no drawing, but those of MuJoCo have.
    except RuntimeError as e:
      if self._is_mujoco:
        raise registry.cannot_draw(self.spec.name, e) from e
      return None

  def close(self) -> None:
    self.interrupt()
    # Its threads end with the last `recv`.
    self._pool = None
