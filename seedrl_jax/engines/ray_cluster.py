"""A run on a Ray cluster: Ray places and watches our own programs.

Each program is the child (`child.Child`) of a Ray actor. Learners are a gang:
they start, end and start again together, and the run's actors with them.
"""

import importlib
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from seedrl_jax.engines import access as access_lib
from seedrl_jax.engines import child

# Variables of the launching shell that programs get, by their beginnings.
_VARIABLES = ('JAX_', 'NCCL_', 'PYTHONPATH', 'SEEDRL_', 'XLA_')
_PROBE_SECONDS = 10.0
# For workers of learners to start.
_WORKER_SECONDS = 120.0
# Between an actor's end and its next start.
_PAUSE = 5.0
# From SIGTERM to SIGKILL: for a last checkpoint, and for actors, which first
# wait for environments that are being made.
_LEARNER_SECONDS, _ACTOR_SECONDS = 300.0, 45.0
_KILLED = -9

Say = Callable[[str], None]


class RunFailed(RuntimeError):
  """The run was not placed in time, or its learners failed too often."""


class Plan(NamedTuple):
  """Processes of a run, and what each of them gets."""

  folder: str  # of the programs, on all nodes
  learners: int  # one a node
  learner_cpus: float
  learner_gpus: float  # negative: all of a node
  learner_flags: Sequence[str]
  actors: int
  actor_cpus: float
  actor_flags: Sequence[str]
  place_seconds: float  # in which the learners must get their nodes
  max_failures: int  # of learners, after which they start again


class Host(NamedTuple):
  """A learner's node, and free ports there: for learners, and for actors."""

  address: str
  port: int
  actors_port: int


class _Member:
  """A program of the run: its Ray actor, and how far it is."""

  def __init__(self, handle: Any, show: Say):
    self.handle = handle
    # Ray's reference to what the program does next.
    self.pending: Any = None
    self.has_started = self.has_ended = False
    # Of a program that has ended; None: lost.
    self.code: int | None = None
    self.ended_at = 0.0
    self._show = show

  def start(self, command: Sequence[str], access: access_lib.Access) -> None:
    """Starts the program as soon as its Ray actor has a place."""
    everything = os.environ.items()
    variables = {k: v for k, v in everything if k.startswith(_VARIABLES)}
    self.pending = self.handle.start.remote(
      command, os.getcwd(), variables, access.files_in(command)
    )

  def take(self, output: Sequence[str | int] | None) -> None:
    """Takes what was pending, and asks for more."""
    self.has_started = True
    for item in output or ():
      if isinstance(item, int):
        self.finish(item)
      else:
        self._show(item)
    self.pending = self.handle.read.remote()

  def finish(self, code: int | None) -> None:
    self.code, self.has_ended, self.ended_at = code, True, time.monotonic()


class RayRun:
  """A run on a Ray cluster."""

  def __init__(
    self,
    address: str | None,
    plan: Plan,
    access: access_lib.Access | None,
    show: Say,
  ):
    """Connects to the cluster at `address`; None: the one that Ray finds.

    Without any, Ray starts one on this machine. `access` is made for each start
    if there is none. `show` prints lines.

    Raises ValueError if Ray is not installed, or no cluster answers.
    """
    try:
      self._ray = importlib.import_module('ray')
    except ModuleNotFoundError as e:
      raise ValueError(
        "Ray is not installed; on all nodes: pip install 'seedrl-jax[ray]'"
      ) from e
    self._show = show
    self._access = access
    self._is_stopped = False
    try:
      if address:
        # Ray would try for minutes.
        host, _, port = address.rpartition(':')
        socket.create_connection((host, port), _PROBE_SECONDS).close()
      self._ray.init(address, log_to_driver=False, logging_level='error')
    except OSError as e:
      raise ValueError(
        f'--ray_address={address or ""}: no Ray cluster answers ({e}); give '
        "host:port, as 'ray status' and 'ray start --head' print it."
      ) from e
    nodes = [n['Resources'] for n in self._ray.nodes() if n['Alive']]
    self._plan = with_gpus(plan, nodes)
    self._make = self._ray.remote(max_concurrency=2)(child.Child).options

  def stop(self) -> None:
    """Ends the run soon; for signal handlers."""
    self._is_stopped = True

  def close(self) -> None:
    self._ray.shutdown()

  def run(self) -> None:
    """Trains until the end, or `stop`; raises RunFailed, or ValueError.

    The latter is about a certificate that cannot be made.
    """
    failures = 0
    while not self._is_stopped:
      reason, is_counted = self._start()
      failures += is_counted
      if not reason:
        return
      if self._is_stopped or failures > self._plan.max_failures:
        raise RunFailed(f'{reason}; see above.')
      self._say(
        f'{reason}; all start again from the last checkpoint in --workdir, '
        "which the learners' nodes must share."
      )

  def _start(self) -> tuple[str, bool]:
    """Runs learners and actors once; returns `plan.failure`."""
    bundle = {'CPU': self._plan.learner_cpus, 'GPU': self._plan.learner_gpus}
    bundle = {name: count for name, count in bundle.items() if count}
    # A learner takes all devices that it sees, and a lost node should take one
    # learner: each has a node of its own.
    group = self._ray.util.placement_group(
      [bundle] * self._plan.learners, strategy='STRICT_SPREAD'
    )
    self._learners: list[_Member] = []
    self._actors: list[_Member] = []
    try:
      if not self._wait_for_nodes(group):
        return '', False
      try:
        self._place(group)
      except self._ray.exceptions.RayError as e:
        return f'learners could not be placed ({e})', True
      self._watch()
      return failure([m.code for m in self._learners])
    finally:
      for member in (*self._learners, *self._actors):
        self._ray.kill(member.handle)
      self._ray.util.remove_placement_group(group)

  def _wait_for_nodes(self, group: Any) -> bool:
    """Waits for the learners' nodes; returns False if stopped meanwhile."""
    plan = self._plan
    missing = (
      f'--learners={plan.learners} needs as many nodes, each with '
      f'{plan.learner_cpus:g} CPUs and {plan.learner_gpus:g} GPUs free; add '
      'nodes, or lower --learners, --learner_cpus or --learner_gpus.'
    )
    deadline = time.monotonic() + plan.place_seconds
    if not group.wait(1):
      self._say(f'waits at most {plan.place_seconds:.0f} s: {missing}')
    while not group.wait(1):
      if self._is_stopped:
        return False
      if time.monotonic() > deadline:
        raise RunFailed(missing)
    return True

  def _place(self, group: Any) -> None:
    strategies = self._ray.util.scheduling_strategies
    for index in range(self._plan.learners):
      handle = self._make(
        num_cpus=self._plan.learner_cpus,
        num_gpus=self._plan.learner_gpus,
        scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
          group, index
        ),
      ).remote()
      show = self._prefixed(f'learner {index}') if index else self._show
      self._learners.append(_Member(handle, show))
    self._hosts = self._find_hosts(group)
    addresses = [host.address for host in self._hosts]
    self._say(f'learners on {", ".join(addresses)}.')
    access = self._access or access_lib.Access()
    if self._plan.actors and not self._access:
      access = access_lib.make(addresses)
    for index, learner in enumerate(self._learners):
      command = learner_command(
        self._plan, self._hosts, index, access.learner_flags
      )
      learner.start(command, access)
    self._secrets = access
    self._actors += map(self._start_actor, range(self._plan.actors))

  def _find_hosts(self, group: Any) -> list[Host]:
    ports = self._ray.get(
      [member.handle.free_ports.remote(2) for member in self._learners],
      timeout=_WORKER_SECONDS,
    )
    nodes = {n['NodeID']: n['NodeManagerAddress'] for n in self._ray.nodes()}
    places = self._ray.util.placement_group_table(group)['bundles_to_node_id']
    return [Host(nodes[places[i]], *pair) for i, pair in enumerate(ports)]

  def _start_actor(self, index: int) -> _Member:
    handle = self._make(
      num_cpus=self._plan.actor_cpus, scheduling_strategy='SPREAD'
    ).remote()
    actor = _Member(handle, self._prefixed(f'actor {index}'))
    command = actor_command(
      self._plan, self._hosts, index, self._secrets.actor_flags
    )
    actor.start(command, self._secrets)
    return actor

  def _watch(self) -> None:
    """Keeps actors running until a learner ends; then ends all."""
    while not any(m.has_ended for m in self._learners) and not self._is_stopped:
      self._poll([*self._learners, *self._actors])
      for index, actor in enumerate(self._actors):
        # With 0, the training has ended, or someone has ended the actor.
        has_died = actor.has_ended and actor.code != 0
        if has_died and time.monotonic() > actor.ended_at + _PAUSE:
          how = 'lost' if actor.code is None else f'exit code {actor.code}'
          self._say(f'actor {index} has died ({how}) and starts again.')
          self._ray.kill(actor.handle)
          self._actors[index] = self._start_actor(index)
    # Learners that finish do so together.
    has_failed = any(m.has_ended and m.code != 0 for m in self._learners)
    self._end(self._learners, _LEARNER_SECONDS, self._is_stopped or has_failed)
    self._end([m for m in self._actors if m.has_started], _ACTOR_SECONDS, True)

  def _poll(self, members: Sequence[_Member]) -> None:
    """Waits a second at most for what programs do."""
    waiting = {m.pending: m for m in members if not m.has_ended}
    if not self._ray.wait([*waiting], timeout=1.0)[0]:
      return
    # All that are ready now, so that none is kept waiting.
    for ready in self._ray.wait(
      [*waiting], num_returns=len(waiting), timeout=0.0
    )[0]:
      try:
        waiting[ready].take(self._ray.get(ready))
      except self._ray.exceptions.RayActorError:
        waiting[ready].finish(None)

  def _end(
    self, members: Sequence[_Member], seconds: float, tell: bool
  ) -> None:
    """Waits until programs end, which `tell` asks them to; leaves late ones."""
    deadline = time.monotonic() + seconds
    left = [m for m in members if not m.has_ended]
    for member in left if tell else ():
      member.handle.end.remote()
    while left and time.monotonic() < deadline:
      self._poll(left)
      left = [m for m in left if not m.has_ended]
    for member in left:
      member.finish(_KILLED)

  def _say(self, text: str) -> None:
    self._show(f'ray_cluster: {text}')

  def _prefixed(self, name: str) -> Say:
    return lambda line: self._show(f'[{name}] {line}')


def with_gpus(plan: Plan, nodes: Sequence[Mapping[str, float]]) -> Plan:
  """Fills the GPUs in: all of the node that has the fewest, but some."""
  if plan.learner_gpus >= 0:
    return plan
  gpus = [node['GPU'] for node in nodes if node.get('GPU')]
  return plan._replace(learner_gpus=min(gpus, default=0.0))


def drop_flags(arguments: Sequence[str], names: Collection[str]) -> list[str]:
  """Returns arguments without the flags `names`, each of which has a value."""
  others, remaining = [], iter(arguments)
  for argument in remaining:
    match = re.fullmatch(r'--?(\w+)(=.*)?', argument, re.DOTALL)
    if match is None or match[1] not in names:
      others.append(argument)
    elif match[2] is None:
      next(remaining, None)
  return others


def learner_command(
  plan: Plan, hosts: Sequence[Host], index: int, access: Sequence[str]
) -> list[str]:
  """Returns a learner's command; `access`: flags for actors' connections."""
  program, together = 'train.py', []
  if len(hosts) > 1:
    program = 'learner.py'
    together = [
      f'--coordinator={hosts[0].address}:{hosts[0].port}',
      f'--num_processes={len(hosts)}',
      f'--process_id={index}',
    ]
  if plan.actors:
    port = hosts[index].actors_port
    access = [f"--config.actors.addresses=('0.0.0.0:{port}',)", *access]
  start = [sys.executable, f'{plan.folder}/{program}', *together]
  # Values of the configuration must follow --config.
  return [*start, *plan.learner_flags, *access]


def actor_command(
  plan: Plan, hosts: Sequence[Host], index: int, access: Sequence[str]
) -> list[str]:
  """Returns an actor's command; actors take turns at the learners."""
  host = hosts[index % len(hosts)]
  learner = f'--learner={host.address}:{host.actors_port}'
  start = [sys.executable, f'{plan.folder}/actor.py', learner, '--patience=0']
  return [*start, *access, *plan.actor_flags]


def failure(ends: Sequence[int | None]) -> tuple[str, bool]:
  """Returns what went wrong, if anything, and whether to blame the programs.

  `ends` are learners' exit codes; None: lost with a worker or its node. If one
  is lost, the others fail with it.
  """
  lost = [str(i) for i, end in enumerate(ends) if end is None]
  failed = [f'{i} (exit code {end})' for i, end in enumerate(ends) if end]
  if lost:
    return f'learner {" and ".join(lost)} is lost with its worker', False
  if failed:
    return f'learner {" and ".join(failed)} has failed', True
  return '', False
