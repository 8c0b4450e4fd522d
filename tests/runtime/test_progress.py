"""Tests for seedrl_jax/runtime/progress.py."""

import io
import logging
import os
import pty
import subprocess
import sys

import pytest

from seedrl_jax.runtime import progress, report
from tests import runs

_CLEAR = '\r\x1b[J'


class _Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture(name='terminal')
def _terminal(monkeypatch):
  monkeypatch.setenv('TERM', 'xterm')
  for name in ('CI', 'NO_COLOR'):
    monkeypatch.delenv(name, raising=False)
  return _Terminal()


@pytest.mark.parametrize(
  ('name', 'value'),
  [('TERM', 'dumb'), ('CI', 'true'), ('NO_COLOR', '1'), (None, None)],
)
def test_file_and_terminal_without_codes_get_plain_lines(
  monkeypatch, terminal, name, value
):
  out = terminal if name else io.StringIO()
  if name:
    monkeypatch.setenv(name, value)
  line = progress.ProgressLine(out)
  line.update('one', 0.5)
  line.say('Failed: two')
  line.update('three', 0.5)
  assert out.getvalue() == 'one\nFailed: two\nthree\n'


def test_terminal_gets_one_line_that_changes_in_rows_if_narrow(
  monkeypatch, terminal
):
  monkeypatch.setenv('COLUMNS', '12')
  line = progress.ProgressLine(terminal)

  def written():
    text = terminal.getvalue()
    terminal.seek(0)
    terminal.truncate()
    return text

  line.say('before')
  assert written() == 'before\n'
  # Below an empty row, in which the cursor waits.
  line.update('10 frames | lag 2 | waits')
  assert written() == f'{_CLEAR}\n10 frames |\nlag 2 |\nwaits\x1b[3A\r'
  line.update('0123456789abc')
  assert written() == f'{_CLEAR}\n0123456789a\nbc\x1b[2A\r'
  line.say('after')
  assert written() == f'{_CLEAR}after\n'
  line.say('a\x1b[2J\rb\n\té\x9b\u202e\udc80')
  assert written() == 'a\\x1b[2J\\rb\n\té\\x9b\\u202e\\udc80\n'
  line.say('Failed after 3 frames')
  assert written() == '\x1b[31mFailed\x1b[0m after 3 frames\n'


@pytest.mark.parametrize(
  ('done', 'bar'),
  [
    (0.0, 20 * '░'),
    (0.52, f'\x1b[32m{10 * "█"}\x1b[0m{10 * "░"}'),
    (1.0, f'\x1b[32m{20 * "█"}\x1b[0m'),
  ],
)
def test_a_bar_shows_what_is_done(terminal, done, bar):
  progress.ProgressLine(terminal).update('text', done)
  assert f'{bar} text' in terminal.getvalue()


def test_a_log_message_makes_room_while_the_line_is_shown(
  monkeypatch, terminal
):
  handler = logging.StreamHandler(terminal)
  monkeypatch.setattr(logging.getLogger(), 'handlers', [handler])
  line = progress.ProgressLine(terminal)
  line.update('text')
  logging.warning('one\ntwo')
  assert terminal.getvalue().endswith(f'\x1b[1A\r{_CLEAR}one\ntwo\n')
  line.say('said')
  logging.warning('three')
  assert terminal.getvalue().endswith('said\nthree\n')


@pytest.mark.parametrize('is_terminal', [True, False])
def test_a_program_draws_the_bar_on_a_terminal_alone(terminal, is_terminal):
  code = """
from seedrl_jax.launch import program
from seedrl_jax.runtime import progress

def main():
  progress.ProgressLine().update('half', 0.5)
  raise ValueError('first\\nlast')

program.NAME = 'test'
program.start(main)
"""
  screen, output = pty.openpty() if is_terminal else os.pipe()
  with open(output, 'wb') as out:
    ended = subprocess.run(
      [sys.executable, '-c', code],
      env=runs.environment_of({}),
      stdout=out,
      stderr=out,
      check=False,
    )
    text = os.read(screen, 4096).decode().replace('\r\n', '\n')
  os.close(screen)
  assert ended.returncode == 1
  if is_terminal:
    assert f'{10 * "█"}\x1b[0m{10 * "░"} half\x1b[1A\r' in text
    # The error takes the line's place.
    assert text.endswith(f'{_CLEAR}test: first\n\x1b[31mlast\x1b[0m\n')
  else:
    assert text == 'half\ntest: first\nlast\n'


@pytest.mark.parametrize(
  ('stolen', 'end'),
  [(0.1, 'envs (80%)'), (0.23, 'envs (80%) | 23% stolen by other guests')],
)
def test_progress_says_what_was_stolen_if_it_was_much(stolen, end):
  row = {
    report.UPDATES: 12,
    report.FRAMES: 5_000,
    progress.STOLEN: stolen,
    'time/frames_per_s': 12_345.6,
    'rollout/return': 1.25,
    'eval/return': None,
    'replay/policy_lag_mean_batches': 0.5,
  }
  assert progress.progress_text(row, 10_000, 'envs (80%)') == (
    '5000/10k frames (50%) | 12.3k frames/s | return 1.2 (eval -) | '
    f'12 updates | lag 0.5 | waits for {end}'
  )


def test_the_summary_names_a_program_that_the_shell_finds(
  tmp_path, monkeypatch
):
  (tmp_path / 'bin').mkdir()
  (tmp_path / 'bin/seedrl').touch(mode=0o755)
  monkeypatch.setattr(sys, 'executable', f'{tmp_path}/bin/python')
  summary = report.Summary(0, 0, 1.0, 0.0, 0, None, None, 0.0, 'finished')
  for path, program in (('', f'{tmp_path}/bin/seedrl'), ('bin', 'seedrl')):
    monkeypatch.setenv('PATH', str(tmp_path / path))
    text = progress.summary_text(summary, report.Waits(0, 0, 0, 0), tmp_path)
    assert text.endswith(f'\n  {program} plot --workdir={tmp_path}')
