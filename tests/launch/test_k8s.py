"""Tests for launch/k8s: the manifests against each other and the programs."""

import copy
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
import yaml

from tests import runs
from tests.launch import stand_ins

_FOLDER = stand_ins.ROOT / 'launch/k8s'
_COMPONENTS = ('autoscaling', 'kueue', 'tpu')


def _load(*texts: str) -> dict[str, Any]:
  """Returns all documents by kind and name."""
  documents: dict[str, Any] = {}
  for document in itertools.chain(*map(yaml.safe_load_all, texts)):
    name = document.get('metadata', {}).get('name', '')
    key = f'{document["kind"]}/{name}'.rstrip('/')
    assert key not in documents
    documents[key] = document
  return documents


def _read(folder: pathlib.Path) -> dict[str, Any]:
  return _load(*(path.read_text() for path in sorted(folder.glob('*.yaml'))))


_ALL = _read(_FOLDER)
_JOB = _ALL['JobSet/seedrl']['spec']['replicatedJobs'][0]
_TEMPLATES = {
  'learner': _JOB['template']['spec']['template'],
  'actor': _ALL['Deployment/seedrl-actors']['spec']['template'],
  'reverb': _ALL['StatefulSet/seedrl-reverb']['spec']['template'],
}
_PROGRAMS = {
  'learner': 'launch/learner.py',
  'actor': 'launch/actor.py',
  'reverb': 'launch/reverb_server.py',
}
_each_pod = pytest.mark.parametrize('pod', sorted(_TEMPLATES))


def _container(pod: str) -> dict[str, Any]:
  (container,) = _TEMPLATES[pod]['spec']['containers']
  return container


def _flags(pod: str) -> dict[str, str]:
  pairs = (flag.partition('=') for flag in _container(pod)['args'])
  return {name: value for name, _, value in pairs}


def _ports(pod: str) -> dict[str, int]:
  ports = _container(pod)['ports']
  return {port['name']: port['containerPort'] for port in ports}


def test_all_manifests_are_applied_with_images_that_are_built():
  kustomization = _ALL['Kustomization']
  files = {path.name for path in _FOLDER.glob('*.yaml')}
  assert {*kustomization['resources']} == files - {'kustomization.yaml'}
  images = {image['name'] for image in kustomization['images']}
  assert images == {_container(pod)['image'] for pod in _TEMPLATES}
  dockerfile = (_FOLDER / 'Dockerfile').read_text()
  targets = re.findall(r'^FROM \S+ AS (\w+)$', dockerfile, re.MULTILINE)
  assert images == {f'seedrl-{target}' for target in targets[1:]}


@_each_pod
def test_program_knows_the_flags(pod: str):
  arguments = _container(pod)['args']
  filled = [a.replace('$(JOB_COMPLETION_INDEX)', '1') for a in arguments]
  stand_ins.check_flags(_PROGRAMS[pod], *filled)
  assert not any('$(' in argument for argument in filled)


@_each_pod
def test_labels_are_selected_by_the_right_ones(pod: str):
  labels = _TEMPLATES[pod]['metadata']['labels']
  assert labels['app.kubernetes.io/component'] == pod
  for key, document in _ALL.items():
    spec = document.get('spec', {})
    selector = spec.get('podSelector') or spec.get('selector') or {}
    selector = selector.get('matchLabels', selector)
    own = document.get('metadata', {}).get('labels', {})
    is_own = own.get('app.kubernetes.io/component') == pod
    selects = bool(selector) and selector.items() <= labels.items()
    assert selects == (is_own and 'JobSet' not in key), key


def test_actors_find_the_learners():
  host, _, port = _flags('actor')['--learner'].partition(':')
  (service,) = _ALL[f'Service/{host}']['spec']['ports']
  assert service['port'] == int(port)
  listening = _ports('learner')[service['targetPort']]
  address = _flags('learner')['--config.actors.addresses']
  assert address == f"('0.0.0.0:{listening}',)"
  # README.md's certificate is for this name.
  assert f'subjectAltName=DNS:{host} ' in (_FOLDER / 'README.md').read_text()
  # Each learner has room for all actors, which never see its key.
  flags = _flags('actor')
  num_envs = int(flags['--groups']) * int(flags['--envs_per_group'])
  num_envs *= _ALL['Deployment/seedrl-actors']['spec']['replicas']
  assert int(_flags('learner')['--config.actors.max_envs']) >= num_envs
  assert _flags('learner')['--config.env.num_envs'] == '0'
  volumes = _TEMPLATES['actor']['spec']['volumes']
  (secret,) = (v['secret'] for v in volumes if 'secret' in v)
  assert {item['key'] for item in secret['items']} == {'tls.crt', 'token'}


def test_learners_find_each_other():
  flags, job = _flags('learner'), _JOB['template']['spec']
  job_set = _ALL['JobSet/seedrl']
  first = f'{job_set["metadata"]["name"]}-{_JOB["name"]}-0-0'
  port = _ports('learner')['coordinator']
  assert flags['--coordinator'] == f'{first}.seedrl:{port}'
  # Its name must resolve before it listens to actors and so is ready.
  assert job_set['spec']['network']['publishNotReadyAddresses']
  count = int(flags['--num_processes'])
  assert count == job['completions'] == job['parallelism']
  assert job['completionMode'] == 'Indexed'
  assert flags['--process_id'] == '$(JOB_COMPLETION_INDEX)'


def test_each_learner_has_a_reverb_server_of_the_same_tables():
  reverb = _ALL['StatefulSet/seedrl-reverb']['spec']
  service = _ALL[f'Service/{reverb["serviceName"]}']['spec']
  assert service['clusterIP'] == 'None'
  port = _flags('reverb')['--port']
  assert _ports('reverb') == {service['ports'][0]['targetPort']: int(port)}
  learner = _flags('learner')
  assert learner['--config.replay.address'] == (
    f'seedrl-reverb-$(JOB_COMPLETION_INDEX).{reverb["serviceName"]}:{port}'
  )
  assert reverb['replicas'] == int(learner['--num_processes'])
  assert learner['--config'] == _flags('reverb')['--config']
  # A table's size follows from a host's share of the batch.
  share = int(_flags('reverb')['--config.batch_size'])
  assert int(learner['--config.batch_size']) == share * reverb['replicas']


@_each_pod
def test_files_of_the_flags_are_mounted(pod: str):
  spec, container = _TEMPLATES[pod]['spec'], _container(pod)
  volumes = {volume['name']: volume for volume in spec['volumes']}
  claims = (
    _ALL[f'StatefulSet/seedrl-{pod}']['spec']['volumeClaimTemplates']
    if pod == 'reverb'
    else []
  )
  volumes |= {claim['metadata']['name']: claim for claim in claims}
  mounts = {
    m['mountPath']: volumes[m['name']] for m in container['volumeMounts']
  }
  assert len(mounts) == len(volumes)
  made = {'tls.crt', 'tls.key', 'token'}
  for name, value in _flags(pod).items():
    if value.startswith('/'):
      mount, _, file = value.removeprefix('/').partition('/')
      volume = mounts[f'/{mount}']
      if secret := volume.get('secret'):
        items = {item['path'] for item in secret.get('items', [])} or made
        assert file in items, name


# Ends as FAKE_STATUS says; with FAKE_PIPE, after SIGTERM.
_LEARNER = """#!PYTHON
import json, os, signal, sys

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print(json.dumps(sys.argv[1:]), flush=True)
if 'FAKE_PIPE' in os.environ:
  with open(os.environ['FAKE_PIPE'], 'w') as started:
    print('started', file=started)
  signal.sigwait({signal.SIGTERM})
  print('saved', flush=True)
sys.exit(int(os.environ['FAKE_STATUS']))
"""


def _start(folder: pathlib.Path, *arguments: str, **env: str) -> Any:
  stand_ins.add_program(folder, 'bin/python', _LEARNER)
  return subprocess.Popen(
    [_FOLDER / 'learner.sh', *arguments],
    env={**os.environ, 'SEEDRL_VENV': str(folder), **env},
    stdout=subprocess.PIPE,
    text=True,
  )


@pytest.mark.parametrize('status', [0, 3])
def test_learner_ends_as_the_program_does(tmp_path: pathlib.Path, status: int):
  awkward = ["--config.env.id='a b'", '--x=$HOME;*', '']
  running = _start(tmp_path, *awkward, FAKE_STATUS=str(status))
  said, _ = running.communicate()
  program = str(stand_ins.ROOT / 'launch/learner.py')
  assert json.loads(said) == [program, *awkward]
  assert running.returncode == status


@pytest.mark.parametrize(('status', 'expected'), [(0, 143), (3, 3)])
def test_a_stopped_learner_saves_and_is_not_done(
  tmp_path: pathlib.Path, status: int, expected: int
):
  pipe = tmp_path / 'pipe'
  os.mkfifo(pipe)
  running = _start(tmp_path, FAKE_STATUS=str(status), FAKE_PIPE=str(pipe))
  with open(pipe) as started:
    assert started.read() == 'started\n'
  running.send_signal(signal.SIGTERM)
  said, _ = running.communicate()
  assert said.endswith('saved\n')
  assert running.returncode == expected


def _change(document: Any, change: dict[str, Any]) -> None:
  """Makes a change of a JSON patch."""
  *path, last = (
    int(part) if part.isdigit() else part.replace('~1', '/')
    for part in change['path'].split('/')[1:]
  )
  for part in path:
    document = document[part]
  if change['op'] == 'test':
    assert document[last] == change['value']
  elif change['op'] == 'remove':
    del document[last]
  else:
    assert (change['op'] == 'replace') == (
      last in document or path[-1] == 'args'
    )
    document[last] = change['value']


def _with(component: str) -> dict[str, Any]:
  """Returns all documents as a component changes them."""
  own = _read(_FOLDER / component)
  kustomization = own.pop('Component')
  built = copy.deepcopy(_ALL) | own
  for patch in kustomization['patches']:
    target = patch['target']
    for change in yaml.safe_load(patch['patch']):
      _change(built[f'{target["kind"]}/{target["name"]}'], change)
  return built


def _learners(built: dict[str, Any]) -> tuple[Any, dict[str, str]]:
  """Returns the learners' job, and the flags of a learner."""
  job = built['JobSet/seedrl']['spec']['replicatedJobs'][0]['template']['spec']
  (container,) = job['template']['spec']['containers']
  pairs = (flag.partition('=') for flag in container['args'])
  return job, {name: value for name, _, value in pairs}


@pytest.mark.parametrize('component', _COMPONENTS)
def test_kustomize_takes_the_components(tmp_path: pathlib.Path, component: str):
  if not (kubectl := shutil.which('kubectl')):
    pytest.skip('needs kubectl')
  folder = shutil.copytree(_FOLDER, tmp_path / 'k8s')
  with (folder / 'kustomization.yaml').open('a') as file:
    print(f'components: [{component}]', file=file)
  command = [kubectl, 'kustomize', folder]
  text = subprocess.run(command, check=True, capture_output=True).stdout
  built = _load(text.decode().replace('registry.example.com/', ''))
  expected = _with(component)
  expected.pop('Kustomization')
  assert json.loads(json.dumps(built).replace(':latest"', '"')) == expected


def test_a_tpu_slice_has_as_many_hosts_as_there_are_learners():
  built = _with('tpu')
  job, flags = _learners(built)
  pod = job['template']['spec']
  limits = pod['containers'][0]['resources']['limits']
  assert 'nvidia.com/gpu' not in limits
  label = 'cloud.google.com/gke-tpu'
  assert pod['nodeSelector'][f'{label}-accelerator'] == 'tpu-v5-lite-podslice'
  topology = pod['nodeSelector'][f'{label}-topology']
  hosts = math.prod(map(int, topology.split('x'))) // limits['google.com/tpu']
  reverb = built['StatefulSet/seedrl-reverb']['spec']
  assert hosts == job['completions'] == job['parallelism'] == reverb['replicas']
  assert hosts == int(flags['--num_processes'])
  share = int(_flags('reverb')['--config.batch_size'])
  assert int(flags['--config.batch_size']) == share * hosts


def test_a_learner_on_tpus_may_open_them_and_lock_memory(
  tmp_path: pathlib.Path,
):
  (container,) = _learners(_with('tpu'))[0]['template']['spec']['containers']
  context = container['securityContext']
  assert (context['runAsUser'], context['runAsNonRoot']) == (0, False)
  assert context['capabilities'] == {'add': ['SYS_RESOURCE']}
  *shell, script, name = container['command']
  stand_ins.add_program(
    tmp_path, 'launch/k8s/learner.sh', '#!/bin/bash\nulimit -l\necho "$@"\n'
  )
  # A test may not raise the limit.
  script = script.replace('68719476736', '64')
  command = [*shell, script, name, '--a', 'b  c']
  output = subprocess.check_output(command, cwd=tmp_path, text=True)
  assert output == '64\n--a b  c\n'


def test_learners_wait_in_a_queue():
  labels = _with('kueue')['JobSet/seedrl']['metadata']['labels']
  assert labels['kueue.x-k8s.io/queue-name'] == 'seedrl'
  # What was there is kept.
  assert labels['app.kubernetes.io/component'] == 'learner'


def test_actors_are_scaled_by_a_number_that_is_served():
  built = _with('autoscaling')
  scaled = built['ScaledObject/seedrl-actors']['spec']
  assert 'replicas' not in built['Deployment/seedrl-actors']['spec']
  assert scaled['scaleTargetRef'] == {'name': 'seedrl-actors'}
  # The learners have room for the largest number.
  flags = _flags('actor')
  num_envs = int(flags['--groups']) * int(flags['--envs_per_group'])
  room = int(_learners(built)[1]['--config.actors.max_envs'])
  assert scaled['maxReplicaCount'] * num_envs == room
  # Policies do not lag far behind even if all connect to one learner.
  assert room / int(_flags('reverb')['--config.batch_size']) <= 12
  (trigger,) = scaled['triggers']
  asked = trigger['metadata']
  assert asked['valueLocation'] in runs.documented_columns()
  assert 0 < float(asked['targetValue']) < 1
  server = built['Deployment/seedrl-metrics']['spec']['template']
  (container,) = server['spec']['containers']
  service = built['Service/seedrl-metrics']['spec']
  assert service['selector'].items() <= server['metadata']['labels'].items()
  port = container['ports'][0]['containerPort']
  assert service['ports'] == [
    {'name': 'metrics', 'port': port, 'targetPort': 'metrics'}
  ]
  assert asked['url'].startswith('http://seedrl-metrics.')
  assert asked['url'].endswith(f':{port}/')
  assert container['args'] == [
    f'--workdir={_flags("learner")["--workdir"]}',
    f'--port={port}',
  ]
  program = container['command'][1].removesuffix('.py').removeprefix('launch/')
  known = runs.call(program, *container['args'], '--only_check_args')
  assert known.returncode == 0, known.stderr


def _serve(folder: pathlib.Path) -> tuple[subprocess.Popen[str], str]:
  """Starts the metrics' server; returns its address, too."""
  server = subprocess.Popen(
    [
      *(sys.executable, _FOLDER / 'metrics_server.py'),
      *(f'--workdir={folder}', '--port=0'),
    ],
    stdout=subprocess.PIPE,
    text=True,
  )
  assert server.stdout is not None
  port = server.stdout.readline().split()[-1]
  return server, f'http://127.0.0.1:{port}/'


def test_the_newest_complete_row_is_served(tmp_path: pathlib.Path):
  server, url = _serve(tmp_path)
  try:
    path = tmp_path / 'metrics.csv'
    for text, age, expected in (
      (None, 0, None),
      ('time/x,eval/return\n', 0, None),
      ('time/x,eval/return\n1,5\n0.25,\n0.7', 0, {'time/x': 0.25}),
      ('time/x,eval/return\n1,5\n' * 9000, 0, {'time/x': 1, 'eval/return': 5}),
      ('time/x\n1\n', 600, None),
    ):
      if text is not None:
        path.write_text(text)
        then = time.time() - age
        os.utime(path, (then, then))
      try:
        with urllib.request.urlopen(url) as answer:
          assert json.load(answer) == expected
      except urllib.error.HTTPError as e:
        assert (e.code, expected) == (503, None)
        assert 'error' in json.load(e)
  finally:
    server.kill()
    server.communicate()
