"""Exports a policy: `seedrl export runs/x --out=policy`.

Writes `policy.stablehlo`, a function that runs with JAX alone, without this
package, on CPUs, GPUs and TPUs, and `policy.json`, which describes it:

  function = jax.export.deserialize(open('policy.stablehlo', 'rb').read())
  action, state = function.call(inputs, state)
"""

import os
import pathlib

from absl import flags

from seedrl_jax.launch import allow_flags, program
from seedrl_jax.runtime import file_io, workdir

flags.adopt_module_key_flags(allow_flags)

_WORKDIR = flags.DEFINE_string('workdir', '', "A run's work directory.")
_OUT = flags.DEFINE_string(
  'out', '', 'Folder to write to; by default `export` in --workdir.'
)
_CHECKPOINT = flags.DEFINE(
  program.CheckpointParser(),
  'checkpoint',
  None,
  "Number of the checkpoint, or 'best'; the newest by default.",
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', 1, 'Environments that the function acts for at once.', 1
)
_SAMPLE = flags.DEFINE_bool(
  'sample', False, 'Sample actions as in training, instead of the greedy ones.'
)


def main() -> None:
  """Exports and prints the folder."""
  if not _WORKDIR.value:
    raise ValueError("--workdir is missing; name a run's work directory.")
  # A training run may share the accelerator, and nothing is computed here.
  os.environ['JAX_PLATFORMS'] = 'cpu'
  # Imports take seconds, so parse flags first.
  from seedrl_jax.evaluation import policy

  folder = pathlib.Path(_OUT.value)
  if not _OUT.value:
    folder = workdir.Workdir(_WORKDIR.value).path / 'export'
    workdir.refuse_links(folder, *folder.glob('*'))
  allowed = allow_flags.allowed()
  player, spec = policy.load(_WORKDIR.value, _CHECKPOINT.value, allowed)
  policy.export(player, spec, folder, _BATCH_SIZE.value, _SAMPLE.value)
  print(f'export: {folder}, of checkpoint {player.version}')


if __name__ == '__main__':
  errors = OSError, ValueError, file_io.NotWritten
  program.start(main, program.parse_workdirs, errors)
