"""The writer 'mlflow': a run of MLflow for each work directory."""

import os
import pathlib
import time

import ml_collections
import mlflow
from mlflow import entities

from seedrl_jax.runtime import config_files, file_io, report
from seedrl_jax.runtime.writers import base

# That a call of MLflow takes.
_MOST_PARAMS = 100


def make(
  workdir: pathlib.Path, config: ml_collections.ConfigDict
) -> 'MlflowLog':
  """Begins a run, or goes on with that of the work directory."""
  path, client = workdir / 'mlflow_run', mlflow.MlflowClient()
  if not path.exists():
    file_io.write_whole(path, _begin(client, workdir.name, config).encode())
  return MlflowLog(client, path.read_text())


def _begin(
  client: mlflow.MlflowClient, name: str, config: ml_collections.ConfigDict
) -> str:
  experiment = mlflow.set_experiment(
    os.environ.get('MLFLOW_EXPERIMENT_NAME', 'seedrl-jax')
  )
  run = client.create_run(experiment.experiment_id, run_name=name)
  values = config_files.flat_config(config).items()
  params = [entities.Param(key, str(value)) for key, value in values]
  for i in range(0, len(params), _MOST_PARAMS):
    client.log_batch(run.info.run_id, params=params[i : i + _MOST_PARAMS])
  return run.info.run_id


class MlflowLog(base.Writer):
  """Logs to a run that drops no rows; frames are the step."""

  def __init__(self, client: mlflow.MlflowClient, run_id: str):
    self._client, self._run_id = client, run_id
    client.update_run(run_id, status='RUNNING')
    logged = client.get_run(run_id).data.metrics
    self._last = logged.get(report.FRAMES, -1)

  def write(self, row: base.Row) -> None:
    """Logs a report unless the run has later ones, of a killed start."""
    step, now = int(row[report.FRAMES] or 0), int(1000 * time.time())
    if step > self._last:
      metrics = [
        entities.Metric(name, value, now, step)
        for name, value in base.known(row).items()
      ]
      self._client.log_batch(self._run_id, metrics=metrics)

  def close(self) -> None:
    self._client.set_terminated(self._run_id)
