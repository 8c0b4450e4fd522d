"""Trains with asynchronous workers: A3C, Hogwild! and GORILA.

`seedrl train_async --config=a3c_cartpole --workdir=…`. Takes all
flags of seedrl train. Each of `--config.asynchronous.workers` processes acts
and computes gradients; all train the same parameters. This process starts the
first one, which starts the others and the shards of a parameter server, all
with this program. Those that are killed are started again.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from seedrl_jax.launch import program, train
from seedrl_jax.runtime import process, workdir
from seedrl_jax.workers import children

if TYPE_CHECKING:
  from seedrl_jax.hosts import coordinator

flags.adopt_module_key_flags(train)


def _join() -> coordinator.Coordinator:
  from seedrl_jax.workers import coordinator as workers_lib

  config, info = train.CONFIG.value, children.parent_info()
  if info and info['replay_address']:
    config.replay.address = info['replay_address']
  folder = workdir.Workdir(train.WORKDIR.value)
  workers = workers_lib.AsynchronousWorkers(config, folder, info or None)
  os.sched_setaffinity(0, workers_lib.processors(workers.index))
  return workers


def _serve(argv: Sequence[str]) -> None:
  del argv
  with process.without_collection():
    process.configure()
    from seedrl_jax.workers import shard
  try:
    shard.main(train.CONFIG.value, children.parent_info() or {})
  except ValueError as e:
    sys.exit(f'{program.NAME}: {e}')


def _keep_running(argv: Sequence[str]) -> None:
  del argv
  patience = train.CONFIG.value.asynchronous.patience
  # The first worker rejects smaller values.
  sys.exit(children.keep_running(max(patience, 1.0)))


if __name__ == '__main__':
  if (parent_info := children.parent_info()) is None:
    train.start(_keep_running)
  elif 'shard' in parent_info:
    train.start(_serve)
  else:
    train.start(functools.partial(train.main, join=_join))
