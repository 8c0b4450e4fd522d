"""Tests for reading one field of a checkpoint while the run goes on."""

import chex
import numpy as np
import pytest

from seedrl_jax.learner import update
from seedrl_jax.runtime import checkpoints


def _params(value: float) -> dict[str, dict[str, np.ndarray]]:
  return {'head': {'bias': np.full(3, value, np.float32)}}


def _state(step: int) -> update.LearnerState:
  return update.LearnerState(
    _params(step), np.int32(step), np.ones(step, np.uint32)
  )


@pytest.fixture
def path(tmp_path):
  store = checkpoints.Checkpoints(tmp_path / 'checkpoints')
  for step in (3, 5):
    store.save(step, _state(step), {'starts': step})
  store.close()
  return tmp_path / 'checkpoints'


def _reader(path, said=None) -> checkpoints.Checkpoints:
  report = print if said is None else said.append
  return checkpoints.Checkpoints(path, report=report, read_only=True)


def test_part_needs_no_template_of_the_rest(path):
  found = _reader(path).restore_part('agent', _params(0.0))
  assert (found.step, found.record) == (5, {'starts': 5})
  chex.assert_trees_all_equal(found.state, _params(5.0))


def test_part_of_a_named_step(path):
  found = _reader(path).restore_part('agent', _params(0.0), step=3)
  chex.assert_trees_all_equal(found.state, _params(3.0))


def test_absent_step_gives_none(path):
  assert _reader(path).restore_part('agent', _params(0.0), step=4) is None


def test_part_that_does_not_fit_is_refused(path):
  wanted = {'head': {'bias': np.zeros(4, np.float32)}}
  with pytest.raises(
    checkpoints.CheckpointMismatch, match=r'agent\.head\.bias is float32\[3\]'
  ):
    _reader(path).restore_part('agent', wanted)


@pytest.mark.parametrize(
  ('step', 'found_step', 'end'),
  [(None, 3, 'the one before is used.'), (5, None, 'no other is used.')],
)
def test_reader_moves_nothing(path, step, found_step, end):
  unfinished = path / '6.orbax-checkpoint-tmp'
  unfinished.mkdir()
  for file in (path / '5').rglob('*'):
    if file.is_file():
      file.write_bytes(b'')
  said = []
  found = _reader(path, said).restore_part('agent', _params(0.0), step)
  assert (found and found.step) == found_step
  (sentence,) = said
  assert sentence.startswith('Checkpoint 5 is damaged (')
  assert sentence.endswith(f'); {end}')
  # An unfinished save stays, too.
  assert {entry.name for entry in path.iterdir()} >= {'3', '5', unfinished.name}
