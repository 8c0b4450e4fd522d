"""Clients in the replay benchmark: programs that move blocks as they are told.

  python replay_clients.py ours|official host:port

The official client runs in the server's environment, where this package is not
installed: so nothing but NumPy and the standard library is imported above.
"""

import concurrent.futures
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

_IN_FLIGHT = 32


class OurClient:
  """Inserts and samples as the store does."""

  def __init__(self, address: str):
    """Prepares a connection to 'host:port'."""
    from seedrl_jax.replay.reverb.client import connection
    from seedrl_jax.runtime import process

    # As every run does; else most of the time goes into page faults, and into
    # threads that take the cores from each other.
    process.keep_freed_memory()
    process.schedule_threads()
    self._connection = connection.Connection(address)

  def insert(self, table: str, blocks: Sequence[Block]) -> None:
    """Inserts each block as one item; returns when all have arrived."""
    from seedrl_jax.replay.reverb.client import insert_lane, items

    stream = insert_lane.InsertStream(
      self._connection, table, max_items=_IN_FLIGHT
    )
    try:
      for block in blocks:
        # One row, as the official client has it: the items are the same.
        chunk = items.encode_chunk([array[np.newaxis] for array in block])
        columns = [
          items.Column([items.Slice(chunk, i, 0, 1)]) for i in range(len(block))
        ]
        stream.insert([items.make_item(table, 1.0, columns)])
      stream.flush()
    finally:
      stream.close()

  def sample(self, table: str, count: int, streams: int, like: Block) -> None:
    """Draws `count` items over several streams and decodes each wholly."""
    from seedrl_jax.replay.reverb.client import codec, sampler

    stream = sampler.SampleStreams(self._connection, table, streams)

    def decode() -> None:
      out = [np.empty_like(array[np.newaxis]) for array in like]
      for _ in range(count // streams):
        sample = stream.get()
        for column, array in zip(sample.columns, out, strict=True):
          (piece,) = column.slices
          codec.decode_into(piece.tensor, array, piece.offset)

    stream.request(count)
    try:
      # As many threads decode as streams fetch.
      with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        for done in [pool.submit(decode) for _ in range(streams)]:
          done.result()
    finally:
      stream.close()


class OfficialClient:
  """Writes with TrajectoryWriter, samples with TrajectoryDataset."""

  def __init__(self, address: str):
    """Connects to 'host:port'."""
    import reverb
    import tensorflow as tf

    self._reverb, self._shape = reverb, tf.TensorShape
    self._address = address
    self._client = reverb.Client(address)

  def insert(self, table: str, blocks: Sequence[Block]) -> None:
    """See `OurClient`."""
    # A block is one step: fewer calls, no stacking of rows.
    with self._client.trajectory_writer(num_keep_alive_refs=1) as writer:
      for block in blocks:
        writer.append(list(block))
        columns = [column[-1:] for column in writer.history]
        writer.create_item(table, 1.0, columns)
        writer.flush(_IN_FLIGHT)
      writer.flush()

  def sample(self, table: str, count: int, streams: int, like: Block) -> None:
    """See `OurClient`."""
    dataset = self._reverb.TrajectoryDataset(
      server_address=self._address,
      table=table,
      # Tuples: TensorFlow takes a list for one tensor.
      dtypes=tuple(array.dtype for array in like),
      shapes=tuple(self._shape((1, *array.shape)) for array in like),
      max_in_flight_samples_per_worker=_IN_FLIGHT,
      num_workers_per_iterator=streams,
      max_samples=count,
    )
    drawn = sum(1 for _ in dataset)
    if drawn != count:
      raise RuntimeError(f'{drawn} samples came instead of {count}.')


CLIENTS: dict[str, Any] = {'ours': OurClient, 'official': OfficialClient}


def serve(client: Any) -> None:
  """Has one of `CLIENTS` run the commands on standard input until it ends."""
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
  # Python 3.9, which Reverb may have, knows no `strict`.
  return [list(block) for block in zip(*columns)]  # noqa: B905


def run(
  client: Any, blocks: Sequence[Block], mode: str, streams: int, count: int
) -> dict[str, Any]:
  """Moves `count` blocks; returns seconds, CPU seconds, and memory in bytes.

  Args:
    client: one of `CLIENTS`.
    blocks: written in turn.
    mode: a key of `MODES`.
    streams: writers, and as many streams that fetch samples.
    count: a multiple of `streams`.
  """
  share = [blocks[i % len(blocks)] for i in range(count // streams)]
  works: list[Callable[[], None]] = []
  written, sampled = MODES[mode]
  if written:
    works += [lambda: client.insert(written, share)] * streams
  if sampled:
    works.append(lambda: client.sample(sampled, count, streams, blocks[0]))
  cpu, start = time.process_time(), time.perf_counter()
  _run_all(works)
  elapsed = time.perf_counter() - start
  return {
    'seconds': elapsed,
    'cpu_seconds': time.process_time() - cpu,
    'memory_peak': _peak_memory(),
  }


def _run_all(works: Sequence[Callable[[], None]]) -> None:
  """Runs functions in threads; raises the first failure at once."""
  ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

  def guard(work: Callable[[], None]) -> None:
    try:
      work()
      ends.put(None)
    except BaseException as e:
      ends.put(e)

  for work in works:
    threading.Thread(target=guard, args=(work,), daemon=True).start()
  for _ in works:
    # The others may wait for ever for the one that failed.
    if (error := ends.get()) is not None:
      raise error


def _peak_memory() -> int:
  """Returns the most bytes of this process that were resident."""
  status = pathlib.Path('/proc/self/status').read_text()
  match = re.search(r'VmHWM:\s+(\d+) kB', status)
  return int(match[1]) * 1024 if match else 0


if __name__ == '__main__':
  serve(CLIENTS[sys.argv[1]](sys.argv[2]))
