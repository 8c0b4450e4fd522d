"""Assigns slots to groups of environments and makes their WELCOME."""

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grpc
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import handshake, local_messages
from seedrl_jax.actors.learner_side import remote_stream

_Code = grpc.StatusCode
_log = logging.getLogger(__name__)


class StreamRefused(Exception):
  """A stream must end, with gRPC's code; the actor receives the text."""

  def __init__(self, code: grpc.StatusCode, text: str):
    super().__init__(text)
    self.code = code


class LocalOffer(NamedTuple):
  """What a learner has for actors that act themselves."""

  config: dict[str, Any]  # by `handshake.local_config`
  env_spec: types.EnvSpec
  global_env_id: Sequence[np.ndarray]  # of each stream, int32 `[N]`, run-wide
  block_width: int
  replay_address: Callable[[], str]  # returns Reverb's current address
  feed: local_messages.ParameterFeed


class SlotGrant(NamedTuple):
  """The slots of a group; the caller ends the lease with `stream.leave`."""

  stream: remote_stream.RemoteStream
  lease: remote_stream.GroupLease
  welcome: handshake.Welcome


class SlotAllocator:
  """Assigns slots to groups of environments."""

  def __init__(
    self,
    env_values: dict[str, Any],
    streams: Sequence[remote_stream.RemoteStream],
    seed: Sequence[int],
    local: LocalOffer | None = None,
  ):
    """Raises `ValueError` if an option of `env_values` cannot be sent.

    The emptiest of the streams, of equal environments, is filled first. No
    other start of any run shares `seed`. Without `local`, actors that act
    themselves are rejected.
    """
    self.streams = tuple(streams)
    self.spec = streams[0].spec
    self.local = local
    self._env_values = env_values
    self._seeds = np.random.default_rng(list(seed))
    handshake.pack_welcome(self._welcome(0, np.arange(1), local))

  def allocate(self, hello: handshake.Hello) -> SlotGrant:
    """Finds slots for a group; raises `StreamRefused` if it cannot."""
    try:
      index, lease = self._join(hello.num_envs, hello.acts_itself)
    except StreamRefused as e:
      # An actor without room asks again and again.
      full = e.code == _Code.RESOURCE_EXHAUSTED
      level = logging.DEBUG if full else logging.WARNING
      _log.log(level, 'Actor %r is rejected: %s', hello.name, e)
      raise
    offer = self.local if hello.acts_itself else None
    welcome = self._welcome(index, lease.env_id, offer)
    _log.debug('Actor %r joins as run %s.', hello.name, welcome.run_id)
    return SlotGrant(self.streams[index], lease, welcome)

  def _join(
    self, num_envs: int, acts_itself: bool
  ) -> tuple[int, remote_stream.GroupLease]:
    """Returns the index of the stream that takes a group, and the lease."""
    if acts_itself and self.local is None:
      raise StreamRefused(
        _Code.FAILED_PRECONDITION,
        '--inference=local: this learner keeps its unrolls in its own process, '
        'where no actor can put any; start it with '
        '--config.actors.local_inference=True, or the actor with '
        '--inference=central.',
      )
    streams = self.streams
    # A group that acts itself does so in batches of its own.
    sizes = [s.num_envs if acts_itself else s.batch_size for s in streams]
    if num_envs > max(sizes):
      flag = 'max_envs' if acts_itself else 'batch_size or max_envs'
      raise StreamRefused(
        _Code.FAILED_PRECONDITION,
        f'A group of {num_envs} environments is too large: each of the '
        f'{len(sizes)} inference streams of this learner takes groups of at '
        f'most {max(sizes)}; start the actor with fewer --envs_per_group, or '
        f'the learner with a larger --config.actors.{flag}.',
      )
    for index in sorted(range(len(sizes)), key=lambda i: -streams[i].num_free):
      if num_envs <= sizes[index]:
        lease = streams[index].join(num_envs, acts_itself)
        if lease is not None:
          return index, lease
    raise StreamRefused(
      _Code.RESOURCE_EXHAUSTED,
      f'There is no room for {num_envs} more environments: other actors have '
      'those of --config.actors.max_envs; start the learner with more, or '
      'fewer actors.',
    )

  def _welcome(
    self, index: int, env_id: np.ndarray, offer: LocalOffer | None
  ) -> handshake.Welcome:
    local = None
    if offer is not None:
      local = handshake.LocalRun(
        config=offer.config,
        global_env_id=offer.global_env_id[index][env_id].tolist(),
        num_train_envs=offer.env_spec.num_envs,
        num_eval_envs=offer.env_spec.num_eval_envs,
        block_width=offer.block_width,
        replay_address=offer.replay_address(),
        parameters=handshake.spec_texts(offer.feed.specs),
      )
    return handshake.Welcome(
      run_id=uuid.uuid4().hex,
      seed=int(self._seeds.integers(1 << 31)),
      env=self._env_values,
      spec=handshake.spec_texts(self.spec._asdict()),
      local=local,
    )
