"""Client programs of the replay benchmark, driven through standard input.

  python replay_clients.py ours|official host:port

The official client's environment lacks this package, so only functions import
more than NumPy and the standard library.
"""

import concurrent.futures
import functools
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Block = Sequence[np.ndarray]

# Mode -> (written table, sampled table). 'kept' and 'dropping' are sampled
# uniformly and drop their oldest if full; 'queue' passes each block on once.
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
    from seedrl_jax.replay.reverb.client import connection
    from seedrl_jax.runtime import process

    # As every run does, to avoid page faults and contention between threads.
    process.keep_freed_memory()
    process.schedule_threads()
    self._connection = connection.Connection(address)

  def insert(self, table: str, blocks: Sequence[Block]) -> None:
    """Inserts each block as one item; returns once all have arrived."""
    from seedrl_jax.replay.reverb.client import insert_stream, items

    def encode(block: Block) -> items.Encoded:
      # One row, so that items equal the official client's.
      chunk = items.encode_chunk([array[np.newaxis] for array in block])
      columns = [
        items.ItemColumn([items.Slice(chunk, i, 0, 1)])
        for i in range(len(block))
      ]
      return items.Encoded([items.make_item(table, 1.0, columns)])

    stream = insert_stream.InsertStream(self._connection, table, _IN_FLIGHT)
    try:
      for block in blocks:
        stream.insert(functools.partial(encode, block))
      stream.flush()
    finally:
      stream.close()

  def sample(self, table: str, count: int, streams: int, like: Block) -> None:
    """Draws `count` items over several streams and decodes each fully."""
    from seedrl_jax.replay.reverb.client import codec, sampler

    stream = sampler.SampleStreams(self._connection, table, streams)
    each = count // streams
    ahead = min(_IN_FLIGHT, each)

    def decode() -> None:
      out = [np.empty_like(array[np.newaxis]) for array in like]
      stream.request(ahead)
      for i in range(each):
        (sample,) = stream.get()
        if i + ahead < each:
          stream.request(1)
        for column, array in zip(sample.columns, out, strict=True):
          (piece,) = column.slices
          codec.decode_into(piece.tensor, array, piece.offset)

    try:
      with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        for done in [pool.submit(decode) for _ in range(streams)]:
          done.result()
    finally:
      stream.close()


class OfficialClient:
  """Writes with TrajectoryWriter, samples with TrajectoryDataset."""

  def __init__(self, address: str):
    import reverb
    import tensorflow as tf

    self._reverb, self._shape = reverb, tf.TensorShape
    self._address = address
    self._client = reverb.Client(address)

  def insert(self, table: str, blocks: Sequence[Block]) -> None:
    # A block is one step, which saves calls and stacking.
    with self._client.trajectory_writer(num_keep_alive_refs=1) as writer:
      for block in blocks:
        writer.append(list(block))
        columns = [column[-1:] for column in writer.history]
        writer.create_item(table, 1.0, columns)
        writer.flush(_IN_FLIGHT)
      writer.flush()

  def sample(self, table: str, count: int, streams: int, like: Block) -> None:
    dataset = self._reverb.TrajectoryDataset(
      server_address=self._address,
      table=table,
      # Tuples: TensorFlow would read a list as one tensor.
      dtypes=tuple(array.dtype for array in like),
      shapes=tuple(self._shape((1, *array.shape)) for array in like),
      max_in_flight_samples_per_worker=_IN_FLIGHT,
      num_workers_per_iterator=streams,
      max_samples=count,
    )
    num_samples = sum(1 for _ in dataset)
    if num_samples != count:
      raise RuntimeError(f'{num_samples} samples came instead of {count}.')


CLIENTS: dict[str, Any] = {'ours': OurClient, 'official': OfficialClient}


def serve(client: Any) -> None:
  """Runs the commands on standard input with one of `CLIENTS`."""
  data: dict[str, list[Block]] = {}
  for line in sys.stdin:
    command = json.loads(line)
    path = command.pop('data')
    if path not in data:
      data[path] = load(path)
    print(run(client, data[path], **command), flush=True)


def load(path: str) -> list[Block]:
  """Returns the blocks in a file of arrays `[block, ...]`."""
  with np.load(path) as file:
    columns = [file[name] for name in sorted(file.files)]
  # The server's Python may be 3.9, whose `zip` has no `strict`.
  return [list(block) for block in zip(*columns)]  # noqa: B905


def run(
  client: Any, blocks: Sequence[Block], mode: str, streams: int, count: int
) -> float:
  """Moves `count` blocks; returns the seconds that this took.

  Args:
    client: one of `CLIENTS`.
    blocks: written in turn.
    mode: a key of `MODES`.
    streams: number of writers, and of sample streams; divides `count`.
  """
  share = [blocks[i % len(blocks)] for i in range(count // streams)]
  works: list[Callable[[], None]] = []
  written, sampled = MODES[mode]
  if written:
    works += [lambda: client.insert(written, share)] * streams
  if sampled:
    works.append(lambda: client.sample(sampled, count, streams, blocks[0]))
  start = time.perf_counter()
  _run_all(works)
  return time.perf_counter() - start


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
    # The others may wait forever for the failed one.
    if (error := ends.get()) is not None:
      raise error


if __name__ == '__main__':
  serve(CLIENTS[sys.argv[1]](sys.argv[2]))
