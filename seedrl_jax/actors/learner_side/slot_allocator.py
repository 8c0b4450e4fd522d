"""Whom a learner lets in, and what it tells them to begin with.

`server` asks for every stream of an actor.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grpc
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import handshake, parameters
from seedrl_jax.actors.learner_side import group_lease, remote_stream
from seedrl_jax.envs import base

_Code = grpc.StatusCode


class Refused(Exception):
  """A stream that must end, with gRPC's code; the text is for its actor."""

  def __init__(self, code: grpc.StatusCode, text: str):
    super().__init__(text)
    self.code = code


class LocalOffer(NamedTuple):
  """What a learner has for actors that act themselves.

  Attributes:
    config, num_train_envs, num_eval_envs, block_width, parameters: as
      `handshake.LocalRun` has them.
    global_env_id: of each stream, int32 `[N]`, run-wide ids of its slots.
    feed: of the learner's parameters.
    replay_address: tells where the Reverb server is at the moment.
  """

  config: dict[str, Any]
  num_train_envs: int
  num_eval_envs: int
  block_width: int
  parameters: dict[str, types.ArraySpec]
  global_env_id: Sequence[np.ndarray]
  feed: parameters.Feed
  replay_address: Callable[[], str]


class Place(NamedTuple):
  """Where a group of environments is let in.

  Attributes:
    stream: that has its slots.
    run: its stay there; the caller ends it with `stream.leave`.
    welcome: what its actor is told.
  """

  stream: remote_stream.RemoteStream
  run: group_lease.Run
  welcome: handshake.Welcome


class Admission:
  """Gives groups of environments their places."""

  def __init__(
    self,
    spec: base.StreamSpec,
    env_values: dict[str, Any],
    streams: Sequence[remote_stream.RemoteStream],
    seed: Sequence[int],
    local: LocalOffer | None,
  ):
    """Prepares to let actors in.

    Args:
      spec: what one environment looks like.
      env_values: as `handshake.env_values` gives them.
      streams: take the environments; the emptiest first.
      seed: numbers that no other start of any run shares.
      local: None: nobody can act itself here.

    Raises:
      ValueError: where an option cannot be sent.
    """
    self._spec = spec
    self._env_values = env_values
    self._streams = tuple(streams)
    self._seeds = np.random.default_rng(list(seed))
    self._local = local
    blank = np.arange(1)
    told = self._local_run(0, blank) if local is not None else None
    handshake.pack_welcome(self._welcome(blank, told))

  def admit(self, hello: handshake.Hello) -> Place:
    """Finds a place for a group.

    Raises:
      Refused: where there is none, or never can be.
    """
    acts_itself = hello.inference == handshake.LOCAL
    if acts_itself and self._local is None:
      raise Refused(
        _Code.FAILED_PRECONDITION,
        '--inference=local: this learner keeps its unrolls in its own process, '
        'where no actor can put any; start it with '
        '--config.actors.local_inference=True, or the actor with '
        '--inference=central.',
      )
    index, run = self._join(hello.num_envs, acts_itself)
    local = self._local_run(index, run.env_id) if acts_itself else None
    return Place(self._streams[index], run, self._welcome(run.env_id, local))

  def _join(
    self, num_envs: int, acts_itself: bool
  ) -> tuple[int, group_lease.Run]:
    """Returns the number of the stream that takes a group, and its run."""
    # Those that act themselves do so in batches of their own.
    sizes = [s.num_envs if acts_itself else s.batch_size for s in self._streams]
    flag = 'max_envs' if acts_itself else 'batch_size'
    if num_envs > max(sizes):
      raise Refused(
        _Code.FAILED_PRECONDITION,
        f'A group of {num_envs} environments is too large: '
        f'--config.actors.{flag} allows {max(sizes)}.',
      )
    emptiest = sorted(
      range(len(sizes)), key=lambda i: -self._streams[i].num_free
    )
    for index in emptiest:
      if num_envs <= sizes[index]:
        run = self._streams[index].join(num_envs, acts_itself)
        if run is not None:
          return index, run
    raise Refused(
      _Code.RESOURCE_EXHAUSTED,
      f'There is no room for {num_envs} more environments: '
      '--config.actors.max_envs are there.',
    )

  def _local_run(self, index: int, env_id: np.ndarray) -> handshake.LocalRun:
    offer = self._local
    assert offer is not None
    return handshake.LocalRun(
      config=offer.config,
      global_env_id=offer.global_env_id[index][env_id],
      num_train_envs=offer.num_train_envs,
      num_eval_envs=offer.num_eval_envs,
      block_width=offer.block_width,
      replay_address=offer.replay_address(),
      parameters=offer.parameters,
    )

  def _welcome(
    self, env_id: np.ndarray, local: handshake.LocalRun | None
  ) -> handshake.Welcome:
    return handshake.Welcome(
      run_id=uuid.uuid4().hex,
      env_id=env_id,
      seed=int(self._seeds.integers(1 << 31)),
      env=self._env_values,
      spec=self._spec,
      local=local,
    )
