"""Checkpoints of a run, written by Orbax and verified when they are read.

A checkpoint is a flat dict of arrays, named by their path in the state, and a
JSON record of counters with a digest of both.
"""

import collections
import contextlib
import datetime
import errno
import hashlib
import json
import logging as std_logging
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from seedrl_jax import types
from seedrl_jax.runtime import workdir

_DIGEST, _LAYOUT = 'digest', 'layout'
# The layout of the state's arrays.
_CURRENT_LAYOUT = 2


class CheckpointMismatch(ValueError):
  """A sound checkpoint is of another agent or release."""


class Checkpoint(NamedTuple):
  """A restored checkpoint: a nest of NumPy arrays and a record of JSON values.

  `step` is the number of updates that made it.
  """

  step: int
  state: types.Nest
  record: dict[str, Any]


class Checkpoints:
  """The checkpoints in one directory."""

  def __init__(
    self,
    path: pathlib.Path,
    keep: int = 3,
    keep_every_hours: float = 0.0,
    report: Callable[[str], None] = print,
    read_only: bool = False,
  ):
    """Opens the directory; makes it unless `read_only`.

    Args:
      path: the directory.
      keep: number of newest checkpoints to keep.
      keep_every_hours: keep one for good this often; 0: none.
      report: takes sentences about damaged checkpoints.
      read_only: change nothing, as a run may be saving here.
    """
    std_logging.getLogger('absl').addFilter(_drop_orbax)
    sys.unraisablehook = _drop_closed_loop
    self._path = path
    self._keep = keep
    self._report = report
    self._read_only = read_only
    self._options = _options(keep, keep_every_hours, read_only)
    if not read_only:
      self._path.mkdir(parents=True, exist_ok=True)
      self._clear()
    self._manager = self._open()

  def _clear(self) -> None:
    """Removes unfinished checkpoints; puts aside files named like one."""
    # Orbax would do it in a thread, which fails if the process soon ends.
    for path in self._path.glob('*.orbax-checkpoint-tmp*'):
      workdir.remove(path)
    for path in list(self._path.iterdir()):
      if path.name.isdecimal() and not path.is_dir():
        aside = workdir.put_aside(path).name
        self._report(f'{path} is no checkpoint; it is now {aside}.')

  def _open(self) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(self._path, options=self._options)

  def steps(self) -> list[int]:
    """Returns the numbers of the checkpoints, oldest first."""
    return sorted(self._manager.all_steps())

  def save(self, step: int, state: types.Nest, record: dict[str, Any]) -> None:
    """Saves host arrays and JSON values, unless this step is already saved.

    Raises:
      NotWritten: if it cannot be written; the earlier ones are unchanged.
    """
    if step in self._manager.all_steps():
      return
    # The threads of a failed save may have gone on writing.
    self._clear()
    self._unlink_old()
    arrays = _flatten(state)
    record = {**record, _LAYOUT: _CURRENT_LAYOUT}
    args = ocp.args.Composite(
      state=ocp.args.StandardSave(arrays),
      record=ocp.args.JsonSave({**record, _DIGEST: _digest(arrays, record)}),
    )
    try:
      self._manager.save(step, args=args)
    # A full disk can raise anything.
    except Exception as e:
      logging.debug('Shown by --verbosity=1:', exc_info=True)
      self._reopen()
      raise workdir.NotWritten(
        f'Checkpoint {step} could not be written ({_reason(e)}).'
      ) from e

  def _unlink_old(self) -> None:
    """Removes links to old checkpoints, which Orbax fails to delete."""
    steps = self.steps()
    for step in steps[: max(0, len(steps) + 1 - self._keep)]:
      path = self._path / str(step)
      if path.is_symlink():
        path.unlink()
        self._manager.reload()

  def _reopen(self) -> None:
    with contextlib.suppress(Exception):
      self._manager.close()
    self._clear()
    self._manager = self._open()

  def restore(self, template: types.Nest) -> Checkpoint | None:
    """Returns the newest sound checkpoint; None if there is none.

    Damaged ones are reported and put aside, so that the run can save those
    steps again. `template` is a nest of arrays like the state.

    Raises:
      CheckpointMismatch: if the arrays' names, shapes or dtypes differ.
    """
    found = self._newest_sound(self.steps())
    if found is None:
      return None
    self._check_layout(found)
    return found._replace(state=_assemble(template, found.state, found.step))

  def restore_part(
    self, name: str, template: types.Nest, step: int | None = None
  ) -> Checkpoint | None:
    """Returns a checkpoint with field `name` as its `state`, or None.

    `step` is its number; None: the newest sound one.

    Raises:
      CheckpointMismatch: if the field's names, shapes or dtypes differ.
    """
    found = self._newest_sound([s for s in self.steps() if step in (None, s)])
    if found is None:
      return None
    self._check_layout(found)
    part = {k: x for k, x in found.state.items() if k.split('.')[0] == name}
    state = _assemble({name: template}, part, found.step)[name]
    return found._replace(state=state)

  def _newest_sound(self, steps: list[int]) -> Checkpoint | None:
    """Returns the last readable checkpoint, with its arrays by name."""
    for step in reversed(steps):
      try:
        return Checkpoint(step, *self._read(step))
      # A damaged file can raise anything.
      except Exception as e:
        self._report_damage(step, e, is_last=step == steps[0])
    return None

  def _check_layout(self, found: Checkpoint) -> None:
    """Removes the layout from the record; raises if it is another release's."""
    if found.record.pop(_LAYOUT, 1) != _CURRENT_LAYOUT:
      raise CheckpointMismatch(
        f'Checkpoint {found.step} in {self._path.parent} is of another release '
        'of seedrl-jax, with another layout; go on with that release, or give '
        'another --workdir.'
      )

  def close(self) -> None:
    """Closes the manager."""
    self._manager.close()

  def _read(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    item = self._manager.restore(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardRestore(), record=ocp.args.JsonRestore()
      ),
    )
    arrays = {name: np.asarray(x) for name, x in item['state'].items()}
    record = dict(item['record'])
    if record.pop(_DIGEST, None) != _digest(arrays, record):
      raise ValueError('its contents do not match their digest')
    return arrays, record

  def _report_damage(self, step: int, error: Exception, is_last: bool) -> None:
    moved = ''
    if not self._read_only:
      moved = f'it was moved to {self._put_aside(step)} and '
    rest = 'no other is used' if is_last else 'the one before is used'
    self._report(
      f'Checkpoint {step} is damaged ({_reason(error)}); {moved}{rest}.'
    )

  def _put_aside(self, step: int) -> pathlib.Path:
    self._manager.close()
    target = workdir.put_aside(self._path / str(step))
    self._manager = self._open()
    return target


class NumbersOfCheckpoints:
  """Replaces `Checkpoints` on a host that saves none; keeps their numbers."""

  def __init__(self, keep: int):
    self._steps: collections.deque[int] = collections.deque(maxlen=keep)

  def steps(self) -> list[int]:
    """Returns the numbers of the newest checkpoints, oldest first."""
    return list(self._steps)

  def save(self, step: int, state: types.Nest, record: dict[str, Any]) -> None:
    """Keeps the number."""
    del state, record
    self._steps.append(step)

  def restore(self, template: types.Nest) -> Checkpoint | None:
    """Returns None: the state comes from the host that saves it."""
    del template
    return None

  def close(self) -> None:
    """Does nothing."""


def _options(
  keep: int, keep_every_hours: float, read_only: bool
) -> ocp.CheckpointManagerOptions:
  if read_only:
    # Orbax's own `read_only` logs warnings.
    return ocp.CheckpointManagerOptions(
      enable_async_checkpointing=False, create=False
    )
  interval = (
    datetime.timedelta(hours=keep_every_hours) if keep_every_hours else None
  )
  return ocp.CheckpointManagerOptions(
    max_to_keep=keep,
    keep_time_interval=interval,
    enable_async_checkpointing=False,
    create=False,
    multiprocessing_options=_one_host(),
  )


def _one_host() -> ocp.options.MultiprocessingOptions:
  """Returns options with which Orbax waits for no other host."""
  if jax.process_count() == 1:
    return ocp.options.MultiprocessingOptions()
  own = jax.process_index()
  return ocp.options.MultiprocessingOptions(
    primary_host=own,
    active_processes={own},
    barrier_sync_key_prefix=f'host{own}',
  )


def _flatten(state: types.Nest) -> dict[str, np.ndarray]:
  leaves, _ = jax.tree_util.tree_flatten_with_path(state)
  return {
    jax.tree_util.keystr(path, simple=True, separator='.'): np.asarray(leaf)
    for path, leaf in leaves
  }


def _assemble(
  template: types.Nest, arrays: dict[str, np.ndarray], step: int
) -> types.Nest:
  wanted = _flatten(template)
  _check_fits(wanted, arrays, step)
  leaves = [arrays[name] for name in wanted]
  return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _digest(arrays: dict[str, np.ndarray], record: dict[str, Any]) -> str:
  digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
  for name in sorted(arrays):
    x = np.ascontiguousarray(arrays[name])
    digest.update(f'{name} {x.dtype} {x.shape}'.encode())
    digest.update(x.tobytes())
  return digest.hexdigest()


def _check_fits(
  wanted: dict[str, np.ndarray], found: dict[str, np.ndarray], step: int
) -> None:
  differences = []
  for name in sorted(wanted.keys() | found.keys()):
    a, b = found.get(name), wanted.get(name)
    if a is None or b is None:
      side = 'configuration' if a is None else 'checkpoint'
      differences.append(f'{name} is only in the {side}')
    elif a.shape != b.shape or a.dtype != b.dtype:
      differences.append(
        f'{name} is {a.dtype}{list(a.shape)} in the checkpoint, '
        f'{b.dtype}{list(b.shape)} in the configuration'
      )
  if differences:
    more = len(differences) - 3
    tail = f' and {more} more' if more > 0 else ''
    raise CheckpointMismatch(
      f'Checkpoint {step} does not fit this configuration: '
      + '; '.join(differences[:3])
      + f'{tail}. Use the configuration that it was made with, or another '
      '--workdir.'
    )


def _reason(error: Exception) -> str:
  """Returns the system's message for an error, or its first line."""
  text = str(error)
  for number in errno.errorcode:
    if os.strerror(number) in text:
      return os.strerror(number)
  return (text.splitlines() or [type(error).__name__])[0][:200]


def _drop_orbax(record: std_logging.LogRecord) -> bool:
  # Orbax logs every step of a save, and tracebacks of what it raises.
  return logging.level_debug() or 'orbax' not in record.pathname


def _drop_closed_loop(args: 'sys.UnraisableHookArgs') -> None:
  """Hides reports of TensorStore's threads after a failed write."""
  if str(args.exc_value) != 'Event loop is closed' or logging.level_debug():
    sys.__unraisablehook__(args)
