"""Tests for seedrl_jax/run/saved_config.py, and resuming from command lines."""

import json
import re
import shutil

import pytest

from seedrl_jax.configs import base as base_config
from seedrl_jax.run import saved_config
from seedrl_jax.runtime import workdir
from tests import runs
from tests.configs import test_configs


@pytest.fixture(name='folder')
def folder_fixture(tmp_path):
  """Returns the work directory of a run of an earlier release."""
  return shutil.copytree(
    runs.ROOT / 'tests/data/earlier_release', tmp_path / 'run'
  )


def _set(folder, **values):
  """Changes keys of a run's config.json; `__` stands for a dot."""
  path = folder / 'config.json'
  config = json.loads(path.read_text())
  for key, value in values.items():
    *sections, last = key.split('__')
    section = config
    for name in sections:
      section = section[name]
    section[last] = value
  path.write_text(json.dumps(config))


@pytest.mark.parametrize('name', test_configs.CONFIGS)
def test_is_what_was_written(name, tmp_path):
  config = test_configs.CONFIGS[name]()
  with config.unlocked():
    config.env.options.sizes = [1, 2]
  directory = workdir.Workdir(tmp_path)
  directory.write_config(config)
  saved = saved_config.read(directory)
  assert saved.to_dict() == config.to_dict()
  assert saved.env.get_type('frame_skip') is int


def test_keeps_the_keys_of_the_users_own_agent(folder):
  _set(folder, agent='mine', loss={'sizes': [1, 2], 'deep': {'x': 0.5}})
  saved = saved_config.read(workdir.Workdir(folder))
  assert saved.loss.to_dict() == {'sizes': (1, 2), 'deep': {'x': 0.5}}
  _set(folder, env__num_envs=['x'])
  with pytest.raises(workdir.WorkdirError, match=r'config.json is damaged'):
    saved_config.read(workdir.Workdir(folder))


_LONGER = '--config.total_env_frames=800'


def test_resumes_with_its_own_values(folder):
  result = runs.call('train', f'--workdir={folder}', _LONGER)
  assert result.returncode == 0, result.stderr
  first = result.stdout.splitlines()[0]
  assert 'total_env_frames: 400 -> 800' in first
  # New keys are no changes of the user's.
  saved = saved_config.read(workdir.Workdir(folder))
  assert saved.network.lstm_size == 4 and saved.total_env_frames == 800


@pytest.mark.parametrize(
  ('values', 'flags', 'words'),
  [
    (
      {},
      ['--config={folder}/file.py'],
      r"--workdir: env.action_mask is '' in the run and 'auto' in the file; "
      r"network.categories is 'on' in the run and 'auto' in the file. Leave",
    ),
    (
      {
        'loss__discount': 0.5,
        'env__action_mask': 'auto',
        'network__categories': 'auto',
      },
      ['--config={folder}/file.py'],
      r'--config=.*/file.py differs from the run in --workdir: loss.discount '
      r'is 0.5 in the run and 0.99 in the file. Leave --config out .*'
      r'\(--config.loss.discount=0.99\)',
    ),
    (
      {'env__factory': 'a:b', 'log__writers': ['csv', 'c:d']},
      ['--config.seed=3'],
      r'asks for a:b, c:d, .*: seedrl train --workdir=\S+ '
      r'--config.seed=3 --config.total_env_frames=800 --allow_factory=a:b '
      r'--allow_factory=c:d$',
    ),
    (
      {'env__factory': 'nothing:b', 'log__writers': ['csv', 'c:d']},
      ['--config.env.factory=nothing:b', '--allow_factory=c:d'],
      'no module nothing',
    ),
    ({'agent': 7}, [], 'config.json is damaged'),
  ],
)
def test_refuses(folder, values, flags, words):
  _set(folder, **values)
  (folder / 'file.py').write_text(
    'from tests import runs\n'
    "def get_config(): return runs.tiny(env__id='CartPole-v1', "
    'network__lstm_size=4, replay__patience=60.0)\n'
  )
  flags = [flag.format(folder=folder) for flag in flags]
  refusal = runs.refusal('train', f'--workdir={folder}', *flags, _LONGER)
  assert re.search(words, refusal), refusal


def test_a_run_without_checkpoints_may_begin_anew(folder):
  shutil.rmtree(folder / 'checkpoints')
  _set(folder, agent='nothing', env__factory='a:b')
  # There is nothing to lose.
  flags = '--config=vtrace_cartpole', '--config.seed=2', '--only_check_args'
  assert runs.call('train', f'--workdir={folder}', *flags).returncode == 0
  sentence = runs.refusal('train', f'--workdir={folder}')
  assert '--allow_factory=nothing:make_agent' in sentence


def test_the_table_names_what_is_fixed():
  text = (runs.ROOT / 'docs/runs.md').read_text()
  rows = re.findall(r'^\| (`.*) \| fixed', text, re.M)
  names = {f'{name}.' for row in rows for name in re.findall('`(.*?)`', row)}
  fixed = {*saved_config._FIXED} - {'network.'} | {'network.*.'}
  free = {f'{name}.' for name in saved_config._FREE}
  assert names == fixed | free


def _config(**changes):
  config = base_config.get_config()
  config.update_from_flattened_dict(changes)
  return config


def test_changes_that_can_be_followed_are_told():
  new = _config(total_env_frames=5, **{'loss.discount': 0.5, 'seed': 2})
  # Both are new; the second only begins like a fixed key.
  new.env.options.difficulty = 3
  new.network_notes = 'x'
  assert saved_config.check_resumable(_config(), new) == [
    'env.options.difficulty: None -> 3',
    'loss.discount: 0.99 -> 0.5',
    'network_notes: None -> x',
    'seed: 1 -> 2',
    'total_env_frames: 2000000 -> 5',
  ]


def test_changes_that_the_parameters_cannot_follow_are_refused():
  changes = {
    'agent': 'r2d2',
    'env.id': 'x',
    'env.stack_num': 4,
    'network.hidden_sizes': (32,),
    'network.lstm_size': 8,
    'optimizer.rmsprop_momentum': 0.5,
  }
  with pytest.raises(workdir.WorkdirError, match='does not fit') as error:
    saved_config.check_resumable(_config(), _config(**changes, seed=2))
  message = str(error.value)
  assert 'env.id: CartPole-v1 -> x; env.stack_num: None -> 4; net' in message
  assert 'network.hidden_sizes: [64, 64] -> [32]; ' in message
  assert all(f'{key}: ' in message for key in changes)
  assert 'seed' not in message


def test_name_of_what_a_factory_makes_may_change():
  factory = {'env.factory': 'toys:make'}
  old = _config(**factory, **{'env.id': 'toys:make'})
  assert saved_config.check_resumable(old, _config(**factory)) == []
