"""Tests for seedrl_jax/run/overview.py."""

import pathlib

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.configs import base, sac_pendulum
from seedrl_jax.run import overview
from tests import runs

_CONTINUOUS = types.ActionSpec((2,), np.dtype(np.float32), (0, 0), (1, 1))


@pytest.mark.parametrize(
  ('make', 'values', 'expected'),
  [
    (
      base.get_config,
      {'num_eval_envs': 2, 'replay__max_size': 8},
      [
        'Environment: Catch-v0; observation float32[10, 5]; 3 actions; '
        '4 environments + 2 for evaluation.',
        # Of 50 pixels to 8 units, these to 3 actions and a value.
        'Agent: vtrace; torso mlp; 444 parameters; batch of 4 unrolls of 5 '
        'steps; expected policy lag 2.0 batches.',
        'Store: queue of up to 8 unrolls in this process; 1 cpu device for '
        'inference and training; writes to folder',
      ],
    ),
    (
      sac_pendulum.get_config,
      {'env__id': 'Pendulum-v1', 'batch_size': 1024, 'unroll_length': 1},
      [
        'Environment: Pendulum-v1; observation float32[3]; actions '
        'float32[1]; 4 environments + 0 for evaluation.',
        # A policy and two critics; no lag is expected of a replay.
        'Agent: sac; torso mlp; 149 parameters; batch of 1,024 unrolls of 1 '
        'step.',
        'Store: uniform replay of up to 20,000 unrolls in this process; 1 cpu '
        'device for inference and training; writes to folder',
      ],
    ),
  ],
)
def test_three_lines_describe_a_run(make, values, expected):
  config = runs.tiny(make, **values)
  parts = runs.open_parts(config)
  try:
    assert overview.lines(config, parts, pathlib.Path('folder')) == expected
  finally:
    parts.close()


@pytest.mark.parametrize(
  ('spec', 'words'),
  [
    (types.discrete(3), '3 actions'),
    (_CONTINUOUS, 'actions float32[2]'),
    (
      types.hybrid([types.discrete(3), _CONTINUOUS]),
      '3 actions with actions float32[2]',
    ),
  ],
)
def test_actions_in_words(spec, words):
  assert overview._action(spec) == words
