"""Tests for seedrl_jax/run/plan.py: refusals, and the sizes of parts."""

import re

import pytest

from seedrl_jax.configs import (
  dyna_q_cartpole,
  ppo_cartpole,
  pqn_cartpole,
  sac_pendulum,
)
from seedrl_jax.run import plan as plan_lib
from seedrl_jax.runtime import report, workdir
from seedrl_jax.workers import coordinator
from tests import runs


def _build(**values):
  return runs.open_parts(runs.tiny(**values))


@pytest.mark.parametrize(
  'values, sentence',
  [
    (
      {'env__num_envs': 0},
      '--config.env.num_envs=0: give at least 1, or let actors bring some '
      'with --config.actors.max_envs.',
    ),
    (
      {'actors__max_envs': 4, 'deterministic': True},
      '--config.actors.max_envs=4: remote actors cannot take turns with the '
      'learner, as --config.deterministic and asynchronous workers without '
      'Reverb do; give 0.',
    ),
    (
      {'actors__max_envs': 4, 'actors__batch_size': 5},
      '--config.actors.min_batch_size=1 and --config.actors.batch_size=5 must '
      'be in this order, and between 1 and the 4 remote environments of a '
      'stream.',
    ),
    (
      {'batch_size': 6, 'learner__micro_batches': 4},
      '--config.batch_size=6 must be a multiple of 4: 1 training devices x '
      '--config.learner.micro_batches=4.',
    ),
    (
      {'demonstrations__fraction': 1.0},
      '--config.demonstrations.fraction=1.0: of the 4 sequences that a '
      'training device gets of a batch, that is 4; give 0.75 (that is 3).',
    ),
    (
      {'topology__streams_per_device': 5},
      '--config.env.num_envs=4 cannot feed 5 inference streams; raise it or '
      'lower --config.topology.streams_per_device.',
    ),
    (
      {'env__batch_size': 5},
      '--config.env.batch_size=5: a stream has 4 environments (evaluation '
      'included); give fewer, or 0 for the default.',
    ),
  ],
)
def test_refuses_in_one_sentence(values, sentence):
  with pytest.raises(ValueError, match=f'^{re.escape(sentence)}$'):
    _build(**values)


@pytest.mark.parametrize(
  'get_config, values, flag, share',
  [
    (
      ppo_cartpole.get_config,
      {'minibatches': 3},
      'minibatches=3',
      '40 samples',
    ),
    # Whole sequences.
    (
      ppo_cartpole.get_config,
      {'minibatches': 5, 'network__lstm_size': 4},
      'minibatches=5',
      '8 samples',
    ),
    (pqn_cartpole.get_config, {'minibatches': 5}, 'minibatches=5', '8 samples'),
    (
      sac_pendulum.get_config,
      {'updates_per_call': 3, 'env__id': 'Pendulum-v1'},
      'updates_per_call=3',
      '8 samples',
    ),
  ],
)
def test_agents_refuse_a_share_that_they_cannot_cut(
  get_config, values, flag, share
):
  values |= {'batch_size': 8, 'unroll_length': 5}
  config = runs.tiny(get_config, **values)
  sentence = (
    f'--config.{flag} must divide the {share} that a training device gets of '
    'a batch.'
  )
  with pytest.raises(ValueError, match=f'^{re.escape(sentence)}$'):
    plan_lib.make_plan(config)


def test_advantages_are_not_normalised_alone():
  config = runs.tiny(ppo_cartpole.get_config, minibatches=20)
  with pytest.raises(ValueError, match=r'minibatches=20: .*=batch\.$'):
    plan_lib.make_plan(config)
  config.loss.normalize_advantages = 'batch'
  plan_lib.make_plan(config)


def test_streams_of_later_starts_have_other_seeds(monkeypatch):
  seeds = []
  make = plan_lib.env_factory.make_stream

  def make_stream(section, seed, **kwargs):
    seeds.append(seed)
    return make(section, seed=seed, **kwargs)

  monkeypatch.setattr(plan_lib.env_factory, 'make_stream', make_stream)
  # There may be fewer streams than in an earlier start.
  for starts, count in (0, 3), (1, 1), (1, 1), (2, 2):
    config = runs.tiny(topology__streams_per_device=count)
    runs.open_parts(config, record=report.RunRecord(starts=starts)).close()
  assert seeds[3] == seeds[4]
  assert len(set(seeds)) == len(seeds) - 1


def test_the_last_worker_trains_the_model(tmp_path):
  config = dyna_q_cartpole.get_config()
  config.asynchronous.workers, config.asynchronous.model_workers = 3, 1
  directory = workdir.Workdir(tmp_path)
  workers = [
    coordinator.AsynchronousWorkers(
      config, directory, {'worker': i} if i else None
    )
    for i in range(3)
  ]
  losses = [
    plan_lib.make_plan(config, worker.placement()).agent.trainer.loss
    for worker in workers
  ]
  roles = [loss.config.planning.role for loss in losses]
  assert roles == ['act', 'act', 'model']
