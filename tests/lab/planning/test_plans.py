"""Tests of plans in `seedrl_jax.lab.planning.bounds`."""

import pytest

from seedrl_jax.lab.benchmarks import timing
from seedrl_jax.lab.planning import bounds, targets
from tests import runs

_TARGET = targets.Target('v5e', (2, 4))
# Of an eighth device each: 1000 steps/s of training, 2900 of inference.
_SPLITS = [
  bounds.Split(i, t, 1.0, 1000.0 * t, 2900.0 * i, exact=i == 2)
  for i, t in [(1, 7), (2, 6), (4, 4), (6, 2)]
]


@pytest.mark.parametrize(
  ('cores', 'ratio', 'limit', 'steps'),
  [
    (112, '2:6', 'inference', 5800.0),
    # Then the split that could do most with more cores.
    (2, '2:6', 'environments', 200.0),
  ],
)
def test_best_split_is_bound_by_the_slowest(cores, ratio, limit, steps):
  env = timing.Timing(0.0, 0.0, 0.0, cpu_seconds=0.01)
  found = bounds.plans(_SPLITS, env, cores)
  assert len(found) == len(_SPLITS)
  best = found[0]
  assert f'{best.split.inference}:{best.split.training}' == ratio
  assert (best.limit, best.steps) == (limit, steps)
  assert best.cores == 58.0


def test_sentence_and_row_have_three_digits():
  env = timing.Timing(0.0, 0.0, 0.0, cpu_seconds=4.711e-3)
  (plan,) = bounds.plans(_SPLITS[1:2], env, 112)
  assert bounds.advice(_TARGET, 112, plan) == (
    'v5e:2x4 with 112 cores: environments bound at 23,800 steps/s; training at '
    '6,000; inference at 5,800; take '
    '--config.topology.inference_to_training=2:6.'
  )
  assert list(bounds.plan_row(plan).values()) == [
    *('2:6', '6,000', '5,800', '23,800', 'inference', '5,800', '27'),
  ]


def test_one_device_does_both():
  split = bounds.Split(0, 1, 1.0, 1000.0, 1000.0, exact=False)
  env = timing.Timing(0.0, 0.0, 0.0, cpu_seconds=0.01)
  (plan,) = bounds.plans([split], env, 4)
  assert (plan.limit, plan.steps) == ('environments', 400.0)
  assert bounds.plan_row(plan)['inference:training'] == 'shared *'
  advice = bounds.advice(targets.Target('h200', (1,)), 4, plan)
  assert advice.endswith('inference at 1,000; its one device does both.')


def test_environments_are_timed_without_the_store_and_the_split():
  config = runs.tiny(
    replay__backend='reverb',
    replay__sampler='uniform',
    replay__max_size=10**12,
    topology__inference_to_training='7:1',
    topology__inference_affinity_offset=10**6,
  )
  timed = bounds.time_envs(config, timing.Windows(2, 0.01))
  assert timed.cpu_seconds > 0
  assert config.replay.backend == 'reverb'
