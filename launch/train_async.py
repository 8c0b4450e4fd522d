"""Trains with workers of their own: A3C, Hogwild! and GORILA.

`python launch/train_async.py --config=a3c_cartpole --workdir=…`. Takes all
flags of launch/train.py. Each of `--config.asynchronous.workers` processes acts
and computes gradients; all train the same parameters.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from absl import flags

from seedrl_jax.launch import train
from seedrl_jax.runtime import workdir

if TYPE_CHECKING:
  from seedrl_jax.distributed import coordinator

flags.adopt_module_key_flags(train)


def _join() -> coordinator.Coordinator:
  """Returns what coordinates this worker with the others."""
  from seedrl_jax.distributed.asynchronous import children, workers

  config = train.CONFIG.value
  # Acting and learning take turns on the worker's one processor; only Reverb
  # needs threads.
  config.deterministic = (
    config.replay.backend != 'reverb' and not config.replay.address
  )
  folder = workdir.Workdir(train.WORKDIR.value)
  joined = workers.AsynchronousWorkers(config, folder, children.told())
  os.sched_setaffinity(0, workers.processors(joined.index))
  return joined


if __name__ == '__main__':
  train.start(_join)
