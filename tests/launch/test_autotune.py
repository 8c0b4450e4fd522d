"""Tests of launch/autotune.py: its refusals, a search, a real target."""

import pytest

from tests import runs


def test_search_prints_what_it_measures():
  done = runs.call(
    'autotune',
    *('--config.env.id=Catch-v0', '--config.env.num_envs=4'),
    *('--config.batch_size=4', '--config.unroll_length=5'),
    *('--config.network.hidden_sizes=(8,)', '--config.env.compiled=off'),
    '--minutes=0',
  )
  assert done.returncode == 0, done.stderr
  first, *others = done.stdout.splitlines()
  assert first.startswith('default: ')
  assert ' steps/s; of the time environments ' in first
  # There may be a note on stolen time, too.
  assert 'Nothing was tried.' in others


def test_learning_stays_as_it_is_unless_asked():
  printed = runs.call('autotune', '--help').stdout
  flag = printed[printed.index('--[no]alter_learning') :]
  assert flag[: flag.index("')")].endswith("(default: 'false")


@pytest.mark.slow
def test_plans_a_target_with_the_environments_of_this_machine():
  pytest.importorskip('libtpu')
  done = runs.call('autotune', '--target=v5e:2x2', '--cores=112')
  assert done.returncode == 0, done.stderr
  assert 'v5e:2x2 with 112 cores: environments bound at ' in done.stdout
  assert 'An estimate from bounds' in done.stdout
