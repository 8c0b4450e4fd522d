"""The official client in the replay benchmark.

`replay.py` runs it by the server environment's Python, where nothing of ours
is installed; its folder is on the path there, so `replay_loop` is found.
"""

from collections.abc import Sequence

import replay_loop
import reverb
import tensorflow as tf

_IN_FLIGHT = 32


class OfficialClient(replay_loop.Client):
  """Writes with TrajectoryWriter, samples with TrajectoryDataset."""

  def __init__(self, address: str):
    """Connects to 'host:port'."""
    self._address = address
    self._client = reverb.Client(address)

  def insert(self, table: str, blocks: Sequence[replay_loop.Block]) -> None:
    """See `Client`."""
    # A block is one step: fewer calls, no stacking of rows.
    with self._client.trajectory_writer(num_keep_alive_refs=1) as writer:
      for block in blocks:
        writer.append(list(block))
        columns = [column[-1:] for column in writer.history]
        writer.create_item(table, 1.0, columns)
        writer.flush(_IN_FLIGHT)
      writer.flush()

  def sample(
    self, table: str, count: int, streams: int, like: replay_loop.Block
  ) -> None:
    """See `Client`."""
    dataset = reverb.TrajectoryDataset(
      server_address=self._address,
      table=table,
      # Tuples: TensorFlow takes a list for one tensor.
      dtypes=tuple(array.dtype for array in like),
      shapes=tuple(tf.TensorShape((1, *array.shape)) for array in like),
      max_in_flight_samples_per_worker=_IN_FLIGHT,
      num_workers_per_iterator=streams,
      max_samples=count,
    )
    drawn = sum(1 for _ in dataset)
    if drawn != count:
      raise RuntimeError(f'{drawn} samples came instead of {count}.')


if __name__ == '__main__':
  replay_loop.serve(OfficialClient)
