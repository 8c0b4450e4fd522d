"""Tests for actors/learner_side/offer.py, by what a run offers to actors."""

import pathlib

import numpy as np

from seedrl_jax.actors import handshake
from seedrl_jax.actors.learner_side import offer
from seedrl_jax.run import build as build_lib
from seedrl_jax.runtime import columns
from tests import runs
from tests.actors import toys


def _build(folder: pathlib.Path, **values: object) -> build_lib.Parts:
  config = runs.tiny(env__num_envs=2, actors__max_envs=4, **values)
  return build_lib.build(
    config, start=build_lib.Start(actor_socket=str(folder / 'a.sock'))
  )


def test_only_reverb_lets_actors_act_themselves(
  tmp_path: pathlib.Path, backend: str
):
  parts = _build(tmp_path, replay__backend=backend)
  assert parts.actors is not None
  client = toys.Client(parts.actors.addresses[0])
  try:
    if backend == 'embedded':
      hello = handshake.Hello(2, 'toy', handshake.LOCAL)
      client.say(handshake.pack_hello(hello))
      assert '--config.actors.local_inference=True' in client.refused()[1]
      return
    welcome = client.join(2, handshake.LOCAL)
    local = welcome.local
    assert local is not None
    # Behind those of the learner's own environments.
    assert local.global_env_id.tolist() == [2, 3]
    assert (local.num_train_envs, local.num_eval_envs) == (6, 0)
    assert local.config['network']['hidden_sizes'] == [8]
    assert not local.config.keys() & {'actors', 'checkpoint', 'env'}
    newer = handshake.wire.take(
      client.report(0, env_steps=30).body, (local.parameters.values(), 1)
    )
    _, params = parts.publisher.latest(parts.topology.inference[0])
    for ours, theirs in zip(newer[0], _leaves(params), strict=True):
      np.testing.assert_array_equal(ours, theirs)
    assert parts.env_steps() == 30
    metrics = offer.metrics(parts.actors)
    assert metrics.keys() <= columns.TABLE.keys()
    assert metrics['actors/connected_envs'] == 2
    assert metrics['actors/stream_bytes'] > 1000
  finally:
    client.close()
    parts.close()


def _leaves(nest: object) -> list[np.ndarray]:
  if not isinstance(nest, dict):
    return [np.asarray(nest)]
  return [leaf for key in sorted(nest) for leaf in _leaves(nest[key])]
