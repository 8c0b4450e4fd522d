"""Plays a checkpoint: `seedrl evaluate runs/x --episodes=20`.

Prints the mean return with its standard error; `--video=out.mp4` also records
episodes. The run in the work directory may still be training.
"""

import pathlib

from absl import flags

from seedrl_jax.launch import allow_flags, play_flags, program

flags.adopt_module_key_flags(allow_flags)
flags.adopt_module_key_flags(play_flags)

_WORKDIR = flags.DEFINE_string('workdir', '', "A run's work directory.")
_VIDEO = flags.DEFINE_string(
  'video',
  '',
  'File (.mp4, which needs ffmpeg, or .gif) to show the first environment in.',
)
_TASK = flags.DEFINE_string(
  'task', '', 'The task to play, of a run of several; all by default.'
)
_SAVE = flags.DEFINE_bool(
  'save',
  False,
  'Append the returns to evaluations.jsonl in --workdir, for `seedrl report`.',
)


def main() -> None:
  """Plays and prints the figures."""
  if not _WORKDIR.value:
    raise ValueError("--workdir is missing; name a run's work directory.")
  line = play_flags.make_line()
  # Imports take seconds, so parse flags first.
  from seedrl_jax.evaluation import scoring

  options = scoring.EvaluationOptions(
    video=pathlib.Path(_VIDEO.value) if _VIDEO.value else None,
    task=_TASK.value,
    **play_flags.options(),
  )
  evaluation = scoring.evaluate(_WORKDIR.value, options, line)
  if _SAVE.value:
    evaluation.save(_WORKDIR.value)
  line.say(evaluation.report())


if __name__ == '__main__':
  program.start(main, program.parse_workdirs, play_flags.ERRORS)
