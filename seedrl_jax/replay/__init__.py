"""The trajectory store: tables of unrolls between inference and learner.

`base.py` is the seam, `factory.py` makes a store from a configuration, and
`embedded/` is the backend in this process. Imports neither JAX nor
TensorFlow.
"""

from seedrl_jax.replay.base import (
  Block,
  CheckpointError,
  RateLimited,
  Sample,
  StoreClosed,
  TableConfig,
  TableInfo,
  TrajectorySampler,
  TrajectoryStore,
  TrajectoryWriter,
)
from seedrl_jax.replay.embedded.store import EmbeddedStore
from seedrl_jax.replay.factory import make_store
from seedrl_jax.replay.table_configs import TABLE

__all__ = [
  'TABLE',
  'Block',
  'CheckpointError',
  'EmbeddedStore',
  'RateLimited',
  'Sample',
  'StoreClosed',
  'TableConfig',
  'TableInfo',
  'TrajectorySampler',
  'TrajectoryStore',
  'TrajectoryWriter',
  'make_store',
]
