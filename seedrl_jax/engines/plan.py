"""What a run asks of a cluster, its commands, and when it starts again."""

import collections
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


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


# A node's CPUs and GPUs, by these names.
Node = Mapping[str, float]


def with_gpus(plan: Plan, nodes: Sequence[Node]) -> Plan:
  """Fills the GPUs in: all of the node that has the fewest, but some."""
  if plan.learner_gpus >= 0:
    return plan
  gpus = [node['GPU'] for node in nodes if node.get('GPU')]
  return plan._replace(learner_gpus=min(gpus, default=0.0))


def present(nodes: Sequence[Node], free: Node) -> str:
  """Returns in words what a cluster has, and of all nodes what is free."""
  sizes = collections.Counter(
    (node.get('CPU', 0.0), node.get('GPU', 0.0)) for node in nodes
  )
  parts = ', '.join(
    f'{count} with {cpus:g} CPUs and {gpus:g} GPUs'
    for (cpus, gpus), count in sorted(sizes.items(), reverse=True)
  )
  return (
    f'the cluster has {parts or "no nodes"}; free, in all: '
    f'{free.get("CPU", 0.0):g} CPUs and {free.get("GPU", 0.0):g} GPUs'
  )


def shortage(plan: Plan, cluster: str) -> str:
  """Returns a sentence on learners that find no place in a `cluster`."""
  return (
    f'--learners={plan.learners} needs as many nodes, each with '
    f'{plan.learner_cpus:g} CPUs and {plan.learner_gpus:g} GPUs free, but '
    f'{cluster}; add nodes, or lower --learners, --learner_cpus or '
    '--learner_gpus.'
  )


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
