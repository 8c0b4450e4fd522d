"""Tests for seedrl_jax/runtime/writers/mlflow_log.py, with a local database."""

from seedrl_jax.configs import base as base_config
from seedrl_jax.runtime.writers import metrics_log
from tests.runtime.writers import rows


def test_starts_are_one_run_whose_step_is_frames(tmp_path, monkeypatch):
  monkeypatch.setenv('MLFLOW_TRACKING_URI', f'sqlite:///{tmp_path}/mlflow.db')
  monkeypatch.setenv('MLFLOW_DISABLE_TELEMETRY', 'true')
  monkeypatch.setenv('MLFLOW_EXPERIMENT_NAME', 'mine')
  rows.wait_long(monkeypatch)
  import mlflow  # It reads the environment.

  makes = metrics_log.load(['mlflow'])
  config = base_config.get_config()
  messages = []
  for start in (0, 1):
    log = metrics_log.MetricsLog(makes, tmp_path, config, messages.append)
    log.roll_back(start, 100 * start)
    for i in (1, 2):
      log.write(rows.row(start + i, x=(start + i) / 4, y=None))
    log.close()
  assert not messages
  client = mlflow.MlflowClient()
  experiment = client.get_experiment_by_name('mine')
  (run,) = client.search_runs([experiment.experiment_id])
  assert run.info.run_id == (tmp_path / 'mlflow_run').read_text()
  assert (run.info.status, run.info.run_name) == ('FINISHED', tmp_path.name)
  assert run.data.params['env.id'] == 'CartPole-v1'
  history = client.get_metric_history(run.info.run_id, 'x')
  points = [(point.step, point.value) for point in history]
  assert points == [(100, 0.25), (200, 0.5), (300, 0.75)]
