"""Learns from remote actors: `python launch/learner.py --config=… --workdir=…`.

As launch/train.py, with all of its flags, but for its defaults: it has no
training environments of its own, and actors (launch/actor.py) may bring as
many as the configuration says it should have.
"""

import ml_collections

from launch import train


def _defaults(config: ml_collections.ConfigDict) -> dict[str, int]:
  """Returns keys of the configuration that hand environments to actors."""
  return {'env.num_envs': 0, 'actors.max_envs': config.env.num_envs}


if __name__ == '__main__':
  train.start(_defaults)
