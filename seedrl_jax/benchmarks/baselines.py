"""Compares PPO and SAC with those of Stable-Baselines3, in turns.

Each run is a process of its own, so that none holds cores or memory of another.
Stable-Baselines3 gets Gymnasium's environments of the same name, and the same
number of environments, network, batches and updates. What its users choose, it
gets as it is fastest: environments in its process or in others, PyTorch with
all threads or one.
"""

import itertools
import json
import multiprocessing
import os
import shlex
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent import futures
from typing import Any, NamedTuple

import ml_collections

from seedrl_jax.benchmarks import timing, whole
from seedrl_jax.runtime import process

FLAG = '--baselines_python'
# Runs of each side.
_TURNS = 2
_VECTORS = ('DummyVecEnv', 'SubprocVecEnv')
_THREADS = (0, 1)  # of PyTorch; 0: its default
_MODULES = ('stable_baselines3', 'torch', 'gymnasium', 'mujoco')
_PROBE = """
import importlib.util, sys
print(*[m for m in sys.argv[1:] if not importlib.util.find_spec(m)])
"""
_CLIENT = os.path.join(os.path.dirname(__file__), 'baselines_client.py')


class _Ran(NamedTuple):
  """Environment steps per second in windows of a run."""

  rates: Sequence[float]
  version: str


def find(python: str) -> str:
  """Returns the path of `python`.

  Raises:
    ValueError: if it cannot run Stable-Baselines3.
  """
  if not (path := shutil.which(python)):
    raise ValueError(f'{FLAG}={python}: there is no such program.')
  # Links lead out of virtual environments.
  path = os.path.abspath(path)
  done = subprocess.run(
    [path, '-c', _PROBE, *_MODULES], capture_output=True, text=True
  )
  if done.returncode:
    raise ValueError(f'{FLAG}={python} is no Python: {done.stderr.strip()}')
  if missing := done.stdout.split():
    raise ValueError(
      f'{FLAG}={python} has no {", ".join(missing)}; run {shlex.quote(python)} '
      '-m pip install stable-baselines3 "gymnasium[mujoco]", or name a Python '
      'that has them.'
    )
  return path


def measure(
  name: str,
  config: ml_collections.ConfigDict,
  python: str,
  windows: timing.Windows,
) -> dict[str, str]:
  """Runs both sides in turns; returns a table row.

  Args:
    config: of PPO or SAC.
    python: of `find`.
    windows: of each run.

  Raises:
    ValueError: if Stable-Baselines3 fails; says what it wrote.
    system.RunFailed: if the system fails.
  """
  given = settings(config, windows)
  best, version = _fastest(name, given, python)
  ours, theirs = [], []
  for _ in range(_TURNS):
    ours.append(_time_ours(whole.Case(name, config), windows))
    theirs.append(statistics.median(_time_theirs(best, python).rates))
    print(f'{name}: {ours[-1]:,.0f} : {theirs[-1]:,.0f} steps/s', flush=True)
  ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
  return {
    'case': name,
    'steps/s': f'{statistics.median(ours):,.0f}',
    f'Stable-Baselines3 {version}': f'{statistics.median(theirs):,.0f}',
    'ratio': f'{statistics.median(ratios):.1f}',
    'its fastest': _describe(best),
  }


def settings(
  config: ml_collections.ConfigDict, windows: timing.Windows
) -> dict[str, Any]:
  """Returns what `baselines_client` needs to do the same as `config`."""
  make = {'ppo': _ppo, 'sac': _sac}[config.agent]
  activation = {'relu': 'ReLU', 'tanh': 'Tanh'}[config.network.activation]
  made: dict[str, Any] = make(config)
  made['policy']['activation_fn'] = activation
  made['arguments'] |= {
    'learning_rate': config.optimizer.learning_rate,
    'gamma': config.loss.discount,
  }
  return made | {
    'env': config.env.id,
    'num_envs': config.env.num_envs,
    'device': 'auto',
    'windows': list(windows),
  }


def _ppo(config: ml_collections.ConfigDict) -> dict[str, Any]:
  loss, normalization = config.loss, config.normalization
  batch = config.batch_size * config.unroll_length
  sizes = list(config.network.hidden_sizes)
  return {
    'algorithm': 'PPO',
    'policy': {'net_arch': {'pi': sizes, 'vf': sizes}},
    'arguments': {
      'n_steps': batch // config.env.num_envs,
      'batch_size': batch // config.minibatches,
      'n_epochs': config.epochs,
      'gae_lambda': loss.lambda_,
      'clip_range': loss.clip,
      'clip_range_vf': loss.value_clip or None,
      'normalize_advantage': loss.normalize_advantages == 'minibatch',
      'ent_coef': loss.entropy_cost,
      'vf_coef': loss.baseline_cost,
      'max_grad_norm': config.optimizer.clip_norm,
      'target_kl': loss.target_kl or None,
    },
    'normalize': {
      'norm_obs': normalization.observations,
      'norm_reward': normalization.rewards,
      'clip_obs': normalization.observation_clip,
      'clip_reward': normalization.reward_clip,
      'gamma': loss.discount,
    },
  }


def _sac(config: ml_collections.ConfigDict) -> dict[str, Any]:
  replay = config.replay
  minibatch = config.batch_size // config.updates_per_call
  updates = config.env.num_envs * replay.samples_per_insert / minibatch
  sizes = list(config.network.hidden_sizes)
  return {
    'algorithm': 'SAC',
    'policy': {'net_arch': {'pi': sizes, 'qf': sizes}},
    'arguments': {
      'buffer_size': replay.max_size,
      'learning_starts': replay.min_size,
      'batch_size': minibatch,
      'tau': config.loss.target_update_rate,
      'train_freq': 1,
      'gradient_steps': round(updates),
    },
    'normalize': None,
  }


def _fastest(
  name: str, given: dict[str, Any], python: str
) -> tuple[dict[str, Any], str]:
  """Tries all choices; returns the settings of the best, and the version."""
  _, seconds, warm_up = given['windows']
  best, version = {}, ''
  highest = 0.0
  for vector, threads in itertools.product(_VECTORS, _THREADS):
    choice = given | {'vector': vector, 'threads': threads}
    trial = choice | {'windows': [1, seconds, warm_up]}
    (rate,), version = _time_theirs(trial, python)
    print(f'{name}: {_describe(choice)}: {rate:,.0f} steps/s', flush=True)
    if rate > highest:
      best, highest = choice, rate
  return best, version


def _describe(choice: dict[str, Any]) -> str:
  threads = 'one thread' if choice['threads'] else 'default threads'
  return f'{choice["vector"]}, {threads}'


def _time_theirs(choice: dict[str, Any], python: str) -> _Ran:
  # MuJoCo writes a log into the current folder.
  with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run(
      [python, _CLIENT],
      input=json.dumps(choice),
      capture_output=True,
      text=True,
      cwd=folder,
    )
  if done.returncode:
    raise ValueError(f'Stable-Baselines3 failed: {done.stderr[-2000:]}')
  # Libraries may print, too.
  return _Ran(**json.loads(done.stdout.splitlines()[-1]))


def _time_ours(case: whole.Case, windows: timing.Windows) -> float:
  spawn = multiprocessing.get_context('spawn')
  with futures.ProcessPoolExecutor(1, spawn, process.configure) as executor:
    return executor.submit(_rate, case, windows).result()


def _rate(case: whole.Case, windows: timing.Windows) -> float:
  return whole.run(case, windows).steps.median
