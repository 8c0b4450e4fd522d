"""Trains on several hosts: `seedrl learner --coordinator=…`.

Takes all flags of seedrl train. Each host runs this with the same
configuration and `--coordinator=host:port --num_processes=N --process_id=I`;
TPU VMs need no such flags.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from absl import flags

from seedrl_jax.launch import train

if TYPE_CHECKING:
  from seedrl_jax.hosts import coordinator

flags.adopt_module_key_flags(train)

_COORDINATOR = flags.DEFINE_string(
  'coordinator',
  '',
  'Where several hosts train together: host 0, and a free port of it, as '
  'host:port.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes', None, 'How many hosts train together.', lower_bound=1
)
_PROCESS_ID = flags.DEFINE_integer(
  'process_id', None, 'Which of them this is: 0 to num_processes - 1.'
)
_JOIN_TIMEOUT = flags.DEFINE_float(
  'join_timeout',
  300.0,
  'Seconds in which all hosts must have started.',
  lower_bound=0.1,
)


def _join() -> coordinator.Coordinator:
  from seedrl_jax.hosts import joining

  return joining.join(
    _COORDINATOR.value,
    _NUM_PROCESSES.value,
    _PROCESS_ID.value,
    _JOIN_TIMEOUT.value,
  )


if __name__ == '__main__':
  train.start(functools.partial(train.main, join=_join))
