"""Tests that the commands and flags in the pages exist."""

import pathlib
import re
import shlex

import pytest

from seedrl_jax.launch import main
from tests import runs
from tests.docs import pages
from tests.launch import stand_ins

_OTHERS = {
  *(
    'apt',
    'cat',
    'cd',
    'chmod',
    'docker',
    'export',
    'gcloud',
    'git',
    'kubectl',
  ),
  *('mkdocs', 'mlflow', 'openssl', 'pip', 'ray', 'sbatch', 'sky', 'source'),
  *('sudo', 'tensorboard', 'wandb'),
}
_PROGRAM = re.compile(r'(?:python )?(?:\./|seedrl_jax/)?launch/(\w+)\.(py|sh)')


def _commands() -> list[str]:
  """Returns the commands of all bash blocks, each once."""
  found = {}
  for page in pages.PAGES:
    for _, block in pages.blocks(page, 'bash'):
      for line in block.replace('\\\n', ' ').splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r'\w+=.*', words[0]):
          del words[0]
        if words:
          found[shlex.join(words)] = None
  return list(found)


def _program(words: list[str]) -> tuple[str, str, list[str]]:
  """Returns a command's program without its ending, that, and its flags."""
  if words[0] == 'seedrl':
    return words[1], 'py', words[2:]
  if words[0] == 'python':
    words = words[1:]
  path = pathlib.Path(words[0])
  return path.stem, path.suffix.removeprefix('.'), words[1:]


def _is_ours(command: str) -> bool:
  return command.startswith('seedrl ') or bool(_PROGRAM.match(command))


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Returns a folder like a clone's, with the examples beside."""
  folder = tmp_path_factory.mktemp('folder')
  for path in (runs.ROOT / 'configs', *(pages.DOCS / 'examples').glob('*.py')):
    (folder / path.name).symlink_to(path)
  return folder


@pytest.mark.parametrize('command', [*filter(_is_ours, _commands())])
def test_our_program_knows_the_flags(folder, monkeypatch, command):
  monkeypatch.chdir(folder)
  # Stands for a shell's variables, and for what the reader fills in.
  words = [re.sub(r'\$\w+', '1', x) for x in shlex.split(command) if x != '…']
  name, ending, flags = _program(words)
  assert (runs.ROOT / f'launch/{name}.{ending}').exists()
  if ending == 'py':
    assert words[0] != 'seedrl' or name in main.PROGRAMS
    stand_ins.check_flags(name, *flags)
  elif name == 'local':
    stand_ins.check_flags('train', '--workdir=run', *flags)


def test_others_are_known():
  names = {
    shlex.split(command)[0] for command in _commands() if not _is_ours(command)
  }
  names -= {'python'}  # Scripts, which the next test checks.
  assert names <= _OTHERS


@pytest.mark.parametrize('page', pages.PAGES, ids=str)
def test_programs_and_files_in_the_text_exist(page):
  text = pages.text(page)
  for name, ending in _PROGRAM.findall(text):
    assert (runs.ROOT / f'launch/{name}.{ending}').exists(), name
  for name in re.findall(r'`seedrl (\w+)', text):
    assert name in main.PROGRAMS
  for name in re.findall(r'python (docs/\w+\.py)', text):
    assert (runs.ROOT / name).exists()
  for name in re.findall(r'--config=(\w+)\b(?![./])', text):
    assert name == 'NAME' or (runs.ROOT / f'configs/{name}.py').exists(), name
