"""Frames of Pong, for benchmarks that move what an agent on Atari gets.

Called by `replay` and `replay_sequences`.
"""

import numpy as np

# Steps before the first frame that is kept: they show an empty field.
_SKIPPED = 60


def make(rng: np.random.Generator, steps: int, width: int) -> np.ndarray:
  """Returns frames of random play, uint8 `[steps, width, 84, 84, 1]`.

  Args:
    rng: draws the actions.
    steps: consecutive steps of each environment.
    width: environments side by side.
  """
  import envpool

  env = envpool.make(
    'Pong-v5', env_type='gymnasium', num_envs=width, stack_num=1
  )
  env.reset()
  frames = np.empty((steps, width, 84, 84, 1), np.uint8)
  for step in range(-_SKIPPED, steps):
    actions = rng.integers(0, 6, width, np.int32)
    observation = env.step(actions)[0]
    if step >= 0:
      frames[step] = observation.transpose(0, 2, 3, 1)
  env.close()
  return frames
