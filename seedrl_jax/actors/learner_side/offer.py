"""The learner's side of remote actors, wired to the parts of a run.

Called by `builder` where the configuration lets actors bring environments.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from seedrl_jax import types
from seedrl_jax.actors import parameters
from seedrl_jax.actors.learner_side import server, service, slot_allocator
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import base as envs
from seedrl_jax.replay import base as replay
from seedrl_jax.replay.reverb.client import store as reverb_store
from seedrl_jax.run import layout as layout_lib


def make_local_offer(
  config: Any,
  env_spec: types.EnvSpec,
  plans: Sequence[layout_lib.StreamPlan],
  store: replay.TrajectoryStore,
  specs: Mapping[str, types.ArraySpec],
  block_width: int,
  latest: Callable[[], tuple[int, agents.Params]],
) -> slot_allocator.LocalOffer | None:
  """Makes what actors need to act themselves.

  Args:
    config: the run's configuration.
    env_spec: of all its environments.
    plans: of the remote streams.
    store: of the run.
    specs: of the agent's parameters (`agents.base.parameter_specs`).
    block_width: unrolls that are assembled side by side.
    latest: gives the newest version and its parameters, leaves `[1, ...]`;
      KeyError before the first is published.

  Returns:
    The offer; None where the store is not in Reverb, which alone takes unrolls
    from elsewhere.
  """
  if not isinstance(store, reverb_store.ReverbStore):
    return None

  def read() -> tuple[int, list[jax.Array]]:
    version, params = latest()
    return version, jax.tree.leaves(params)

  return slot_allocator.LocalOffer(
    config=service.local_config(config),
    num_train_envs=env_spec.num_envs,
    num_eval_envs=env_spec.num_eval_envs,
    block_width=block_width,
    parameters=dict(specs),
    global_env_id=[plan.global_env_id for plan in plans],
    feed=parameters.Feed(specs.values(), read),
    replay_address=lambda: store.location.link.address,
  )


def make_server(
  config: Any,
  env_spec: types.EnvSpec,
  plans: Sequence[layout_lib.StreamPlan],
  starts: int,
  socket: str,
  local: slot_allocator.LocalOffer | None,
) -> server.ActorServer:
  """Makes the server of the remote streams; see `service.make_server`."""
  spec = envs.StreamSpec(
    observation=env_spec.observation,
    action=env_spec.action,
    action_repeat=env_spec.action_repeat,
    name=env_spec.env_id,
  )
  sizes = [(len(plan.global_env_id), plan.batch_size) for plan in plans]
  return service.make_server(config, spec, sizes, starts, socket, local)


def metrics(actors: server.ActorServer) -> dict[str, float]:
  """Returns what a run's curves have of its actors."""
  # Of those that act themselves.
  reported = actors.reported
  return {
    'actors/connected_envs': float(actors.num_connected),
    'actors/stream_bytes': float(actors.num_bytes),
    'actors/store_bytes': float(reported.store_bytes),
    'actors/store_wait_s': reported.store_wait,
  }
