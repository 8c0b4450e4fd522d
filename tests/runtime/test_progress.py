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
  ('waits', 'short', 'sentence'),
  [
    # A queue, or a ratio that holds acting back: learning is slow.
    (
      _waits(inference_for_learner=0.4, inference_for_envs=0.5),
      'learner (40%)',
      'the learner (inference waits for room in the store)',
    ),
    (
      _waits(inference_for_learner=0.7, learner_for_data=0.2),
      'learner (70%)',
      'the learner (inference waits for room in the store)',
    ),
    # A queue, or a ratio that holds learning back: acting is slow.
    (
      _waits(inference_for_envs=0.8, learner_for_data=0.9),
      'envs (80%)',
      'the environments (inference waits for them)',
    ),
    (
      _waits(envs_for_actions=0.6, learner_for_data=0.9),
      'inference (60%)',
      'inference (environments wait for their actions)',
    ),
    # Both wait at times for the other's half of the environments.
    (
      _waits(envs_for_actions=0.3, inference_for_envs=0.4),
      'envs (40%)',
      'the environments (inference waits for them)',
    ),
    (
      _waits(envs_for_actions=0.4, inference_for_envs=0.3),
      'inference (40%)',
      'inference (environments wait for their actions)',
    ),
    # CartPole: unrolls come in bursts, for which inference waits at times.
    (
      progress.Waits(0.12, 0.42, 0.13, 0.71),
      'envs (42%)',
      'the environments (inference waits for them)',
    ),
    # Both wait at the store.
    (
      _waits(inference_for_learner=0.5, learner_for_data=0.69),
      'store (50%)',
      'the store (inference waits for room in it, the learner for data)',
    ),
    # Nobody waits at the store: without a ratio, acting sets the pace.
    (
      _waits(inference_for_learner=0.09),
      'inference (0%)',
      'inference (environments wait for their actions)',
    ),
  ],
)
def test_bottleneck(waits, short, sentence):
  assert waits.short() == short
  assert f'bottleneck: {sentence};' in waits.report()


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


class _Closed(_Terminal):
  """What a reader, or this process, has closed after some text."""

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
