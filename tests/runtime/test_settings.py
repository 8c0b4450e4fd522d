"""Tests for seedrl_jax/runtime/settings.py."""

import math
import re

import ml_collections
import pytest

from seedrl_jax.runtime import settings


def _config(**values):
  return ml_collections.ConfigDict({'agent': 'a', **values})


@pytest.mark.parametrize(
  ('allowed', 'good', 'bad', 'words'),
  [
    (settings.integer(3), [3, 10**30], [2, 3.0, True, '3', None], 'at least 3'),
    (settings.integer(0, 2), [0, 2], [-1, 3], 'give 0 to 2'),
    (settings.number(0, 2.5), [0, 2.5], [-0.1, 2.6, math.nan], 'give 0 to 2.5'),
    (settings.number(0, below=1), [0, 0.9], [1, -1], 'at least 0 and below 1'),
    (settings.number(0), [0, 1e300], [math.inf, False], 'give at least 0'),
    (settings.number(), [-5.5], [math.nan, -math.inf], 'give a number'),
    (settings.one_of('a', 'b'), ['a'], ['c', 'm:f', None], "one of ('a', 'b')"),
    (settings.one_of('a', or_function=True), ['a', 'm:f'], ['b'], 'function'),
    (settings.each(settings.integer(1)), [(), (1, 2), [1]], [(0,), 1], 'each'),
    (settings.optional(settings.FLAG), [None, True], [0], 'or leave it out'),
    (settings.FLAG, [True, False], [1, 'True', None], 'give True or False'),
    (settings.TEXT, ['', 'x'], [None, 1], 'give a text'),
    (settings.SECTION, [{}], [None, 'x', ()], "give {'name': value}"),
  ],
)
def test_what_is_allowed(allowed, good, bad, words):
  assert words in allowed.words
  assert [x for x in good if not allowed.admits(x)] == []
  assert [x for x in bad if allowed.admits(x)] == []


@pytest.mark.parametrize(
  ('values', 'sentence'),
  [
    ({'s': {'x': -1}, 'free': {}}, '--config.s.x=-1: give at least 0.'),
    ({'free': {}}, '--config.s.x is missing, which --config.agent=a needs; '),
    ({'s': {'x': 1, 'y': 1}, 'free': {}}, '--config.s.y means nothing to '),
  ],
)
def test_says_in_a_sentence_what_is_wrong(values, sentence):
  ranges = {
    'agent': settings.TEXT,
    's.x': settings.integer(0),
    'free': settings.SECTION,
  }
  with pytest.raises(ValueError, match=f'^{re.escape(sentence)}'):
    settings.check(_config(**values), ranges)
  settings.check(_config(s={'x': 1}, free={'any': 1}), ranges)
  settings.check(_config(s={'x': 1, 'y': 1}, free={}), ranges, complete=False)
