"""The peers: what they need, what to try, and how they learn."""

import importlib.metadata
import pathlib
import shutil
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from seedrl_jax.runtime import virtual_env

_CLIENTS = pathlib.Path(__file__).with_name('clients')
# Where pip's settings offer wheels for CPUs (2.13.0+cpu), it prefers them.
_TORCH = 'torch==2.13.0'


class Peer(NamedTuple):
  """A library to compare with.

  Attributes:
    client: name of its file.
    package: what is imported.
    requirement: of pip.
    choices: settings of which it gets the faster ones.
    learning: settings with which it learns CartPole-v1.
  """

  client: str
  package: str
  requirement: str
  choices: Sequence[dict[str, Any]]
  learning: dict[str, Any]

  @property
  def path(self) -> str:
    """Path of its client."""
    return str(_CLIENTS / self.client)


_THREADS: tuple[dict[str, Any], ...] = ({'threads': 0}, {'threads': 1})
_WORKERS: tuple[dict[str, Any], ...] = ({'workers': 1}, {'workers': 2})
PEERS = {
  'stable-baselines3': Peer(
    'run_stable_baselines3.py',
    'stable_baselines3',
    'stable-baselines3==2.9.2',
    _THREADS,
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
    'run_sample_factory.py',
    'sample_factory',
    'sample-factory==2.1.1',
    _WORKERS,
    {},
  ),
  'rllib': Peer('run_rllib.py', 'ray', 'ray[rllib]==2.60.0', _WORKERS, {}),
  'torchrl': Peer('run_torchrl.py', 'torchrl', 'torchrl==0.14.1', _THREADS, {}),
}


def select(names: Sequence[str], agent: str) -> Sequence[str]:
  """Returns the peers to run, all that can unless `names` says which.

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


def ensure(name: str, python: str) -> str:
  """Returns the path of a peer's Python, made from `python` if missing.

  Raises:
    ValueError: if there is no such Python, or the cache folder cannot be used.
    virtual_env.BuildFailed: if it cannot be made.
  """
  if not (base := shutil.which(python)):
    raise ValueError(f'--peers_python={python}: there is no such program.')
  peer = PEERS[name]
  recipe = virtual_env.Recipe(
    name=name,
    base=base,
    version=base,
    requirements=(
      peer.requirement,
      _TORCH,
      # The environments are the system's.
      f'envpool=={importlib.metadata.version("envpool")}',
    ),
    options=(),
    check=f'import envpool, torch, {peer.package}',
  )
  notice = (
    f'making an environment for {name} in {recipe.folder}, once: minutes, and '
    '2 GB on disk with PyTorch for CPUs.'
  )
  try:
    return virtual_env.ensure(recipe, notice, _say)
  except OSError as e:
    raise ValueError(
      f'The cache folder {recipe.folder.parent} of the peers cannot be used '
      f'({e.strerror}); set SEEDRL_CACHE to another.'
    ) from e


def _say(line: str) -> None:
  print(f'peers: {line}', file=sys.stderr, flush=True)
