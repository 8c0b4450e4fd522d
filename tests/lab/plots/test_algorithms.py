"""Tests for seedrl_jax/lab/plots/algorithms.py."""

import pytest

from seedrl_jax.lab.plots import algorithms
from seedrl_jax.runtime import config_files


@pytest.mark.parametrize(
  ('config', 'name'),
  [
    *(('vtrace_atari', 'vtrace'), ('a2c_atari', 'a2c'), ('ppo_dmc', 'ppo')),
    *(('r2d2_recall', 'r2d2'), ('apex_atari', 'apex'), ('dqn_atari', 'dqn')),
    *(('concurrent/dyna_q', 'dyna_q'), ('concurrent/r2d2', 'r2d2')),
  ],
)
def test_shipped_configurations_are_called_by_their_algorithm(config, name):
  assert algorithms.name(config_files.load(config).to_dict()) == name


def test_other_runs_are_called_by_what_they_have():
  config = config_files.load('r2d3_lock').to_dict()
  config['demonstrations']['fraction'] = 0.25
  assert algorithms.name(config) == 'r2d3'
  assert algorithms.name({'agent': 'my_agent'}) == 'my_agent'
  assert algorithms.name({}) == ''


def test_an_algorithm_has_one_colour_and_its_variants_shades():
  names = ['ppo', 'vtrace', 'ppo', 'my_agent', 'ppo']
  dark, vtrace, base, mine, light = algorithms.shades(names)
  assert [vtrace, base] == [*algorithms.shades(['vtrace', 'ppo'])]
  assert [mine] == [*algorithms.shades(['my_agent'])]
  assert dark < base < light
  assert len({dark, vtrace, base, mine, light}) == 5
