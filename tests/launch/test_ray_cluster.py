"""Tests for launch/ray_cluster.py, on a cluster that Ray simulates."""

import contextlib
import os
import pathlib
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests import runs

# For as many learners and actors as a node of three CPUs has room for.
_FLAGS = (
  *('--learner_cpus=2', '--actor_cpus=1', '--actor_flags=--envs_per_group=2'),
  *('--config.env.id=CartPole-v1', '--config.checkpoint.every_seconds=0.1'),
  # A busy machine may delay one of them.
  *('--config.hosts.timeout=600', '--config.actors.timeout=600'),
)


class Cluster:
  """Ray's nodes on this machine; the first has no CPUs."""

  def __init__(self) -> None:
    from ray import cluster_utils

    self._cluster = cluster_utils.Cluster(
      initialize_head=True,
      head_node_args={'num_cpus': 0, 'include_dashboard': False},
    )
    self.address = self._cluster.address

  def add(self) -> Any:
    return self._cluster.add_node(num_cpus=3, object_store_memory=80 << 20)

  def kill(self, node: Any) -> None:
    self._cluster.remove_node(node, allow_graceful=False)

  def close(self) -> None:
    self._cluster.shutdown()


@pytest.fixture(name='cluster', scope='module')
def _cluster() -> Iterator[Cluster]:
  pytest.importorskip('ray', reason="needs Ray: pip install -e '.[ray]'")
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('RAY_USAGE_STATS_ENABLED', '0')
    cluster = Cluster()
    yield cluster
    cluster.close()


def _launch(
  cluster: Cluster, workdir: pathlib.Path, *flags: str
) -> runs.Program:
  address = f'--ray_address={cluster.address}'
  return runs.Program(
    workdir, *_FLAGS, address, *flags, script='ray_cluster.py'
  )


def _find(word: str) -> list[int]:
  """Returns the processes that have a word in their commands."""
  pids = []
  for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    # It may end meanwhile.
    with contextlib.suppress(OSError):
      if word.encode() in path.read_bytes().split(b'\0'):
        pids.append(int(path.parent.name))
  return pids


def _parent(process: int) -> int:
  status = pathlib.Path(f'/proc/{process}/status').read_text()
  return int(re.search(r'PPid:\s+(\d+)', status)[1])


@pytest.mark.slow
def test_it_outlives_processes_and_nodes(
  cluster: Cluster, tmp_path: pathlib.Path
):
  nodes = [cluster.add() for _ in range(2)]
  run = _launch(
    cluster,
    tmp_path,
    *('--learners=2', '--actors=2', '--config.total_env_frames=100000000'),
  )
  # An actor alone comes back alone.
  port = run.wait_for(r'^Environment: CartPole.*actors at 0.0.0.0:(\d+);')[1]
  address = run.wait_for(rf'for (\S+:{port})\.')[1]
  os.kill(_find(f'--learner={address}')[0], signal.SIGKILL)
  run.wait_for(r'actor 0 has died \(exit code -9\) and starts again')
  run.wait_for(rf'\[actor 0\] .* for {address}')
  # A node, and another in its place, or a worker: all start again.
  updates = 0
  for what in 'node', 'worker':
    run.wait_for_updates(updates + 1)
    while not runs.steps(tmp_path) or runs.steps(tmp_path)[-1] <= updates:
      run.wait_for_updates()
    if what == 'node':
      cluster.add()
      cluster.kill(nodes[1])
    else:
      learner = _find('--process_id=1')[0]
      os.kill(_parent(learner), signal.SIGKILL)
    run.wait_for('lost with its worker; all start again from the last checkp')
    step = int(run.wait_for(r'^Resuming from checkpoint (\d+)')[1])
    assert step > updates
    updates = run.wait_for_updates(step + 1)
  run.process.send_signal(signal.SIGTERM)
  code, err = run.end()
  assert code == 0, err
  summary = runs.summary(tmp_path)
  assert summary['status'] == 'stopped'
  assert summary['updates'] == runs.steps(tmp_path)[-1] >= updates
  assert not _find(f'--workdir={tmp_path}')
  # Another number of learners goes on to the end.
  frames = summary['env_steps'] + 500
  run = _launch(
    cluster, tmp_path, '--actors=1', f'--config.total_env_frames={frames}'
  )
  code, err = run.end()
  assert code == 0, err
  summary = runs.summary(tmp_path)
  assert summary['status'] == 'finished'
  assert frames <= summary['env_steps'] < frames + 100
  assert not _find(f'--workdir={tmp_path}')


@pytest.mark.slow
@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    (
      ['--learner_cpus=50', '--place_timeout=0'],
      r'--learners=1 needs as many nodes, each with 50 CPUs and 0 GPUs free; '
      r'.* or --learner_gpus\.',
    ),
    (
      ['--learners=1', '--max_restarts=1', '--config.replay.address=no:1'],
      r'learner 0 \(exit code 1\) has failed; see above\.',
    ),
  ],
)
def test_failures_are_said(
  cluster: Cluster, tmp_path: pathlib.Path, flags: list[str], said: str
):
  cluster.add()
  code, err = _launch(cluster, tmp_path, *flags).end()
  assert code == 1
  assert re.search(rf'^ray_cluster: {said}$', err, re.MULTILINE), err


def _refusal(tmp_path: pathlib.Path, *flags: str) -> str:
  """Returns the message where Ray is not installed."""
  (tmp_path / 'ray.py').write_text('raise ModuleNotFoundError("No Ray.")')
  paths = f'{tmp_path}:{runs.ROOT}'
  result = runs.call(
    'ray_cluster', f'--workdir={tmp_path / "w"}', *flags, PYTHONPATH=paths
  )
  assert (result.returncode, result.stderr.count('\n')) == (1, 1), result
  return result.stderr


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    ([], "not installed; on all nodes: pip install 'seedrl-jax[ray]'"),
    (['--learners=0'], '--learners=0: 0 is not a positive integer'),
    (
      ['--config.unroll_length=0'],
      '--config.unroll_length=0: give 1 to 100,000.',
    ),
    (
      ['--actors=1', '--config.actors.token_file=/no'],
      '--config.actors.token_file=/no: No such file',
    ),
  ],
)
def test_what_is_wrong_is_said_first(
  tmp_path: pathlib.Path, flags: list[str], said: str
):
  assert said in _refusal(tmp_path, *flags)
  assert not (tmp_path / 'w').exists()
