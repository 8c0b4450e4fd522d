"""The peers: what they need, what to try, and how they learn."""

import importlib.metadata
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import uv

_CLIENTS = pathlib.Path(__file__).with_name('clients')
# Where uv's settings offer wheels for CPUs (2.13.0+cpu), it prefers them.
_TORCH = 'torch==2.13.0'


class PeerFailed(RuntimeError):
  """A peer cannot be installed, or its run failed; the message is one line."""


class Peer(NamedTuple):
  """A library to compare with.

  Attributes:
    client: path of the program that runs it.
    package: name to import.
    requirement: package and version to install.
    choices: settings of which it gets the faster ones.
    learning: settings with which it learns CartPole-v1.
  """

  client: str
  package: str
  requirement: str
  choices: Sequence[dict[str, Any]]
  learning: dict[str, Any]


PEERS = {
  'stable-baselines3': Peer(
    str(_CLIENTS / 'run_stable_baselines3.py'),
    'stable_baselines3',
    'stable-baselines3==2.9.2',
    ({'threads': 0}, {'threads': 1}),
    # Those of its own collection of tuned settings, RL Zoo.
    {
      'num_envs': 8,
      'policy': {'net_arch': {'pi': [64, 64], 'vf': [64, 64]}},
      'arguments': {
        'n_steps': 32,
        'batch_size': 256,
        'n_epochs': 20,
        'gae_lambda': 0.8,
        'gamma': 0.98,
        'ent_coef': 0.0,
        'learning_rate': 1e-3,
      },
    },
  ),
  'sample-factory': Peer(
    str(_CLIENTS / 'run_sample_factory.py'),
    'sample_factory',
    'sample-factory==2.1.1',
    ({'workers': 1}, {'workers': 2}),
    {},
  ),
}


def select(names: Sequence[str], agent: str) -> Sequence[str]:
  """Returns the peers to run: those in `names`, or all that support `agent`.

  Args:
    agent: the system's; only Stable-Baselines3 has those other than V-trace.

  Raises:
    ValueError: if there is no such peer.
  """
  known = PEERS if agent == 'vtrace' else ['stable-baselines3']
  for name in names:
    if name not in PEERS:
      raise ValueError(f'--peer={name}: take one of {", ".join(PEERS)}.')
  return [name for name in known if not names or name in names]


def install(name: str) -> list[str]:
  """Installs a peer in uv's cache; returns the command of its Python.

  Raises:
    PeerFailed: if the peer cannot be installed.
  """
  peer = PEERS[name]
  # The environments are the system's.
  envpool = f'envpool=={importlib.metadata.version("envpool")}'
  command = [
    uv.find_uv_bin(),
    'run',
    '--quiet',
    '--no-project',
    '--isolated',
    *(f'--with={package}' for package in (peer.requirement, _TORCH, envpool)),
    f'--python={sys.executable}',
    'python',
  ]
  print(
    f'peers: installing {name}; the first time takes minutes', file=sys.stderr
  )
  code = f'import envpool, torch, {peer.package}'
  result = subprocess.run(
    [*command, '-c', code], capture_output=True, text=True
  )
  if result.returncode:
    raise PeerFailed(result.stderr.rstrip().rpartition('\n')[2].strip())
  return command
