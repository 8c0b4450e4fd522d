"""Runs a grid of configurations, values and seeds here, and reports on it.

  seedrl sweep --config=vtrace_catch --seeds=5 \\
    --set=optimizer.learning_rate=1e-3,3e-4 --parallel=2 --workdir=runs/rates
  seedrl sweep --config=vtrace_cartpole,ppo_cartpole --seeds=3 --workdir=runs/b

Each run is seedrl train, or --program, in a folder of its own. The same
command resumes: finished runs are skipped. docs/reports.md has more, and how to
use Slurm.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence

from absl import flags

from seedrl_jax import types
from seedrl_jax.lab import launching
from seedrl_jax.lab.studies import report, sweeping
from seedrl_jax.launch import config_flag, program
from seedrl_jax.runtime import config_files, process, progress, workdir

_CONFIG = config_flag.define(
  'The configuration of all runs, or several to compare, with commas between; '
  f'{config_flag.DEFAULT} by default.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', '', "Folder for the runs' folders and the report."
)
_SET = flags.DEFINE_multi_string(
  'set',
  [],
  'KEY=VALUE,VALUE,…: values of a key of the configuration to try; may be '
  'repeated for their product.',
)
_SEEDS = flags.DEFINE_integer(
  'seeds', 1, 'Seeds of each, from --config.seed on.', lower_bound=1
)
_PARALLEL = flags.DEFINE_integer(
  'parallel', 1, 'Runs side by side, which share the cores.', lower_bound=1
)
_INDEX = flags.DEFINE_integer(
  'index', None, 'Does only this run, from 0 on, as in a job of a Slurm array.'
)
_DRY_RUN = flags.DEFINE_bool('dry_run', False, 'Only print the commands.')
_PROGRAM = flags.DEFINE_enum(
  'program', 'train', ['train', 'train_async'], 'What each run is.'
)


def main(argv: Sequence[str]) -> None:
  """Runs unfinished trials; exits with a message if something failed."""
  try:
    if len(argv) > 1:
      raise ValueError(f'unexpected arguments: {" ".join(argv[1:])}')
    trials = _trials()
    if _DRY_RUN.value:
      for trial in trials:
        command = ['seedrl', trial.program, *trial.arguments]
        process.say(shlex.join(command))
    elif (index := _INDEX.value) is not None:
      _become(index, trials)
    else:
      _sweep(trials)
  except (OSError, ValueError) as e:
    sys.exit(f'sweep: {e}')


def _trials() -> list[sweeping.Trial]:
  """Returns all runs; raises ValueError if one is wrong."""
  if not _WORKDIR.value:
    raise ValueError('--workdir is missing; name a folder for the runs.')
  folder = workdir.Workdir(_WORKDIR.value).path
  names = _names(sys.argv)
  trials = []
  for name in names:
    file = config_flag.load(name)
    base = _CONFIG.value if name == names[0] else _overridden(name, file)
    seeds = range(base.seed, base.seed + _SEEDS.value)
    for values in sweeping.grid(_SET.value, seeds):
      arguments = [f'--config.{key}={text}' for key, text in values.items()]
      config = config_flag.override(base, arguments, name)
      path = folder / sweeping.folder_name(
        config, values, name if len(names) > 1 else ''
      )
      trials.append(
        sweeping.make_trial(path, _PROGRAM.value, name, file, config)
      )
  if len({trial.name for trial in trials}) < len(trials):
    raise ValueError(
      'two runs would be the same; give each configuration in --config, and '
      'each value in --set, once.'
    )
  _check(trials)
  return trials


def _names(argv: Sequence[str]) -> list[str]:
  """Returns the configurations of a command line."""
  return (config_flag.path_of(argv) or config_flag.DEFAULT).split(',')


def _overridden(name: str, config: types.Config) -> types.Config:
  """Returns a further configuration, changed as --config.x.y=z did the first.

  Raises ValueError if it lacks a key.
  """
  config = config.copy_and_resolve_references()
  for key, value in config_flag.overrides().items():
    try:
      config_files.set_key(config, key, value)
    except ValueError as e:
      raise ValueError(f'--config={name}: --config.{e}') from e
  return config


def _parse(argv: list[str]) -> list[str]:
  """Parses a command line for the first of its configurations."""
  path = config_flag.path_of(argv) or ''
  if ',' in path:
    # A copy, as `_trials` reads the others in the original.
    config_argument = re.compile(rf'^(--?config=)?{re.escape(path)}$')
    argv = [config_argument.sub(rf'\g<1>{_names(argv)[0]}', x) for x in argv]
  return config_flag.parse(argv)


def _check(trials: Sequence[sweeping.Trial]) -> None:
  """Raises ValueError if a run could not start."""
  # Imports take a second, so flags are parsed first.
  from seedrl_jax.run import layout

  for trial in trials:
    try:
      layout.check(trial.config)
    except ValueError as e:
      raise ValueError(f'{trial.name}: {e}') from e
    trial.check()


def _become(index: int, trials: Sequence[sweeping.Trial]) -> None:
  """Becomes a run, which then gets all signals itself."""
  if not 0 <= index < len(trials):
    raise ValueError(f'--index={index}: the runs are 0 to {len(trials) - 1}.')
  trial = trials[index]
  program = str(launching.LAUNCH / f'{trial.program}.py')
  os.execv(sys.executable, [sys.executable, program, *trial.arguments])


def _sweep(trials: Sequence[sweeping.Trial]) -> None:
  line = progress.ProgressLine()
  folder = workdir.Workdir(_WORKDIR.value)
  sweep = sweeping.run(folder, trials, _PARALLEL.value, line)
  if sweep.is_stopping:
    sys.exit('sweep: stopped; the same command goes on from here.')
  if any(trial.is_finished() for trial in trials):
    out = folder.path / 'report'
    report.write([str(folder.path)], out, config_flag.shipped())
    line.say(f'sweep: {out / "report.md"}')
  if sweep.failed:
    failures = '\n'.join(f'  {n}: {why}' for n, why in sweep.failed.items())
    sys.exit(
      f'sweep: {len(sweep.failed)} of {len(trials)} runs failed; the same '
      f'command tries them again:\n{failures}'
    )


if __name__ == '__main__':
  program.run(main, _parse)
