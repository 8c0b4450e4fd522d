"""Tests of `seedrl_jax.lab.benchmarks.knobs`."""

import os
import types as python_types

import pytest

from seedrl_jax.configs import (
  ppo_cartpole,
  r2d2_cartpole,
  vtrace_atari,
  vtrace_cartpole,
)
from seedrl_jax.lab.benchmarks import knobs
from seedrl_jax.run import layout
from tests import runs

# Seconds of each resource for a step; the last two are accelerators'.
_CPU = [{'environments': 3e-3, 'inference': 2e-3, 'update': 1e-3}]
_BUSY_CPU = [{'environments': 1e-4, 'update': 9.7e-3}]
_SPLIT = [{'environments': 1e-3}, {'inference': 1e-3}, {'update': 1e-2}]


@pytest.mark.parametrize(
  ('resources', 'rate', 'expected'),
  [
    # Half of the time is idle; the update has only a tenth.
    (
      _CPU,
      80.0,
      '_threads _streams _batch_size _pinning _store _split _micro_batches',
    ),
    (_BUSY_CPU, 100.0, '_split _micro_batches'),
    # The other devices' time does not matter.
    (_SPLIT, 99.0, '_split _micro_batches'),
  ],
)
def test_only_knobs_that_matter_are_tried_those_that_gain_most_first(
  resources, rate, expected
):
  useful_knobs = knobs.promising(resources, rate)
  assert [k.propose.__name__ for k in useful_knobs] == expected.split()


def test_shares_are_of_the_resource_that_a_stage_needs_most():
  shares = knobs.shares([{'a': 0.1, 'b': 0.2}, {'a': 0.25}], 2.0)
  assert shares == pytest.approx({'a': 0.5, 'b': 0.4, 'waiting': 0.4})


def _proposals(config, inference=1, training=1, processors=(0, 1, 2, 3)):
  """Returns what each knob proposes, by its name."""
  topology = python_types.SimpleNamespace(
    inference=(0,) * inference,
    training=(1,) * training,
    shared=inference == training == 1,
  )
  run = knobs.Run(config, topology, processors, 100.0, 300.0, True)
  return {
    knob.propose.__name__.removeprefix('_'): knob.propose(run)
    for knob in knobs._KNOBS
  }


@pytest.mark.parametrize(
  'config',
  [
    vtrace_cartpole.get_config(),
    vtrace_atari.get_config(),
    ppo_cartpole.get_config(),
    r2d2_cartpole.get_config(),
    runs.tiny(env__batch_size=2, topology__streams_per_device=2),
    runs.tiny(env__factory='tests.runs:pixels', env__num_envs=8),
  ],
)
def test_proposals_are_new_values_that_a_configuration_may_have(config):
  processors = sorted(os.sched_getaffinity(0))
  for proposals in _proposals(config, processors=processors).values():
    for changes in proposals:
      changed = config.copy_and_resolve_references()
      changed.update_from_flattened_dict(changes)
      layout.check(changed)
      assert changed.to_dict() != config.to_dict()
      (device,) = devices = (object(),)
      for share in layout.plan_streams(changed, devices):
        assert share.device is device


def test_proposals_for_cartpole():
  assert _proposals(vtrace_cartpole.get_config()) == {
    'streams': [{'topology.streams_per_device': 2}],
    'batch_size': [{'env.batch_size': 64}],
    'threads': [{'env.num_threads': 4}, {'env.num_threads': 1}],
    'pinning': [
      {
        'topology.inference_affinity_offset': 0,
        'env.thread_affinity_offset': 1,
      }
    ],
    'split': [],
    'micro_batches': [{'learner.micro_batches': 4}],
    'store': [],
  }


def test_on_policy_agents_keep_their_bound():
  proposals = _proposals(ppo_cartpole.get_config())
  assert not proposals['streams'] and not proposals['batch_size']


def test_streams_keep_their_share_of_the_environments():
  config = runs.tiny(
    env__num_envs=16, env__batch_size=4, topology__streams_per_device=2
  )
  assert _proposals(config)['streams'] == [
    {'topology.streams_per_device': 4, 'env.batch_size': 2},
    {'topology.streams_per_device': 1, 'env.batch_size': 8},
  ]


@pytest.mark.parametrize(
  ('processors', 'changes', 'expected'),
  [
    ((4, 5), {}, [(4, 5)]),
    # No processor for EnvPool, or one that is not ours.
    ((0,), {}, []),
    ((0, 2), {}, []),
    ((0, 1, 2), {'topology__streams_per_device': 2}, [(0, 2)]),
    ((0, 1), {'topology__inference_affinity_offset': 0}, [(-1, -1)]),
    ((0, 1), {'env__factory': 'tests.runs:pixels'}, []),
  ],
)
def test_pins_inference_first(processors, changes, expected):
  proposals = _proposals(runs.tiny(**changes), processors=processors)['pinning']
  assert [tuple(change.values()) for change in proposals] == expected


def test_splits_that_should_be_faster_are_tried_best_first():
  # A training device is three times as fast as one for inference.
  proposals = _proposals(runs.tiny(), inference=2, training=6)['split']
  key = 'topology.inference_to_training'
  assert proposals == [{key: '6:2'}, {key: '5:3'}]


def test_reverb_is_replaced_unless_it_is_elsewhere():
  config = r2d2_cartpole.get_config()
  assert _proposals(config)['store'] == [{'replay.backend': 'embedded'}]
  config.replay.address = 'localhost:8000'
  assert not _proposals(config)['store']
