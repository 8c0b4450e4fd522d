"""Tests for run/reporting.py: the hosts' figures, and who waits."""

from seedrl_jax.learner import placement as placement_lib
from tests import runs


def test_a_run_of_several_hosts_counts_the_others_steps_and_episodes(tmp_path):
  run = runs.Run(runs.tiny(), tmp_path)
  reporter, counters = run.system.reporter, run.system._counters
  counters.placement = placement_lib.Placement(1, 2)
  assert counters.local()['episodes'] == []
  counters.placement = placement_lib.Placement(0, 2)
  local = counters.local()
  assert 'episodes' not in local
  other = {**local, 'env_steps': 399, 'episodes': [(2.0, 5, 0), (4.0, 7, 0)]}
  assert counters.merge([local, other]) == 399 / 400
  reporter.collect_episodes()
  assert reporter.summary('finished').mean_return_100 == 3.0
  assert reporter.record().env_steps == 399 and not counters.is_finished()
  assert counters.merge([local, {**local, 'env_steps': 400}]) == 1
  assert counters.is_finished()
  run.train()


def test_the_returns_of_a_solved_run_stay_at_the_target(tmp_path):
  run = runs.Run(runs.tiny(target_return=3.0), tmp_path)
  reporter, counters = run.system.reporter, run.system._counters
  counters.placement = placement_lib.Placement(0, 2)
  local = counters.local()
  for returns in ([3.0] * 100, [0.0] * 100):
    episodes = [(total, 5, 0) for total in returns]
    counters.merge([local, {**local, 'env_steps': 0, 'episodes': episodes}])
    reporter.collect_episodes()
    assert counters.is_finished()
    assert reporter.summary('finished').mean_return_100 == 3.0
  run.train()


def test_a_row_counts_no_update_whose_unrolls_it_lacks(tmp_path, monkeypatch):
  run = runs.Run(runs.tiny(), tmp_path)
  parts, reporter = run.system.parts, run.system.reporter
  reporter.open()
  counters, read = parts.learner.counters, parts.store.info

  def train_while_reading():
    info = read()
    counters.updates += 1
    return info

  with monkeypatch.context() as patch:
    patch.setattr(parts.store, 'info', train_while_reading)
    results = reporter.write()
  reporter.close()
  assert results.updates == 0 and counters.updates == 1
  assert runs.column(tmp_path, 'time/updates') == [0]
  counters.updates = 0
  run.train()


def test_warns_once_of_a_dead_network_and_keeps_its_first_report(
  tmp_path, monkeypatch
):
  def write(run, dead, value_std, count):
    metrics = {'health/dead_share': dead, 'health/value_std': value_std}
    learner, reporter = run.system.parts.learner, run.system.reporter
    with monkeypatch.context() as patch:
      patch.setattr(learner, 'metrics', lambda: metrics)
      reporter.open()
      for _ in range(count):
        reporter.write()
      reporter.close()

  run = runs.Run(runs.tiny(), tmp_path)
  write(run, 0.0, 2.0, 1)
  run.train()
  assert 'has died' not in run.output
  run = runs.Run(runs.tiny(total_env_frames=800), tmp_path)
  write(run, 0.75, 0.1, 20)
  assert run.output.count('The network has died: 75%') == 1
  assert runs.column(tmp_path, 'health/value_std_ratio')[-1] == 0.05
  run.train()
