"""Tests for server.make_server, and for a run's connection to actors."""

import pathlib

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import handshake, local_messages, wire
from seedrl_jax.actors.learner_side import server as server_lib
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.run import opening
from seedrl_jax.runtime import workdir as workdir_lib
from tests import runs
from tests.actors import toys
from tests.patience import wait_until


def _config(**values: object):
  return runs.tiny(**{'env__num_envs': 0, 'actors__max_envs': 4, **values})


def _build(folder: pathlib.Path, **values: object) -> opening.Parts:
  return runs.open_parts(
    _config(**values),
    workdir=workdir_lib.Workdir(folder),
  )


def _make_server(tmp_path: pathlib.Path, **values: object):
  config = _config(**values)
  env_spec = env_factory.make_env_spec(config)
  socket = str(tmp_path / 'actors.sock')
  return server_lib.make_server(
    config.actors, config.env, env_spec, [(4, 4)], (1, 0), socket
  )


def test_default_is_the_socket_and_addresses_replace_it(
  tmp_path: pathlib.Path,
):
  server = _make_server(tmp_path)
  assert server.addresses == (f'unix:{tmp_path}/actors.sock',)
  server.close(ended=False)
  other = ('127.0.0.1:0', f'unix:{tmp_path}/b.sock')
  server = _make_server(tmp_path, actors__addresses=other)
  assert server.addresses[0].startswith('127.0.0.1:')
  assert server.addresses[1:] == other[1:]
  assert not (tmp_path / 'actors.sock').exists()
  server.close(ended=False)


def test_only_reverb_lets_actors_act_themselves(
  tmp_path: pathlib.Path, backend: str
):
  parts = _build(tmp_path, env__num_envs=2, replay__backend=backend)
  assert parts.actors is not None
  client = toys.Client(parts.actors.addresses[0])
  try:
    if backend == 'embedded':
      hello = handshake.Hello(2, 'toy', acts_itself=True)
      client.say(handshake.pack_hello(hello))
      assert '--config.actors.local_inference=True' in client.refused()[1]
      return
    welcome = client.join(2, acts_itself=True)
    local = welcome.local
    assert local is not None
    # After those of the learner's own environments.
    assert local.global_env_id == [2, 3]
    assert (local.num_train_envs, local.num_eval_envs) == (6, 0)
    assert local.config['network']['hidden_sizes'] == [8]
    assert not local.config.keys() & {'actors', 'checkpoint', 'env'}
    _, params = parts.publisher.latest(parts.plan.topology.inference[0])
    specs = agents.parameter_specs(params)
    assert local.parameters == handshake.spec_texts(specs)
    newer = local_messages.unpack_parameters(
      client.report(local_messages.Work(30)), tuple(specs.values())
    )
    assert newer is not None
    for ours, theirs in zip(newer[1], jax.tree.leaves(params), strict=True):
      np.testing.assert_array_equal(ours, theirs)
    assert parts.env_steps() == 30
    metrics = parts.actors.metrics()
    assert metrics.keys() <= runs.documented_columns()
    assert metrics['actors/connected_envs'] == 2
    assert metrics['actors/stream_bytes'] > 1000
  finally:
    client.close()
    parts.close()


class _Stepper:
  """Plays scripted steps of any environment."""

  def __init__(self, parts: opening.Parts):
    assert parts.actors is not None
    self._worker = parts.workers[-1]
    self._client = toys.Client(parts.actors.addresses[0])
    self._client.join(4)
    self._spec = parts.actors.streams[0].spec
    self._codec = wire.StreamCodec(self._spec)

  def play(self, step_type: int, reward: float) -> None:
    """Makes a step of all environments, and inference answer it."""
    spec = self._spec.observation
    output = types.EnvOutput(
      observation=np.zeros((4, *spec.shape), spec.dtype),
      reward=np.full(4, reward, np.float32),
      discount=np.ones(4, np.float32),
      step_type=np.full(4, step_type, np.uint8),
      env_id=np.arange(4),
    )
    self._client.say(self._codec.pack_steps(output, toys.episodes()))
    self._worker.step()
    self._codec.unpack_actions(self._client.hear(), 4)

  def leave(self) -> None:
    self._client.close()


def test_what_an_actor_left_half_done_is_never_trained_on(
  tmp_path: pathlib.Path,
):
  parts = _build(tmp_path)
  assert parts.actors is not None
  assert parts.actors.addresses == (f'unix:{tmp_path}/actors.sock',)
  gone = _Stepper(parts)
  assert parts.metrics()['actors/connected_envs'] == 4.0
  for step_type in toys.FIRST, toys.MID, toys.MID, toys.MID:
    gone.play(step_type, reward=1.0)
  gone.leave()
  wait_until(lambda: not parts.actors.num_connected)
  player = _Stepper(parts)
  # One unroll has six steps.
  for step_type in (toys.FIRST, *[toys.MID] * 5):
    player.play(step_type, reward=2.0)
  unroll = jax.device_get(parts.prefetcher.fetch().batch.unroll)
  steps = jax.tree.map(lambda x: x[0], unroll.steps)
  assert (steps.reward == 2).all()
  assert steps.step_type[0].tolist() == [toys.FIRST] * 4
  assert (steps.step_type[1:] == toys.MID).all()
  assert sorted(unroll.env_id[0]) == [0, 1, 2, 3]
  # Steps of a group that left still count.
  assert parts.workers[-1].counters.env_steps == 4 * (3 + 5)
  player.leave()
  parts.close()
