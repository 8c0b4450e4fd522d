"""Tests for seedrl_jax/settings.py."""

import math

import ml_collections
import pytest

from seedrl_jax import settings

_CONFIG = ml_collections.ConfigDict({'size': 3, 'replay': {'ratio': 0.5}})


def test_looks_up_dotted_keys():
  assert settings.get(_CONFIG, 'size') == 3
  assert settings.get(_CONFIG, 'replay.ratio') == 0.5


@pytest.mark.parametrize('key', ['sizes', 'replay.max_size', 'play.ratio'])
def test_a_missing_key_is_a_key_error(key):
  with pytest.raises(KeyError):
    settings.get(_CONFIG, key)


@pytest.mark.parametrize(
  'allowed', [(3, 3), (0, 3), settings.at_least(3), settings.ANY]
)
def test_ends_belong_to_a_range(allowed):
  settings.check_ranges(_CONFIG, {'size': allowed})


@pytest.mark.parametrize(
  ('value', 'allowed', 'sentence'),
  [
    (3, settings.at_least(4), '--config.size=3: give at least 4.'),
    (3, (0, 2.5), '--config.size=3: give 0 to 2.5.'),
    (-1, (0, 2), '--config.size=-1: give 0 to 2.'),
    (math.nan, settings.at_least(0), '--config.size=nan: give at least 0.'),
    (math.nan, settings.ANY, '--config.size=nan: give a number.'),
  ],
)
def test_what_is_outside_is_refused_in_a_sentence(value, allowed, sentence):
  config = ml_collections.ConfigDict({'size': value})
  with pytest.raises(ValueError) as error:
    settings.check_ranges(config, {'size': allowed})
  assert str(error.value) == sentence
