"""Tests for seedrl_jax/runtime/progress.py."""

import io

import pytest

from seedrl_jax.runtime import progress, report


class _Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.mark.parametrize('out', [io.StringIO(), _Terminal()])
def test_file_or_terminal_that_knows_no_codes_gets_plain_lines(
  monkeypatch, out
):
  monkeypatch.setenv('TERM', 'dumb' if out.isatty() else 'xterm')
  line = progress.ProgressLine(out)
  line.update('one')
  line.say('two')
  line.update('three')
  assert out.getvalue() == 'one\ntwo\nthree\n'


def test_terminal_gets_one_line_that_changes_in_rows_if_narrow(monkeypatch):
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.setenv('COLUMNS', '12')
  out = _Terminal()
  line = progress.ProgressLine(out)
  line.say('before')
  line.update('10 frames | lag 2 | waits')
  # Each text clears the one before: up to its first row, back and down.
  assert out.getvalue() == 'before\n10 frames |\nlag 2 |\nwaits'
  line.update('0123456789abc')
  assert out.getvalue().endswith('waits\x1b[2A\r\x1b[J0123456789a\nbc')
  line.say('after')
  assert out.getvalue().endswith('bc\x1b[1A\r\x1b[Jafter\n')
  line.update('x')
  line.say('a\x1b[2J\rb\n\té\x9b\u202e\udc80')
  assert out.getvalue().endswith(
    'x\r\x1b[Ja\\x1b[2J\\rb\n\té\\x9b\\u202e\\udc80\n'
  )


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
