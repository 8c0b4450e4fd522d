"""Runs a Reverb server for several machines, until a signal stops it.

  seedrl reverb_server --config=configs/….py --port=8000

A run uses it by --config.replay.address=<machine>:8000. `--check` tests whether
a server can run here.
"""

import sys
import time
from typing import Any

from absl import flags, logging

from seedrl_jax.configs import base as base_config
from seedrl_jax.demonstrations import mixing
from seedrl_jax.launch import config_flag, program
from seedrl_jax.replay import base as replay
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import server_rules
from seedrl_jax.replay.reverb.server import environment, server
from seedrl_jax.runtime import process, settings

_CONFIG = config_flag.define(
  "The run's configuration; its replay section gives the table's rules."
)
_PORT = flags.DEFINE_integer(
  'port', 0, 'Port to listen on; 0: any that is free.', 0, 65535
)
_CHECKPOINT_DIR = flags.DEFINE_string(
  'checkpoint_dir',
  None,
  'Folder for checkpoints; the newest there is loaded first. Without it there '
  'are none that last.',
)
_PYTHON = flags.DEFINE_string(
  'reverb_python',
  None,
  'Python that has dm-reverb, or from 3.9 to 3.11 to make its environment '
  f'from; else {environment.VARIABLE}, else one that is found.',
)
_CHECK = flags.DEFINE_bool(
  'check',
  False,
  'Tell what there is, start a server for a moment, and exit with 0 if that '
  'worked. Makes the environment if it is missing.',
)


def _check() -> None:
  python = environment.ensure(_PYTHON.value)
  print(f"the server's Python: {python}", flush=True)
  start = time.monotonic()
  with server.ReverbServer(python, _rules()) as trial:
    trial.start()
  print(f'server: started and answered in {time.monotonic() - start:.1f} s')


def _start(running: server.ReverbServer) -> str:
  """Starts with the newest readable checkpoint, if any; returns which."""
  newest_first = [str(path) for path in running.checkpoints()]
  for path in newest_first:
    try:
      running.start(path)
      return f'from {path}'
    except replay.CheckpointError as e:
      if path == newest_first[-1]:
        raise
      logging.warning('%s', e)
  running.start()
  return 'empty'


def _rules() -> list[dict[str, Any]]:
  config = _CONFIG.value
  # Those of the agent mean nothing to a server.
  settings.check(config, base_config.ALLOWED, complete=False)
  # A queue's items are blocks of a whole batch; a run with narrower blocks
  # applies its own limit.
  width = config.batch_size
  return [
    server_rules.server_rules(table, width, width)
    for table in mixing.run_tables(config)
  ]


def _serve() -> None:
  rules = _rules()
  python = environment.ensure(_PYTHON.value)
  with server.ReverbServer(
    python, rules, _CHECKPOINT_DIR.value, _PORT.value
  ) as running:
    how = _start(running)
    process.say(
      f'reverb: serving at port {running.port}, {how}; use it by '
      f'--config.replay.address=<this host>:{running.port}'
    )
    running.wait_end()
    raise running.failure()


def main() -> None:
  """Serves or checks."""
  # Interrupts any wait; the server is closed on the way out.
  process.on_stop(lambda *_: sys.exit(0))
  if _CHECK.value:
    _check()
  else:
    _serve()


if __name__ == '__main__':
  program.start(
    main,
    config_flag.parse,
    (errors.ReverbError, environment.EnvironmentUnavailable, ValueError),
  )
