"""Tests for local_inference.py: it inserts the same unrolls as the learner.

Both sides act with the same seeds, parameters and keys, batch by batch.
"""

import dataclasses
import threading
from typing import Any

import chex
import jax
import ml_collections
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.actors import handshake
from seedrl_jax.actors.actor_side import local_inference
from seedrl_jax.agents import base as agents
from seedrl_jax.configs import r2d2_base
from seedrl_jax.envs import factory
from seedrl_jax.net import addresses, credentials
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.embedded import store
from seedrl_jax.run import opening
from tests import runs

_NUM_ENVS = 4
_SEED = 11
_LEARNER = addresses.parse('--learner', 'localhost:1')
_OPEN = credentials.Security()
_VERSION = 7
# Catch's episodes end within them.
_STEPS = 40


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
  """Allows a busy machine more time to end a thread."""
  monkeypatch.setattr(local_inference, '_JOIN', 600.0)


def _vtrace() -> ml_collections.ConfigDict:
  return runs.tiny(network__lstm_size=4)


def _r2d2() -> ml_collections.ConfigDict:
  return runs.tiny(
    r2d2_base.get_config,
    burn_in=2,
    network__lstm_size=4,
    network__head_hidden_size=8,
    replay__max_size=200,
    replay__min_size=100,
  )


@dataclasses.dataclass
class _Inserted:
  """Copies of the inserted unrolls; stands in for a writer's `insert`."""

  unrolls: list[types.Unroll] = dataclasses.field(default_factory=list)
  priorities: list[np.ndarray | None] = dataclasses.field(default_factory=list)

  def insert(
    self,
    block: replay.Block,
    priorities: np.ndarray | None = None,
  ) -> None:
    self.unrolls.append(jax.tree.map(np.copy, block.unroll))
    self.priorities.append(priorities)


def _recording(inserted: _Inserted, *args: Any) -> store.EmbeddedStore:
  """Returns a store whose writer only records."""
  embedded = store.EmbeddedStore(*args)
  embedded.table(table_configs.TABLE).insert = inserted.insert
  embedded.bytes_sent = 0
  return embedded


def _stream(config: Any) -> Any:
  return factory.make_stream(config.env, _SEED, _NUM_ENVS, _NUM_ENVS)


def _central(
  config: Any, inserted: _Inserted, monkeypatch: pytest.MonkeyPatch
) -> tuple[opening.Parts, list[np.ndarray]]:
  """Acts in the learner; returns its parts and parameters."""
  monkeypatch.setattr(
    opening.replay_factory,
    'make_store',
    lambda config, tables, spec, width, size, seed, overlap, *_, **__: (
      _recording(inserted, tables, spec, width, seed, overlap)
    ),
  )
  parts = runs.open_parts(config, streams=lambda *_: _stream(config))
  (worker,) = parts.workers
  worker.device_step._key = jax.random.PRNGKey(_SEED)
  _, params = parts.publisher.latest(parts.plan.topology.inference[0])
  parts.publisher.publish(_VERSION, params)
  for _ in range(_STEPS):
    worker.step()
  return parts, [np.asarray(x) for x in jax.tree.leaves(params)]


def _welcome(config: Any, stream: Any, /, **values: Any) -> handshake.Welcome:
  env_spec = types.EnvSpec(stream.spec, _NUM_ENVS, 0)
  agent = agents.load_agent(config, env_spec)
  local = {
    'config': handshake.local_config(config),
    'global_env_id': list(range(_NUM_ENVS)),
    'num_train_envs': _NUM_ENVS,
    'num_eval_envs': 0,
    'block_width': 4,
    'replay_address': 'localhost:1',
    'parameters': handshake.spec_texts(
      agents.parameter_specs(agent.params_shapes())
    ),
  }
  welcome = handshake.Welcome(
    run_id='x',
    seed=_SEED,
    env=config.env.to_dict(),
    spec=handshake.spec_texts(stream.spec._asdict()),
    local=handshake.LocalRun(**local | values),
  )
  # As it arrives over the network.
  return handshake.unpack_welcome(
    handshake.wire.parse(handshake.pack_welcome(welcome))
  )


def _local(
  config: Any, inserted: _Inserted, /, **values: Any
) -> local_inference.LocalInference:
  """Writes to a store in this process; acts in the test's thread."""
  stream = _stream(config)
  local = local_inference.LocalInference(
    _LEARNER, _OPEN, _welcome(config, stream, **values), stream
  )
  tables, overlap = [table_configs.table_config(config)], local._agent.overlap
  local._connect = lambda spec, width: _recording(
    inserted, tables, spec, width, config.seed, overlap
  )
  return local


@pytest.mark.parametrize('make_config', [_vtrace, _r2d2])
def test_unrolls_are_those_of_central_inference(
  make_config: Any, monkeypatch: pytest.MonkeyPatch
):
  config = make_config()
  theirs, ours = _Inserted(), _Inserted()
  parts, leaves = _central(config, theirs, monkeypatch)
  parts.close()
  local = _local(config, ours)
  local.take(_VERSION, leaves)
  worker = local._open()
  for _ in range(_STEPS):
    worker.step()
  local.close()
  assert len(ours.unrolls) == len(theirs.unrolls) >= 4
  for a, b in zip(ours.unrolls, theirs.unrolls, strict=True):
    chex.assert_trees_all_equal(a, b)
  for a, b in zip(ours.priorities, theirs.priorities, strict=True):
    np.testing.assert_array_equal(a, b)
  # No part of it is empty.
  last = ours.unrolls[-1]
  assert (last.steps.parameter_version == _VERSION).all()
  assert sorted(last.env_id.tolist()) == [0, 1, 2, 3]
  assert all(np.any(x) for x in jax.tree.leaves(last.initial_core))
  assert (ours.priorities[-1] is None) == (config.replay.sampler == 'fifo')


def test_a_thread_acts_with_what_it_took_and_reports_it():
  config, inserted = _vtrace(), _Inserted()
  local = _local(config, inserted)
  local.start()
  assert local.report().version == types.NO_VERSION
  rng = np.random.default_rng(0)
  leaves = [
    rng.normal(size=spec.shape).astype(spec.dtype) for spec in local.parameters
  ]
  local.take(3, leaves)
  steps, episodes, versions = 0, [], set()
  while 4 not in versions:
    local.wait()
    report = local.report()
    steps += report.work.env_steps
    episodes += report.episodes['env_id'].tolist()
    if steps > 100:
      local.take(4, leaves)
    for unroll in list(inserted.unrolls):
      versions |= {*unroll.steps.parameter_version.ravel().tolist()}
  local.close()
  # It went on acting during the last report.
  report = local.report()
  steps += report.work.env_steps
  episodes += report.episodes['env_id'].tolist()
  assert versions == {3, 4}
  # Catch ends every ninth step.
  assert set(episodes) == {0, 1, 2, 3}
  assert len(episodes) == pytest.approx(steps / 9, abs=_NUM_ENVS)
  assert not [t for t in threading.enumerate() if t.name == 'inference']


def test_can_be_closed_before_there_are_parameters():
  local = _local(_vtrace(), _Inserted())
  local.start()
  local.close()
  assert local.report().work.env_steps == 0


def test_a_failure_of_the_thread_is_raised_by_the_next_report():
  class Bad(_Inserted):
    def insert(self, *_: Any) -> None:
      raise OSError('The store is broken.')

  local = _local(_vtrace(), Bad())
  local.take(0, [np.zeros(s.shape, s.dtype) for s in local.parameters])
  local.start()
  with pytest.raises(OSError, match='The store is broken'):
    while True:
      local.report()
      local.wait()
  local.close()


@pytest.mark.parametrize(
  'values, sentence',
  [
    ({'parameters': {}}, 'the agent has other parameters at the actor'),
    ({'replay_address': 'far:1'}, 'without TLS or a token; trust'),
    (
      {'config': handshake.local_config(_vtrace()) | {'agent': 'none'}},
      '--config.agent=none: there is no module',
    ),
  ],
)
def test_a_sentence_says_what_does_not_fit(
  values: dict[str, Any], sentence: str
):
  with pytest.raises(local_inference.IncompatibleLearner, match=sentence):
    _local(_vtrace(), _Inserted(), **values)


def test_without_a_reverb_server_the_sentence_names_the_flag(
  monkeypatch: pytest.MonkeyPatch,
):
  config = _vtrace()
  monkeypatch.setattr(local_inference, '_ANSWER', 0.01)
  stream = _stream(config)
  local = local_inference.LocalInference(
    _LEARNER, _OPEN, _welcome(config, stream), stream
  )
  local.start()
  with pytest.raises(
    local_inference.PeerLost, match=r'--config\.replay\.address='
  ):
    while True:
      local.report()
      local.wait()
  local.close()
