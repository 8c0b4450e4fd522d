"""Tests for run/reporting.py: the hosts' figures, and who waits."""

import contextlib

from seedrl_jax.run import layout as layout_lib
from tests import runs


def test_a_host_without_environments_says_once_how_to_start_an_actor(tmp_path):
  run = runs.Run(
    runs.tiny(env__num_envs=0, actors__max_envs=8, num_eval_envs=0), tmp_path
  )
  with contextlib.closing(run.system.parts):
    for _ in range(2):
      run.system._reporter.write()
  assert run.output.count('This host waits for actors; start one with') == 1


def test_a_run_of_several_hosts_has_the_others_figures(tmp_path):
  """Host 0 adds up; the other hosts send their episodes."""
  run = runs.Run(runs.tiny(), tmp_path)
  reporter, counters = run.system._reporter, run.system._counters
  counters.host = layout_lib.HostIndex(0, 2)
  own = counters.tell()
  assert 'episodes' not in own
  other = {**own, 'env_steps': 399, 'episodes': [(2.0, 5), (4.0, 7)]}
  assert counters.hear([own, other]) == 399 / 400
  assert reporter.record().env_steps == 399
  assert counters.hear([own, {**other, 'env_steps': 400, 'episodes': []}]) == 1
  reporter._collect_episodes()
  assert reporter.summary('finished')['mean_return_100'] == 3.0
  curves = {'replay/size_unrolls': 7.0, 'replay/samples_per_insert': 3.0}
  counters.hear([own, {**other, 'lag_max': 9, 'curves': curves}])
  # Later votes do not always have them.
  counters.hear([own, {**other, 'env_steps': 400}])
  assert counters.take_lag_max() == 9
  total = counters.curves(run.system.parts.store.info())
  assert total['replay/size_unrolls'] == 7.0
  ratio = run.system.parts.store.info()['unrolls'].samples_per_insert
  assert total['replay/samples_per_insert'] == (3.0 + ratio) / 2
  assert counters.is_finished()
  run.train()
