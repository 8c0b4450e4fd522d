import gc
import subprocess
import sys

import pytest

from seedrl_jax.runtime import startup


def _python(code: str) -> str:
  """Runs code in a new process."""
  prelude = (
    'import sys; from seedrl_jax.runtime import startup\n'
    'startup.defer_packages()\n'
  )
  result = subprocess.run(
    [sys.executable, '-c', prelude + code],
    capture_output=True,
    text=True,
    check=True,
  )
  return result.stdout.strip()


def test_packages_that_nobody_uses_are_not_imported() -> None:
  code = (
    'import envpool, rlax\n'
    'names = "matplotlib", "tensorflow_probability"\n'
    'print([name for name in names if name in sys.modules])\n'
    'print(len(envpool.list_all_envs()) > 1000)'
  )
  assert _python(code) == '[]\nTrue'


def test_a_deferred_package_is_complete_once_it_is_used() -> None:
  code = (
    'import distrax, envpool.toy_text\n'
    'from envpool.toy_text import CatchEnvSpec\n'
    'width = envpool.make_spec("Catch-v0").config.width\n'
    'print(distrax.DistributionLike, width)\n'
    'print(float(distrax.Bernoulli(probs=0.5).probs), distrax.DistributionLike)'
  )
  first, second = _python(code).splitlines()
  assert first == 'typing.Any 5'
  assert second.startswith('0.5 typing.Union')


def test_a_name_that_a_package_lacks_is_an_attribute_error() -> None:
  code = (
    'import envpool.toy_text\n'
    'print(hasattr(envpool.toy_text, "nothing"))\n'
    'print(hasattr(envpool.toy_text, "CatchEnvSpec"))'
  )
  assert _python(code) == 'False\nTrue'


def test_packages_are_deferred_once() -> None:
  startup.defer_packages()
  before = list(sys.meta_path)
  startup.defer_packages()
  assert sys.meta_path == before


def test_garbage_is_collected_again_after_an_error() -> None:
  with pytest.raises(ZeroDivisionError), startup.without_collection():
    assert not gc.isenabled()
    1 / 0  # noqa: B018
  assert gc.isenabled()
