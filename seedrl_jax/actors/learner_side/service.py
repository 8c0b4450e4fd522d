"""Makes the learner's side of remote actors from a run's configuration."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import addresses, credentials, handshake, local_messages
from seedrl_jax.actors.learner_side import remote_stream, server, slot_allocator
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import base as envs
from seedrl_jax.replay import base as replay
from seedrl_jax.replay.reverb.client import store as reverb_store

# Sections that an actor's agent does not need; `env` is sent apart.
_LEARNER_SECTIONS = {
  *('actors', 'checkpoint', 'demonstrations', 'env', 'log', 'topology'),
}


class RemotePlan(Protocol):
  """One stream's share of a run's remote environments."""

  @property
  def global_env_id(self) -> np.ndarray:
    """Run-wide ids of the stream's slots, int32 `[N]`."""

  @property
  def batch_size(self) -> int:
    """Environments per inference call, at most."""


def local_config(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the part of a run's config that `handshake.LocalRun` holds."""
  values = config.to_dict()
  kept = {k: v for k, v in values.items() if k not in _LEARNER_SECTIONS}
  # As in config.json.
  return json.loads(json.dumps(kept, default=str))


def make_feed(
  specs: Mapping[str, types.ArraySpec],
  latest: Callable[[], tuple[int, agents.Params]],
) -> local_messages.ParameterFeed:
  """Makes the source of parameters for actors that act themselves.

  `latest` returns version and parameters, or raises KeyError if there are none.
  """

  def read() -> tuple[int, list[jax.Array]]:
    version, params = latest()
    return version, jax.tree.leaves(params)

  return local_messages.ParameterFeed(specs, read)


def make_local_offer(
  config: ml_collections.ConfigDict,
  env_spec: types.EnvSpec,
  plans: Sequence[RemotePlan],
  block_width: int,
  store: replay.TrajectoryStore,
  feed: local_messages.ParameterFeed,
) -> slot_allocator.LocalOffer | None:
  """Makes what actors need to act themselves; None without Reverb.

  Only Reverb takes unrolls from other processes.
  """
  if not isinstance(store, reverb_store.ReverbStore):
    return None
  run = handshake.LocalRun(
    config=local_config(config),
    global_env_id=np.zeros(0, np.int32),
    num_train_envs=env_spec.num_envs,
    num_eval_envs=env_spec.num_eval_envs,
    block_width=block_width,
    replay_address='',
    parameters=dict(feed.specs),
  )
  return slot_allocator.LocalOffer(
    run,
    global_env_id=[plan.global_env_id for plan in plans],
    replay_address=lambda: store.location.link.address,
    feed=feed,
  )


def make_server(
  config: ml_collections.ConfigDict,
  env_spec: types.EnvSpec,
  plans: Sequence[RemotePlan],
  starts: int,
  socket: str,
  local: slot_allocator.LocalOffer | None = None,
) -> server.ActorServer:
  """Opens the streams for actors and listens for them.

  Args:
    starts: how often this run was started before.
    socket: path of the unix socket, if no address is configured.
    local: for actors that act themselves; None: these are refused.

  Raises:
    ValueError: if the configuration is not possible; names the flag.
  """
  section = config.actors
  spec = envs.StreamSpec(
    env_spec.observation,
    env_spec.action,
    env_spec.action_repeat,
    name=env_spec.env_id,
  )
  allocator = slot_allocator.SlotAllocator(
    handshake.env_values(config.env),
    [_make_stream(section, spec, plan) for plan in plans],
    (config.seed, starts),
    local,
  )
  return server.ActorServer(
    allocator,
    _listening(section, socket),
    credentials.learner_security(section),
    section.timeout,
  )


def _make_stream(
  section: ml_collections.ConfigDict, spec: envs.StreamSpec, plan: RemotePlan
) -> remote_stream.RemoteStream:
  return remote_stream.RemoteStream(
    spec,
    len(plan.global_env_id),
    plan.batch_size,
    min(section.min_batch_size, plan.batch_size),
    section.batch_timeout_ms / 1000,
  )


def _listening(
  section: ml_collections.ConfigDict, socket: str
) -> list[addresses.Address]:
  flag = '--config.actors.addresses'
  texts = section.addresses or ()
  if isinstance(texts, str):
    raise ValueError(
      f"{flag}={texts}: must be a tuple of strings, such as ('{texts}',)."
    )
  if not texts:
    return [addresses.in_workdir(socket)]
  return [addresses.parse(flag, text) for text in texts]
