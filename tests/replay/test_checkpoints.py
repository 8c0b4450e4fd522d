"""The replay's checkpoints beside the learner's."""

import pathlib
from collections.abc import Iterator

import pytest

from seedrl_jax.replay import base as replay
from seedrl_jax.replay import checkpoints as checkpoints_lib
from seedrl_jax.replay.embedded import store as embedded


class _Saved:
  def __init__(self, toy, folder: pathlib.Path):
    self.said: list[str] = []
    self.folder = folder
    self.store = embedded.EmbeddedStore([toy.queue(8)], toy.spec(), 2)
    self.checkpoints = checkpoints_lib.ReplayCheckpoints(
      self.store, folder, self.said.append
    )


@pytest.fixture(name='saved')
def saved_fixture(toy, tmp_path) -> Iterator[_Saved]:
  made = _Saved(toy, tmp_path / 'replay')
  yield made
  made.store.close()


def test_another_run_gets_back_what_was_saved(saved, toy):
  toy.insert(saved.store, 't', [1, 2])
  name = saved.checkpoints.save(7)
  toy.insert(saved.store, 't', [3, 4])
  other = _Saved(toy, saved.folder)
  other.checkpoints.restore(name)
  assert other.store.info()['t'].size == 2
  assert toy.numbers(other.store.table('t').sampler(2).sample()) == [1, 2]
  assert saved.said == []


def test_each_step_has_its_own(saved, toy):
  names = []
  for step in (1, 2):
    toy.insert(saved.store, 't', [step, step])
    names.append(saved.checkpoints.save(step))
  for name, size in zip(names, (2, 4), strict=True):
    saved.checkpoints.restore(name)
    assert saved.store.info()['t'].size == size


def test_prune_deletes_those_without_a_learner_and_nothing_else(saved, toy):
  saved.checkpoints.prune([])
  names = [saved.checkpoints.save(step) for step in (1, 2, 3)]
  # A folder, as a Reverb store makes.
  (saved.folder / '4').mkdir()
  (saved.folder / '4' / 'tables').touch()
  (saved.folder / 'reverb').mkdir()
  saved.checkpoints.prune([1, 3])
  left = {path.name for path in saved.folder.iterdir()}
  assert left == {'1', '3', 'reverb'}
  saved.checkpoints.restore(names[2])
  with pytest.raises(replay.CheckpointError):
    saved.checkpoints.restore(names[1])


def test_what_a_killed_save_left_is_removed(toy, tmp_path):
  folder = tmp_path / 'replay'
  folder.mkdir()
  # Names of unfinished checkpoints of the several stores.
  (folder / '7.abcdefgh.partial').write_bytes(b'gigabytes')
  for name in ('.8.abcdefgh', '9.tmp', '9', 'mine.partial'):
    (folder / name).mkdir()
    (folder / name / 'file').touch()
  _Saved(toy, folder)
  assert {path.name for path in folder.iterdir()} == {'9', 'mine.partial'}


def test_unfinished_saves_are_called_what_is_removed(saved):
  seen = set()

  def look() -> None:
    seen.update(path.name for path in saved.folder.iterdir())

  saved.checkpoints.save(7, look)
  (unfinished,) = seen
  assert checkpoints_lib._UNFINISHED.fullmatch(unfinished)


@pytest.mark.parametrize('error', [OSError, RuntimeError])
def test_what_cannot_be_saved_costs_a_sentence(saved, monkeypatch, error):
  def fail(path: str, on_snapshot: object) -> None:
    raise error(f'No room in {path}.')

  monkeypatch.setattr(saved.store, 'checkpoint', fail)
  assert saved.checkpoints.save(5) == ''
  (sentence,) = saved.said
  assert sentence.startswith('Checkpoint 5 has no replay: No room in ')


def test_a_folder_that_cannot_be_made_costs_a_sentence(toy, tmp_path):
  (tmp_path / 'replay').touch()
  saved = _Saved(toy, tmp_path / 'replay')
  assert saved.checkpoints.save(5) == ''
  assert len(saved.said) == 1


def test_what_is_missing_is_told(saved):
  with pytest.raises(replay.CheckpointError, match='3'):
    saved.checkpoints.restore('3')
