"""Runs launch/learner.py or launch/actor.py without gRPC's own time-outs.

Otherwise gRPC drops a connection that a test cuts for long. Usage:
`python patient.py launch/actor.py --flags`.
"""

import runpy
import sys

from seedrl_jax.actors.actor_side import connection
from seedrl_jax.actors.learner_side import server

_HOUR_MS = 3_600_000

server._KEEPALIVE_MS = _HOUR_MS
connection._OPTIONS = tuple(
  (name, _HOUR_MS if name.startswith('grpc.keepalive') else value)
  for name, value in connection._OPTIONS
)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
