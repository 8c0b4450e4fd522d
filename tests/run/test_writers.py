"""Tests of runs whose metrics go to writers of the user's own."""

import contextlib
import sqlite3

import pytest

from seedrl_jax.runtime.writers import metrics_log
from tests import runs

_OWN = 'tests.runtime.writers.rows'


def test_the_documented_writer_has_what_metrics_csv_has(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(runs.ROOT / 'docs/examples')
  for frames in (400, 800):
    config = runs.tiny(
      log__writers=('csv', 'my_writer:make'), total_env_frames=frames
    )
    assert runs.Run(config, tmp_path).train()['status'] == 'finished'
  query = 'SELECT value FROM metrics WHERE name = ? ORDER BY frames'
  with contextlib.closing(sqlite3.connect(tmp_path / 'metrics.db')) as database:
    for name in ('time/env_frames', 'time/updates'):
      values = [value for (value,) in database.execute(query, (name,))]
      assert values == runs.column(tmp_path, name) and len(values) > 1


def test_one_that_cannot_begin_leaves_the_run_as_it_was(tmp_path):
  runs.Run(runs.tiny(), tmp_path).train()
  paths = [tmp_path / name for name in ('config.json', 'metrics.csv')]
  before, files = [p.read_bytes() for p in paths], runs.open_files()
  names = ('csv', 'jsonl', f'{_OWN}:refusing')
  run = runs.Run(runs.tiny(log__writers=names, total_env_frames=800), tmp_path)
  with pytest.raises(metrics_log.NotOpened, match='no such place'):
    run.train()
  assert runs.open_files() <= files
  assert [p.read_bytes() for p in paths] == before
  again = runs.Run(runs.tiny(total_env_frames=800), tmp_path)
  assert again.train()['status'] == 'finished'


@pytest.mark.parametrize(
  ('name', 'sentence'),
  [
    ('nowhere:make', 'there is no module nowhere, neither in the current fol'),
    (f'{_OWN}:forgetful', ' cannot begin: AttributeError: '),
  ],
)
def test_the_program_says_it_in_a_sentence(tmp_path, name, sentence):
  program = runs.Program(
    tmp_path, f"--config.log.writers='csv','{name}'", omit=('log.writers',)
  )
  code, messages = program.end()
  assert code == 1 and messages.count('\n') == 1, messages
  assert messages.startswith(f'train: --config.log.writers={name}')
  assert sentence in messages
