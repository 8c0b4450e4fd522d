"""The slots of a group of environments, and checks of its messages.

Nothing that passes these checks can harm the unrolls of other environments.
"""

import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import local_messages, wire
from seedrl_jax.envs import base

_FIRST, _LAST = int(types.StepType.FIRST), int(types.StepType.LAST)


class GroupLease:
  """The slots of a group, from its joining to its leaving."""

  def __init__(self, env_id: np.ndarray, acts_itself: bool = False):
    """Expects FIRST steps first."""
    self.acts_itself = acts_itself  # whether its actor only sends reports
    self.env_id = np.asarray(env_id, np.int32)  # `[n]`, ids in the stream
    # The types of the last steps.
    self._before = np.full(len(env_id), _LAST, np.uint8)
    self._next = 0

  def accept(
    self,
    sequence: int,
    leaves: list[np.ndarray],
    episodes: base.EndedEpisodes,
  ) -> None:
    """Checks a group's next STEPS; raises `WireError` if it is impossible."""
    *observation, reward, discount, step_type = leaves
    self._take_turn(sequence)
    if len(reward) != len(self.env_id):
      raise wire.WireError(
        f'STEPS of {len(reward)} environments came from a group of '
        f'{len(self.env_id)}.'
      )
    for leaf in observation:
      _check_values(leaf, 'An observation')
    _check_values(reward, 'A reward')
    if not ((discount >= 0) & (discount <= 1)).all():
      raise wire.WireError('A discount is not in [0, 1].')
    if (step_type > _LAST).any():
      raise wire.WireError('There is no such type of step.')
    # FIRST may be repeated (see `types.DeviceEnv`).
    impossible = (step_type == _FIRST) != (self._before == _LAST)
    if (impossible & (self._before != _FIRST)).any():
      raise wire.WireError(
        'A FIRST step must come after the end of an episode, and only there.'
      )
    self._check_episodes(episodes, len(reward))
    self._before = step_type.copy()

  def accept_report(self, sequence: int, report: local_messages.Report) -> None:
    """Checks the next REPORT; raises `WireError` if impossible."""
    self._take_turn(sequence)
    # So that no sum of them is infinite.
    if not 0 <= report.store_wait <= wire.LARGEST:
      raise wire.WireError('A wait is not possible.')
    # Uncounted steps may have ended episodes already.
    num_steps = report.env_steps + len(self.env_id)
    self._check_episodes(report.episodes, num_steps)

  def _take_turn(self, sequence: int) -> None:
    if sequence != self._next:
      raise wire.WireError(
        f'Message {sequence} came instead of message {self._next}.'
      )
    self._next += 1

  def _check_episodes(
    self, episodes: base.EndedEpisodes, num_steps: int
  ) -> None:
    count, local_id = len(episodes.env_id), episodes.env_id
    if not count:
      return
    if count > num_steps:
      raise wire.WireError(f'{count} episodes cannot end in {num_steps} steps.')
    if not ((local_id >= 0) & (local_id < len(self.env_id))).all():
      raise wire.WireError('An episode is of no environment of the group.')
    bound = wire.LARGEST * episodes.length
    if not (np.abs(episodes.episode_return) <= bound).all():
      raise wire.WireError("An episode's return is not possible.")
    _check_values(episodes.terminated, "An episode's end")


def _check_values(array: np.ndarray, name: str) -> None:
  """Checks that bytes are values of their dtype, finite and not too large."""
  if array.dtype.kind == 'b' and (array.view(np.uint8) > 1).any():
    raise wire.WireError('A boolean is neither 0 nor 1.')
  if array.dtype.kind != 'f' and array.dtype.itemsize <= 2:
    return
  # Python's numbers: 1e6 is infinite as float16, and the smallest integer has
  # no absolute value. NaN fails both comparisons.
  largest, least = array.max(initial=0).item(), array.min(initial=0).item()
  if not (largest <= wire.LARGEST and least >= -wire.LARGEST):
    raise wire.WireError(
      f'{name} is not a number from {-wire.LARGEST:,.0f} to '
      f'{wire.LARGEST:,.0f}; scale it in the environment.'
    )
