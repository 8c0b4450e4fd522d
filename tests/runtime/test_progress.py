"""Tests for seedrl_jax/runtime/progress.py."""

import io
import pathlib
import re

import pytest

from seedrl_jax.runtime import progress, report


class _Terminal(io.StringIO):
  def isatty(self):
    return True


def _screen(text):
  """Returns the lines that a terminal would show."""
  lines, row, column = [''], 0, 0
  for up, code in re.findall(r'\x1b\[(\d+)A|(\x1b\[J|[^\x1b])', text):
    if up:
      row -= int(up)
      assert row >= 0
    elif code == '\x1b[J':
      lines = [*lines[:row], lines[row][:column]]
    elif code == '\r':
      column = 0
    elif code == '\n':
      row, column = row + 1, 0
      lines += [''] * (row == len(lines))
    else:
      lines[row] = lines[row][:column] + code + lines[row][column + 1 :]
      column += 1
  return lines


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


def test_terminal_gets_one_line_that_changes(monkeypatch):
  monkeypatch.setenv('TERM', 'xterm')
  out = _Terminal()
  line = progress.ProgressLine(out)
  line.update('a long one')
  assert _screen(out.getvalue()) == ['a long one']
  line.update('short')
  assert _screen(out.getvalue()) == ['short']
  line.say('kept')
  line.update('next')
  assert _screen(out.getvalue()) == ['kept', 'next']


def test_narrow_terminal_shows_all_of_it_in_rows(monkeypatch):
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.setenv('COLUMNS', '12')
  out = _Terminal()
  line = progress.ProgressLine(out)
  line.say('before')
  line.update('10 frames | lag 2 | waits')
  assert _screen(out.getvalue()) == [
    'before',
    '10 frames |',
    'lag 2 |',
    'waits',
  ]
  line.update('0123456789abc')
  assert _screen(out.getvalue()) == ['before', '0123456789a', 'bc']
  line.say('after')
  assert _screen(out.getvalue()) == ['before', 'after', '']


class _Closed(_Terminal):
  """A terminal that the reader or this process closes."""

  def __init__(self, error):
    super().__init__()
    self._error = error

  def flush(self):
    if 'two' in self.getvalue():
      raise self._error


@pytest.mark.parametrize(
  'error', [BrokenPipeError(), OSError('full'), ValueError('closed')]
)
@pytest.mark.parametrize('term', ['xterm', 'dumb'])
def test_closed_output_is_the_end_of_the_line_alone(monkeypatch, term, error):
  monkeypatch.setenv('TERM', term)
  out = _Closed(error)
  line = progress.ProgressLine(out)
  for text in ('one', 'two', 'three'):
    line.say(text)
    line.update(text)
  assert 'one' in out.getvalue()
  assert 'three' not in out.getvalue()


@pytest.mark.parametrize(
  ('value', 'text'),
  [
    (0, '0'),
    (949.6, '950'),
    (9_994, '9994'),
    (12_345, '12.3k'),
    (999_499, '999k'),
    (999_999, '1M'),
    (4_560_000, '4.56M'),
    (999_999_999, '1G'),
    (20e9, '20G'),
    (1.5e12, '1500G'),
    (-12_345, '-12.3k'),
  ],
)
def test_format_count(value, text):
  assert progress.format_count(value) == text


def test_progress_text():
  row = {
    'time/env_frames': 2000,
    'time/frames_per_s': 400.0,
    'time/updates': 5,
    'rollout/return': 21.0,
    'eval/return': None,
    'replay/policy_lag_mean_updates': 1.5,
  }
  assert progress.progress_text(row, 8000, 'envs (25%)') == (
    '2000/8000 frames (25%) | 400 frames/s | return 21.0 (eval -) | 5 updates '
    '| lag 1.5 | waits for envs (25%)'
  )


def test_summary_text():
  summary = {
    'env_frames': 2000,
    'seconds': 14.0,
    'frames_per_second': 142.9,
    'updates': 5,
    'mean_return_100': 21.0,
    'eval_mean_return': None,
    'status': 'failed: ValueError: broken',
  }
  waits = report.Waits(0.1, 0.8, 0.0, 0.2)
  text = progress.summary_text(summary, waits, pathlib.Path('runs/a'))
  assert text.startswith('Failed after 2000 frames in 14.0 s (143 frames/s)')
  assert 'last 100 episodes: 21.00; evaluation (last 20): -.' in text
  assert '\nBottleneck: the environments' in text
  assert 'runs/a/metrics.csv' in text
