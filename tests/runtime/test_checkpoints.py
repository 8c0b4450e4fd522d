"""Tests for seedrl_jax/runtime/checkpoints.py."""

import json
import os
import shutil
from typing import NamedTuple

import chex
import numpy as np
import pytest

from seedrl_jax.runtime import checkpoints, workdir


class _State(NamedTuple):
  params: dict
  opt_state: tuple
  step: np.ndarray
  target_params: tuple = ()


def _state(step, size=1000):
  # Incompressible, so damage to a file hits an array.
  noise = np.random.default_rng(step).normal(size=size).astype(np.float32)
  return _State(
    {'dense': {'kernel': noise, 'bias': np.zeros(3, np.float32)}},
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
  store.close()


def _restore(path, template=None):
  """Returns what a new `Checkpoints` restores and reports."""
  said = []
  store = checkpoints.Checkpoints(path, report=said.append)
  found = store.restore(template or _state(0))
  store.close()
  return found, said


def test_newest_comes_back_as_it_was(path):
  _save(path, [3, 12])
  found, said = _restore(path)
  assert found.step == 12
  assert found.record == _record(12)
  chex.assert_trees_all_equal(found.state, _state(12))
  chex.assert_trees_all_equal_shapes_and_dtypes(found.state, _state(12))
  assert isinstance(found.state, _State)
  assert said == []


def test_nothing_to_restore(path):
  found, said = _restore(path)
  assert found is None
  assert said == []
  assert checkpoints.Checkpoints(path).steps() == []


@pytest.mark.parametrize(
  ('keep', 'left'), [(1, [4]), (2, [3, 4]), (6, [1, 2, 3, 4])]
)
def test_a_linked_checkpoint_goes_and_what_it_leads_to_stays(
  path, tmp_path, keep, left
):
  _save(tmp_path / 'other', [1])
  path.mkdir()
  (path / '1').symlink_to(tmp_path / 'other' / '1')
  assert _restore(path)[0].step == 1
  _save(path, [2, 3, 4], keep=keep)
  assert checkpoints.Checkpoints(path).steps() == left
  assert _restore(tmp_path / 'other')[0].step == 1


@pytest.mark.parametrize(
  ('hours', 'expected'),
  # With hours, the first is always kept.
  [(0.0, [4, 5]), (1e-12, [1, 2, 3, 4, 5]), (1000.0, [1, 4, 5])],
)
def test_newest_are_kept_and_one_every_so_many_hours(path, hours, expected):
  _save(path, [1, 2, 3, 4, 5], keep=2, keep_every_hours=hours)
  assert checkpoints.Checkpoints(path).steps() == expected


def test_step_that_is_there_is_not_saved_again(path):
  _save(path, [1])
  store = checkpoints.Checkpoints(path)
  store.save(1, _state(9), {'other': 1})
  assert store.steps() == [1]
  assert store.restore(_state(0)).record == _record(1)


def test_restored_run_goes_on_saving(path):
  _save(path, [1, 2], keep=2)
  store = checkpoints.Checkpoints(path, keep=2)
  store.restore(_state(0))
  store.save(3, _state(3), _record(3))
  assert store.steps() == [2, 3]


def _files(folder):
  return sorted(p for p in folder.rglob('*') if p.is_file())


def _largest(folder):
  return max(_files(folder), key=lambda p: p.stat().st_size)


def _truncate(folder):
  file = _largest(folder)
  file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _flip_bit_of_an_array(folder):
  file = _largest(folder)
  data = bytearray(file.read_bytes())
  data[len(data) // 2] ^= 1
  file.write_bytes(data)


def _change_record(folder):
  file = next(p for p in _files(folder) if b'env_steps' in p.read_bytes())
  record = json.loads(file.read_text())
  record['env_steps'] += 1
  file.write_text(json.dumps(record))


def _empty_everything(folder):
  for file in _files(folder):
    file.write_bytes(b'')


def _delete_contents(folder):
  shutil.rmtree(folder)
  folder.mkdir()


_DAMAGE = {
  'truncated': _truncate,
  'flipped bit': _flip_bit_of_an_array,
  'other record': _change_record,
  'no file': lambda folder: _largest(folder).unlink(),
  'no state': lambda folder: shutil.rmtree(folder / 'state'),
  'no record': lambda folder: shutil.rmtree(folder / 'record'),
  'empty files': _empty_everything,
  'no contents': _delete_contents,
}


@pytest.mark.parametrize('damage', _DAMAGE.values(), ids=_DAMAGE)
def test_damaged_newest_is_put_aside_and_the_one_before_is_used(path, damage):
  _save(path, [1, 2])
  damage(path / '2')
  found, said = _restore(path)
  assert found.step == 1
  assert found.record == _record(1)
  chex.assert_trees_all_equal(found.state, _state(1))
  aside = path / '2.damaged-1'
  assert aside.is_dir()
  (sentence,) = said
  assert sentence.startswith('Checkpoint 2 is damaged (')
  assert f'moved to {aside} and the one before is used.' in sentence
  # The run saves that step again.
  _save(path, [2])
  found, said = _restore(path)
  assert (found.step, said) == (2, [])


def test_two_damaged_ones(path):
  _save(path, [1, 2, 3])
  _truncate(path / '3')
  _truncate(path / '2')
  found, said = _restore(path)
  assert found.step == 1
  assert [s.split(' is')[0] for s in said] == ['Checkpoint 3', 'Checkpoint 2']


def test_none_is_left(path):
  _save(path, [1])
  _truncate(path / '1')
  found, said = _restore(path)
  assert found is None
  (sentence,) = said
  assert sentence.endswith(' and no other is used.')


def test_step_that_is_damaged_again_leaves_the_first(path):
  for _ in range(2):
    _save(path, [1])
    _truncate(path / '1')
    _restore(path)
  names = sorted(p.name for p in path.iterdir())
  assert names == ['1.damaged-1', '1.damaged-2']


def test_half_written_checkpoint_is_cleared_away(path):
  _save(path, [1])
  # A process killed in mid-save leaves this.
  partial = path / '2.orbax-checkpoint-tmp-1234'
  shutil.copytree(path / '1', partial)
  _truncate(partial)
  found, said = _restore(path)
  assert (found.step, said) == (1, [])
  assert not partial.exists()
  _save(path, [2])
  assert _restore(path)[0].step == 2


def test_what_only_has_the_name_of_a_checkpoint_blocks_nothing(path, tmp_path):
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine' / 'file').touch()
  path.mkdir()
  (path / '5.orbax-checkpoint-tmp').symlink_to(tmp_path / 'mine')
  (path / '6.orbax-checkpoint-tmp').write_text('a file')
  (path / '2').symlink_to('nowhere')
  (path / '3').write_text('a file')
  _save(path, [2, 3])
  names = sorted(p.name for p in path.iterdir())
  assert names == ['2', '2.damaged-1', '3', '3.damaged-1']
  assert (tmp_path / 'mine' / 'file').exists()
  assert _restore(path)[0].step == 3


@pytest.fixture(name='small_disk')
def small_disk_fixture(tmp_path):
  """A file system of half a megabyte, which can be remounted larger."""
  disk = tmp_path / 'disk'
  disk.mkdir()
  if os.system(f'mount -t tmpfs -o size=512k tmpfs {disk} 2>/dev/null'):
    pytest.skip('only root may mount a file system')
  yield disk
  os.system(f'umount {disk}')


def test_full_disk_costs_a_sentence_and_no_checkpoint(small_disk, capfd):
  path = small_disk / 'checkpoints'
  store = checkpoints.Checkpoints(path, keep=1)
  store.save(1, _state(1, 80_000), _record(1))
  for step in (2, 3):
    with pytest.raises(workdir.NotWritten) as error:
      store.save(step, _state(step, 80_000), _record(step))
    assert str(error.value) == (
      f'Checkpoint {step} could not be written (No space left on device).'
    )
    assert [p.name for p in path.iterdir()] == ['1']
  assert store.restore(_state(0, 80_000)).step == 1
  os.system(f'mount -o remount,size=4m {small_disk}')
  store.save(4, _state(4, 80_000), _record(4))
  assert store.steps() == [4]
  store.close()
  assert capfd.readouterr() == ('', '')


@pytest.mark.parametrize(
  ('template', 'differences'),
  [
    (
      _state(0, size=7),
      [
        'params.dense.kernel is float32[1000] in the checkpoint, float32[7] in '
        'the configuration'
      ],
    ),
    (_state(0)._replace(step=np.int64(0)), ['step is int32[]']),
    (
      _state(0)._replace(opt_state=(), target_params={'w': np.ones(1)}),
      [
        'opt_state.0 is only in the checkpoint',
        'opt_state.1.key is only in the checkpoint',
        'target_params.w is only in the configuration',
      ],
    ),
    # None of the five arrays fits.
    ((), ['and 2 more']),
  ],
)
def test_what_does_not_fit_is_refused_by_name(path, template, differences):
  _save(path, [1])
  store = checkpoints.Checkpoints(path)
  with pytest.raises(checkpoints.CheckpointMismatch) as error:
    store.restore(template)
  message = str(error.value)
  assert message.startswith('Checkpoint 1 does not fit this configuration: ')
  assert all(difference in message for difference in differences)
  # It is sound, so it stays.
  assert _restore(path)[0].step == 1


def test_another_releases_layout_is_refused(path, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(checkpoints, '_CURRENT_LAYOUT', 1)
    _save(path, [1])
  sentence = (
    r'Checkpoint 1 in \S+ is of another release of seedrl-jax, with another '
    r'layout; go on with that release, or give another --workdir\.'
  )
  store = checkpoints.Checkpoints(path)
  for restore in (store.restore, lambda _: store.restore_part('step', 0)):
    with pytest.raises(checkpoints.CheckpointMismatch, match=sentence):
      restore(_state(0))


def test_numbers_stand_in_for_checkpoints_of_another_host():
  numbers = checkpoints.NumbersOfCheckpoints(keep=2)
  assert numbers.restore({}) is None and numbers.steps() == []
  for step in (3, 5, 9):
    numbers.save(step, {}, {})
  assert numbers.steps() == [5, 9]
  numbers.close()
