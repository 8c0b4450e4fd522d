"""Actors of a run in this process."""

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence

from seedrl_jax.actors.actor_side import actor, local_inference
from seedrl_jax.net import addresses, credentials
from seedrl_jax.run import system


@contextlib.contextmanager
def acting(
  run: system.System,
  num_envs: int,
  allowed: Sequence[str] = (),
  is_local: bool = False,
  task: str = '',
) -> Iterator[None]:
  """Brings environments to a run; `is_local` if they act themselves."""
  assert run.parts.actors is not None
  (text,) = run.parts.actors.addresses
  address, security = addresses.parse('--learner', text), credentials.Security()
  options = actor.GroupOptions(
    address, security, num_envs, allowed=tuple(allowed), task=task
  )
  make = functools.partial(local_inference.LocalInference, address, security)
  group = actor.EnvGroup(options, lambda _: None, make if is_local else None)
  thread = threading.Thread(target=group.run, name='actor')
  thread.start()
  try:
    yield
  finally:
    group.stop()
    thread.join()
