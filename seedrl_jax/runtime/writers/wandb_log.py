"""The writer 'wandb': a run of Weights & Biases for each work directory."""

import os
import pathlib
import secrets

import ml_collections
import wandb

from seedrl_jax.runtime import file_io, report
from seedrl_jax.runtime.writers import base

# Seconds for the server to answer; less than `metrics_log` waits.
_INIT_SECONDS = 15


def make(
  workdir: pathlib.Path, config: ml_collections.ConfigDict
) -> 'WandbLog':
  """Begins a run, or goes on with that of the work directory."""
  path = workdir / 'wandb_run'
  if not path.exists():
    file_io.write_whole(path, secrets.token_hex(4).encode())
  # Before `init`, which logs in.
  wandb.setup(wandb.Settings(silent=True))
  run = wandb.init(
    id=path.read_text(),
    resume='allow',
    dir=workdir,
    # Arguments come before the variables of these names.
    project=os.environ.get('WANDB_PROJECT', 'seedrl-jax'),
    name=os.environ.get('WANDB_NAME', workdir.name),
    config=config.to_dict(),
    settings=wandb.Settings(
      # Its capture would keep every state of the progress line.
      console='off',
      init_timeout=_INIT_SECONDS,
    ),
  )
  return WandbLog(run)


class WandbLog(base.Writer):
  """Logs to a run that drops no rows; frames are the step."""

  def __init__(self, run: wandb.Run):
    self._run = run
    mode = run.settings.mode
    place = run.url if mode == 'online' else f'{mode} run {run.id}'
    self.description = f'W&B: {place}; log {run.settings.log_internal}'

  def write(self, row: base.Row) -> None:
    """Logs a report unless the run has later ones, of a killed start."""
    step = int(row[report.FRAMES] or 0)
    if step >= self._run.step:
      self._run.log(base.known(row), step=step)

  def close(self) -> None:
    self._run.finish()
