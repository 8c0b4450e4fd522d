"""Joins the processes of several hosts to one run.

The hosts first meet at a `VoteServer`, whose errors are sentences: JAX's own
distributed service ends the process if a host is missing.
"""

import contextlib
import ipaddress
import logging
import os
import secrets
import socket
import sys

import jax
import numpy as np
from jax._src import distributed, xla_bridge
from jax._src.lib import _jax
from jax.experimental import multihost_utils

from seedrl_jax.hosts import coordinator as coordinator_lib
from seedrl_jax.hosts import several_hosts, votes

# Effectively off: the votes find out sooner who is gone, and say it.
_JAX_HEARTBEAT_SECONDS = 24 * 3600
# Bytes of the broadcast with which host 0 sends its server's address.
_ADDRESS_BYTES = 256


def join(
  coordinator: str,
  num_processes: int | None,
  process_id: int | None,
  timeout: float,
) -> coordinator_lib.Coordinator:
  """Meets the other hosts, if there are any; returns what coordinates them.

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
  has_flags = coordinator or (num_processes, process_id) != (None, None)
  if not has_flags and on_tpu_vm():
    return _join_on_tpu(timeout)
  if not has_flags or (num_processes == 1 and not process_id):
    return coordinator_lib.Coordinator()
  if not coordinator or num_processes is None or process_id is None:
    raise coordinator_lib.HostsMismatch(
      'Give all of --coordinator, --num_processes and --process_id for several '
      'hosts, or none for one.'
    )
  address = _parse(coordinator)
  if not 0 <= process_id < num_processes:
    raise coordinator_lib.HostsMismatch(
      f'--process_id={process_id}: with --num_processes={num_processes} give '
      f'0 to {num_processes - 1}.'
    )
  server = None
  with contextlib.ExitStack() as cleanup:
    if process_id == 0:
      server = _open_server(address, num_processes, timeout)
      cleanup.callback(server.close)
    client = votes.VoteClient(address, '', process_id, num_processes, timeout)
    cleanup.callback(client.leave, 'it could not join')
    _start_jax(address[0], num_processes, process_id, client)
    cleanup.pop_all()
  host = several_hosts.SeveralHosts(process_id, num_processes, client, server)
  return host.watch()


def _start_jax(
  host: str, count: int, index: int, client: votes.VoteClient
) -> None:
  """Joins JAX's distributed service, at a free port of host 0."""
  interface = _interface(host)
  with _hold_free_port(interface) as held:
    info = client.gather([
      held.getsockname()[1],
      jax.__version__,
      client.server_address,
    ])
    ports, versions, server_addresses = zip(*info, strict=True)
    several_hosts.check_same(versions, 'JAX {}')
    _configure()
    # Host 0 may reach itself by loopback; the others know its network address.
    others = server_addresses[1:]
    network = [x for x in others if not ipaddress.ip_address(x).is_loopback]
    _set_cpu_address(client.local_address if index else [*network, *others][0])
    jax.distributed.initialize(
      _join_address(host, ports[0]),
      count,
      index,
      # Under Slurm, JAX would give each process a single GPU.
      cluster_detection_method='deactivate',
      coordinator_bind_address=_join_address(interface or '[::]', ports[0]),
      heartbeat_timeout_seconds=_JAX_HEARTBEAT_SECONDS,
    )


def _set_cpu_address(address: str) -> None:
  """Sets where this host listens for the collectives of CPUs.

  By default JAX looks up the host's name, which may not resolve, or to an
  address that the other hosts do not reach. JAX has no public setting for it.
  """

  def make_client() -> object:
    return xla_bridge.make_cpu_client(
      _jax.make_gloo_tcp_collectives(
        distributed.global_state.client, hostname=address
      )
    )

  xla_bridge.register_backend_factory('cpu', make_client, fail_quietly=False)


def _configure() -> None:
  # Host 0 must outlive the others, to report that they are gone.
  jax.config.update('jax_enable_recoverability', True)
  # The service would handle SIGTERM itself.
  jax.config.update('jax_enable_preemption_service', False)
  # Only host 0 would fill a cache; compiling hosts then wait for each other.
  jax.config.update(
    'jax_compilation_cache_dir', os.environ.get('JAX_COMPILATION_CACHE_DIR')
  )
  # Drops messages about starting and connecting.
  logging.getLogger('jax._src.distributed').setLevel(logging.WARNING)


def _parse(coordinator: str) -> tuple[str, int]:
  """Returns host and port of host:port."""
  host, _, port = coordinator.rpartition(':')
  if not host or not port.isdigit() or not 0 < int(port) < 65536:
    raise coordinator_lib.HostsMismatch(
      f'--coordinator={coordinator}: give host 0 and a free port of it, as '
      'host:port.'
    )
  # /etc/hosts may lack it.
  host = '127.0.0.1' if host == 'localhost' else host.strip('[]')
  return host, int(port)


def _interface(host: str) -> str:
  """Returns where host 0 listens: loopback, or every interface."""
  with contextlib.suppress(ValueError):
    if ipaddress.ip_address(host).is_loopback:
      return host
  return '::' if ':' in host else ''


def _open_server(
  address: tuple[str, int], count: int, timeout: float
) -> votes.VoteServer:
  host, port = address
  try:
    return votes.VoteServer((_interface(host), port), '', count, timeout)
  except OSError as e:
    raise coordinator_lib.HostsMismatch(
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


def _join_on_tpu(timeout: float) -> coordinator_lib.Coordinator:
  """Joins the hosts of a TPU slice, which JAX finds by itself."""
  _configure()
  jax.distributed.initialize(
    initialization_timeout=int(timeout),
    heartbeat_timeout_seconds=_JAX_HEARTBEAT_SECONDS,
  )
  index, count = jax.process_index(), jax.process_count()
  if count == 1:
    return coordinator_lib.Coordinator()
  server, message = None, b''
  if index == 0:
    # The hostname resolves within a slice's network.
    secret = secrets.token_hex(16)
    server = votes.VoteServer(('', 0), secret, count, timeout)
    message = f'{socket.gethostname()} {server.port} {secret}'.encode()
  padded = np.frombuffer(message.ljust(_ADDRESS_BYTES), np.uint8)
  received = np.asarray(multihost_utils.broadcast_one_to_all(padded))
  host, port, secret = received.astype(np.uint8).tobytes().decode().split()
  address = host, int(port)
  client = votes.VoteClient(address, secret, index, count, timeout)
  return several_hosts.SeveralHosts(index, count, client, server).watch()
