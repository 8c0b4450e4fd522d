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


def test_a_run_of_several_hosts_counts_the_others_steps_and_episodes(tmp_path):
  run = runs.Run(runs.tiny(), tmp_path)
  reporter, counters = run.system._reporter, run.system._counters
  counters.host = layout_lib.HostIndex(1, 2)
  assert counters.tell()['episodes'] == []
  counters.host = layout_lib.HostIndex(0, 2)
  own = counters.tell()
  assert 'episodes' not in own
  other = {**own, 'env_steps': 399, 'episodes': [(2.0, 5), (4.0, 7)]}
  assert counters.hear([own, other]) == 399 / 400
  reporter._collect_episodes()
  assert reporter.summary('finished')['mean_return_100'] == 3.0
  assert reporter.record().env_steps == 399 and not counters.is_finished()
  assert counters.hear([own, {**own, 'env_steps': 400}]) == 1
  assert counters.is_finished()
  run.train()
