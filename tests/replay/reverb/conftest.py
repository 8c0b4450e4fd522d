"""Real Reverb servers for tests, and a minimal client.

The server's environment is made once, in the user's cache folder, or is that
of the interpreter SEEDRL_REVERB_PYTHON.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import pytest

from seedrl_jax.replay.reverb.proto import reverb_pb2
from seedrl_jax.replay.reverb.server import server
from tests.patience import PATIENCE

_SERVICE = '/deepmind.reverb.ReverbService/'


def rules(name: str = 't', **overrides: Any) -> dict[str, Any]:
  return {
    'name': name,
    'sampler': 'uniform',
    'priority_exponent': 0.0,
    'max_size': 100,
    'max_times_sampled': 0,
    'samples_per_insert': 1.0,
    'min_size_to_sample': 1,
    'min_diff': -sys.float_info.max,
    'max_diff': sys.float_info.max,
    **overrides,
  }


class PlainClient:
  """Sends single requests; shares no code with what is tested."""

  def __init__(self, address: str):
    self._channel = grpc.insecure_channel(address)

  def close(self) -> None:
    self._channel.close()

  def insert(
    self, keys: Sequence[int], table: str = 't', timeout: float = PATIENCE
  ) -> list[int]:
    """Inserts items of one number; returns the acknowledged keys."""
    data = reverb_pb2.ChunkData.Data(
      tensors=[
        reverb_pb2.Tensor(
          dtype=4,
          tensor_shape={'dim': [{'size': 1}]},
          tensor_content=b'\x01\x00\x07',
        )
      ]
    )
    requests = [
      reverb_pb2.InsertStreamRequest(
        chunks=[
          reverb_pb2.ChunkData(
            chunk_key=key,
            sequence_range={'episode_id': key},
            data=data,
            data_tensors_len=1,
            data_uncompressed_size=1,
          )
        ],
        items=[
          reverb_pb2.PrioritizedItem(
            key=key,
            table=table,
            priority=1.0,
            flat_trajectory={
              'columns': [{'chunk_slices': [{'chunk_key': key, 'length': 1}]}]
            },
          )
        ],
      )
      for key in keys
    ]
    call = self._channel.stream_stream(
      _SERVICE + 'InsertStream',
      reverb_pb2.InsertStreamRequest.SerializeToString,
      reverb_pb2.InsertStreamResponse.FromString,
    )
    acknowledged: list[int] = []
    done = threading.Event()

    def stay_open() -> Iterator[reverb_pb2.InsertStreamRequest]:
      yield from requests
      # The server owes no acknowledgements after this side has closed.
      done.wait(PATIENCE)

    try:
      for response in call(stay_open(), timeout=timeout):
        acknowledged += response.keys
        if len(acknowledged) == len(requests):
          done.set()
    except grpc.RpcError as e:
      if e.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
        raise
    finally:
      done.set()
    # They come in any order.
    return sorted(acknowledged)

  def sample(self, n: int, table: str = 't', wait_ms: int = 100) -> list[int]:
    """Returns the keys of up to n samples; a `wait_ms` of 0 waits for ever."""
    request = reverb_pb2.SampleStreamRequest(
      table=table,
      num_samples=1,
      rate_limiter_timeout={'milliseconds': wait_ms},
    )
    call = self._channel.stream_stream(
      _SERVICE + 'SampleStream',
      reverb_pb2.SampleStreamRequest.SerializeToString,
      reverb_pb2.SampleStreamResponse.FromString,
    )
    keys: list[int] = []
    try:
      for response in call(iter([request] * n)):
        keys += [
          entry.info.item.key
          for entry in response.entries
          if entry.HasField('info')
        ]
    except grpc.RpcError as e:
      if e.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
        raise
    return keys

  def info(self, table: str = 't') -> reverb_pb2.TableInfo:
    call = self._channel.unary_unary(
      _SERVICE + 'ServerInfo',
      None,
      reverb_pb2.ServerInfoResponse.FromString,
    )
    tables = call(b'').table_info
    return next(info for info in tables if info.name == table)

  def checkpoint(self) -> str:
    """Makes the server write a checkpoint; returns its folder."""
    call = self._channel.unary_unary(
      _SERVICE + 'Checkpoint',
      None,
      reverb_pb2.CheckpointResponse.FromString,
    )
    return call(b'').checkpoint_path


@pytest.fixture(name='make_server')
def make_server_fixture(
  server_python: str,
) -> Iterator[Callable[..., server.ReverbServer]]:
  """Makes servers of tables `rules()`; closes them afterwards."""
  servers: list[server.ReverbServer] = []

  def make(
    *tables: dict[str, Any], start: bool = True, **options: Any
  ) -> server.ReverbServer:
    new_server = server.ReverbServer(
      options.pop('python', server_python), tables or [rules()], **options
    )
    servers.append(new_server)
    if start:
      new_server.start()
    return new_server

  yield make
  for new_server in servers:
    new_server.close()


@pytest.fixture(name='make_client')
def make_client_fixture() -> Iterator[Callable[[str], PlainClient]]:
  """Makes clients of an address; closes them afterwards."""
  clients: list[PlainClient] = []

  def make(address: str) -> PlainClient:
    clients.append(PlainClient(address))
    return clients[-1]

  yield make
  for client in clients:
    client.close()


@pytest.fixture(name='rules')
def rules_fixture() -> Callable[..., dict[str, Any]]:
  return rules
