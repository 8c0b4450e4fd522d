"""Tests of the comparison with Stable-Baselines3, with a stand-in for it."""

import json
import pathlib
import sys
import textwrap
from typing import Any

import pytest

from configs import benchmark
from seedrl_jax.benchmarks import baselines, timing, whole

# What the client imports; models record what they are made with and then step
# as long as the callback lets them.
_STAND_INS = {
  'torch.py': """
    class nn:
      Tanh, ReLU = 'tanh', 'relu'

    threads = 2

    def set_num_threads(number):
      global threads
      threads = number
  """,
  'stable_baselines3/__init__.py': """
    import json
    import pathlib
    import torch

    class PPO:
      _n_updates = num_timesteps = 0

      def __init__(self, policy, env, device, policy_kwargs, **arguments):
        made = {'env': env, 'network': policy_kwargs, 'arguments': arguments}
        made['threads'] = torch.threads
        pathlib.Path(__file__).with_name('made.json').write_text(
            json.dumps(made))

      def learn(self, steps, callback):
        callback.model = self
        print('a line of a library')
        while self.num_timesteps < 100:
          callback.num_timesteps = self.num_timesteps
          callback._on_rollout_start()
          self.num_timesteps += 1
          if not callback._on_step():
            return
          self._n_updates = max(0, self.num_timesteps - 10)

    class SAC(PPO):
      pass
  """,
  'stable_baselines3/common/callbacks.py': """
    class BaseCallback:
      pass
  """,
  'stable_baselines3/common/env_util.py': """
    def make_vec_env(name, number, vec_env_cls, vec_env_kwargs):
      return Env([name, number, vec_env_cls, vec_env_kwargs])

    class Env(list):
      def close(self):
        pass
  """,
  'stable_baselines3/common/vec_env.py': """
    from stable_baselines3.common import env_util

    DummyVecEnv, SubprocVecEnv = 'own process', 'processes'

    def VecNormalize(env, **arguments):
      return env_util.Env([*env, arguments])
  """,
  'mujoco.py': '',
  'stable_baselines3-1.2.dist-info/METADATA': """
    Name: stable_baselines3
    Version: 1.2
  """,
}
_WINDOWS = timing.Windows(3, 0.0)


@pytest.fixture(name='stand_in')
def _stand_in(tmp_path, monkeypatch) -> pathlib.Path:
  """Installs the stand-in; returns its folder."""
  for name, text in _STAND_INS.items():
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip())
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  return tmp_path


@pytest.mark.usefixtures('stand_in')
def test_python_that_has_all_is_found():
  assert baselines.find(sys.executable) == sys.executable


@pytest.mark.parametrize(
  ('python', 'missing', 'sentence'),
  [
    (sys.executable, 'torch.py', ' has no torch; run .* -m pip install stable'),
    ('/nowhere/python', None, ': there is no such program'),
    ('false', None, ' is no Python'),
  ],
)
def test_wrong_python_is_told_in_a_sentence(
  stand_in, python, missing, sentence
):
  if missing:
    (stand_in / missing).unlink()
  with pytest.raises(
    ValueError, match=f'^--baselines_python={python}{sentence}'
  ):
    baselines.find(python)


def _run(stand_in, case, vector, threads) -> dict[str, Any]:
  """Returns what the stand-in of a case was made with."""
  given = baselines.settings(benchmark.get_config(case), _WINDOWS)
  choice = given | {'vector': vector, 'threads': threads}
  ran = baselines._time_theirs(choice, sys.executable)
  # The environments of the system step as often as these.
  assert len(ran.rates) == _WINDOWS.number and min(ran.rates) > 0
  assert ran.version == '1.2'
  return json.loads((stand_in / 'stable_baselines3/made.json').read_text())


def test_ppo_gets_the_same_settings(stand_in):
  made = _run(stand_in, 'mujoco_ppo', 'DummyVecEnv', 0)
  *env, normalization = made['env']
  assert env == ['HalfCheetah-v5', 64, 'own process', {}]
  assert normalization['norm_obs'] and normalization['norm_reward']
  sizes = [64, 64]
  assert made['network'] == {
    'net_arch': {'pi': sizes, 'vf': sizes},
    'activation_fn': 'tanh',
  }
  wanted = {'n_steps': 32, 'batch_size': 64, 'n_epochs': 10, 'gamma': 0.99}
  assert wanted.items() <= made['arguments'].items()
  assert made['threads'] == 2


def test_sac_gets_the_same_settings(stand_in):
  config = benchmark.get_config('mujoco_sac')
  made = _run(stand_in, 'mujoco_sac', 'SubprocVecEnv', 1)
  num_envs = config.env.num_envs
  start = {'start_method': 'fork'}
  assert made['env'] == ['HalfCheetah-v5', num_envs, 'processes', start]
  assert made['network']['net_arch'] == {'pi': [256, 256], 'qf': [256, 256]}
  # An update for each frame.
  wanted = {'batch_size': 256, 'train_freq': 1, 'gradient_steps': num_envs}
  assert wanted.items() <= made['arguments'].items()
  assert made['threads'] == 1


def test_failure_of_the_other_side_is_quoted(stand_in):
  (stand_in / 'stable_baselines3/common/vec_env.py').write_text('1 / 0')
  with pytest.raises(ValueError, match=r'(?s)failed: .*ZeroDivisionError'):
    _run(stand_in, 'mujoco_sac', 'DummyVecEnv', 1)


def test_sides_take_turns_and_the_other_is_at_its_fastest(monkeypatch, capsys):
  order = []

  def theirs(choice, python):
    assert python == 'other'
    order.append((choice['vector'], choice['threads']))
    best = order[-1] == ('SubprocVecEnv', 0)
    return baselines._Ran([20.0 if best else 10.0], '1.2')

  def ours(case, windows):
    assert (case.name, windows) == ('mujoco_ppo', _WINDOWS)
    order.append('ours')
    return 100.0 if 'ours' in order[:-1] else 80.0

  monkeypatch.setattr(baselines, '_time_theirs', theirs)
  monkeypatch.setattr(baselines, '_time_ours', ours)
  config = benchmark.get_config('mujoco_ppo')
  row = baselines.measure('mujoco_ppo', config, 'other', _WINDOWS)
  assert row == {
    'case': 'mujoco_ppo',
    'steps/s': '90',
    'Stable-Baselines3 1.2': '20',
    'ratio': '4.5',
    'its fastest': 'SubprocVecEnv, default threads',
  }
  best = ('SubprocVecEnv', 0)
  assert order[4:] == ['ours', best, 'ours', best]
  assert 'mujoco_ppo: DummyVecEnv, one thread: 10 steps/s' in (
    capsys.readouterr().out
  )


def test_own_side_is_timed_in_a_process_of_its_own():
  config = benchmark.get_config('cartpole32')
  config.topology.max_devices = 1
  case = whole.Case('cartpole32', config)
  assert baselines._time_ours(case, timing.Windows(1, 0.01)) > 0
