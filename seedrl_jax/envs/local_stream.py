"""What both kinds of local stream share."""

import math
import threading
from collections.abc import Iterable

import numpy as np

from seedrl_jax.envs import base, registry, statistics


class LocalStream(base.EnvStream):
  """Base class of local streams: statistics, action clipping and closing.

  Actions are clipped to the bounds of `spec.action` for the environments only,
  not in what is recorded.
  """

  def __init__(
    self,
    spec: base.StreamSpec,
    action_dtype: np.dtype,
    num_envs: int,
    batch_size: int,
  ):
    """`action_dtype` is the dtype that the environments take."""
    self.spec = spec
    self._action_dtype = action_dtype
    action = spec.action
    self._bounds = None
    if not action.is_discrete:
      self._bounds = tuple(
        np.reshape(bound, action.shape).astype(action_dtype)
        for bound in (action.minimum, action.maximum)
      )
    self.num_envs = num_envs
    self.batch_size = batch_size
    self._statistics = statistics.EpisodeStatistics(
      num_envs, spec.action_repeat
    )
    # Guards `_closed` and the conditions for which a subclass's `recv` waits.
    self._changed = threading.Condition()
    self._closed = False

  def take_episodes(self) -> list[base.Episode]:
    return self._statistics.log.take()

  @property
  def dropped_episodes(self) -> int:
    return self._statistics.log.dropped

  @property
  def steps_per_second(self) -> float:
    """Playback speed for human viewers, in steps of one environment."""
    return registry.DEFAULT_STEPS_PER_SECOND

  def render(self, env_id: int) -> np.ndarray | None:
    """Draws an environment as last received, before its next action is sent.

    Returns uint8 RGB `[H, W, 3]`; None if not `rendered` or impossible.
    """
    del env_id
    return None

  def episode_so_far(self, env_id: int) -> tuple[float, int]:
    """Returns raw return and length of the episode under way; 0 at its end."""
    return self._statistics.so_far(env_id)

  def _check_open(self) -> None:
    if self._closed:
      raise base.StreamClosed(f'The stream of {self.spec.name} is closed.')

  def _env_action(self, action: np.ndarray, env_id: np.ndarray) -> np.ndarray:
    """Returns a copy of actions, in the environments' dtype and bounds."""
    base.check_action(self.spec.action, action, env_id)
    action = np.array(action, self._action_dtype, order='C')
    if self._bounds is not None:
      np.clip(action, *self._bounds, out=action)
    return action

  def _check_finite(
    self, leaves: Iterable[np.ndarray], env_id: np.ndarray
  ) -> None:
    """Raises EnvironmentFailed if an observation's leaf is not finite."""
    for x in leaves:
      # One fast call; it may overflow, so check again.
      if math.isfinite(np.vdot(x, x)) or (finite := np.isfinite(x)).all():
        continue
      row = int(np.argmin(finite.reshape(len(x), -1).all(axis=1)))
      raise base.EnvironmentFailed(
        f'Environment {env_id[row]} of {self.spec.name} gave an observation '
        f'that is not finite ({x[row][~finite[row]].flat[0]}): mend the '
        'environment.'
      )
