"""Tests for seedrl_jax/demonstrations/teacher.py: scripted policies."""

import numpy as np
import pytest

from seedrl_jax.demonstrations import teacher
from seedrl_jax.envs import factory
from tests import runs
from tests.evaluation import evaluation_runs


def _scripted(kind: str, action: np.ndarray) -> teacher.ScriptedStream:
  """Two environments, and a policy that always takes `action`."""
  env = runs.tiny(**evaluation_runs.echo(kind)).env
  stream = factory.make_stream(env, 1, 2, 2)
  return teacher.ScriptedStream(stream, lambda output: action, '--policy=a:b')


@pytest.mark.parametrize(
  ('kind', 'action'),
  [
    ('discrete', np.array([3, 0])),
    ('joint', np.array([[1, 2], [0, 0]], np.int32)),
    ('binary', np.ones((2, 3), np.uint8)),
    ('box', np.linspace(-1, 1, 8).reshape(2, 2, 2)),
  ],
)
def test_actions_come_with_the_observation(kind, action):
  stream = _scripted(kind, action)
  output = stream.recv()
  scripted, _ = output.observation
  np.testing.assert_allclose(scripted, action, rtol=1e-6)
  assert scripted.dtype == stream.spec.action.dtype
  spec = stream.spec.observation.teacher
  assert (scripted.shape[1:], scripted.dtype) == (spec.shape, spec.dtype)
  # The environments accept it.
  stream.send(scripted, output.env_id)
  stream.recv()
  stream.close()


@pytest.mark.parametrize(
  ('kind', 'action', 'sentence'),
  [
    ('discrete', np.array([0, 4]), r'int32\[2\] from 0 to 3; .*: \[0 4\]'),
    ('discrete', np.array([0]), r'returned int64\[1\]'),
    (
      'joint',
      np.array([[1, 2], [2, 0]]),
      r'int32\[2, 2\] from \[0.*\] to \[1.*, 2.*\]; it returned int64\[2, 2\]',
    ),
    (
      'box',
      np.full((2, 2, 2), 1.1),
      r'float32\[2, 2, 2\] from \[\[-1.*\]\] to \[\[1.*\]\]; it',
    ),
    ('box', np.full((2, 2, 2), np.nan), r'returned float64\[2, 2, 2\]: \[nan'),
    ('box', np.zeros((2, 2, 2), np.int32), r'returned int32\[2, 2, 2\]'),
  ],
)
def test_other_actions_are_refused_in_a_sentence(kind, action, sentence):
  stream = _scripted(kind, action)
  with pytest.raises(ValueError, match=sentence) as caught:
    stream.recv()
  assert str(caught.value).startswith('--policy=a:b: it must return ')
  assert '\n' not in str(caught.value)
  stream.close()
