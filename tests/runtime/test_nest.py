"""Flattening agrees with jax.tree."""

from typing import NamedTuple

import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.runtime import nest


class _Pair(NamedTuple):
  left: object
  right: object


_NESTS = [
  7,
  {'b': 1, 'a': (2, [3, 4])},
  _Pair({'z': 1, 'y': None}, _Pair((), 5)),
  [],
  None,
]


@pytest.mark.parametrize('value', _NESTS)
def test_order_and_rebuilding_are_those_of_jax(value):
  leaves, treedef = jax.tree.flatten(value)
  assert nest.flatten(value) == leaves
  new = [leaf * 10 for leaf in leaves]
  assert nest.unflatten(value, new) == treedef.unflatten(new)


def test_paths_name_the_leaves():
  value = _Pair({'speed': 1}, (2, [3]))
  assert nest.flatten_with_paths(value) == [
    ('left.speed', 1),
    ('right.0', 2),
    ('right.1.0', 3),
  ]


def test_a_spec_is_a_leaf():
  spec = types.ArraySpec((2,), np.dtype(np.int8))
  assert nest.flatten({'a': spec}) == [spec]
  assert nest.unflatten({'a': spec}, [1]) == {'a': 1}


@pytest.mark.parametrize('leaves,word', [([1], 'fewer'), ([1, 2, 3], 'more')])
def test_wrong_number_of_leaves(leaves, word):
  with pytest.raises(ValueError, match=word):
    nest.unflatten((0, 0), leaves)
