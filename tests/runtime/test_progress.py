"""What a person reads while a run works."""

import io
import re

import pytest

from seedrl_jax.runtime import progress


def _waits(**shares):
  names = ('envs_for_actions', 'inference_for_envs')
  names += ('inference_for_learner', 'learner_for_data')
  return progress.Waits(**(dict.fromkeys(names, 0.0) | shares))


@pytest.mark.parametrize(
  ('waits', 'part', 'sentence', 'short'),
  [
    (
      _waits(inference_for_learner=0.4, inference_for_envs=0.5),
      'learner',
      'the learner (inference waits for room in the store)',
      'learner (40%)',
    ),
    (
      _waits(inference_for_envs=0.8, inference_for_learner=0.05),
      'envs',
      'the environments (inference waits for them)',
      'envs (80%)',
    ),
    (
      _waits(envs_for_actions=0.6, inference_for_envs=0.2),
      'inference',
      'inference (environments wait for their actions)',
      'inference (60%)',
    ),
  ],
)
def test_bottleneck(waits, part, sentence, short):
  assert waits.bottleneck() == part
  assert f'bottleneck: {sentence};' in waits.report()
  assert waits.short() == short


def test_report_is_one_line_with_every_share():
  report = progress.Waits(0.11, 0.22, 0.33, 0.44).report()
  assert '\n' not in report
  assert report.endswith(
    'waiting: environments 11%, inference 22% for environments and 33% for the '
    'learner, learner 44% for data'
  )


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


def test_file_gets_plain_lines():
  out = io.StringIO()
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


def test_terminal_that_knows_no_codes_gets_plain_lines(monkeypatch):
  monkeypatch.setenv('TERM', 'dumb')
  out = _Terminal()
  line = progress.ProgressLine(out)
  line.update('one')
  line.update('two')
  assert out.getvalue() == 'one\ntwo\n'


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
