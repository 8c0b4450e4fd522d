"""Tests for seedrl_jax/runtime/checkpoints.py."""

import json
import os
import time
from typing import NamedTuple

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.runtime import checkpoints, file_io


class _State(NamedTuple):
  params: dict
  opt_state: tuple
  step: np.ndarray
  target_params: tuple = ()


def _state(step, size=1000):
  # Incompressible.
  noise = np.random.default_rng(step).normal(size=size).astype(np.float32)
  bias = np.asarray(jnp.full(3, step, jnp.bfloat16))
  return _State(
    {'dense': {'kernel': noise, 'bias': bias}},
    (np.full(2, step, np.int32), {'key': np.zeros(2, np.uint32)}),
    np.int32(step),
  )


def _record(step):
  return {'env_steps': 1000 * step, 'seconds': 0.1 + step, 'returns': [1.5]}


@pytest.fixture(name='path')
def path_fixture(tmp_path):
  return tmp_path / 'checkpoints'


def _save(path, steps, **kwargs):
  store = checkpoints.Checkpoints(path, **kwargs)
  for step in steps:
    store.save(step, _state(step), _record(step))
  return store


def _restore(path, *args, template=None, **kwargs):
  """Returns what a new `Checkpoints` restores and reports."""
  messages = []
  store = checkpoints.Checkpoints(path, report=messages.append, **kwargs)
  return store.restore(template or _state(0), *args), messages


def test_newest_comes_back_as_it_was(path):
  assert _restore(path) == (None, [])
  _save(path, [3, 12])
  checkpoint, messages = _restore(path)
  assert (checkpoint.step, checkpoint.record, messages) == (12, _record(12), [])
  chex.assert_trees_all_equal(checkpoint.state, _state(12))
  chex.assert_trees_all_equal_shapes_and_dtypes(checkpoint.state, _state(12))
  assert isinstance(checkpoint.state, _State)


def test_step_that_is_there_is_not_saved_again(path):
  store = _save(path, [1])
  store.save(1, _state(9), {'other': 1})
  assert store.steps() == [1]
  assert store.restore(_state(0)).record == _record(1)


@pytest.mark.parametrize(
  ('step', 'expected_step'), [(None, 5), (3, 3), (4, None)]
)
def test_a_field_needs_no_template_of_the_rest(path, step, expected_step):
  _save(path, [3, 5])
  template = _state(0).params
  checkpoint, _ = _restore(path, 'params', step, template=template)
  assert (checkpoint and checkpoint.step) == expected_step
  if checkpoint:
    chex.assert_trees_all_equal(checkpoint.state, _state(expected_step).params)


def test_a_linked_checkpoint_goes_and_what_it_leads_to_stays(path, tmp_path):
  _save(tmp_path / 'other', [1])
  path.mkdir()
  (path / '1').symlink_to(tmp_path / 'other' / '1')
  assert _restore(path)[0].step == 1
  assert _save(path, [2, 3, 4], keep=2).steps() == [3, 4]
  assert _restore(tmp_path / 'other')[0].step == 1


@pytest.mark.parametrize(
  ('hours', 'expected'),
  # With hours, the first is always kept.
  [(0.0, [7, 8]), (1.0, [1, 3, 5, 7, 8]), (2.0, [1, 5, 7, 8])],
)
def test_newest_are_kept_and_one_every_so_many_hours(
  path, monkeypatch, hours, expected
):
  for step in range(1, 9):
    # A start every half an hour; times of files do not matter.
    monkeypatch.setattr(time, 'time', lambda step=step: 1800.0 * step)
    _save(path, [step], keep=2, keep_every_hours=hours)
    os.utime(path / str(step), (0, 0))
  assert checkpoints.Checkpoints(path).steps() == expected


def _truncate(file):
  file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _flip_a_bit(file):
  data = bytearray(file.read_bytes())
  data[len(data) // 2] ^= 1
  file.write_bytes(data)


def _change_record(file):
  line, _, rest = file.read_bytes().partition(b'\n')
  header = json.loads(line)
  header['record']['env_steps'] += 1
  file.write_bytes(json.dumps(header).encode() + b'\n' + rest)


@pytest.mark.parametrize(
  'damage',
  [_truncate, _flip_a_bit, _change_record, lambda file: file.write_bytes(b'')],
)
def test_damaged_newest_is_put_aside_and_the_one_before_is_used(path, damage):
  _save(path, [1, 2])
  damage(path / '2')
  checkpoint, (sentence,) = _restore(path)
  assert (checkpoint.step, checkpoint.record) == (1, _record(1))
  aside = path / '2.damaged-1'
  assert sentence == (
    'Checkpoint 2 is damaged (its contents do not match their digest); it was '
    f'moved to {aside} and the one before is used.'
  )
  # The run saves that step again.
  _save(path, [2])
  checkpoint, messages = _restore(path)
  assert (checkpoint.step, messages) == (2, [])
  assert aside.exists()


def test_a_name_that_is_no_number_is_left_alone(path):
  _save(path, [7])
  for name in ('0999', '007', '\u0669', '-8', 'x'):
    (path / name).write_bytes(b'')
  store = _save(path, [8], keep=1)
  assert store.steps() == [8]
  assert _restore(path)[0].step == 8
  assert len(list(path.iterdir())) == 6


def test_none_is_sound(path):
  _save(path, [1, 2])
  _truncate(path / '1')
  _truncate(path / '2')
  checkpoint, messages = _restore(path)
  assert checkpoint is None
  assert messages[0].endswith(' and the one before is used.')
  # It stays, so that a next start does not overwrite the run.
  for again in messages[1:], _restore(path)[1]:
    assert [s.partition('; ')[2] for s in again] == ['no other is used.']


@pytest.mark.parametrize(
  ('step', 'expected_step', 'end'),
  [(None, 3, 'the one before is used.'), (5, None, 'no other is used.')],
)
def test_reader_moves_nothing(path, step, expected_step, end):
  _save(path, [3, 5])
  (path / '6.tmp').touch()
  _truncate(path / '5')
  checkpoint, (sentence,) = _restore(path, '', step, read_only=True)
  assert (checkpoint and checkpoint.step) == expected_step
  assert sentence.endswith(f'digest); {end}')
  assert {entry.name for entry in path.iterdir()} == {'3', '5', '6.tmp'}


def test_half_written_checkpoint_is_cleared_away(path):
  _save(path, [1])
  (path / '2.tmp').write_bytes(b'half')
  checkpoint, messages = _restore(path)
  assert (checkpoint.step, messages) == (1, [])
  assert not (path / '2.tmp').exists()


@pytest.fixture(name='small_disk')
def small_disk_fixture(tmp_path):
  """A file system of half a megabyte, which can be remounted larger."""
  disk = tmp_path / 'disk'
  disk.mkdir()
  if os.system(f'mount -t tmpfs -o size=512k tmpfs {disk} 2>/dev/null'):
    pytest.skip('only root may mount a file system')
  yield disk
  os.system(f'umount {disk}')


def test_full_disk_costs_a_sentence_and_no_checkpoint(small_disk):
  path = small_disk / 'checkpoints'
  store = checkpoints.Checkpoints(path, keep=1)
  store.save(1, _state(1, 80_000), _record(1))
  for step in (2, 3):
    with pytest.raises(file_io.NotWritten) as error:
      store.save(step, _state(step, 80_000), _record(step))
    assert str(error.value) == (
      f'{path / str(step)} could not be written (No space left on device).'
    )
    assert [p.name for p in path.iterdir()] == ['1']
  assert store.restore(_state(0, 80_000)).step == 1
  os.system(f'mount -o remount,size=4m {small_disk}')
  store.save(4, _state(4, 80_000), _record(4))
  assert store.steps() == [4]


@pytest.mark.parametrize(
  ('template', 'field', 'differences'),
  [
    (
      _state(0, size=7),
      '',
      [
        'params.dense.kernel is float32[1000] in the checkpoint, float32[7] in '
        'the configuration'
      ],
    ),
    (_state(0, size=7).params, 'params', ['params.dense.kernel is float32']),
    (_state(0)._replace(step=np.int64(0)), '', ['step is int32[]']),
    (
      _state(0)._replace(opt_state=(), target_params={'w': np.ones(1)}),
      '',
      [
        'opt_state.0 is ',
        ' in the checkpoint, missing in the configuration',
        'target_params.w is missing in the checkpoint, float64[1] in the conf',
      ],
    ),
    # None of the five arrays fits.
    ({'x': np.ones(1)}, '', ['and 3 more']),
  ],
)
def test_what_does_not_fit_is_refused_by_name(
  path, template, field, differences
):
  _save(path, [1])
  with pytest.raises(checkpoints.CheckpointMismatch) as error:
    _restore(path, field, template=template)
  message = str(error.value)
  assert message.startswith('Checkpoint 1 does not fit this configuration: ')
  assert all(difference in message for difference in differences)
  # It is sound, so it stays.
  assert _restore(path)[0].step == 1


def _of_next_release(path, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(checkpoints, '_LAYOUT', 4)
    _save(path, [1])


def _of_earlier_release(path, monkeypatch):
  (path / '1/state').mkdir(parents=True)


@pytest.mark.parametrize('save', [_of_next_release, _of_earlier_release])
def test_another_releases_layout_is_refused(path, monkeypatch, save):
  save(path, monkeypatch)
  sentence = (
    r'Checkpoint 1 in \S+ is of another release of seedrl-jax, with another '
    r'layout; go on with that release, or give another --workdir\.'
  )
  with pytest.raises(checkpoints.CheckpointMismatch, match=sentence):
    _restore(path)


def test_numbers_stand_in_for_checkpoints_of_another_host(tmp_path):
  numbers = checkpoints.NumbersOfCheckpoints(tmp_path, keep=2)
  assert numbers.steps() == []
  for step in (3, 5, 9):
    numbers.save(step, {}, {})
  assert numbers.steps() == [5, 9]
