"""Tests of virtual_env.py with a stand-in for a Python.

How environments are made once, by whichever process, is tested with Reverb's.
"""

import pytest

from seedrl_jax.runtime import virtual_env


@pytest.mark.parametrize(
  ('says', 'why'),
  [
    ('first; echo ERROR: no wheel; echo notice: new pip', 'ERROR: no wheel'),
    ('first; echo last; echo', 'last'),
  ],
)
def test_failure_is_told_by_its_last_line(tmp_path, monkeypatch, says, why):
  monkeypatch.setenv('SEEDRL_CACHE', str(tmp_path / 'cache'))
  base = tmp_path / 'python'
  base.write_text(f'#!/bin/sh\necho {says}; exit 1')
  base.chmod(0o755)
  recipe = virtual_env.Recipe('name', str(base), '3.11', ['x'], [], 'pass')
  said = []
  with pytest.raises(virtual_env.BuildFailed) as error:
    virtual_env.ensure(recipe, 'making it', said.append)
  assert said == ['making it']
  assert str(error.value).endswith(f' tells: {why}')
  assert error.value.command == f'{base} -I -m venv'
