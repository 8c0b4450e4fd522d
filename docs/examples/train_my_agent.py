"""Trains with `my_config.py` and uses the policy; run it in this folder."""

import numpy as np

import seedrl_jax

config = seedrl_jax.make_config('my_config.py', seed=1)
summary = seedrl_jax.train(config, 'runs/line')
print(f'mean return of 100 episodes: {summary.mean_return_100:.1f}')

# A work directory names code, which runs only if you allow it.
allowed = ['my_torso:make', 'my_agent:make_agent', 'my_env:make']
policy = seedrl_jax.load_policy('runs/line', allowed=allowed)
places = np.array([[-0.5, 0.5], [0.5, -0.5]], np.float32)
print('actions left and right of the goal:', policy.act(places))
