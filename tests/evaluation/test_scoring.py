"""Tests for seedrl_jax/evaluation/scoring.py."""

import io
import os
import pathlib

import numpy as np
import pytest
from PIL import Image

from seedrl_jax.evaluation import scoring
from seedrl_jax.runtime import progress
from tests import runs as tiny_runs
from tests.evaluation import evaluation_runs as runs

_SCRIPTED = 'tests.envs.toys:scripted'


def _play(
  folder: pathlib.Path, out: io.StringIO | None = None, **options
) -> scoring.Evaluation:
  line = progress.ProgressLine(out or io.StringIO())
  options.setdefault('allowed', runs.ALLOWED)
  return scoring.evaluate(folder, scoring.EvaluationOptions(**options), line)


def _tree(folder: pathlib.Path) -> dict[str, bytes]:
  files = (pathlib.Path(d, f) for d, _, fs in os.walk(folder) for f in fs)
  return {str(file): file.read_bytes() for file in files}


def test_episodes_are_exactly_those_asked_for(tmp_path):
  runs.save(tmp_path, runs.config(_SCRIPTED), 1.0)
  result = _play(tmp_path, episodes=5, num_envs=2)
  # Episodes of 3, 5 and 4 steps in turn; the reward of step t is t.
  of_env = {i: [e for e in result.episodes if e.env_id == i] for i in (0, 1)}
  assert [e.episode_return for e in of_env[0]] == [6.0, 15.0, 10.0]
  assert [e.episode_return for e in of_env[1]] == [6.0, 15.0]
  assert [e.length for e in of_env[0]] == [3, 5, 4]
  text = result.report()
  assert 'return 10.40 ± 2.01' in text
  assert 'median 10.00 | min 6.00 | max 15.00 | mean length 4.0' in text


def test_episodes_that_do_not_end_are_cut_off(tmp_path):
  runs.save(tmp_path, runs.config(_SCRIPTED), 1.0)
  out = io.StringIO()
  result = _play(tmp_path, out, episodes=7, num_envs=2, max_steps=4)
  assert '2 episodes were cut off at --max_steps=4; their env' in out.getvalue()
  # The second of each environment would have five steps; none has a third.
  assert [e.episode_return for e in result.episodes] == [6.0, 6.0, 10.0, 10.0]


def test_fewer_episodes_than_environments_make_fewer_environments(tmp_path):
  runs.save(tmp_path, runs.config(), 1.0)
  result = _play(tmp_path, episodes=2, num_envs=7)
  assert [e.env_id for e in result.episodes] == [0, 1]


@pytest.mark.parametrize('kind', ['joint', 'box'])
def test_actions_of_any_shape_are_played_and_filmed(tmp_path, kind):
  config = tiny_runs.tiny(**runs.echo(kind))
  runs.save_states(tmp_path / 'run', config, runs.initial_state(config))
  path = tmp_path / 'out.gif' if kind == 'box' else None
  result = _play(tmp_path / 'run', episodes=3, num_envs=2, video=path)
  assert sorted(result.returns) == [6.0, 6.0, 15.0]
  if path:
    with Image.open(path) as gif:
      shades = []
      for frame in range(gif.n_frames):
        gif.seek(frame)
        pixel = (gif.width // 2, gif.height // 2)
        shades.append(gif.convert('RGB').getpixel(pixel)[0])
    # The environment draws the number of its step.
    drawn = [round(shade / 40) for shade in shades]
    assert drawn == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]


def test_the_runs_writers_are_neither_loaded_nor_asked_about(tmp_path):
  config = runs.config()
  config.log.writers = ('csv', 'nowhere:make')
  runs.save(tmp_path, config, 1.0)
  result = _play(tmp_path, episodes=1)
  assert len(result.episodes) == 1
  # A single episode has no standard error.
  assert '±' not in result.report()


def test_sampling_follows_policy_and_seed(tmp_path):
  runs.save(tmp_path, runs.config(), 0.1)
  first, again, other = (
    _play(tmp_path, episodes=40, sample=True, seed=seed) for seed in (3, 3, 4)
  )
  # About a third of the actions is the best one.
  assert 1.0 < first.returns.mean() < 3.0
  np.testing.assert_array_equal(first.returns, again.returns)
  assert first.returns.tolist() != other.returns.tolist()
  assert 'sampled' in first.report()


def test_newest_checkpoint_unless_one_is_named(tmp_path):
  runs.save(tmp_path, runs.config(), -1.0, 1.0)
  newest, named = _play(tmp_path), _play(tmp_path, checkpoint=1)
  assert (newest.checkpoint, newest.returns.mean()) == (2, runs.LENGTH)
  assert 'greedy' in newest.report()
  assert (named.checkpoint, named.returns.mean()) == (1, 0.0)


def test_damaged_newest_is_reported_and_left_alone(tmp_path):
  runs.save(tmp_path, runs.config(), -1.0, 1.0)
  runs.damage(tmp_path, 2)
  before = _tree(tmp_path)
  out = io.StringIO()
  assert _play(tmp_path, out, episodes=2).checkpoint == 1
  assert 'Checkpoint 2 is damaged' in out.getvalue()
  # Only the run itself may quarantine it.
  assert _tree(tmp_path) == before


@pytest.mark.parametrize(
  ('number', 'sentence'),
  [
    (None, 'holds no checkpoint that is sound'),
    (1, 'holds no checkpoint 1 that is sound'),
    (9, r'holds no checkpoint 9; there are: 1\.'),
  ],
)
def test_unusable_checkpoint_is_refused(tmp_path, number, sentence):
  runs.save(tmp_path, runs.config(), 1.0)
  runs.damage(tmp_path, 1)
  with pytest.raises(ValueError, match=sentence):
    _play(tmp_path, checkpoint=number)


def test_folder_without_run_or_checkpoint_is_refused(tmp_path):
  with pytest.raises(ValueError, match='holds no run'):
    _play(tmp_path)
  runs.save(tmp_path, runs.config())
  with pytest.raises(ValueError, match='holds no checkpoint yet'):
    _play(tmp_path)


def test_checkpoint_of_another_network_is_refused(tmp_path):
  runs.save(tmp_path, runs.config(), 1.0)
  config = runs.config()
  config.network.hidden_sizes = (6,)
  runs.save(tmp_path, config)
  with pytest.raises(ValueError, match='does not fit'):
    _play(tmp_path)


def test_what_is_not_drawn_shows_its_observation(tmp_path):
  config = runs.config(factory='')
  config.env.id = 'Catch-v0'
  runs.save(tmp_path, config, 1.0)
  path = tmp_path / 'catch.gif'
  result = _play(tmp_path, episodes=1, video=path)
  with Image.open(path) as gif:
    assert gif.n_frames == 1 + result.episodes[0].length
    pixels = np.asarray(gif.convert('RGB'))
  # Only ball and paddle are white; the caption is above.
  factor = 48
  cells = pixels[-10 * factor :: factor, 40::factor][:, :5]
  assert np.count_nonzero(cells.min(axis=-1) > 250) == 2


def test_envpool_draws_its_own(tmp_path):
  config = runs.config(factory='')
  config.env.id = 'CartPole-v1'
  config.env.max_episode_steps = 4
  runs.save(tmp_path, config, 1.0)
  path = tmp_path / 'cartpole.gif'
  result = _play(tmp_path, episodes=1, video=path)
  assert [e.length for e in result.episodes] == [4]
  with Image.open(path) as gif:
    assert (gif.width, gif.n_frames) == (600, 5)


def test_nothing_to_show_is_refused(tmp_path):
  runs.save(tmp_path, runs.config(_SCRIPTED), 1.0)
  path = tmp_path / 'out.gif'
  with pytest.raises(ValueError, match='toys:scripted cannot be drawn'):
    _play(tmp_path, video=path)
  assert not path.exists()
