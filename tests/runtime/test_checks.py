"""Tests for seedrl_jax/runtime/checks.py."""

import math

import pytest

from configs import base
from seedrl_jax.runtime import checks


def test_the_defaults_pass():
  checks.check_numbers(base.get_config())


@pytest.mark.parametrize(
  ('section', 'key', 'value', 'allowed'),
  [
    ('replay', 'importance_exponent', -0.1, '0 to 1'),
    ('replay', 'importance_exponent', 1.5, '0 to 1'),
    ('replay', 'importance_exponent', math.nan, '0 to 1'),
    ('network', 'previous_reward_clip', -1.0, 'at least 0'),
    ('learner', 'publish_period', 0, 'at least 1'),
  ],
)
def test_a_number_out_of_range_is_refused(section, key, value, allowed):
  config = base.get_config()
  config[section][key] = value
  with pytest.raises(ValueError) as error:
    checks.check_numbers(config)
  expected = f'--config.{section}.{key}={value}: give {allowed}.'
  assert str(error.value) == expected
