"""Makes the store of a run from its configuration."""

from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from seedrl_jax import types
from seedrl_jax.replay import base, device, table_configs
from seedrl_jax.replay.embedded import store as embedded
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import (
  server_location,
  server_rules,
  store,
)
from seedrl_jax.replay.reverb.server import environment, server


def make_store(
  config: types.Config,
  tables: Sequence[table_configs.TableConfig],
  unroll_spec: types.Unroll,
  block_width: int,
  batch_size: int,
  seed: int,
  overlap: int = 1,
  folder: str | None = None,
  begin_with: str | None = None,
  lock_step: bool = False,
  has_single_steps: bool = False,
  local_inference: bool = False,
  on_device: bool = False,
) -> base.TrajectoryStore:
  """Returns the store of a run.

  Args:
    config: the section `replay`.
    tables: the rules of its tables, those of `table_config` first.
    unroll_spec, block_width, seed, overlap: see `EmbeddedStore`.
    folder: for a Reverb server's files; None: a temporary one.
    begin_with: see `OwnServer`.
    lock_step: whether acting and learning take turns; needs the embedded store.
    has_single_steps: whether an unroll trains on one transition.
    local_inference: whether actors write unrolls too, which needs Reverb.
    on_device: whether unrolls stay on the devices.

  Raises MemoryError or ValueError, naming the flag to change.
  """
  # Raises if the table cannot give such batches.
  num_blocks = tables[0].num_blocks(batch_size, None, block_width)
  if on_device:
    assert isinstance(tables[0], table_configs.QueueConfig)
    return device.DeviceStore(tables[0], unroll_spec, block_width, num_blocks)
  _check_backend(config, lock_step, local_inference)
  is_embedded = lock_step or config.backend == 'embedded'
  if config.backend == 'auto' and not (config.address or local_inference):
    # A client in Python takes about a millisecond to read an item.
    is_embedded |= tables[0].sampler == 'fifo' or has_single_steps
  rules = [
    server_rules.server_rules(table, block_width, batch_size)
    for table in tables
  ]
  location = None
  try:
    if not is_embedded:
      location = _open_server(
        config, rules, local_inference, folder, begin_with
      )
    if location is not None:
      return store.ReverbStore(
        tables, unroll_spec, block_width, location, overlap
      )
  except errors.ReverbError as e:
    # A wrong flag rather than a failure of the program.
    raise ValueError(str(e)) from e
  return embedded.EmbeddedStore(tables, unroll_spec, block_width, seed, overlap)


def _open_server(
  config: types.Config,
  rules: Sequence[Mapping[str, Any]],
  local_inference: bool,
  folder: str | None,
  begin_with: str | None,
) -> server_location.OwnServer | server_location.ExternalServer | None:
  """Opens the Reverb server; returns None if it cannot be had here."""
  address, patience = config.address, config.patience
  if address:
    host, _, port = address.rpartition(':')
    if not host or not port.isdecimal():
      raise ValueError(
        f'--config.replay.address={address}: must be host:port, as in '
        '127.0.0.1:8000.'
      )
    return server_location.ExternalServer(address, rules, patience)
  try:
    python = environment.ensure()
  except environment.EnvironmentUnavailable as e:
    if config.backend == 'reverb':
      raise ValueError(f'--config.replay.backend=reverb: {e}') from e
    if local_inference:
      raise ValueError(f'--config.actors.local_inference=True: {e}') from e
    logging.warning('Replay: embedded instead of Reverb: %s', e)
    return None
  logging.info('Replay: a Reverb server of this run, by %s.', python)
  return server_location.OwnServer(
    # Its own checkpoints are useless without the store's record.
    server.ReverbServer(python, rules, folder, keep_checkpoints=False),
    patience,
    begin_with,
  )


def _check_backend(
  config: types.Config, lock_step: bool, local_inference: bool
) -> None:
  chosen, address = config.backend, config.address
  if lock_step and (chosen == 'reverb' or address):
    raise ValueError(
      '--config.deterministic=True: a Reverb server answers when it likes; '
      'take --config.replay.backend=embedded, without an address.'
    )
  if chosen == 'embedded' and address:
    raise ValueError(
      f'--config.replay.address={address}: the embedded store has no server; '
      'take --config.replay.backend=reverb.'
    )
  if local_inference and (chosen == 'embedded' or lock_step):
    raise ValueError(
      '--config.actors.local_inference=True: actors that act themselves need '
      'Reverb; take --config.replay.backend=reverb, without '
      '--config.deterministic.'
    )
