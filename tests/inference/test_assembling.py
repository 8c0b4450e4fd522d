"""Tests for seedrl_jax/inference/assembling.py."""

import jax
import numpy as np

from seedrl_jax.agents import base as agents
from seedrl_jax.inference import assembling
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.embedded import store as store_lib
from tests.learner import toys


def _agent(**values) -> agents.Agent:
  nothing = {
    name: lambda *_: None for name in ('init', 'initial_core', 'act', 'loss')
  }
  return agents.Agent(**nothing | values)


def test_an_agent_without_priorities_has_none_computed():
  agent = _agent()
  insert = assembling.make_insertion(
    agent, None, toys.unroll_spec(), 2, jax.devices()[0]
  )
  assert insert._priorities is None


def test_assembler_cuts_unrolls_as_the_agent_has_them():
  rules = table_configs.ReplayConfig(
    't', 'uniform', max_size=9, samples_per_insert=0.0
  )
  store = store_lib.EmbeddedStore([rules], toys.unroll_spec(), 2)
  writer = store.table('t')
  agent = _agent(overlap=1)
  insert = assembling.make_insertion(
    agent, writer, toys.unroll_spec(), 2, jax.devices()[0]
  )
  assembler = assembling.make_assembler(
    agent, writer, insert, np.array([7, 9]), unroll_length=1, block_width=2
  )
  env_id = np.arange(2)
  for _ in range(2):
    placement = assembler.begin(env_id)
    leaves = [0] * len(placement.runs[0].block.flat)
    core = [
      np.zeros((2, *x.shape[1:]), x.dtype) for x in placement.runs[0].block.core
    ]
    assembler.write(placement, leaves)
    assembler.finish(placement, core if len(placement.core_rows) else [])
  assert store.info()['t'].inserts == 2
  sample = store.table('t').sampler(8).sample()
  assert set(sample.blocks[0].unroll.env_id.tolist()) <= {7, 9}
  store.close()
