"""What both clients of the replay benchmark do: read commands, move blocks.

Used by `replay_client.py` in our environment and by `replay_official.py` in
the server's; hence nothing but NumPy and the standard library here.
"""

import abc
import json
import pathlib
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Block = Sequence[np.ndarray]

# What is timed: the table that is written and the one that is sampled. 'kept'
# and 'dropping' let their oldest go when full and are sampled at random; what
# goes into 'queue' comes out once, so there each block passes both ways.
MODES = {
  'fill': ('kept', ''),
  'insert': ('dropping', ''),
  'sample': ('', 'kept'),
  'both': ('queue', 'queue'),
}


class Client(abc.ABC):
  """One way to talk to Reverb."""

  @abc.abstractmethod
  def insert(self, table: str, blocks: Sequence[Block]) -> None:
    """Inserts each block as one item; returns when all have arrived."""

  @abc.abstractmethod
  def sample(self, table: str, count: int, streams: int, like: Block) -> None:
    """Draws `count` items over several streams and decodes each wholly."""


def serve(make_client: Callable[[str], Client]) -> None:
  """Answers the commands on standard input until it ends.

  Args:
    make_client: of the server's address, which is the program's argument.
  """
  client = make_client(sys.argv[1])
  data: dict[str, list[Block]] = {}
  for line in sys.stdin:
    command = json.loads(line)
    path = command.pop('data')
    if path not in data:
      data[path] = load(path)
    print(json.dumps(run(client, data[path], **command)), flush=True)


def load(path: str) -> list[Block]:
  """Returns the blocks in a file of arrays, `[block, ...]` each."""
  with np.load(path) as file:
    columns = [file[name] for name in sorted(file.files)]
  return [list(block) for block in zip(*columns, strict=True)]


def run(
  client: Client, blocks: Sequence[Block], mode: str, streams: int, count: int
) -> dict[str, Any]:
  """Moves `count` blocks; returns seconds, CPU seconds, and memory in bytes.

  Args:
    client: that does it.
    blocks: written in turn.
    mode: a key of `MODES`.
    streams: writers, and as many streams that fetch samples.
    count: a multiple of `streams`.
  """
  ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

  def guard(work: Callable[[], None]) -> None:
    try:
      work()
      ends.put(None)
    except BaseException as e:
      ends.put(e)

  share = [blocks[i % len(blocks)] for i in range(count // streams)]
  works: list[Callable[[], None]] = []
  written, sampled = MODES[mode]
  if written:
    works += [lambda: client.insert(written, share)] * streams
  if sampled:
    works.append(lambda: client.sample(sampled, count, streams, blocks[0]))
  memory = _memory('VmRSS')
  cpu, start = time.process_time(), time.perf_counter()
  for work in works:
    threading.Thread(target=guard, args=(work,), daemon=True).start()
  for _ in works:
    # Where one fails the others may wait for ever.
    if (error := ends.get()) is not None:
      raise error
  elapsed = time.perf_counter() - start
  return {
    'seconds': elapsed,
    'cpu_seconds': time.process_time() - cpu,
    'memory_before': memory,
    'memory_peak': _memory('VmHWM'),
  }


def _memory(field: str) -> int:
  """Returns bytes of this process's memory that are or were resident."""
  status = pathlib.Path('/proc/self/status').read_text()
  match = re.search(rf'{field}:\s+(\d+) kB', status)
  return int(match[1]) * 1024 if match else 0
