"""What a person reads while a run works."""

import io

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
  lines = []
  for line in text.split('\n'):
    shown = ''
    for part in line.split('\r'):
      shown = part + shown[len(part) :]
    lines.append(shown.rstrip())
  return lines


def test_file_gets_plain_lines():
  out = io.StringIO()
  line = progress.ProgressLine(out)
  line.update('one')
  line.say('two')
  line.update('three')
  assert out.getvalue() == 'one\ntwo\nthree\n'


def test_terminal_gets_one_line_that_changes():
  out = _Terminal()
  line = progress.ProgressLine(out)
  line.update('a long one')
  assert _screen(out.getvalue()) == ['a long one']
  line.update('short')
  assert _screen(out.getvalue()) == ['short']
  line.say('kept')
  line.update('next')
  assert _screen(out.getvalue()) == ['kept', 'next']


def test_line_never_wraps(monkeypatch):
  monkeypatch.setenv('COLUMNS', '12')
  out = _Terminal()
  line = progress.ProgressLine(out)
  line.update('0123456789abcdef')
  assert _screen(out.getvalue()) == ['0123456789a']
  line.update('x')
  assert _screen(out.getvalue()) == ['x']


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
