"""The command `seedrl PROGRAM [flags]`, which runs a program of this folder."""

import difflib
import pathlib
import runpy
import sys

import seedrl_jax

# In the order in which people meet them.
PROGRAMS = (
  'train',
  'evaluate',
  'plot',
  'report',
  'sweep',
  'record',
  'export',
  'check_env',
  'list',
  'benchmark',
  'autotune',
  'compile',
  'learner',
  'actor',
  'reverb_server',
  'ray_cluster',
  'train_async',
)
_USAGE = (
  'usage: seedrl PROGRAM [flags]; `seedrl PROGRAM --help` shows them, and '
  '`seedrl --version` the version.'
)


def main() -> None:
  """Runs the program that the command line names; exits if there is none."""
  name = sys.argv[1] if len(sys.argv) > 1 else '--help'
  if name in ('--help', '-h', 'help'):
    print('\n'.join([_USAGE, '', *map(_line, PROGRAMS)]))
    return
  if name == '--version':
    print(f'seedrl-jax {seedrl_jax.__version__}')
    return
  if name not in PROGRAMS:
    near = difflib.get_close_matches(name, PROGRAMS, n=1)
    fix = f'the nearest is {near[0]}' if near else f'take {", ".join(PROGRAMS)}'
    sys.exit(f'seedrl: there is no program {name}; {fix}.')
  del sys.argv[1]
  runpy.run_module(
    f'seedrl_jax.launch.{name}', run_name='__main__', alter_sys=True
  )


def _line(name: str) -> str:
  """Returns a program's name and the first words of its docstring."""
  path = pathlib.Path(__file__).with_name(f'{name}.py')
  first = path.read_text().split('"""')[1].splitlines()[0]
  return f'  {name:14} {first.partition(": `")[0].removesuffix(".")}.'


if __name__ == '__main__':
  main()
