"""Tests for run/reporting.py: the hosts' figures, and who waits."""

from seedrl_jax.run import layout as layout_lib
from tests import runs


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
  reporter.collect_episodes()
  assert reporter.summary('finished').mean_return_100 == 3.0
  assert reporter.record().env_steps == 399 and not counters.is_finished()
  assert counters.hear([own, {**own, 'env_steps': 400}]) == 1
  assert counters.is_finished()
  run.train()


def test_the_returns_of_a_solved_run_stay_at_the_target(tmp_path):
  run = runs.Run(runs.tiny(target_return=3.0), tmp_path)
  reporter, counters = run.system._reporter, run.system._counters
  counters.host = layout_lib.HostIndex(0, 2)
  own = counters.tell()
  for returns in ([3.0] * 100, [0.0] * 100):
    episodes = [(total, 5) for total in returns]
    counters.hear([own, {**own, 'env_steps': 0, 'episodes': episodes}])
    reporter.collect_episodes()
    assert counters.is_finished()
    assert reporter.summary('finished').mean_return_100 == 3.0
  run.train()


def test_a_row_counts_no_update_whose_unrolls_it_lacks(tmp_path, monkeypatch):
  run = runs.Run(runs.tiny(), tmp_path)
  parts, reporter = run.system.parts, run.system._reporter
  reporter.open()
  counters, read = parts.learner.counters, parts.store.info

  def train_while_reading():
    info = read()
    counters.updates += 1
    return info

  with monkeypatch.context() as patch:
    patch.setattr(parts.store, 'info', train_while_reading)
    reporter.write()
  reporter.close()
  assert runs.column(tmp_path, 'time/updates') == [0]
  counters.updates = 0
  run.train()
