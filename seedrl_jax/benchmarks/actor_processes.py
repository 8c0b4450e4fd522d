"""Actors of a benchmark, as processes of their own.

Used by `actors` and `modes`, which would wait for ever for the steps of one
that is gone.
"""

import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType

GROUPS = 2
_ACTOR = pathlib.Path(__file__).parents[2] / 'launch/actor.py'


class ActorProcesses:
  """Starts actors, watches them, and ends them with its context."""

  def __init__(self, address: str, on_end: Callable[[], None] | None = None):
    """Starts none yet.

    Args:
      address: of their learner.
      on_end: called, in a thread of its own, where one ends before its time.
    """
    self._address = address
    self._on_end = on_end
    self._stopping = threading.Event()
    self._codes: list[int] = []
    self._watched: list[tuple[subprocess.Popen, threading.Thread]] = []

  def start(self, num_envs: int, *flags: str) -> None:
    """Starts an actor.

    Args:
      num_envs: its environments, in two groups.
      flags: more of launch/actor.py's.
    """
    process = subprocess.Popen(
      [
        *(sys.executable, _ACTOR, f'--learner={self._address}'),
        *('--patience=60', f'--groups={GROUPS}'),
        f'--envs_per_group={num_envs // GROUPS}',
        *flags,
      ],
      stdout=subprocess.DEVNULL,
    )
    name = f'watch-actor-{len(self._watched)}'
    thread = threading.Thread(
      target=self._watch, args=(process,), name=name, daemon=True
    )
    self._watched.append((process, thread))
    thread.start()

  def check(self) -> None:
    """Raises RuntimeError where an actor has failed."""
    failed = [code for code in self._codes if code]
    if failed:
      raise RuntimeError(
        f'An actor of the benchmark ended by itself (exit code {failed[0]}); '
        'what it said is above.'
      )

  def _watch(self, process: subprocess.Popen) -> None:
    code = process.wait()
    if self._stopping.is_set():
      return
    self._codes.append(code)
    if self._on_end is not None:
      self._on_end()

  def __enter__(self) -> 'ActorProcesses':
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self._stopping.set()
    for process, _ in self._watched:
      process.terminate()
    for _, thread in self._watched:
      thread.join()
