"""R2D2's load on a replay: long sequences that overlap, of Pong's frames.

Used by `replay_sequences`. The defaults are R2D2's on Atari as in SEED RL
(Espeholt et al. 2020, arXiv 1910.06591): sequences of 100 steps behind 40 of
burn-in, by which consecutive ones overlap.
"""

import dataclasses

import numpy as np

from seedrl_jax import types
from seedrl_jax.benchmarks import pong_frames
from seedrl_jax.replay import base as replay

_NUM_ACTIONS = 6
# Different steps of an environment; then they come again.
_PERIOD = 1000


@dataclasses.dataclass(frozen=True)
class Load:
  """What is written and drawn.

  Attributes:
    sequences: that the table holds.
    steps: of a sequence.
    overlap: steps that consecutive sequences of an environment share.
    width: environments, and sequences in a block.
    batch_size: sequences in a batch.
    frame_size: height and width of a frame, at most 84.
    core_size: of each of an LSTM's two states.
  """

  sequences: int = 2000
  steps: int = 140
  overlap: int = 40
  width: int = 16
  batch_size: int = 64
  frame_size: int = 84
  core_size: int = 512

  def __post_init__(self) -> None:
    if not 1 < self.overlap < self.steps:
      raise ValueError(
        f'--overlap={self.overlap}: give 2 to {self.steps - 1} steps, fewer '
        'than a sequence has.'
      )
    if self.sequences < self.batch_size or self.sequences % self.width:
      raise ValueError(
        f'--sequences={self.sequences}: give a multiple of {self.width}, the '
        f'sequences in a block, and at least a batch, {self.batch_size}.'
      )
    if not 1 <= self.frame_size <= 84:
      raise ValueError(f'--frame_size={self.frame_size}: give 1 to 84.')

  def spec(self) -> types.Unroll:
    """Returns the spec of a sequence."""

    def step(dtype: type, *shape: int) -> types.ArraySpec:
      return types.ArraySpec((self.steps, *shape), np.dtype(dtype))

    core = types.ArraySpec((self.core_size,), np.dtype(np.float32))
    return types.Unroll(
      steps=types.Steps(
        observation=step(np.uint8, self.frame_size, self.frame_size, 1),
        reward=step(np.float32),
        discount=step(np.float32),
        step_type=step(np.uint8),
        previous_action=step(np.int32),
        agent_output=(step(np.int32), step(np.float32, _NUM_ACTIONS)),
        parameter_version=step(np.int32),
      ),
      initial_core=(core, core),
      env_id=types.ArraySpec((), np.dtype(np.int32)),
    )


class Source:
  """Environments that play in step, and fill blocks with what they saw."""

  def __init__(self, load: Load):
    """Plays `_PERIOD` steps, which then come again and again."""
    self._load = load
    self._rng = rng = np.random.default_rng(0)
    frames = pong_frames.make(rng, _PERIOD, load.width)
    size = load.frame_size
    leading = (_PERIOD, load.width)
    self._leaves = [
      np.ascontiguousarray(frames[:, :, :size, :size]),
      np.zeros(leading, np.float32),
      np.ones(leading, np.float32),
      np.full(leading, types.StepType.MID, np.uint8),
      rng.integers(0, _NUM_ACTIONS, leading, np.int32),
      rng.integers(0, _NUM_ACTIONS, leading, np.int32),
      rng.normal(size=(*leading, _NUM_ACTIONS)).astype(np.float32),
      np.zeros(leading, np.int32),
    ]
    shape = (load.width, load.core_size)
    self._core = rng.normal(size=shape).astype(np.float32)
    self._first = 0

  def fill(self, block: replay.Block) -> np.ndarray:
    """Writes the next sequences; returns priorities for them, `[W]`."""
    load = self._load
    steps = np.arange(self._first, self._first + load.steps)
    self._first += load.steps - load.overlap
    for leaf, out in zip(self._leaves, block.leaves, strict=False):
      np.take(leaf, steps, axis=0, out=out, mode='wrap')
    for core in block.unroll.initial_core:
      core[...] = self._core
    block.unroll.env_id[:] = np.arange(load.width)
    return self._rng.uniform(size=load.width)
