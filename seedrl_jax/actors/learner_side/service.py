"""Makes the learner's side of remote actors from a run's configuration.

Called by `builder` where the configuration lets actors bring environments.
"""

import json
from collections.abc import Sequence
from typing import Any

from seedrl_jax.actors import addresses, handshake
from seedrl_jax.actors.learner_side import remote_stream, server, slot_allocator
from seedrl_jax.envs import base

# Sections that are the learner's own business, and the environments', which
# actors are told apart.
_LEARNERS_OWN = (
  'actors',
  'checkpoint',
  'demonstrations',
  'env',
  'learner',
  'log',
  'optimizer',
  'topology',
)


def local_config(config: Any) -> dict[str, Any]:
  """Returns what a `handshake.LocalRun` says of a run's config."""
  values = config.to_dict()
  kept = {k: v for k, v in values.items() if k not in _LEARNERS_OWN}
  # As config.json has it.
  return json.loads(json.dumps(kept, default=str))


def make_server(
  config: Any,
  spec: base.StreamSpec,
  sizes: Sequence[tuple[int, int]],
  starts: int,
  socket: str,
  local: slot_allocator.LocalOffer | None = None,
) -> server.ActorServer:
  """Opens the streams for actors and listens for them.

  Args:
    config: the run's configuration.
    spec: what one environment looks like.
    sizes: (slots, largest batch) of each stream.
    starts: how often this run was started before.
    socket: path of the unix socket where no address is configured.
    local: for actors that act themselves; None: these are refused.

  Raises:
    ValueError: where the configuration cannot be had; names the flag.
  """
  section = config.actors
  flag = '--config.actors.addresses'
  texts = section.addresses or ()
  if isinstance(texts, str):
    raise ValueError(
      f"{flag}={texts}: must be a tuple of strings, such as ('{texts}',)."
    )
  streams = [
    remote_stream.RemoteStream(
      spec,
      num_envs,
      batch_size,
      min(section.min_batch_size, batch_size),
      section.batch_timeout_ms / 1000,
    )
    for num_envs, batch_size in sizes
  ]
  return server.ActorServer(
    spec,
    handshake.env_values(config.env),
    streams,
    [addresses.parse(flag, text) for text in texts]
    or [addresses.in_workdir(socket)],
    addresses.learner_security(section),
    (config.seed, starts),
    section.timeout,
    local,
  )
