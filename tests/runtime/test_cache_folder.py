"""Tests for seedrl_jax/runtime/cache_folder.py."""

import pathlib

import pytest

from seedrl_jax.runtime import cache_folder


def test_the_environment_says_where_it_is(monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setenv('SEEDRL_CACHE', '/one')
  assert cache_folder.path() == pathlib.Path('/one')
  monkeypatch.delenv('SEEDRL_CACHE')
  monkeypatch.setenv('XDG_CACHE_HOME', '/two')
  assert cache_folder.path() == pathlib.Path('/two/seedrl-jax')
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', '/three')
  assert cache_folder.path() == pathlib.Path('/three/.cache/seedrl-jax')
