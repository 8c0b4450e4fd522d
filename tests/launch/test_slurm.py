"""Tests for launch/slurm.sbatch with stubs of srun and scontrol."""

import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess

import pytest

from tests.launch import stand_ins

# Runs the tasks of a step side by side; forwards SIGTERM to them.
_SRUN = """#!PYTHON
import itertools, json, os, signal, subprocess, sys

options = list(itertools.takewhile(lambda a: a.startswith('-'), sys.argv[1:]))
command = sys.argv[1 + len(options):]
with open(os.environ['FAKE_LOG'], 'a') as log:
  print(json.dumps(['srun', *options]), file=log)
count = int(next(o for o in options if o.startswith('--ntasks=')).split('=')[1])
tasks = []
wanted = []
def forward(number, frame):
  wanted.append(number)
  for task in tasks:
    task.terminate()
signal.signal(signal.SIGTERM, forward)
for i in range(count):
  env = {**os.environ, 'SLURM_PROCID': str(i)}
  tasks.append(subprocess.Popen(command, env=env))
  if wanted:
    tasks[-1].terminate()
sys.exit(max(task.wait() for task in tasks))
"""

_SCONTROL = """#!PYTHON
import json, os, sys

if sys.argv[1:3] == ['show', 'hostnames']:
  print(sys.argv[3].replace(',', '\\n'))
else:
  with open(os.environ['FAKE_LOG'], 'a') as log:
    print(json.dumps(['scontrol', *sys.argv[1:]]), file=log)
"""

# A learner ends as FAKE_LEARNER says once FAKE_ACTORS actors have started. With
# FAKE_PIPE it reports its start there and waits for SIGTERM, as actors do.
_PROGRAM = """#!PYTHON
import json, os, signal, sys

def note(*words):
  with open(os.environ['FAKE_LOG'], 'a') as log:
    print(json.dumps(words), file=log)

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
note(*sys.argv[1:])
# Open for both, neither side waits for the other.
actors = os.fdopen(os.open(os.environ['FAKE_LOG'] + '.actors', os.O_RDWR),
                   'rb+', buffering=0)
if sys.argv[1] == 'launch/actor.py':
  actors.write(b'.')
elif os.environ['SLURM_PROCID'] == '0':
  for _ in range(int(os.environ['FAKE_ACTORS'])):
    actors.read(1)
if sys.argv[1] == 'launch/learner.py':
  if 'FAKE_PIPE' not in os.environ:
    sys.exit(int(os.environ.get('FAKE_LEARNER', '0')))
  with open(os.environ['FAKE_PIPE'], 'w') as started:
    print('started', file=started)
signal.sigwait({signal.SIGTERM})
note('ended', sys.argv[1])
sys.exit(int(os.environ.get('FAKE_ENDED', '0')))
"""


class Cluster:
  """A clone that jobs are submitted from, and Slurm's programs."""

  def __init__(self, folder: pathlib.Path):
    self.clone = folder / 'clone'
    self.log = folder / 'log'
    self.log.touch()
    os.mkfifo(f'{self.log}.actors')
    self.bin = folder / 'bin'
    stand_ins.add_program(self.bin, 'srun', _SRUN)
    stand_ins.add_program(self.bin, 'scontrol', _SCONTROL)
    stand_ins.add_program(self.clone, '.venv/bin/python', _PROGRAM)
    stand_ins.add_program(self.clone, 'launch/learner.py', '')
    # Slurm's copy.
    self.script = folder / 'spool/slurm_script'
    self.script.parent.mkdir()
    shutil.copy(stand_ins.ROOT / 'launch/slurm.sbatch', self.script)
    self.env = {
      'PATH': f'{self.bin}:/usr/bin:/bin',
      'FAKE_LOG': str(self.log),
      'SLURM_SUBMIT_DIR': str(self.clone),
      'SLURM_JOB_ID': '70123',
      'SLURM_JOB_NODELIST': 'n1,n2',
      # One for each node.
      'FAKE_ACTORS': '2',
    }

  def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
      ['bash', self.script, *arguments],
      env=self.env | env,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  def run(self, *arguments: str, **env: str) -> tuple[int, str]:
    """Returns exit status and output."""
    running = self.start(*arguments, **env)
    said = ''.join(running.communicate())
    return running.returncode, said

  def calls(self, program: str) -> list[list[str]]:
    """Arguments of a program's calls, sorted, as tasks start at once."""
    lines = map(json.loads, self.log.read_text().splitlines())
    return sorted(line[1:] for line in lines if line[0] == program)


@pytest.fixture(name='cluster')
def _cluster(tmp_path: pathlib.Path) -> Cluster:
  return Cluster(tmp_path)


def test_each_node_has_a_learner_that_knows_the_first(cluster: Cluster):
  awkward = ["--config.env.id='a b'", '--x=$HOME;*', '']
  status, said = cluster.run(
    *awkward, SEEDRL_ACTORS_PER_NODE='0', FAKE_ACTORS='0'
  )
  assert status == 0, said
  assert cluster.calls('launch/learner.py') == [
    [
      f'--process_id={i}',
      *awkward,
      '--workdir=runs/slurm-70123',
      '--coordinator=n1:20246',
      '--num_processes=2',
    ]
    for i in range(2)
  ]
  assert cluster.calls('srun') == [
    [
      *('--nodes=2', '--ntasks=2', '--ntasks-per-node=1', '--cpu-bind=none'),
      '--kill-on-bad-exit=1',
    ]
  ]
  assert not cluster.calls('launch/actor.py')


def test_learners_listen_with_secrets_that_were_made(cluster: Cluster):
  assert cluster.run(SEEDRL_PORT='4000')[0] == 0
  secrets = 'runs/slurm-70123/secrets'
  for call in cluster.calls('launch/learner.py'):
    assert call[-6:] == [
      # For one actor.
      '--config.env.num_envs=0',
      '--config.actors.max_envs=16',
      "--config.actors.addresses=('0.0.0.0:4001',)",
      f'--config.actors.tls_certificate={secrets}/tls.crt',
      f'--config.actors.tls_key={secrets}/tls.key',
      f'--config.actors.token_file={secrets}/token',
    ]
  folder = cluster.clone / secrets
  for path in [folder, *folder.iterdir()]:
    assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path
  assert len((folder / 'token').read_text()) == 65
  for node in ('n1', 'n2'):
    checked = subprocess.run(
      ['openssl', 'x509', '-in', folder / 'tls.crt', '-checkhost', node],
      capture_output=True,
      text=True,
      check=True,
    )
    assert 'does match' in checked.stdout


def test_actors_take_turns_at_the_learners(cluster: Cluster):
  status, said = cluster.run(
    SEEDRL_PORT='4000',
    SEEDRL_ACTORS_PER_NODE='2',
    FAKE_ACTORS='4',
    SEEDRL_ACTOR_FLAGS='--groups=3  --threads=1',
  )
  assert status == 0, said
  secrets = 'runs/slurm-70123/secrets'
  assert cluster.calls('launch/actor.py') == [
    [
      f'--learner={node}:4001',
      f'--tls_roots={secrets}/tls.crt',
      f'--token_file={secrets}/token',
      '--patience=0',
      '--groups=3',
      '--threads=1',
    ]
    for node in ('n1', 'n1', 'n2', 'n2')
  ]
  assert cluster.calls('srun')[1] == [
    *('--overlap', '--nodes=2', '--ntasks=4', '--ntasks-per-node=2'),
    '--cpu-bind=none',
  ]


def test_actors_have_nodes_of_their_own(cluster: Cluster):
  status, said = cluster.run(
    SLURM_HET_SIZE='2',
    SLURM_JOB_NODELIST_HET_GROUP_0='g1',
    SLURM_JOB_NODELIST_HET_GROUP_1='c1,c2,c3',
    SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1='16(x2),1',
    SEEDRL_PORT='4000',
    FAKE_ACTORS='3',
  )
  assert status == 0, said
  (learner,) = cluster.calls('launch/learner.py')
  assert '--coordinator=g1:4000' in learner
  # For three actors.
  assert '--config.actors.max_envs=48' in learner
  assert [call[0] for call in cluster.calls('launch/actor.py')] == [
    '--learner=g1:4001'
  ] * 3
  learners, actors = cluster.calls('srun')
  assert learners[:2] == ['--het-group=0', '--nodes=1']
  assert actors[:3] == ['--het-group=1', '--nodes=3', '--ntasks=3']


def test_what_is_given_is_used(cluster: Cluster):
  names = ('SEEDRL_TLS_CERTIFICATE', 'SEEDRL_TLS_KEY', 'SEEDRL_TOKEN_FILE')
  given = {name: f'/my/{name}' for name in names}
  asked = ['-config.env.num_envs=4', '--config.actors.max_envs=99']
  assert cluster.run(*asked, **given)[0] == 0
  assert not (cluster.clone / 'runs/slurm-70123/secrets').exists()
  learner = cluster.calls('launch/learner.py')[0]
  assert [flag for flag in learner if '_envs=' in flag] == asked
  assert [flag.partition('=')[2] for flag in learner[-3:]] == [*given.values()]
  actor = cluster.calls('launch/actor.py')[0]
  assert '--tls_roots=/my/SEEDRL_TLS_CERTIFICATE' in actor


@pytest.mark.parametrize(
  ('arguments', 'env', 'said'),
  [
    ([], {'SLURM_JOB_NODELIST': ''}, 'this is for Slurm; submit it: sbatch'),
    ([], {'SEEDRL_VENV': '/no'}, '/no/bin/python is not there; run launch/'),
    (
      [],
      {
        'SLURM_HET_SIZE': '2',
        'SLURM_JOB_NODELIST_HET_GROUP_0': 'g1',
        'SLURM_JOB_NODELIST_HET_GROUP_1': 'c1,c2',
        'SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1': '2(x2)',
      },
      'have one core each; give the second component --exclusive or --cpus-',
    ),
    ([], {'SEEDRL_TLS_KEY': 'k'}, 'give all of SEEDRL_TLS_CERTIFICATE, SE'),
    (['--x', '-workdir=w'], {}, 'name the work directory by SEEDRL_WORKDIR.'),
  ],
)
def test_what_is_wrong_is_said(
  cluster: Cluster, arguments: list[str], env: dict[str, str], said: str
):
  status, text = cluster.run(*arguments, **env)
  assert status == 1
  assert text.startswith('slurm: ') and said in text
  assert not cluster.calls('srun')


def test_a_failure_ends_the_actors_and_the_job(cluster: Cluster):
  status, said = cluster.run(FAKE_LEARNER='3')
  assert status == 3, said
  assert cluster.calls('ended') == [['launch/actor.py']] * 2
  assert not cluster.calls('scontrol')


@pytest.mark.parametrize(
  ('number', 'ended', 'is_queued'),
  [
    (signal.SIGUSR1, '0', True),
    (signal.SIGTERM, '0', False),
    (signal.SIGUSR1, '4', False),
  ],
)
def test_it_saves_and_is_queued_again_only_if_its_time_is_up(
  cluster: Cluster, number: int, ended: str, is_queued: bool
):
  pipe = cluster.log.with_name('pipe')
  os.mkfifo(pipe)
  env = {'SLURM_JOB_NODELIST': 'n1', 'SEEDRL_WORKDIR': 'my w'}
  env |= {'FAKE_PIPE': str(pipe), 'FAKE_ACTORS': '1', 'FAKE_ENDED': ended}
  running = cluster.start(**env)
  # Once a learner runs.
  with open(pipe) as started:
    assert started.read() == 'started\n'
  running.send_signal(number)
  said = ''.join(running.communicate())
  assert running.returncode == int(ended)
  assert cluster.calls('ended') == [['launch/actor.py'], ['launch/learner.py']]
  assert ('goes back to the queue and resumes my w.' in said) == is_queued
  assert cluster.calls('scontrol') == [['requeue', '70123']] * is_queued


def test_the_programs_know_the_flags(cluster: Cluster):
  config = str(stand_ins.ROOT / 'configs/vtrace_atari.py')
  assert cluster.run(f'--config={config}')[0] == 0
  for program in ('launch/learner.py', 'launch/actor.py'):
    stand_ins.check_flags(program, *cluster.calls(program)[0])
