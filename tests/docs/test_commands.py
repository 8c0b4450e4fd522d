"""Tests that the commands and flags in the pages exist."""

import pathlib
import re
import shlex

import pytest

from seedrl_jax.launch import main
from tests import runs
from tests.configs import test_configs
from tests.docs import pages
from tests.launch import stand_ins

_OTHERS = {
  'apt',
  'cat',
  'cd',
  'chmod',
  'docker',
  'export',
  'gcloud',
  'git',
  'kubectl',
  'mlflow',
  'openssl',
  'pip',
  'python',
  'ray',
  'zensical',
  'sbatch',
  'sky',
  'source',
  'sudo',
  'tensorboard',
  'wandb',
}


def _commands() -> list[str]:
  """Returns the commands of all bash blocks, each once; ours by their files."""
  commands = {}
  for page in pages.PAGES:
    for _, block in pages.blocks(page, 'bash'):
      for line in block.replace('\\\n', ' ').splitlines():
        line = re.sub(r'^(\w+=\S+ )*|^#.*', '', line)
        line = re.sub(r'^seedrl (\w+)', r'launch/\1.py', line)
        commands[re.sub(r'^(python )?(\./)?launch/', 'launch/', line)] = None
  return [command for command in commands if command]


@pytest.fixture(name='_folder', scope='module')
def _folder_fixture(tmp_path_factory):
  """Makes the current folder one like a clone's, with the examples beside."""
  folder = tmp_path_factory.mktemp('folder')
  for path in (runs.ROOT / 'configs', *pages.EXAMPLES.glob('*.py')):
    (folder / path.name).symlink_to(path)
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    yield


@pytest.mark.usefixtures('_folder')
@pytest.mark.parametrize(
  'command', [x for x in _commands() if x.startswith('launch/')]
)
def test_our_program_knows_the_flags(command):
  # Stands for a shell's variables.
  text = re.sub(r'\$\w+', '1', command)
  program, *flags = shlex.split(text, comments=True)
  assert (runs.ROOT / program).exists()
  if program.endswith('.py'):
    stand_ins.check_flags(program, *flags)
  elif program == 'launch/local.sh':
    stand_ins.check_flags('train', '--workdir=run', *flags)


@pytest.mark.parametrize(
  ('program', 'num_hosts', 'num_envs'),
  [
    ('launch/learner.py', 2, 32),
    ('launch/tpu_vm.sh train', 4, 256),
    # With 16 environments an actor.
    ('launch/ray_cluster.py', 2, 64),
    ('sbatch --nodes', 2, 32),
  ],
)
def test_batches_of_the_examples_grow_with_the_hosts(
  program, num_hosts, num_envs
):
  (command,) = [x for x in _commands() if x.startswith(program)]
  flags = dict(re.findall(r'(--[\w.]+)=(\S+)', command))
  config = test_configs.CONFIGS[pathlib.Path(flags['--config']).stem]()
  batch_size = int(flags.get('--config.batch_size', config.batch_size))
  # As many batches at once as `vtrace_atari` begins on one host.
  assert num_hosts * num_envs / batch_size <= 4


def test_other_programs_are_known():
  names = {x.split()[0] for x in _commands() if not x.startswith('launch/')}
  assert names <= _OTHERS


@pytest.mark.parametrize('page', pages.PAGES, ids=str)
def test_programs_and_files_in_the_text_exist(page: pathlib.Path):
  text = pages.text(page)
  for name in re.findall(r'(?:launch|docs)/\w+\.(?:py|sh)', text):
    assert (runs.ROOT / name).exists(), name
  assert {*re.findall(r'(?m)(?:^|`)seedrl (\w+)', text)} <= {*main.PROGRAMS}
