"""Runs in work directories with files that no run has written."""

import pathlib

import pytest

from tests import runs


def _folder(path: pathlib.Path) -> None:
  path.mkdir()
  (path / 'mine').touch()


def _file(path: pathlib.Path) -> None:
  path.write_bytes(b'\x89\xff mine')


def _list(path: pathlib.Path) -> None:
  path.write_text('[1]')


def _link(path: pathlib.Path) -> None:
  path.symlink_to('nowhere')


def _link_to_a_folder(path: pathlib.Path) -> None:
  path.symlink_to(path.parent)


# What is odd, and what is there when the run has ended.
_ODD = [
  ('config.json', _folder, 'config.json.damaged-1/mine'),
  ('config.json', _file, 'config.json.damaged-1'),
  ('config.json', _list, 'config.json.damaged-1'),
  ('config.json', _link, 'config.json.damaged-1'),
  ('summary.json', _folder, 'summary.json.damaged-1/mine'),
  ('checkpoints', _file, 'checkpoints.damaged-1'),
  ('replay', _file, 'replay.damaged-1'),
  ('reverb', _file, 'reverb.damaged-1'),
  ('checkpoints/5.tmp', _link_to_a_folder, None),
  ('replay/77', _link_to_a_folder, None),
]


def _spoil(path: pathlib.Path, how) -> None:
  """Makes `path` odd; moves away what a run left there."""
  path.parent.mkdir(exist_ok=True)
  if path.exists():
    path.rename(path.with_name('old'))
  how(path)


@pytest.mark.parametrize('resumed', [False, True])
@pytest.mark.parametrize(('name', 'how', 'left'), _ODD)
def test_a_run_goes_on_and_deletes_nothing(tmp_path, name, how, left, resumed):
  # In lock step, each run has its updates, however slow its threads are.
  config = runs.tiny(total_env_frames=40, deterministic=True)
  if resumed:
    done = runs.Run(config, tmp_path).train()
    config.total_env_frames += done['env_frames']
  _spoil(tmp_path / name, how)
  run = runs.Run(config, tmp_path)
  assert run.train()['status'] == 'finished'
  is_lost = name == 'checkpoints'
  assert ('Resuming from' in run.output) == (resumed and not is_lost)
  assert runs.steps(tmp_path) and runs.summary(tmp_path)
  run.system._workdir.read_config()
  if left is None:
    assert not (tmp_path / name).is_symlink()
  else:
    assert (tmp_path / left).is_symlink() or (tmp_path / left).exists()
    assert f'is now {pathlib.Path(left).parts[-1 - ("mine" in left)]}' in (
      run.output
    )
