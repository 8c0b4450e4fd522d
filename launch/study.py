"""Runs concurrent systems side by side: `seedrl study --workdir=…`.

Each run trains until the mean return of 100 episodes reaches the target, alone
on this machine. The same command resumes, and ends with the table and figure of
all runs so far. docs/architectures.md has what it showed.
"""

import itertools
import pathlib
import sys
from collections.abc import Iterator, Sequence

from absl import flags

from seedrl_jax.lab.studies import concurrent, sweeping
from seedrl_jax.launch import program
from seedrl_jax.runtime import config_files, progress, workdir

_WORKDIR = flags.DEFINE_string(
  'workdir', '', 'Folder for the runs, the table and the figure.'
)
_SYSTEMS = flags.DEFINE_list(
  'systems',
  None,
  'Beginnings of the names of systems to run; all by default: '
  f'{"; ".join(concurrent.SYSTEMS)}.',
)
_WORKERS = flags.DEFINE_list(
  'workers', None, 'Only with these numbers of workers.'
)
_SEEDS = flags.DEFINE_integer('seeds', 5, 'Seeds of each.', lower_bound=1)
_KNOWN = flags.DEFINE_string(
  'known',
  '',
  'A study.csv of earlier runs: they count too, and are not repeated.',
)


def main(argv: Sequence[str]) -> None:
  """Runs unfinished trials; exits with a message if something failed."""
  try:
    if len(argv) > 1:
      raise ValueError(f'unexpected arguments: {" ".join(argv[1:])}')
    if not _WORKDIR.value:
      raise ValueError('--workdir is missing; name a folder for the study.')
    _study(workdir.Workdir(_WORKDIR.value))
  except (OSError, ValueError) as e:
    sys.exit(f'study: {e}')


def _study(folder: workdir.Workdir) -> None:
  known = concurrent.read(_KNOWN.value) if _KNOWN.value else []
  keys = {run[:3] for run in known}
  trials = {
    key: trial for key, trial in _trials(folder.path) if key not in keys
  }
  for trial in trials.values():
    trial.check()
  line = progress.ProgressLine()
  sweep = sweeping.run(folder, list(trials.values()), 1, line)
  runs = known + [
    concurrent.measure(*key, trial)
    for key, trial in trials.items()
    if trial.is_finished()
  ]
  if runs:
    concurrent.write(runs, folder.path / 'report')
    line.say(f'study: {folder.path / "report" / "study.md"}')
  if sweep.failed:
    sys.exit(f'study: {len(sweep.failed)} runs failed.')


def _trials(
  folder: pathlib.Path,
) -> Iterator[tuple[tuple[str, int, int], sweeping.Trial]]:
  """Yields all runs, each by its system, its workers and its seed."""
  for name, system in _chosen().items():
    file = config_files.load(system.config)
    for workers, seed in itertools.product(
      system.workers, range(1, _SEEDS.value + 1)
    ):
      if _WORKERS.value and str(workers) not in _WORKERS.value:
        continue
      config = file.copy_and_resolve_references()
      values = {**system.values_with(workers, file), 'seed': seed}
      with config.unlocked():
        for key, value in values.items():
          config_files.set_key(config, key, value)
      path = folder / f'{name},workers={workers},seed={seed}'.replace(' ', '')
      trial = sweeping.make_trial(
        path, system.program, system.config, file, config
      )
      yield (name, workers, seed), trial


def _chosen() -> dict[str, concurrent.System]:
  wanted = tuple(_SYSTEMS.value or ('',))
  systems = {
    name: system
    for name, system in concurrent.SYSTEMS.items()
    if name.startswith(wanted)
  }
  if not systems:
    raise ValueError(
      f'--systems={",".join(wanted)}: take some of '
      f'{"; ".join(concurrent.SYSTEMS)}.'
    )
  return systems


if __name__ == '__main__':
  program.run(main)
