"""Checkpoints of a run, each a file that is written whole and then verified.

A file is a line of JSON (layout, time and a record of counters), the state's
arrays by their path in Flax's MessagePack format, and a SHA-256 of both.
"""

import collections
import dataclasses
import hashlib
import json
import math
import pathlib
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import serialization

from seedrl_jax import types
from seedrl_jax.runtime import file_io

# Earlier releases had folders.
_LAYOUT = 3
_DIGEST_BYTES = hashlib.sha256().digest_size


class CheckpointMismatch(ValueError):
  """A sound checkpoint is of another agent or release."""


class _Damaged(Exception):
  """A checkpoint's contents are not those that were written."""


class Checkpoint(NamedTuple):
  """A restored checkpoint: a nest of NumPy arrays and a record of JSON values.

  `step` is the number of updates that made it.
  """

  step: int
  state: types.Nest
  record: dict[str, Any]


@dataclasses.dataclass
class Checkpoints:
  """The checkpoints in one directory.

  Clears away what a killed process left; the first `save` makes `path`.

  Attributes:
    keep: number of newest checkpoints to keep.
    keep_every_hours: keep one for good this often; 0: none.
    report: takes sentences about damaged checkpoints.
    read_only: change nothing, as a run may be saving here.
  """

  path: pathlib.Path
  keep: int = 3
  keep_every_hours: float = 0.0
  report: Callable[[str], None] = print
  read_only: bool = False

  def __post_init__(self) -> None:
    if not self.read_only:
      # A process killed in mid-save leaves one.
      for unfinished in self.path.glob('*.tmp'):
        file_io.remove(unfinished)

  def steps(self) -> list[int]:
    """Returns the numbers of the checkpoints, oldest first."""
    return file_io.numbers_in(self.path)

  def save(self, step: int, state: types.Nest, record: dict[str, Any]) -> None:
    """Saves arrays and JSON values unless the step is saved; or NotWritten."""
    if step in self.steps():
      return
    header = {'layout': _LAYOUT, 'time': time.time(), 'record': record}
    line = json.dumps(header).encode() + b'\n'
    arrays = serialization.msgpack_serialize(_flatten(state))
    digest = hashlib.sha256(line)
    digest.update(arrays)
    path = self.path / str(step)
    file_io.write_whole(path, line, arrays, digest.digest())
    # Delete all but the newest and those that are kept for good.
    last = -math.inf
    for step in self.steps()[: -self.keep]:
      path = self.path / str(step)
      written = _time_written(path)
      keep_every = 3600 * self.keep_every_hours
      if keep_every and written - last >= keep_every:
        last = written
      else:
        file_io.remove(path)

  def restore(
    self,
    template: types.Nest,
    field: str = '',
    step: int | None = None,
    without: Collection[str] = (),
  ) -> Checkpoint | None:
    """Returns the newest sound checkpoint; None if there is none.

    Damaged ones are reported and, if there is another, put aside, so that the
    run can save those steps again.

    Args:
      template: a nest of arrays like the state, or like its field `field` if
        given, which is then the checkpoint's `state`.
      step: number of the checkpoint; None: the newest sound one.
      without: fields, at any depth, that keep the template's arrays.

    Raises CheckpointMismatch if the arrays' names, shapes or dtypes differ.
    """
    newest = self._newest_sound([s for s in self.steps() if step in (None, s)])
    if newest is None:
      return None

    def is_wanted(name: str) -> bool:
      fields = name.split('.')
      is_inside = not field or fields[0] == field
      return is_inside and not {*without} & {*fields}

    expected = _flatten({field: template} if field else template)
    arrays = {name: x for name, x in newest.state.items() if is_wanted(name)}
    wanted = {name: x for name, x in expected.items() if is_wanted(name)}
    _check_fits(wanted, arrays, newest.step)
    leaves = [arrays.get(name, x) for name, x in expected.items()]
    state = jax.tree.unflatten(jax.tree.structure(template), leaves)
    return newest._replace(state=state)

  def newest_record(self) -> dict[str, Any] | None:
    """Returns the record of the newest sound checkpoint; None without any."""
    newest = self._newest_sound(self.steps())
    return newest and newest.record

  def _newest_sound(self, steps: list[int]) -> Checkpoint | None:
    """Returns the last checkpoint that is sound, with its arrays by name."""
    for step in reversed(steps):
      try:
        return _read(self.path / str(step))
      except (OSError, _Damaged) as e:
        is_last = step == steps[0]
        rest = 'no other is used' if is_last else 'the one before is used'
        # The last one stays, so that the next start, too, finds none sound.
        if not (self.read_only or is_last):
          aside = file_io.put_aside(self.path / str(step))
          rest = f'it was moved to {aside} and {rest}'
        reason = getattr(e, 'strerror', None) or e
        self.report(f'Checkpoint {step} is damaged ({reason}); {rest}.')
    return None


class NumbersOfCheckpoints(Checkpoints):
  """Keeps only the numbers of checkpoints, on a host that saves none."""

  def __post_init__(self) -> None:
    self._steps = collections.deque[int](maxlen=self.keep)

  def steps(self) -> list[int]:
    return list(self._steps)

  def save(self, step: int, state: types.Nest, record: dict[str, Any]) -> None:
    del state, record
    self._steps.append(step)


def _read(path: pathlib.Path) -> Checkpoint:
  """Returns a checkpoint with its arrays by name.

  Raises OSError, _Damaged, or CheckpointMismatch if it is of another release.
  """
  header: dict[str, Any] = {}
  if not path.is_dir():
    data = path.read_bytes()
    contents, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(contents).digest() != digest:
      raise _Damaged('its contents do not match their digest')
    line, _, arrays = contents.partition(b'\n')
    header = json.loads(line)
  if header.get('layout') != _LAYOUT:
    raise CheckpointMismatch(
      f'Checkpoint {path.name} in {path.parents[1]} is of another release of '
      'seedrl-jax, with another layout; go on with that release, or give '
      'another --workdir.'
    )
  state = serialization.msgpack_restore(arrays)
  return Checkpoint(int(path.name), state, header['record'])


def _time_written(path: pathlib.Path) -> float:
  """Returns when a checkpoint was saved; -inf if it is damaged."""
  try:
    with path.open('rb') as file:
      return float(file_io.json_object(file.readline())['time'])
  except (OSError, KeyError, TypeError, ValueError):
    return -math.inf


def _flatten(state: types.Nest) -> dict[str, np.ndarray]:
  leaves, _ = jax.tree_util.tree_flatten_with_path(state)
  return {
    jax.tree_util.keystr(path, simple=True, separator='.'): np.asarray(leaf)
    for path, leaf in leaves
  }


def _check_fits(
  expected: dict[str, np.ndarray], saved: dict[str, np.ndarray], step: int
) -> None:
  def spec(array: np.ndarray | None) -> str:
    return 'missing' if array is None else f'{array.dtype}{list(array.shape)}'

  differences = []
  for name in sorted(expected.keys() | saved.keys()):
    a, b = spec(saved.get(name)), spec(expected.get(name))
    if a != b:
      differences.append(
        f'{name} is {a} in the checkpoint, {b} in the configuration'
      )
  if differences:
    more = len(differences) - 3
    tail = f' and {more} more' if more > 0 else ''
    raise CheckpointMismatch(
      f'Checkpoint {step} does not fit this configuration: '
      f'{"; ".join(differences[:3])}{tail}. Use the configuration and release '
      'that it was made with, or another --workdir.'
    )
