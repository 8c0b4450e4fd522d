"""Tests for launch/tpu_vm.sh, with a gcloud whose workers are local folders."""

import fcntl
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import IO

import pytest

from tests.launch import stand_ins

# Records its arguments, then does to the folders in FAKE_WORKERS what gcloud
# does to workers. FAKE_FAIL fails a subcommand. The slice's state is FAKE_STATE
# or in the file FAKE_SLICE, and that of its request in FAKE_QUEUE.
_GCLOUD = """#!PYTHON
import json, os, pathlib, shutil, subprocess, sys

arguments = sys.argv[1:]
with open(os.environ['FAKE_LOG'], 'a') as log:
  print(json.dumps(arguments), file=log)
if arguments[0] == 'storage':
  os.execv(os.environ['FAKE_STORAGE'], arguments)
assert arguments[:2] == ['compute', 'tpus'], arguments
kind, what, *rest = arguments[2:]
slice_file = pathlib.Path(os.environ['FAKE_SLICE'])
file = {
  'tpu-vm': slice_file,
  'queued-resources': pathlib.Path(os.environ['FAKE_QUEUE']),
}[kind]
if what == os.environ.get('FAKE_FAIL'):
  sys.exit('gcloud: ERROR: no permission')
if what == 'describe':
  state = file.read_text().strip() if file.exists() else None
  if kind == 'tpu-vm':
    state = os.environ.get('FAKE_STATE', state)
  if state is None:
    sys.exit('ERROR: NOT_FOUND: Resource was not found')
  print('Using zone z\\n' + state)
  sys.exit()
if what == 'create':
  file.write_text('READY' if kind == 'tpu-vm' else 'WAITING_FOR_RESOURCES')
if what == 'delete':
  for path in (file, slice_file):
    path.unlink(missing_ok=True)
option = lambda name: next(
  (a.split('=', 1)[1] for a in rest if a.startswith(name + '=')), '0')
workers = os.environ['FAKE_WORKERS'].split()
if option('--worker') != 'all':
  workers = [workers[int(option('--worker'))]]
status = 0
for worker in workers:
  if what == 'scp':
    target = pathlib.Path(worker, rest[1].split(':', 1)[1])
    shutil.copy(rest[0], target)
  elif what == 'ssh':
    status |= subprocess.run(
      ['bash', '-c', option('--command')], cwd=worker).returncode
sys.exit(status)
"""

# `gcloud storage`, with a folder for all buckets.
_STORAGE = """#!PYTHON
import os, pathlib, re, shutil, sys

what, *rest = [
  re.sub('^gs:/', os.environ['FAKE_BUCKETS'], word) for word in sys.argv[1:]]
places = [pathlib.Path(word) for word in rest if not word.startswith('--')]
if what == os.environ.get('FAKE_FAIL'):
  sys.exit('ERROR: no permission')
if what == 'ls':
  sys.exit(None if places[0].exists() else 'ERROR: matched no objects.')
if what == 'cp':
  places[1].parent.mkdir(parents=True, exist_ok=True)
  sys.exit(not shutil.copy(*places))
skip = next(word[10:] for word in rest if word.startswith('--exclude='))
source, target = ({
  str(path.relative_to(place)) for path in place.rglob('*')
  if path.is_file() and not re.match(skip, str(path.relative_to(place)))
} for place in places)
for name in source:
  (places[1] / name).parent.mkdir(parents=True, exist_ok=True)
  shutil.copy(places[0] / name, places[1] / name)
if '--delete-unmatched-destination-objects' in rest:
  for name in target - source:
    (places[1] / name).unlink()
"""

# Prints its arguments once it handles SIGTERM, and then waits for that.
_LEARNER = """#!PYTHON
import json, os, signal, sys

if '--only_check_args' in sys.argv:
  sys.exit(os.environ.get('FAKE_CHECK'))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print(json.dumps(sys.argv[1:]), flush=True)
signal.sigwait({signal.SIGTERM})
print('saved', flush=True)
"""

_SETUP = """#!/usr/bin/env bash
echo "$SEEDRL_ACCELERATOR $*" >>setup.log
mkdir -p .venv/bin
cp "$LEARNER" .venv/bin/python
exit "${FAKE_SETUP:-0}"
"""


class Desk:
  """A clone with launch/tpu_vm.sh, and the workers that gcloud reaches."""

  def __init__(self, folder: pathlib.Path):
    self.clone = folder / 'a clone'
    self.bin = folder / 'bin'
    self.log = folder / 'gcloud.log'
    self.log.touch()
    self.logs: dict[pathlib.Path, IO[str]] = {}
    # The workers' home folders.
    self.homes = [folder / 'worker-0', folder / 'worker-1']
    for home in self.homes:
      home.mkdir()
    (self.clone / 'launch').mkdir(parents=True)
    for name in ('tpu_vm.sh', 'backup.sh'):
      shutil.copy(stand_ins.ROOT / 'launch' / name, self.clone / 'launch')
    stand_ins.add_program(self.clone, 'launch/setup.sh', _SETUP)
    stand_ins.add_program(self.bin, 'gcloud', _GCLOUD)
    stand_ins.add_program(folder, 'storage', _STORAGE)
    # From the metadata server: a worker's number.
    number = 'pwd | sed "s/.*worker-//; s,/.*,,"'
    stand_ins.add_program(self.bin, 'curl', f'#!/bin/sh\n{number}\n')
    self.bucket = folder / 'buckets/b'
    stand_ins.add_program(folder, 'learner', _LEARNER)
    subprocess.run(['git', 'init', '--quiet', self.clone], check=True)
    self.env = {
      'PATH': f'{self.bin}:/usr/bin:/bin',
      'HOME': str(folder),
      'FAKE_LOG': str(self.log),
      'FAKE_WORKERS': ' '.join(map(str, self.homes)),
      'FAKE_STORAGE': str(folder / 'storage'),
      'FAKE_SLICE': str(folder / 'slice'),
      'FAKE_QUEUE': str(folder / 'queue'),
      'FAKE_BUCKETS': str(self.bucket.parent),
      'LEARNER': str(folder / 'learner'),
    }

  def on_sleep(self, *scripts: str) -> None:
    """Has each sleep of the program run the next script instead."""
    for i, script in enumerate(scripts):
      (self.bin / f'sleep-{i}').write_text(script)
    # After the last one it fails, which ends the program.
    text = f"""#!/bin/bash
cd {self.bin.parent}
next=$(ls bin/sleep-* | head -n 1)
[[ $next ]] && mv "$next" next && source ./next
"""
    stand_ins.add_program(self.bin, 'sleep', text)

  @property
  def trees(self) -> list[pathlib.Path]:
    return [home / 'seedrl-jax' for home in self.homes]

  def run(
    self, *arguments: str, text: str = '', **env: str
  ) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
      [self.clone / 'launch/tpu_vm.sh', *arguments],
      env=self.env | env,
      input=text,
      capture_output=True,
      text=True,
      check=False,
    )

  def refusal(self, *arguments: str, **env: str) -> str:
    """Runs what must fail; returns its message."""
    result = self.run(*arguments, **env)
    assert result.returncode == 1, result
    return result.stderr.strip()

  def calls(self) -> list[list[str]]:
    """gcloud's arguments, without those of every call."""
    lines = map(json.loads, self.log.read_text().splitlines())
    return [line[3:] for line in lines]

  def changes(self) -> list[str]:
    """What gcloud had to make or delete, and where it copied to."""
    lines = map(json.loads, self.log.read_text().splitlines())
    words = [' '.join(line[2:4]) for line in lines]
    return [w for w in words if w.endswith(('create', 'delete', 'scp'))]

  def back_up(
    self, worker: int, *arguments: str
  ) -> subprocess.CompletedProcess[str]:
    """Runs launch/backup.sh on a worker, with the bucket's folder r."""
    command, *more = arguments
    return subprocess.run(
      [
        *(self.clone / 'launch/backup.sh', command),
        *('runs/tpu', 'gs://b/r', *more),
      ],
      cwd=self.trees[worker],
      env=self.env,
      capture_output=True,
      text=True,
      check=False,
    )

  def train(self, *arguments: str) -> None:
    """Starts the learners, whose logs are pipes that we read."""
    for tree in self.trees:
      os.mkfifo(tree / 'learner.log')
      # Open for both, neither side waits for the other.
      number = os.open(tree / 'learner.log', os.O_RDWR)
      self.logs[tree] = os.fdopen(number)
    result = self.run('train', '--name=tpu', *arguments)
    assert result.returncode == 0, result.stderr

  def stop(self) -> None:
    assert self.run('stop', '--name=tpu').returncode == 0
    for tree in self.trees:
      with open(tree / 'learner.lock') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.fixture(name='desk')
def _desk(tmp_path: pathlib.Path) -> Iterator[Desk]:
  made = Desk(tmp_path)
  yield made
  for log in made.logs.values():
    log.close()


@pytest.fixture(name='ready')
def _ready(desk: Desk) -> Desk:
  """A desk whose workers are set up."""
  assert desk.run('setup', '--name=tpu').returncode == 0
  return desk


_AWKWARD = ("--config.env.id='a b'", '--x=$HOME;`id`"', '--y=*', '--z=', 'ü\n')


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    ([], 'tpu_vm: name a command: create, setup, train, logs, stop or delete.'),
    (['mend'], 'mend is no command; there are create, setup, train, logs'),
    (['create'], '--name is missing; give the name of the TPU slice.'),
    (['create', '--name=A b'], '--name=A b: may have small letters'),
    (['create', '--name', 'tpu'], '--name is no option of create'),
    (['train', '--name=tpu', '--backup=b/r'], '--backup=b/r: must be a folder'),
    (['train', '--name=tpu', '--restart'], '--restart needs --backup=gs://'),
    (['create', '--name=tpu', '--type=v9-8'], '--type=v9-8: its runtime is no'),
  ],
)
def test_what_is_wrong_is_said(desk: Desk, arguments: list[str], said: str):
  assert said in desk.refusal(*arguments)
  assert not desk.calls()


def test_create_passes_options_and_environment_on(desk: Desk):
  names = {'NAME': 'tpu', 'ZONE': 'z', 'PROJECT': 'p', 'TYPE': 't', 'SPOT': '1'}
  env = {f'SEEDRL_TPU_{name}': value for name, value in names.items()}
  result = desk.run('create', '--zone=y', '--version=v2', **env)
  assert result.returncode == 0, result.stderr
  assert 'give train --backup=gs://bucket/run.' in result.stdout
  assert desk.calls()[-1] == [
    *('create', 'tpu', '--accelerator-type=t', '--version=v2', '--spot'),
    *('--quiet', '--zone=y', '--project=p'),
  ]


@pytest.mark.parametrize(
  ('command', 'env', 'said'),
  [
    ('create', {'FAKE_FAIL': 'describe'}, 'cannot tell about tpu: gcloud: ERR'),
    ('setup', {'FAKE_FAIL': 'scp'}, 'could not be copied to all workers of'),
    ('setup', {'FAKE_SETUP': '1'}, 'the installation failed on a worker, see'),
    ('train', {'FAKE_FAIL': 'ssh'}, 'nothing was started: see what the work'),
    ('stop', {'FAKE_FAIL': 'ssh'}, 'not all workers of tpu were reached'),
  ],
)
def test_failure_ends_it(
  desk: Desk, command: str, env: dict[str, str], said: str
):
  assert said in desk.refusal(command, '--name=tpu', **env)
  assert desk.calls()[-1][0] == env.get('FAKE_FAIL', 'ssh')


def test_setup_copies_the_tree_to_all_workers(desk: Desk):
  (desk.clone / '.gitignore').write_text('ignored\n')
  for name in ('ignored', 'not committed'):
    (desk.clone / name).write_text('')
  # Files of an older tree are removed, those of runs kept.
  for name in ('launch/old.py', 'runs/a'):
    (desk.trees[1] / name).parent.mkdir(parents=True)
    (desk.trees[1] / name).write_text('')
  assert desk.run('setup', '--name=tpu').returncode == 0
  for tree in desk.trees:
    assert (tree / 'not committed').exists()
    assert (tree / 'launch/tpu_vm.sh').exists()
    assert not (tree / 'ignored').exists()
    assert not (tree / 'launch/old.py').exists()
    assert (tree / 'setup.log').read_text() == 'tpu --extras=tpu\n'
  assert (desk.trees[1] / 'runs/a').exists()


def test_train_starts_all_workers_detached_and_once(ready: Desk):
  ready.train('--spot', *_AWKWARD, '--', '--yes')
  # The script takes its own option, but none after --.
  arguments = ['launch/learner.py', '--workdir=runs/tpu', *_AWKWARD, '--yes']
  for tree, lines in ready.logs.items():
    assert json.loads(next(lines)) == arguments
    # By now the shell that started it has ended.
    pid = int((tree / 'learner.lock').read_text())
    assert os.getsid(pid) == pid
  for command in ('train', 'setup'):
    said = ready.refusal(command, '--name=tpu')
    assert said.count('tpu_vm: a learner runs on') == 2
  ready.stop()
  for lines in ready.logs.values():
    assert next(lines) == 'saved\n'
  assert ready.run('stop', '--name=tpu').stdout.count('no learner runs on') == 2


@pytest.mark.parametrize(
  ('flags', 'env', 'said'),
  [
    ([], {'FAKE_CHECK': 'learner: no such key'}, 'learner: no such key'),
    (
      ['--backup=gs://b/r'],
      {'FAKE_FAIL': 'ls'},
      'gs://b/r cannot be read: ERROR: no permission',
    ),
  ],
)
def test_nothing_starts_before_all_is_checked(
  ready: Desk, flags: list[str], env: dict[str, str], said: str
):
  with open(ready.trees[1] / 'learner.lock', 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    busy = ready.refusal('train', '--name=tpu', '--workdir=w')
  assert 'nothing was started' in busy
  assert said in ready.refusal('train', '--name=tpu', *flags, **env)
  assert not (ready.trees[0] / 'learner.lock').read_text()


@pytest.mark.parametrize(
  ('arguments', 'text', 'is_deleted'),
  [([], 'yes\n', True), ([], '', False), (['--yes'], '', True)],
)
def test_delete_asks(
  desk: Desk, arguments: list[str], text: str, is_deleted: bool
):
  result = desk.run(
    'delete', '--name=tpu', *arguments, text=text, FAKE_STATE='READY'
  )
  assert result.returncode == (0 if is_deleted else 1)
  called = ['delete', 'tpu', '--quiet'] in desk.calls()
  assert called == is_deleted
  assert ('[y/N]' in result.stderr) == (not arguments)
  # Once it is gone there is nothing to ask.
  result = desk.run('delete', '--name=tpu')
  assert (result.returncode, result.stdout) == (0, 'tpu_vm: there is no tpu.\n')


# Above any process number.
_ENDED = str(2**22 + 1)


@pytest.mark.parametrize(('worker', 'part'), [(0, ''), (1, 'hosts/1/')])
def test_backup_has_what_a_worker_owns(ready: Desk, worker: int, part: str):
  here = ready.trees[worker] / 'runs/tpu' / part
  there = ready.bucket / 'r' / part
  foreign = ready.bucket / 'r/hosts/2/replay/3/a'
  unfinished = ['6.partial/a', '6.tmp/a', 'config.json.tmp']
  for name in ['4/a', *unfinished]:
    (here / name).parent.mkdir(parents=True, exist_ok=True)
    (here / name).write_text(name)
  foreign.parent.mkdir(parents=True)
  foreign.touch()
  assert ready.back_up(worker, 'follow', _ENDED).returncode == 0
  assert (there / '4/a').exists()
  assert not any((there / name).exists() for name in unfinished)
  # A newer checkpoint replaces an older one.
  (here / '4').rename(here / '5')
  ready.back_up(worker, 'follow', _ENDED)
  assert (there / '5/a').exists() and not (there / '4/a').exists()
  assert foreign.exists()


@pytest.mark.parametrize(('worker', 'part'), [(0, ''), (1, 'hosts/1/')])
def test_backup_comes_back_once(ready: Desk, worker: int, part: str):
  here = ready.trees[worker] / 'runs/tpu' / part
  there = ready.bucket / 'r' / part
  (there / '5').mkdir(parents=True)
  for name in ('5/a', 'backup'):
    (there / name).touch()
  (ready.bucket / 'r/hosts/2').mkdir(parents=True)
  assert ready.back_up(worker, 'restore').returncode == 0
  assert (here / '5/a').exists()
  assert not (here / 'hosts/2').exists()
  # The local files are now the run.
  (here / '5').rename(here / '6')
  assert ready.back_up(worker, 'restore').returncode == 0
  assert not (here / '5').exists()
  (here / 'backup').unlink()
  refused = ready.back_up(worker, 'restore')
  assert refused.returncode == 1
  assert 'has a run, and runs/tpu' in refused.stderr
  assert (there / '5/a').exists()


def test_backup_goes_on_when_a_copy_fails(ready: Desk):
  ready.env['FAKE_FAIL'] = 'rsync'
  result = ready.back_up(0, 'follow', _ENDED)
  assert result.returncode == 0
  assert 'gs://b/r is not up to date, see above.' in result.stderr


def test_backup_is_complete_when_a_learner_has_ended(ready: Desk):
  ready.train('--backup=gs://b/r', '--workdir', 'my w')
  for lines in ready.logs.values():
    assert json.loads(next(lines))[1:] == ['--workdir', 'my w']
  (ready.trees[0] / 'my w/5').touch()
  result = ready.run('delete', '--name=tpu', FAKE_STATE='READY')
  assert 'its last run has a copy in gs://b/r' in result.stderr
  ready.stop()
  assert (ready.bucket / 'r/5').exists()
  assert (ready.bucket / 'r/hosts/1/backup').exists()


@pytest.mark.parametrize(
  ('accelerator', 'version'),
  [
    ('v4-32', 'tpu-ubuntu2204-base'),
    ('v5litepod-16', 'v2-alpha-tpuv5-lite'),
    ('v5p-8', 'v2-alpha-tpuv5'),
    ('v6e-8', 'v2-alpha-tpuv6e'),
  ],
)
def test_each_type_has_its_runtime(desk: Desk, accelerator: str, version: str):
  assert (
    desk.run('create', '--name=tpu', f'--type={accelerator}').returncode == 0
  )
  assert f'--version={version}' in desk.calls()[-1]


def test_create_waits_in_the_queue(desk: Desk):
  desk.on_sleep('echo PROVISIONING >queue', 'echo ACTIVE >queue')
  result = desk.run(
    'create', '--name=tpu', '--queued', '--spot', '--type=v6e-8'
  )
  assert result.returncode == 0, result.stderr
  assert [line for line in result.stdout.splitlines() if 'request' in line] == [
    'tpu_vm: the request for tpu is WAITING_FOR_RESOURCES',
    'tpu_vm: the request for tpu is PROVISIONING',
  ]
  assert [
    *('create', 'tpu', '--node-id=tpu', '--accelerator-type=v6e-8'),
    *('--runtime-version=v2-alpha-tpuv6e', '--spot', '--quiet'),
  ] in desk.calls()
  # What was requested is not requested again, and is deleted with its slice.
  assert desk.run('create', '--name=tpu', '--queued').returncode == 0
  assert desk.run('delete', '--name=tpu', '--yes').returncode == 0
  assert desk.changes() == [
    'queued-resources create',
    'queued-resources delete',
  ]


def test_a_request_that_failed_is_said(desk: Desk):
  desk.on_sleep('echo SUSPENDED >queue')
  said = desk.refusal('create', '--name=tpu', '--queued')
  assert 'the request for tpu is SUSPENDED; delete it.' in said


# Ends the learners, which have begun, and waits for their backups.
_END_LEARNERS = """
for tree in worker-*/seedrl-jax; do
  until grep -q / $tree/learner.log; do /bin/sleep 0.1; done
  kill -TERM "$(cat $tree/learner.lock)"
  flock $tree/learner.lock true
done
"""


def test_a_slice_that_is_taken_away_is_made_anew(desk: Desk):
  lose = 'rm -r worker-*/seedrl-jax slice; echo SUSPENDED >queue'
  desk.on_sleep(
    'touch worker-0/seedrl-jax/runs/tpu/5',
    _END_LEARNERS + lose,
    'echo ACTIVE >queue; echo READY >slice',
    _END_LEARNERS,
  )
  for name, state in ('slice', 'READY'), ('queue', 'ACTIVE'):
    (desk.bin.parent / name).write_text(state)
  flags = ('--name=tpu', '--spot', '--queued')
  assert desk.run('setup', *flags).returncode == 0
  result = desk.run(
    'train', *flags, '--restart', '--backup=gs://b/r', '--', *_AWKWARD
  )
  assert result.returncode == 0, result.stderr
  assert 'tpu_vm: tpu is gone; making it anew\n' in result.stdout
  assert result.stdout.endswith('have ended; see launch/tpu_vm.sh logs\n')
  assert desk.changes() == [
    *('tpu-vm scp', 'queued-resources delete', 'queued-resources create'),
    'tpu-vm scp',
  ]
  # It resumed from the bucket, with the same flags.
  assert (desk.trees[0] / 'runs/tpu/5').exists()
  said = (desk.trees[0] / 'learner.log').read_text().splitlines()
  assert json.loads(said[0])[2:] == list(_AWKWARD)


def test_arguments_of_the_help_are_the_learners():
  stand_ins.check_flags(
    'launch/learner.py',
    *('--workdir=w', '--config.env.num_envs=256', '--config.actors.max_envs=0'),
  )
