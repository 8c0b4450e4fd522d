"""A Reverb server as a process of its own; `server.py` starts it.

Runs in the server's environment, with Reverb but without this package. Reads
one line of JSON from its standard input:

  port, fixed: where to listen; 0: any free port. If it is in use, another is
    taken unless it is fixed.
  tables: as `server_rules.server_rules` returns them; the remover is fifo.
  checkpoints: an empty folder to write checkpoints to.
  restore: a checkpoint to load under the rules of `tables`, or null.
  rewritten: folder to make for the rewritten `restore`.

Answers with a line {"port": ...} once it serves, or with
{"error": ..., "kind": "port" | "checkpoint" | "start"} and exit code 1. Ends
when its standard input is closed.
"""

import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
from typing import Any

# Libraries may print to standard output; send that to standard error.
_ANSWERS = os.dup(1)
os.dup2(2, 1)

# Skip a third of the start: garbage collection during TensorFlow's import, and
# setuptools' replacement of distutils.
gc.disable()
# Not all setuptools have it.
with contextlib.suppress(ImportError, AttributeError):
  import _distutils_hack

  _distutils_hack.remove_shim()


def _die_with_owner() -> None:
  """Has the kernel end this process when its standard input closes.

  A reading thread would not do, as Reverb holds the interpreter lock while it
  loads a checkpoint; nor PR_SET_PDEATHSIG, which follows the owner's thread.
  """
  for number in (signal.SIGIO, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO, signal.SIGTERM})
  fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
  flags = fcntl.fcntl(0, fcntl.F_GETFL)
  fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_ASYNC)
  # The input may have closed just before.
  if select.select([0], [], [], 0)[0]:
    os._exit(0)


def _answer(**values: object) -> None:
  os.write(_ANSWERS, json.dumps(values).encode() + b'\n')


def _fail(kind: str, error: object) -> None:
  _answer(kind=kind, error=str(error))
  # An ordinary exit waits for Reverb's threads.
  os._exit(1)


def _claim_port(port: int, fixed: bool) -> int:
  """Returns `port` if it is free, else another unless it is `fixed`.

  Reverb lets two servers share a port, and clients would reach either.
  """
  try:
    with socket.socket() as probe:
      # Ignores lingering connections, but not a listener.
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      probe.bind(('', port))
      probe.listen()
      return probe.getsockname()[1]
  except OSError as e:
    if fixed:
      _fail('port', e.strerror)
    return _claim_port(0, fixed=True)


def _table(rules: dict) -> Any:
  import reverb

  selectors = reverb.item_selectors
  samplers = {
    'fifo': selectors.Fifo,
    'uniform': selectors.Uniform,
    'prioritized': lambda: selectors.Prioritized(rules['priority_exponent']),
  }
  limits = 'samples_per_insert', 'min_size_to_sample', 'min_diff', 'max_diff'
  return reverb.Table(
    name=rules['name'],
    sampler=samplers[rules['sampler']](),
    remover=selectors.Fifo(),
    max_size=rules['max_size'],
    max_times_sampled=rules['max_times_sampled'],
    rate_limiter=reverb.rate_limiters.RateLimiter(**{
      name: rules[name] for name in limits
    }),
  )


def _serve(config: dict) -> Any:
  import reverb

  rewritten = None
  if config['restore'] is not None:
    # An isolated interpreter does not search the script's folder.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import checkpoint_rewriting

    rewritten = config['rewritten']
    checkpoint_rewriting.rewrite(config['restore'], config['tables'], rewritten)
  checkpointer = reverb.checkpointers.DefaultCheckpointer(
    config['checkpoints'], fallback_checkpoint_path=rewritten
  )
  tables = [_table(rules) for rules in config['tables']]
  port = _claim_port(config['port'], config['fixed'])
  return reverb.Server(tables, port=port, checkpointer=checkpointer)


def main() -> None:
  """Serves until the owner ends or stops it."""
  # Unbuffered, to read no further than the line.
  with open(0, 'rb', buffering=0, closefd=False) as source:
    config = json.loads(source.readline())
  _die_with_owner()
  # The owner may have confined itself.
  os.sched_setaffinity(0, config['processors'])
  try:
    server = _serve(config)
  except Exception as e:
    _fail(getattr(e, 'kind', 'start'), e)
  _answer(port=server.port)
  server.wait()


if __name__ == '__main__':
  main()
