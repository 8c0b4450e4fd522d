"""A run on a Ray cluster: Ray places and watches our own programs.

Each program is the child (`child.Child`) of a Ray actor. Learners are a gang:
they start, end and start again together, and the run's actors with them.
"""

import asyncio
import contextlib
import importlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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
      reason, is_counted = asyncio.run(self._start())
      failures += is_counted
      if not reason:
        return
      if self._is_stopped or failures > self._plan.max_failures:
        raise RunFailed(f'{reason}; see above.')
      self._say(
        f'{reason}; all start again from the last checkpoint in --workdir, '
        "which the learners' nodes must share."
      )

  async def _start(self) -> tuple[str, bool]:
    """Runs learners and actors once; returns `failure` of the learners."""
    bundle = {'CPU': self._plan.learner_cpus, 'GPU': self._plan.learner_gpus}
    bundle = {name: count for name, count in bundle.items() if count}
    # A learner takes all devices that it sees, and a lost node should take one
    # learner: each has a node of its own.
    group = self._ray.util.placement_group(
      [bundle] * self._plan.learners, strategy='STRICT_SPREAD'
    )
    # Ray actors, first those of the learners; and for those whose program runs,
    # an event that its end sets.
    self._handles: list[Any] = []
    self._running: dict[Any, asyncio.Event] = {}
    self._is_ending = False
    try:
      if not self._wait_for_nodes(group):
        return '', False
      try:
        learners = self._place(group)
      except self._ray.exceptions.RayError as e:
        return f'learners could not be placed ({e})', True
      return failure(await self._watch(learners))
    finally:
      for handle in self._handles:
        self._ray.kill(handle)
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

  def _place(self, group: Any) -> list[asyncio.Task[int | None]]:
    """Starts all programs; returns those of the learners."""
    plan = self._plan
    strategies = self._ray.util.scheduling_strategies
    for index in range(plan.learners):
      self._make_child(
        num_cpus=plan.learner_cpus,
        num_gpus=plan.learner_gpus,
        scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
          group, index
        ),
      )
    ports = self._ray.get(
      [handle.free_ports.remote(2) for handle in self._handles],
      timeout=_WORKER_SECONDS,
    )
    nodes = {n['NodeID']: n['NodeManagerAddress'] for n in self._ray.nodes()}
    places = self._ray.util.placement_group_table(group)['bundles_to_node_id']
    hosts = [Host(nodes[places[i]], *pair) for i, pair in enumerate(ports)]
    addresses = [host.address for host in hosts]
    self._say(f'learners on {", ".join(addresses)}.')
    access = self._access or access_lib.Access()
    if plan.actors and not self._access:
      access = access_lib.make(addresses)
    learners = []
    for index, handle in enumerate(self._handles):
      command = learner_command(plan, hosts, index, access.learner_flags)
      show = self._prefixed(f'learner {index}') if index else self._show
      program = self._run_program(handle, command, access, show)
      learners.append(asyncio.create_task(program))
    self._actors = []
    for index in range(plan.actors):
      command = actor_command(plan, hosts, index, access.actor_flags)
      actor = self._keep_actor(index, command, access)
      self._actors.append(asyncio.create_task(actor))
    return learners

  def _make_child(self, **options: Any) -> Any:
    handle = self._make(**options).remote()
    self._handles.append(handle)
    return handle

  async def _run_program(
    self,
    handle: Any,
    command: Sequence[str],
    access: access_lib.Access,
    show: Say,
  ) -> int | None:
    """Runs a program; returns its exit code, or None if it was lost."""
    everything = os.environ.items()
    variables = {k: v for k, v in everything if k.startswith(_VARIABLES)}
    output = handle.run.options(num_returns='streaming').remote(
      command, os.getcwd(), variables, access.files_in(command)
    )
    code = None
    with contextlib.suppress(self._ray.exceptions.RayActorError):
      async for reference in output:
        item = await reference
        if item is None:
          self._running[handle] = asyncio.Event()
        elif isinstance(item, int):
          code = item
        else:
          show(item)
    if ended := self._running.pop(handle, None):
      ended.set()
    return code

  async def _keep_actor(
    self, index: int, command: Sequence[str], access: access_lib.Access
  ) -> None:
    """Runs an actor; again if it dies, unless all end."""
    show = self._prefixed(f'actor {index}')
    while True:
      handle = self._make_child(
        num_cpus=self._plan.actor_cpus, scheduling_strategy='SPREAD'
      )
      code = await self._run_program(handle, command, access, show)
      # With 0, the training has ended, or someone has ended the actor.
      if code == 0:
        return
      await asyncio.sleep(_PAUSE)
      if self._is_ending:
        return
      how = 'lost' if code is None else f'exit code {code}'
      self._say(f'actor {index} has died ({how}) and starts again.')
      self._ray.kill(handle)

  async def _watch(
    self, learners: Sequence[asyncio.Task[int | None]]
  ) -> list[int | None]:
    """Waits until a learner ends; then ends all. Returns learners' codes."""
    while not self._is_stopped and not any(t.done() for t in learners):
      await asyncio.wait(
        learners, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
      )
      for actor in self._actors:
        if actor.done():
          # Raises what went wrong, other than a loss.
          actor.result()
    # Learners that finish do so together.
    has_failed = any(t.done() and t.result() != 0 for t in learners)
    handles = self._handles[: len(learners)]
    if self._is_stopped or has_failed:
      for handle in handles:
        handle.end.remote()
    await asyncio.wait(learners, timeout=_LEARNER_SECONDS)
    self._is_ending = True
    ends = []
    for handle, ended in self._running.items():
      if handle not in handles:
        handle.end.remote()
        ends.append(asyncio.create_task(ended.wait()))
    if ends:
      await asyncio.wait(ends, timeout=_ACTOR_SECONDS)
    return [t.result() if t.done() else _KILLED for t in learners]

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
