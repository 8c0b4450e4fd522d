"""Tests of `seedrl_jax.envs.specs`."""

from typing import Any

import numpy as np
import pytest

from seedrl_jax.envs import specs


@pytest.mark.parametrize(
  ('given', 'agents'),
  [
    (np.float64, np.float32),
    (np.int64, np.int32),
    (np.float32, np.float32),
    (np.int32, np.int32),
    (np.uint8, np.uint8),
    (np.bool_, np.bool_),
  ],
)
def test_agents_get_at_most_32_bits(given: Any, agents: Any):
  assert specs.agent_dtype(given) == np.dtype(agents)


def test_leaves_of_a_nest_are_mapped():
  nest = {'a': 1, 'b': {'c': (2,)}}
  assert specs.map_nest(str, nest) == {'a': '1', 'b': {'c': '(2,)'}}
  assert specs.map_nest(str, 3) == '3'


def test_keys_are_dropped_and_sorted_at_every_level():
  nest = {'b': 1, 'mission': 2, 'a': {'d': 3, 'c': 4}}
  kept = specs.drop_keys(nest, ('mission', 'absent'))
  assert kept == {'a': {'c': 4, 'd': 3}, 'b': 1}
  assert list(kept) == ['a', 'b'] and list(kept['a']) == ['c', 'd']


def test_only_the_outermost_dict_loses_keys():
  assert specs.drop_keys({'a': {'b': 1}}, ('b',)) == {'a': {'b': 1}}
  assert specs.drop_keys('array', ('array',)) == 'array'


def test_dropping_everything_is_refused():
  with pytest.raises(ValueError, match='nothing is left'):
    specs.drop_keys({'a': 1}, ('a',))


def test_a_string_is_no_tuple_of_keys():
  assert specs.check_dropped(['mission']) == ('mission',)
  with pytest.raises(ValueError, match='must be a tuple'):
    specs.check_dropped('mission')


@pytest.mark.parametrize(
  ('refuse', 'reason'),
  [
    (specs.refuse_continuous, 'continuous-control agents planned'),
    (specs.refuse_joint, 'several numbers at once'),
  ],
)
def test_refusals_name_the_environment(refuse: Any, reason: str):
  with pytest.raises(ValueError, match=reason) as caught:
    refuse('--config.env.id=Toy-v0')
  assert str(caught.value).startswith('--config.env.id=Toy-v0: ')
