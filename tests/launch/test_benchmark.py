"""Tests of launch/benchmark.py on tiny cases."""

import pytest

from seedrl_jax.configs import benchmark
from seedrl_jax.run import layout
from tests import runs


@pytest.mark.parametrize('flag', ['--windows=1', '--envs=0'])
def test_a_wrong_flag_is_named(flag):
  result = runs.call('benchmark', 'system', flag)
  assert result.returncode != 0 and flag in result.stderr
  assert 'Traceback' not in result.stderr


def _lines(*arguments: str) -> list[str]:
  """Returns the printed lines."""
  done = runs.call('benchmark', *arguments, '--seconds=0.05')
  assert done.returncode == 0, done.stderr
  return done.stdout.splitlines()


def test_accelerator_names_what_there_is_no_time_for():
  lines = _lines('accelerator', '--small', '--minutes=0')
  late = [line for line in lines if 'not measured: out of time' in line]
  assert len(late) == len(benchmark.get_accelerator(small=True))
  assert lines[-1].startswith('| frames/s: R2D2 | 67,000 | - |')


@pytest.mark.parametrize('small', [False, True])
def test_accelerators_cases_are_runs(small):
  cases = benchmark.get_accelerator(small)
  for name, config in cases.items():
    layout.check(config)
    (group,) = {p.batch_size for p in layout.plan_streams(config, ('device',))}
    # As free environments need it.
    assert config.env.num_envs % group == 0, name


@pytest.mark.slow
@pytest.mark.usefixtures('server_python')
def test_a_case_is_measured_on_one_store_after_the_other():
  lines = _lines(
    *('system', '--case=cartpole32', '--envs=4', '--system_seconds=0.1'),
    *('--warm_up=0', '--backend=reverb', '--backend=embedded'),
  )
  titles = [line for line in lines if line.startswith('cartpole32')]
  assert titles == [
    f'cartpole32, 4 environments ({store} store)'
    for store in ('reverb', 'embedded')
  ]
