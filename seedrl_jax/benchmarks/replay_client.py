"""Our client in the replay benchmark; `replay.py` runs it as a process."""

import concurrent.futures
from collections.abc import Sequence

import numpy as np

from seedrl_jax.benchmarks import replay_loop
from seedrl_jax.replay.reverb.client import (
  codec,
  connection,
  insert_stream,
  items,
  sample_stream,
  samples,
)
from seedrl_jax.runtime import memory, scheduling

_IN_FLIGHT = 32


class OurClient(replay_loop.Client):
  """Inserts and samples as the store does."""

  def __init__(self, address: str):
    """Prepares a connection to 'host:port'."""
    self._connection = connection.Connection(address)

  def insert(self, table: str, blocks: Sequence[replay_loop.Block]) -> None:
    """See `Client`."""
    stream = insert_stream.InsertStream(
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

  def sample(
    self, table: str, count: int, streams: int, like: replay_loop.Block
  ) -> None:
    """See `Client`."""
    stream = sample_stream.SampleStreams(self._connection, table, streams)
    outs = [
      [np.empty_like(array[np.newaxis]) for array in like]
      for _ in range(streams)
    ]
    stream.request(count)
    try:
      # As many threads decode as streams fetch.
      with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        work = [
          pool.submit(_decode, stream, out, count // streams) for out in outs
        ]
        for done in work:
          done.result()
    finally:
      stream.close()


def _decode(
  stream: sample_stream.SampleStreams, out: list[np.ndarray], count: int
) -> None:
  for _ in range(count):
    sample: samples.Sample = stream.get()
    for column, array in zip(sample.columns, out, strict=True):
      (piece,) = column.slices
      codec.decode_into(piece.tensor, array, piece.offset)


if __name__ == '__main__':
  # As every run does; else most of the time goes into page faults, and into
  # threads that take the cores from each other.
  memory.keep_freed()
  scheduling.configure()
  replay_loop.serve(OurClient)
