"""Joins the processes of several hosts to one run.

The hosts first meet at a `VoteServer`, whose errors are sentences: JAX's own
distributed service ends the process if a host is missing.
"""

import contextlib
import dataclasses
import ipaddress
import logging
import os
import secrets
import socket
import sys
import threading
from typing import NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from seedrl_jax import types
from seedrl_jax.distributed import vote_client as vote_client_lib
from seedrl_jax.distributed import vote_server

# Effectively off: the votes find out sooner who is gone, and say it.
_JAX_HEARTBEAT_SECONDS = 24 * 3600
# Seconds that a process has to end by itself after another host is gone.
_GRACE_SECONDS = 30.0
# Bytes of the broadcast with which host 0 sends its server's address.
_ADDRESS_BYTES = 256


class Hosts:
  """This host among those that train together."""

  def __init__(
    self,
    index: int,
    count: int,
    votes: vote_client_lib.VoteClient,
    server: vote_server.VoteServer | None,
  ):
    """Only host 0 has a server."""
    self.index = index
    self.count = count
    self.votes = votes
    self._server = server
    self._gone = threading.Event()
    self._guard = threading.Thread(
      target=self._end_in_time, name='hosts-guard', daemon=True
    )
    self._guard.start()

  def set_timeout(self, seconds: float) -> None:
    """Sets after how many seconds of silence a host counts as gone."""
    if self._server is not None:
      self._server.set_timeout(seconds)
    self.votes.set_timeout(seconds)

  def broadcast(self, tree: types.Nest) -> types.Nest:
    """Returns host 0's arrays; raises `HostLost` if a host is gone."""
    self.votes.gather('broadcast')
    return multihost_utils.broadcast_one_to_all(tree)

  def detach(self) -> None:
    """Leaves JAX's service, after all collectives have run once.

    It would abort this process when host 0 is gone; compiled programs run on
    without it. Host 0 stays in it, as checkpoints need it.
    """
    self.votes.gather('detach')
    if self.index:
      jax.distributed.shutdown()

  def leave(self, reason: str = '') -> None:
    """Ends this host's part; see `VoteClient.announce_end` for `reason`."""
    self._gone.set()
    self.votes.leave(reason)
    if self._server is not None:
      self._server.close()

  def fail(self, reason: str, text: str) -> NoReturn:
    """Tells other hosts `reason`, prints `text`, and exits with code 1."""
    # The others know of a lost host themselves.
    reason = '' if self.votes.lost else reason.partition('\n')[0]
    if self.index == 0:
      self.leave(reason)
    else:
      # JAX aborts this process if host 0's ends first.
      self.votes.announce_end(reason)
    # A normal exit would wait for threads that are held in a collective.
    exit_now(text)

  def _end_in_time(self) -> None:
    """Exits if a collective holds the process after a host is gone."""
    while not self._gone.is_set():
      if self.votes.wait_lost(1.0) and not self._gone.wait(_GRACE_SECONDS):
        exit_now(self.votes.lost)


def exit_now(sentence: str) -> NoReturn:
  """Ends the process with exit code 1, whatever its threads wait for."""
  print(sentence, file=sys.stderr)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(1)


@dataclasses.dataclass(frozen=True)
class _Flags:
  address: tuple[str, int]
  count: int
  index: int


def join(
  coordinator: str,
  num_processes: int | None,
  process_id: int | None,
  timeout: float,
) -> Hosts | None:
  """Meets the other hosts; returns None if there are none.

  Call this before JAX sees a device.

  Args:
    coordinator: host:port at which host 0 listens; '' if there is one host, or
      JAX finds the others (TPU VMs).
    num_processes: number of hosts.
    process_id: index of this host.
    timeout: seconds in which all must join.

  Raises:
    HostsMismatch: if the flags, or those of the hosts together, are wrong.
    HostLost: if a host does not join.
  """
  if not coordinator and num_processes is None and process_id is None:
    return _join_on_tpu(timeout) if on_tpu_vm() else None
  if num_processes == 1 and not process_id:
    return None
  flags = _check_flags(coordinator, num_processes, process_id)
  interface = _interface(flags.address[0])
  server = None
  with contextlib.ExitStack() as opened:
    if flags.index == 0:
      server = _open_server(flags, interface, timeout)
      opened.callback(server.close)
    votes = vote_client_lib.VoteClient(
      flags.address, '', flags.index, flags.count, timeout
    )
    opened.callback(votes.leave, 'it could not join')
    _start_jax(flags, interface, votes)
    opened.pop_all()
  return Hosts(flags.index, flags.count, votes, server)


def _start_jax(
  flags: _Flags, interface: str, votes: vote_client_lib.VoteClient
) -> None:
  """Joins JAX's distributed service, at a free port of host 0."""
  with _hold_free_port(interface) as held:
    told = votes.gather([held.getsockname()[1], jax.__version__])
    vote_client_lib.check_same([version for _, version in told], 'JAX {}')
    _configure()
    port = told[0][0]
    jax.distributed.initialize(
      _join_address(flags.address[0], port),
      flags.count,
      flags.index,
      coordinator_bind_address=_join_address(interface or '[::]', port),
      heartbeat_timeout_seconds=_JAX_HEARTBEAT_SECONDS,
    )


def _configure() -> None:
  # Host 0 must outlive the others, to report that they are gone.
  jax.config.update('jax_enable_recoverability', True)
  # The service would handle SIGTERM itself.
  jax.config.update('jax_enable_preemption_service', False)
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # Only host 0 would fill a cache; compiling hosts then wait for each other.
  jax.config.update(
    'jax_compilation_cache_dir', os.environ.get('JAX_COMPILATION_CACHE_DIR')
  )
  # Drops messages about starting and connecting.
  logging.getLogger('jax._src.distributed').setLevel(logging.WARNING)


def _check_flags(
  coordinator: str, num_processes: int | None, process_id: int | None
) -> _Flags:
  if not coordinator or num_processes is None or process_id is None:
    missing = [
      flag
      for flag, value in (
        ('--coordinator', coordinator or None),
        ('--num_processes', num_processes),
        ('--process_id', process_id),
      )
      if value is None
    ]
    raise vote_client_lib.HostsMismatch(
      f'{" and ".join(missing)} missing: give all of --coordinator, '
      '--num_processes and --process_id for several hosts, or none for one.'
    )
  host, _, port = coordinator.rpartition(':')
  if not host or not port.isdigit() or not 0 < int(port) < 65536:
    raise vote_client_lib.HostsMismatch(
      f'--coordinator={coordinator}: give host 0 and a free port of it, as '
      'host:port.'
    )
  if num_processes < 1:
    raise vote_client_lib.HostsMismatch(
      f'--num_processes={num_processes}: give at least 1.'
    )
  if not 0 <= process_id < num_processes:
    raise vote_client_lib.HostsMismatch(
      f'--process_id={process_id}: with --num_processes={num_processes} give '
      f'0 to {num_processes - 1}.'
    )
  return _Flags((host.strip('[]'), int(port)), num_processes, process_id)


def _interface(host: str) -> str:
  """Returns where host 0 listens: loopback, or on every interface."""
  if host == 'localhost':
    return '127.0.0.1'
  with contextlib.suppress(ValueError):
    if ipaddress.ip_address(host).is_loopback:
      return host
  return ''


def _open_server(
  flags: _Flags, interface: str, timeout: float
) -> vote_server.VoteServer:
  host, port = flags.address
  try:
    return vote_server.VoteServer((interface, port), '', flags.count, timeout)
  except OSError as e:
    raise vote_client_lib.HostsMismatch(
      f'--coordinator={host}:{port}: cannot listen there ({e.strerror}); '
      'choose another port.'
    ) from e


def _hold_free_port(interface: str) -> socket.socket:
  """Reserves a port on which JAX can still listen."""
  family = socket.AF_INET6 if ':' in interface else socket.AF_INET
  held = socket.socket(family)
  held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  held.bind((interface, 0))
  return held


def _join_address(host: str, port: int) -> str:
  if ':' in host and not host.startswith('['):
    host = f'[{host}]'
  return f'{host}:{port}'


def on_tpu_vm() -> bool:
  """Whether this machine has TPU chips and JAX's library for them."""
  return any(map(os.path.exists, ('/dev/accel0', '/dev/vfio/0'))) and any(
    os.path.exists(os.path.join(path, 'libtpu')) for path in sys.path
  )


def _join_on_tpu(timeout: float) -> Hosts | None:
  """Joins the hosts of a TPU slice, which JAX finds by itself."""
  _configure()
  jax.distributed.initialize(
    initialization_timeout=int(timeout),
    heartbeat_timeout_seconds=_JAX_HEARTBEAT_SECONDS,
  )
  index, count = jax.process_index(), jax.process_count()
  if count == 1:
    return None
  server, told = None, b''
  if index == 0:
    # The hostname resolves within a slice's network.
    secret = secrets.token_hex(16)
    server = vote_server.VoteServer(('', 0), secret, count, timeout)
    told = f'{socket.gethostname()} {server.port} {secret}'.encode()
  padded = np.frombuffer(told.ljust(_ADDRESS_BYTES), np.uint8)
  found = np.asarray(multihost_utils.broadcast_one_to_all(padded))
  host, port, secret = found.astype(np.uint8).tobytes().decode().split()
  votes = vote_client_lib.VoteClient(
    (host, int(port)), secret, index, count, timeout
  )
  return Hosts(index, count, votes, server)
