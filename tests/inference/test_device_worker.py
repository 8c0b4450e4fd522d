"""Tests that a device worker's unrolls are those of `UnrollAssembler`."""

import chex
import jax
import ml_collections
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.configs import (
  base,
  dqn_cartpole,
  dyna_q_cartpole,
  ppo_recall,
  pqn_cartpole,
  r2d2_recall,
  sac_pendulum,
)
from seedrl_jax.device_envs import stream as stream_lib
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import assembler, device_worker, specs
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import blocks, device
from tests.device_envs import toys
from tests.inference import assembly

_SEED = 3
_CALLS = 4
_NUM_TRAIN, _NUM_EVAL = 6, 2
_WIDTH = 3


def _lstm() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.network.lstm_size = 4
  return config


def _stack() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.network.frame_stack = 3
  return config


def _dyna_q() -> ml_collections.ConfigDict:
  config = dyna_q_cartpole.get_config()
  config.lookahead, config.loss.n_steps = 0, 1
  return config


# Queues, and replays with overlapping unrolls, bursts of single steps, or
# several continuous numbers.
_MAKES = {
  'vtrace': base.get_config,
  'vtrace_lstm': _lstm,
  'vtrace_stack': _stack,
  'ppo_lstm': ppo_recall.get_config,
  'pqn': pqn_cartpole.get_config,
  'r2d2': r2d2_recall.get_config,
  'dqn': dqn_cartpole.get_config,
  'dyna_q': _dyna_q,
  'sac': sac_pendulum.get_config,
}


class _Case:
  """An agent in toy environments, with new parameters for each call."""

  def __init__(self, name: str):
    config = _MAKES[name]()
    if config.unroll_length > 1:
      config.unroll_length = 4
    config.network.hidden_sizes = (8,)
    self.env = toys.make(0.25, name == 'sac', name == 'dyna_q')
    spec = types.EnvSpec(self.env.spec, _NUM_TRAIN, _NUM_EVAL)
    self.agent = agent = agents.load_agent(config, spec)
    self.stride = config.unroll_length
    self.length = agent.num_transitions(self.stride)
    self.is_queue = config.replay.sampler == 'fifo'
    self.env_id = np.arange(_NUM_TRAIN + _NUM_EVAL, dtype=np.int32)
    make = jax.jit(lambda key: agent.acting_params(agent.init(key)))
    self.params = [make(jax.random.PRNGKey(i)) for i in range(_CALLS + 1)]
    output = specs.output_spec(agent, self.env.spec, agent.params_shapes())
    core = specs.core_spec(agent)
    self.unroll_spec = specs.unroll_spec(
      self.env.spec, self.length, output, core
    )
    self.layout = blocks.UnrollLayout(self.unroll_spec, agent.overlap)

  def make_assembler(self) -> tuple[assembler.UnrollAssembler, list]:
    inserted: list[tuple[types.Unroll, np.ndarray | None]] = []
    writer = assembly.Writer(lambda: self.layout.new_block(_WIDTH), None)

    def insert(block, priorities=None):
      inserted.append((block.unroll, priorities))

    writer.insert = insert
    core = jax.local_devices()[0]
    recorder = assembler.UnrollAssembler(
      writer,
      self.env_id[:_NUM_TRAIN],
      self.length,
      self.agent.overlap,
      _WIDTH,
      assembler.make_priorities(self.agent, self.unroll_spec, _WIDTH, core),
      None if self.is_queue else self.agent.burn_in,
    )
    return recorder, inserted

  def expected(self) -> tuple[list, list[envs.Episode]]:
    """Acts step by step; the last step of an unroll is acted for both."""
    recorder, inserted = self.make_assembler()
    n = len(self.env_id)
    stream = stream_lib.DeviceEnvStream(self.env, _SEED, n)
    act = jax.jit(self.agent.act)
    key, core = jax.random.PRNGKey(0), self.agent.initial_core(n)
    action = self.env.spec.action
    previous = np.zeros((n, *action.shape), action.dtype)
    ids = np.arange(_NUM_TRAIN, dtype=np.int32)
    group = assembler.EnvGroup(ids, envs.as_slice(ids))
    num_steps = _CALLS * self.stride
    for t in range(num_steps + self.is_queue):
      output = stream.recv()
      previous[output.step_type == types.StepType.FIRST] = 0
      step = types.Steps(
        *output[:4], previous.copy(), agent_output=(), parameter_version=0
      )
      key, act_key = jax.random.split(key)
      call = t // self.stride
      # With the parameters of the call that ends the unroll, then anew.
      ends = self.is_queue and t and t % self.stride == 0
      for version in [call - 1] * bool(ends) + [call] * (t < num_steps):
        chosen, after = act(
          self.params[version],
          act_key,
          types.agent_input(step),
          core,
          self.env_id,
        )
        row = jax.tree.map(
          lambda x: np.asarray(x)[:_NUM_TRAIN],
          step._replace(
            agent_output=chosen, parameter_version=np.full(n, version)
          ),
        )
        leaves = jax.tree.leaves(row)
        if ends and version == call:
          recorder.amend(group, leaves)
          continue
        before = jax.tree.leaves(core)
        recorder.record(
          group, leaves, lambda rows, x=before: [np.asarray(y)[rows] for y in x]
        )
      core, previous = after, np.array(chosen.action)
      if t < num_steps:
        stream.send(previous, output.env_id)
    if not self.is_queue:
      stream.recv()
    return inserted, stream.take_episodes()

  def worker(self) -> tuple[device_worker.DeviceWorker, list]:
    recorder, inserted = self.make_assembler()
    pool = device.DeviceStore(_queue(), self.unroll_spec, _WIDTH, 1).table(
      'unrolls'
    )

    class Writer:
      def allocate(self) -> replay.Block:
        return pool.allocate()

      def insert(self, block, priorities=None) -> None:
        assert block.version == len(inserted) // (_NUM_TRAIN // _WIDTH)
        unroll = jax.tree.map(lambda x: np.asarray(x)[0], block.batch.unroll)
        inserted.append((unroll, priorities))

    program = device_worker.UnrollProgram(
      self.agent,
      self.env,
      self.env_id,
      _NUM_TRAIN,
      self.stride,
      _WIDTH if self.is_queue else None,
    )
    version = iter([0, *range(_CALLS)])

    def parameters():
      i = next(version)
      return i, self.params[i]

    worker = device_worker.DeviceWorker(
      program,
      jax.local_devices()[0],
      _SEED,
      jax.random.PRNGKey(0),
      parameters,
      Writer(),
      None if self.is_queue else recorder,
    )
    return worker, inserted


def _queue():
  from seedrl_jax.replay import table_configs

  return table_configs.QueueConfig('unrolls', 100)


@pytest.mark.parametrize('name', _MAKES)
def test_unrolls_are_those_of_the_assembler(name):
  case = _Case(name)
  expected, episodes = case.expected()
  worker, inserted = case.worker()
  worker.compile()
  for _ in range(_CALLS):
    worker.step()
  assert len(inserted) == len(expected) > 1
  for (unroll, priorities), (reference, wanted) in zip(
    inserted, expected, strict=True
  ):
    chex.assert_trees_all_equal_shapes_and_dtypes(unroll, reference)
    chex.assert_trees_all_close(unroll, reference, rtol=1e-4, atol=1e-5)
    assert (priorities is None) == (wanted is None)
    if wanted is not None:
      np.testing.assert_allclose(priorities, wanted, rtol=1e-3, atol=1e-5)
  ended = worker.take_episodes()
  assert [e._replace(episode_return=0.0) for e in ended] == [
    e._replace(episode_return=0.0) for e in episodes
  ]
  np.testing.assert_allclose(
    [e.episode_return for e in ended],
    [e.episode_return for e in episodes],
    rtol=1e-4,
    atol=1e-5,
  )


def test_a_closed_worker_refuses_to_act():
  worker, _ = _Case('vtrace').worker()
  worker.compile()
  worker.interrupt()
  with pytest.raises(envs.StreamClosed):
    worker.step()
