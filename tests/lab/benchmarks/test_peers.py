"""Tests of the comparison with other libraries, with stand-ins for them."""

import collections
import importlib
import math
import pathlib
import sys
import textwrap

import numpy as np
import pytest

from seedrl_jax.configs import benchmark
from seedrl_jax.lab.benchmarks import timing, whole
from seedrl_jax.lab.benchmarks.peers import comparison, library, settings

_WINDOWS = timing.Windows(3, 0.0)
# Its rate is its number of workers times ten; it learns in as many seconds, or
# with seed 2 not at all.
_CLIENT = """
import json, os, sys
options = json.load(sys.stdin)
assert 'PYTHONPATH' not in os.environ
print('a line of a library', flush=True)
figures = [10.0 * options['workers']] * options['windows'][0]
if options['target']:
  assert options['tuned'] and options['limit'] == 9.0
  figures = [] if options['seed'] == 2 else figures[:1]
with open('result.json', 'w') as file:
  json.dump({'figures': figures, 'version': '1.2'}, file)
"""


@pytest.fixture(name='add')
def _add(monkeypatch, tmp_path):
  """Returns a function that makes a client's text a peer."""
  monkeypatch.setenv('PYTHONPATH', 'somewhere')
  monkeypatch.setattr(library, 'PEERS', {})
  monkeypatch.setattr(library, 'install', lambda name: [sys.executable])

  def add(name: str, text: str) -> None:
    client = tmp_path / f'{name}.py'
    client.write_text(textwrap.dedent(text))
    choices = ({'workers': 1}, {'workers': 2}, {'workers': 0})
    library.PEERS[name] = library.Peer(
      str(client), name, name, choices, {'tuned': True}
    )

  return add


def _measure(name: str, peers: list[str], turns: int = 2):
  """Returns the rows."""
  task = comparison.Task(
    name,
    benchmark.get_config(name),
    benchmark.get_config(name),
    benchmark.TARGETS.get(name),
    limit=9.0,
    windows=_WINDOWS,
    turns=turns,
  )
  return list(comparison.measure(task, peers))


def test_sides_take_turns_and_the_peer_is_at_its_fastest(
  add, monkeypatch, capsys
):
  add('fake', _CLIENT)
  ours = iter([100.0, 60.0])
  monkeypatch.setattr(comparison, '_time_ours', lambda *unused: next(ours))
  (row,) = _measure('cartpole128', ['fake'])
  assert list(row.values()) == [
    'cartpole128',
    'steps/s',
    '80 (60–100)',
    'fake 1.2',
    '20 (20–20)',
    '4.0 (3.0–5.0)',
    'workers 2',
  ]
  lines = [
    line.rpartition(' ')[0] for line in capsys.readouterr().out.split('\n')
  ]
  turn = ['cartpole128: ours:', 'cartpole128: fake:']
  assert lines[3:7] == turn * 2


def test_time_to_a_return_is_compared_too(add, monkeypatch):
  add('fake', _CLIENT)
  monkeypatch.setattr(comparison, '_time_ours', lambda *unused: 5.0)
  (row,) = _measure('cartpole_450', ['fake'], turns=1)
  assert (row['unit'], row['its']) == ('seconds to 450', '20.0 (20.0–20.0)')
  assert row['ratio'] == '4.0 (4.0–4.0)'
  (row,) = _measure('cartpole_450', ['fake'])
  assert row['ratio'] == 'inf (4.0–inf)'


def test_a_peer_that_fails_is_told_and_the_others_go_on(add, monkeypatch):
  add('broken', 'raise KeyError("no such thing")')
  add('hangs', 'import time; time.sleep(600)')
  add('absent', '')
  add('fake', _CLIENT)

  def install(name: str) -> list[str]:
    if name == 'absent':
      raise library.PeerFailed('no wheel')
    return [sys.executable]

  monkeypatch.setattr(library, 'install', install)
  monkeypatch.setattr(comparison, '_time_ours', lambda *unused: 60.0)
  call = comparison._call
  monkeypatch.setattr(
    comparison,
    '_call',
    lambda python, path, *rest: call(
      python, path, rest[0], 0.5 if 'hangs' in path else 60.0
    ),
  )
  rows = _measure('cartpole128', list(library.PEERS))
  ends = [row['its fastest, or what failed'] for row in rows]
  assert ends == [
    "KeyError: 'no such thing'",
    'it did not end within 0.5 s',
    'no wheel',
    'workers 2',
  ]
  assert [row['ratio'] for row in rows[:3]] == ['–'] * 3


@pytest.mark.parametrize(
  ('case', 'wanted'),
  [
    (
      'mujoco_ppo',
      {'n_steps': 32, 'batch_size': 64, 'n_epochs': 10, 'gamma': 0.99},
    ),
    ('mujoco_sac', {'batch_size': 256, 'train_freq': 1}),
    ('cartpole128', {'n_steps': 20, 'batch_size': 2560, 'n_epochs': 1}),
    ('pong_shallow', {'n_steps': 20, 'batch_size': 640}),
  ],
)
def test_stable_baselines3_gets_the_same_settings(case, wanted):
  config = benchmark.get_config(case)
  values = settings.make(config, _WINDOWS)
  assert wanted.items() <= values['arguments'].items()
  assert values['env'] == config.env.id
  assert values['num_envs'] == config.env.num_envs
  if case == 'mujoco_sac':
    # An update for each frame.
    assert values['arguments']['gradient_steps'] == config.env.num_envs
    assert values['policy']['net_arch'] == {'pi': [256, 256], 'qf': [256, 256]}
  assert bool(values['normalize']) == (case == 'mujoco_ppo')


def test_all_peers_get_the_same_network_and_frames():
  values = settings.make(benchmark.get_config('pong_shallow'), _WINDOWS)
  assert values['network'] == {
    'convolutions': [[16, 8, 4], [32, 4, 2]],
    'hidden_sizes': [256],
  }
  assert values['options']['stack_num'] == 4
  assert values['options']['frame_skip'] == 4
  values = settings.make(benchmark.get_config('cartpole128'), _WINDOWS)
  assert values['network'] == {'convolutions': [], 'hidden_sizes': [64, 64]}


def test_only_stable_baselines3_has_all_agents():
  assert library.select([], 'ppo') == ['stable-baselines3']
  both = ['stable-baselines3', 'sample-factory']
  assert library.select([], 'vtrace') == both
  assert library.select(both[::-1], 'vtrace') == both
  assert library.select(both[1:], 'vtrace') == both[1:]
  assert all(pathlib.Path(p.client).exists() for p in library.PEERS.values())


def test_where_a_peer_cannot_be_installed(monkeypatch, tmp_path):
  uv = tmp_path / 'uv'
  uv.write_text(
    '#!/bin/sh\necho "error: first" >&2; echo "  cause: $1" >&2; exit 1'
  )
  uv.chmod(0o755)
  monkeypatch.setattr(library.uv, 'find_uv_bin', lambda: str(uv))
  with pytest.raises(library.PeerFailed, match=r'^cause: run$'):
    library.install('sample-factory')


@pytest.fixture(name='common')
def _common(monkeypatch):
  """Returns what the clients share, imported as they do."""
  folder = pathlib.Path(library.__file__).with_name('clients')
  monkeypatch.syspath_prepend(folder)
  yield importlib.import_module('common')
  del sys.modules['common']


def _meter(common, monkeypatch, **values):
  clock = iter(range(1000))
  monkeypatch.setattr(common.time, 'perf_counter', lambda: next(clock))
  values = {'target': None, 'limit': 8.0, 'windows': [2, 2.0, 3.0]} | values
  return common.Meter(values)


def test_windows_begin_and_end_at_new_steps(common, monkeypatch):
  meter = _meter(common, monkeypatch)
  # At seconds 1 to 9; warm-up ends at 4, the first window at 7, as nothing was
  # new at 6.
  steps = [10, 20, 30, 40, 40, 40, 70, 80, 130]
  assert [meter.more(s) for s in steps] == [True] * 8 + [False]
  assert meter.figures() == [10.0, 30.0]


@pytest.mark.parametrize(
  ('value', 'calls', 'figures'), [(450.0, 1, [1]), (449.0, 8, [])]
)
def test_a_return_is_reached_or_not(common, monkeypatch, value, calls, figures):
  meter = _meter(common, monkeypatch, target=450.0)
  meter.returns.extend([value] * common.EPISODES)
  assert [meter.more(0) for _ in range(calls)] == [True] * (calls - 1) + [False]
  assert meter.figures() == figures


def test_environments_reset_within_the_step(common):
  returns = collections.deque()
  values = {'env': 'CartPole-v1', 'options': {}, 'seed': 1}
  envs = common.Envs(values, 4, returns)
  envs.reset()
  for _ in range(100):
    observations, _, ended, _, last = envs.step(np.zeros(4, np.int32))
    assert (np.abs(observations) < 3.0).all()
    assert (np.abs(observations[ended]) <= 0.05).all()
    assert (np.abs(last[ended]) > 0.05).any(axis=1).all()
  # One action throughout keeps the pole up for 8 to 11 steps.
  assert returns and all(8 <= x <= 11 for x in returns)


def _task(name: str, **changes):
  config = benchmark.get_config(name)
  config.topology.max_devices = 1
  return comparison.Task(
    name, config, config, None, 60.0, timing.Windows(1, 0.01), 1
  )._replace(**changes)


def test_own_side_is_timed_in_a_process_of_its_own():
  assert comparison._time_ours(_task('cartpole32'), 1) > 0


def test_own_side_learns_until_the_return_or_the_limit():
  task = _task('cartpole_450', target=5.0)
  assert 0 < comparison._run_ours(task, 2) < math.inf
  assert task.config.seed == 2
  assert whole.seconds_to(task.config, 501.0, 0.01) is None
