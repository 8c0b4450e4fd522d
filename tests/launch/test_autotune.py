"""Tests of launch/autotune.py: its search and its flags."""

from tests import runs


def test_search_prints_what_it_measures():
  done = runs.call(
    'autotune',
    *('--config.env.id=Catch-v0', '--config.env.num_envs=4'),
    *('--config.batch_size=4', '--config.unroll_length=5'),
    *('--config.network.hidden_sizes=(8,)', '--minutes=0'),
  )
  assert done.returncode == 0, done.stderr
  first, *others = done.stdout.splitlines()
  assert first.startswith('default: ')
  assert ' steps/s; of the time environments ' in first
  # There may be a note on stolen time, too.
  assert 'Nothing was tried.' in others
