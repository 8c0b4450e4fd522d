"""Actions of every shape on every path; `echoing` checks them."""

import io
import pathlib
from typing import Any

import pytest

from seedrl_jax.demonstrations import recording
from seedrl_jax.evaluation import scoring
from seedrl_jax.runtime import progress
from tests import runs
from tests.actors import threads

_ALLOWED = (
  '--allow_factory=tests.envs.toys:echo',
  '--allow_factory=tests.run.echoing:make_agent',
)


@pytest.fixture(name='kind', params=['discrete', 'joint', 'box', 'hybrid'])
def kind_fixture(request: pytest.FixtureRequest) -> str:
  """Returns the action spaces of `toys.ACTION_SPACES` one by one."""
  return request.param


def _config(kind: str, **values: Any) -> Any:
  return runs.tiny(
    agent='tests.run.echoing',
    env__factory='tests.envs.toys:echo',
    env__factory_kwargs={'kind': kind},
    total_env_frames=300,
    **values,
  )


# Of a table for a replay agent.
_REPLAY = {
  'replay__sampler': 'uniform',
  'replay__min_size': 4,
  'replay__max_size': 64,
}


def _train(config: Any, folder: pathlib.Path) -> None:
  summary = runs.Run(config, folder).train()
  assert summary['status'] == 'finished'
  assert summary['updates'] > 3


@pytest.mark.usefixtures('shared_reverb')
def test_unrolls_replayed_by_reverb(kind: str, tmp_path: pathlib.Path):
  _train(_config(kind, **_REPLAY, replay__backend='reverb'), tmp_path)


@pytest.mark.parametrize('inference', ['central', 'local'])
def test_remote_actors(
  inference: str,
  kind: str,
  tmp_path: pathlib.Path,
  request: pytest.FixtureRequest,
):
  is_local = inference == 'local'
  if is_local:
    request.getfixturevalue('shared_reverb')
  backend = 'reverb' if is_local else 'embedded'
  config = _config(
    kind, env__num_envs=0, actors__max_envs=4, replay__backend=backend
  )
  run = runs.Run(config, tmp_path)
  with threads.acting(run.system, 4, _ALLOWED, is_local):
    summary = run.train()
  assert summary['status'] == 'finished' and summary['updates'] > 3


def test_demonstrations(kind: str, tmp_path: pathlib.Path):
  demos = tmp_path / 'demos'
  options = recording.RecordingOptions(
    policy='tests.run.echoing:policy', out=str(demos), episodes=4, num_envs=2
  )
  line = progress.ProgressLine(io.StringIO())
  recorded = recording.record(_config(kind, **_REPLAY), options, line)
  assert recorded.manifest.sequences > 1
  mixed = {'demonstrations__path': str(demos), 'demonstrations__fraction': 0.25}
  _train(_config(kind, **_REPLAY, **mixed), tmp_path / 'run')


def test_evaluation_with_video(kind: str, tmp_path: pathlib.Path):
  _train(_config(kind), tmp_path / 'run')
  options = scoring.EvaluationOptions(
    episodes=3, num_envs=2, video=tmp_path / 'video.gif', allowed=_ALLOWED
  )
  line = progress.ProgressLine(io.StringIO())
  evaluation = scoring.evaluate(tmp_path / 'run', options, line)
  assert [e.length for e in evaluation.episodes] == [3, 3, 5]
  assert evaluation.video is not None and evaluation.video.path.is_file()
