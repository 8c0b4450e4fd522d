"""Tests of `seedrl_jax.envs.envpool_stream` and of EnvPool's behaviour."""

import types as types_lib
from typing import Any

import chex
import envpool
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.configs import base as base_config
from seedrl_jax.configs import r2d2_atari
from seedrl_jax.envs import base, envpool_stream, registry
from tests.envs import streams

FIRST, MID, LAST = types.StepType
PUSH_LEFT = np.zeros((12, 1), np.int32)


def _raw(env_id: str, actions: np.ndarray, **kwargs: Any) -> list[dict]:
  """Returns EnvPool's own outputs for one environment."""
  pool = envpool.make_dm(env_id, num_envs=1, num_threads=1, **kwargs)
  pool.async_reset()
  steps = []
  for action in actions:
    state = dict(zip(pool._state_keys, pool._recv(), strict=True))
    steps.append({k: v[0] for k, v in state.items()})
    env_id_ = state['info:env_id']
    pool._send([env_id_, env_id_, action.astype(np.int32)])
  return steps


def _natural_length() -> int:
  """Steps that CartPole lasts from seed 1 if always pushed left."""
  steps = _raw('CartPole-v1', PUSH_LEFT, seed=1)
  return next(int(s['elapsed_step']) for s in steps if s['done'])


def _cartpole(max_episode_steps: int) -> tuple[list, base.Episode]:
  section = streams.config('CartPole-v1', max_episode_steps=max_episode_steps)
  stream = streams.make(section)
  outputs = streams.roll(stream, PUSH_LEFT)
  return outputs, stream.take_episodes()[0]


def test_truncation_keeps_the_discount_and_then_resets():
  outputs, episode = _cartpole(5)
  step_types = [FIRST, *[MID] * 4, LAST]
  assert streams.column(outputs, 'step_type') == step_types * 2
  assert streams.column(outputs, 'reward') == [0, 1, 1, 1, 1, 1] * 2
  assert streams.column(outputs, 'discount') == [1.0] * 12
  assert episode == base.Episode(0, 5.0, 5, terminated=False)


def test_termination_zeroes_the_discount():
  length = _natural_length()
  outputs, episode = _cartpole(length + 1)
  assert streams.column(outputs, 'step_type')[length] == LAST
  discounts = [1.0] * length + [0.0] + [1.0] * (11 - length)
  assert streams.column(outputs, 'discount') == discounts
  assert episode == base.Episode(0, length, length, terminated=True)


def test_envpool_hides_a_termination_at_the_time_limit():
  """A known limitation of EnvPool: it reports a truncation."""
  length = _natural_length()
  outputs, episode = _cartpole(length)
  assert streams.column(outputs, 'step_type')[length] == LAST
  assert streams.column(outputs, 'discount')[length] == 1.0
  assert not episode.terminated


def test_last_observation_is_of_the_episode_that_ends():
  outputs, _ = _cartpole(5)
  positions = np.array(streams.column(outputs, 'observation'))
  velocity_change = np.diff(positions[:, 1])
  # Each push slows the cart by about 0.2; a reset does not.
  assert (velocity_change[:5] < -0.15).all()
  assert abs(positions[6]).max() <= 0.05 and abs(positions[5]).max() > 0.5


def test_action_after_the_end_is_ignored():
  section = streams.config('CartPole-v1', max_episode_steps=2)
  other = PUSH_LEFT.copy()
  other[2::3] = 1
  left = streams.roll(streams.make(section), PUSH_LEFT)
  chex.assert_trees_all_equal(left, streams.roll(streams.make(section), other))


def _breakout_actions(steps: int) -> np.ndarray:
  return np.random.default_rng(0).integers(0, 4, (steps, 1)).astype(np.int32)


def test_lost_life_ends_the_learners_episode_but_not_the_score():
  actions = _breakout_actions(450)
  kwargs = {'episodic_life': True, 'reward_clip': True}
  steps = _raw('Breakout-v5', actions, seed=1, stack_num=1, **kwargs)
  stream = streams.make(streams.config('Breakout-v5', **kwargs))
  outputs = streams.roll(stream, actions)

  lost = [bool(s['done'] and not s['info:terminated']) for s in steps]
  over = [bool(s['info:terminated']) for s in steps]
  assert sum(lost) >= 6 and sum(over) >= 2
  step_types = streams.column(outputs, 'step_type')
  discounts = streams.column(outputs, 'discount')
  for t in np.flatnonzero(np.logical_or(lost, over))[:-1]:
    # The step after a lost life also ignores the action.
    assert step_types[t : t + 2] == [LAST, FIRST]
    assert discounts[t : t + 2] == [0.0, 1.0]
    assert outputs[t + 1].reward == 0.0
  assert step_types.count(FIRST) == 1 + sum(lost) + sum(over)

  ends = [0, *(np.flatnonzero(over) + 1)]
  for episode, begin, end in zip(
    stream.take_episodes(), ends, ends[1:], strict=False
  ):
    played = steps[begin:end]
    assert episode.terminated
    assert episode.episode_return == sum(s['info:reward'] for s in played)
    assert episode.length == len(played) - 1 - sum(lost[begin:end])
    assert episode.length == played[-1]['elapsed_step']


def test_time_limit_of_atari_counts_over_lives_and_truncates():
  section = streams.config(
    'Breakout-v5', episodic_life=True, max_episode_steps=40
  )
  stream = streams.make(section)
  outputs = streams.roll(stream, _breakout_actions(50))
  discounts = streams.column(outputs, 'discount')
  step_types = streams.column(outputs, 'step_type')
  lasts = [t for t in range(50) if step_types[t] == LAST]
  assert len(lasts) == 2  # One life is lost on the way.
  assert [discounts[t] for t in lasts] == [0.0, 1.0]
  (episode,) = stream.take_episodes()
  assert episode.length == 40
  assert not episode.terminated


def test_atari_tells_a_termination_at_the_time_limit():
  actions = _breakout_actions(450)
  length = next(
    int(s['elapsed_step'])
    for s in _raw('Breakout-v5', actions, seed=1, stack_num=1)
    if s['done']
  )
  section = streams.config('Breakout-v5', max_episode_steps=length)
  stream = streams.make(section)
  outputs = streams.roll(stream, actions[: length + 1])
  assert streams.column(outputs, 'step_type')[-1] == LAST
  assert streams.column(outputs, 'discount')[-1] == 0.0
  assert stream.take_episodes()[0].terminated


def test_lost_life_may_cut_the_return_in_an_episode_that_goes_on():
  actions = _breakout_actions(450)
  section = streams.config('Breakout-v5', zero_discount_on_life_loss=True)
  stream = streams.make(section)
  outputs = streams.roll(stream, actions)
  end = streams.column(outputs, 'step_type').index(LAST)
  assert streams.column(outputs, 'step_type')[1:end] == [MID] * (end - 1)
  # The fifth life ends the episode.
  assert streams.column(outputs, 'discount')[:end].count(0.0) == 4
  episode = stream.take_episodes()[0]
  assert episode.terminated
  assert episode.length == end
  assert episode.episode_return == sum(
    streams.column(outputs, 'reward')[: end + 1]
  )


@pytest.mark.parametrize(
  ('config', 'lives'), [(base_config, 4), (r2d2_atari, 5)]
)
def test_published_settings_do_not_press_fire(config: Any, lives: int):
  actions = np.zeros((80, 1), np.int32)
  values = registry.set_options(config.get_config().env)
  # Without FIRE there is no ball to miss.
  last = _raw('Breakout-v5', actions, seed=1, **values)[-1]
  assert last['info:lives'] == lives


def test_clipped_rewards_are_scored_raw():
  section = streams.config(
    'MsPacman-v5', reward_clip=True, frame_skip=8, max_episode_steps=50
  )
  stream = streams.make(section)
  outputs = streams.roll(stream, np.full((51, 1), 3, np.int32))
  clipped = streams.column(outputs, 'reward')
  assert max(clipped) == 1.0
  (episode,) = stream.take_episodes()
  # Every dot gives ten points.
  assert episode.episode_return >= 10 * sum(clipped) > 0
  assert episode.length == 50


def test_sent_actions_are_copied():
  def play(scribble: bool) -> dict[int, list]:
    section = streams.config('CliffWalking-v1')
    stream = streams.make(section, num_envs=600, batch_size=300)
    seen: dict[int, list] = {i: [] for i in range(600)}
    for t in range(12):
      output = stream.recv()
      for i, position in zip(output.env_id, output.observation, strict=True):
        seen[int(i)].append(int(position))
      action = np.full(300, t % 4, np.int32)
      stream.send(action, output.env_id)
      if scribble:
        action[:] = 2
    return {i: s[:5] for i, s in seen.items()}

  # The two halves alternate, so equal actions give equal steps.
  assert play(scribble=True) == play(scribble=False)


@pytest.mark.parametrize(
  ('env_id', 'dtype', 'shape', 'pools'),
  [
    ('HalfCheetah-v4', np.float32, (6,), np.float64),
    ('MultiCVRP-v0', np.int32, (2,), np.int16),
    ('SearchAndRescue-v0', np.float32, (2, 2), np.float32),
  ],
)
def test_actions_of_any_shape_reach_the_pool_in_its_dtype(
  env_id: str, dtype: type, shape: tuple[int, ...], pools: type
):
  stream: Any = streams.make(streams.config(env_id), 3, 2)
  action = stream.spec.action
  assert (action.shape, action.dtype) == (shape, dtype)
  sent, send = [], stream._pool._send
  stream._pool = types_lib.SimpleNamespace(
    _recv=stream._pool._recv,
    _send=lambda arrays: (sent.append(arrays[-1]), send(arrays)),
  )
  rng = np.random.default_rng(0)
  for _ in range(20):
    output = stream.recv()
    streams.assert_fits(output, stream.spec)
    given = action.sample(rng, 2)
    stream.send(given if action.is_discrete else 3 * given, output.env_id)
  assert {x.dtype for x in sent} == {np.dtype(pools)}
  if not action.is_discrete:
    assert max(np.abs(x).max() for x in sent) == action.maximum[0]


def test_nested_dicts():
  section = streams.config('Maze-v0', drop_observations=('action_mask',))
  spec = envpool_stream.make_spec(section)
  assert list(spec.observation) == sorted(spec.observation)
  assert list(spec.observation['agent_position']) == ['col', 'row']
  streams.assert_fits(streams.make(section, 2).recv(), spec)


def test_batch_that_arrives_after_close_is_not_given():
  stream: Any = streams.make(streams.config('CartPole-v1'), 2)
  pool = stream._pool

  class ClosesWhileReceiving:
    def _recv(self) -> list[np.ndarray]:
      state = pool._recv()
      stream.close()
      return state

  stream._pool = ClosesWhileReceiving()
  with pytest.raises(base.StreamClosed):
    stream.recv()


@pytest.mark.parametrize(
  ('env_id', 'options', 'reason'),
  [
    ('Chess-v1', {}, r'\.id=Chess-v1: has 2 players'),
    ('Pong-v5', {'mode': 'hard'}, r': Pong-v5 takes no such values: .*hard'),
  ],
)
def test_unusable_environments_are_refused(
  env_id: str, options: dict[str, Any], reason: str
):
  with pytest.raises(ValueError, match=f'--config.env{reason}'):
    envpool_stream.make_spec(streams.config(env_id, options=options))


@pytest.mark.parametrize(
  ('name', 'key', 'place', 'value', 'text'),
  [
    ('CartPole-v1', 'obs', (1, 3), np.inf, 'an observation that is not finite'),
    ('CartPole-v1', 'reward', 1, np.nan, 'a reward of nan, which is not a num'),
    ('CartPole-v1', 'reward', 1, -2e30, r'a reward of -2e\+30, which is not a'),
  ],
)
def test_invalid_values_name_the_environment(
  name: str, key: str, place: Any, value: Any, text: str
):
  stream: Any = streams.make(streams.config(name), 4, 2)
  stream.recv()
  receive = stream._pool._recv

  def spoil() -> list[np.ndarray]:
    state = receive()
    index = stream._keys.index(key)
    state[index] = state[index].copy()
    state[index][place] = value
    return state

  stream._pool = types_lib.SimpleNamespace(_recv=spoil)
  with pytest.raises(
    base.EnvironmentFailed, match=f'^Environment 3 of {name} gave {text}'
  ):
    stream.recv()
