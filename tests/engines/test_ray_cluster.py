"""Tests for what a run asks of a cluster, and when it starts again."""

import sys

import pytest

from seedrl_jax.engines import ray_cluster

_PLAN = ray_cluster.Plan(
  folder='/c/launch',
  learners=2,
  learner_cpus=4,
  learner_gpus=-1,
  learner_flags=['--config=x', '--workdir=w'],
  actors=3,
  actor_cpus=2,
  actor_flags=['--threads=2'],
  place_seconds=1,
  max_failures=0,
)
_HOSTS = [
  ray_cluster.Host('10.0.0.1', 5, 6),
  ray_cluster.Host('10.0.0.2', 7, 8),
]


@pytest.mark.parametrize(
  ('asked', 'nodes', 'gpus'),
  [
    (-1, [], 0),
    (-1, [{'CPU': 8}, {'CPU': 4, 'GPU': 8}, {'GPU': 4}], 4),
    (-1, [{'CPU': 8}, {'GPU': 0}], 0),
    (0, [{'GPU': 4}], 0),
    (0.5, [{'GPU': 4}], 0.5),
  ],
)
def test_gpus_are_a_nodes(asked, nodes, gpus):
  plan = ray_cluster.with_gpus(_PLAN._replace(learner_gpus=asked), nodes)
  assert plan.learner_gpus == gpus


def test_commands_of_several_learners_and_their_actors():
  learner = ray_cluster.learner_command(_PLAN, _HOSTS, 1, ['--config.token=t'])
  assert ' '.join(learner) == (
    f'{sys.executable} /c/launch/learner.py --coordinator=10.0.0.1:5 '
    '--num_processes=2 --process_id=1 --config=x --workdir=w '
    "--config.actors.addresses=('0.0.0.0:8',) --config.token=t"
  )
  actors = [
    ray_cluster.actor_command(_PLAN, _HOSTS, i, ['--token=t']) for i in range(3)
  ]
  assert ' '.join(actors[0]) == (
    f'{sys.executable} /c/launch/actor.py --learner=10.0.0.1:6 '
    '--patience=0 --token=t --threads=2'
  )
  learners = [command[2] for command in actors[1:]]
  assert learners == ['--learner=10.0.0.2:8', '--learner=10.0.0.1:6']


def test_one_learner_trains_alone():
  plan = _PLAN._replace(actors=0)
  command = ray_cluster.learner_command(plan, _HOSTS[:1], 0, [])
  assert command[1:] == ['/c/launch/train.py', '--config=x', '--workdir=w']


@pytest.mark.parametrize(
  ('ends', 'reason', 'is_counted'),
  [
    ([0, 0], '', False),
    ([0, 1], 'learner 1 (exit code 1) has failed', True),
    ([-9, 1], 'learner 0 (exit code -9) and 1 (exit code 1) has failed', True),
    # The other one failed because of it.
    ([1, None], 'learner 1 is lost with its worker', False),
    ([None, None], 'learner 0 and 1 is lost with its worker', False),
  ],
)
def test_lost_learners_are_not_blamed(ends, reason, is_counted):
  assert ray_cluster.failure(ends) == (reason, is_counted)
