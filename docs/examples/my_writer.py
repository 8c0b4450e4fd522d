"""A writer of one's own: keeps a run's metrics in a SQLite database.

  seedrl train --workdir=runs/pong \
    --config.log.writers=csv,my_writer:make

in this folder gives `runs/pong/metrics.db`, for example to ask

  sqlite3 runs/pong/metrics.db 'SELECT max(value) FROM metrics
    WHERE name = "rollout/return"'
"""

import pathlib
import sqlite3

import ml_collections

from seedrl_jax.runtime.writers import base

_TABLE = (
  'CREATE TABLE IF NOT EXISTS metrics '
  '(updates INTEGER, frames INTEGER, name TEXT, value REAL)'
)


class SqliteWriter(base.Writer):
  """Keeps a line for each metric of each report."""

  def __init__(self, path: pathlib.Path):
    self._database = sqlite3.connect(path)
    self._database.execute(_TABLE)

  def roll_back(self, updates: int, frames: int) -> None:
    """Drops what the resumed run will do again."""
    with self._database:
      self._database.execute(
        'DELETE FROM metrics WHERE updates > ? OR frames > ?', (updates, frames)
      )

  def write(self, row: base.Row) -> None:
    """Keeps a report; None stands for what is not known yet."""
    moment = row['time/updates'], row['time/env_frames']
    lines = [(*moment, name, value) for name, value in base.known(row).items()]
    with self._database:
      self._database.executemany(
        'INSERT INTO metrics VALUES (?, ?, ?, ?)', lines
      )

  def close(self) -> None:
    self._database.close()


def make(
  workdir: pathlib.Path, config: ml_collections.ConfigDict
) -> SqliteWriter:
  """Opens the database of a run; `config` is all of its configuration."""
  del config
  return SqliteWriter(workdir / 'metrics.db')
