"""Defers slow imports, which took a third of a program's start.

EnvPool imports every family of environments, one of them matplotlib. RLax
imports Distrax, and that TensorFlow Probability, for deprecated functions only.
"""

import contextlib
import gc
import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

# RLax annotates two functions with this name.
_STAND_INS = {'distrax': {'DistributionLike': Any}}


def defer_packages() -> None:
  """Defers imports of Distrax and EnvPool's families to their first use."""
  if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder())


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
  """Pauses the garbage collector, and excludes what was made meanwhile."""
  gc.disable()
  try:
    yield
  finally:
    gc.freeze()
    gc.enable()


class _Finder(importlib.abc.MetaPathFinder):
  """Gives the packages to defer a `_Loader`."""

  def find_spec(
    self,
    fullname: str,
    path: Sequence[str] | None,
    target: ModuleType | None = None,
  ) -> importlib.machinery.ModuleSpec | None:
    if fullname != 'distrax' and not fullname.startswith('envpool.'):
      return None
    spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
    # A module that is no package is imported only if it is needed.
    if spec and spec.loader and spec.submodule_search_locations:
      spec.loader = _Loader(spec.loader)
    return spec


class _Loader(importlib.abc.Loader):
  """Runs a package's code at the first access to an attribute."""

  def __init__(self, loader: importlib.abc.Loader):
    self._loader = loader
    self._lock = threading.RLock()
    self._is_running = False
    self._waits = False

  def create_module(
    self, spec: importlib.machinery.ModuleSpec
  ) -> ModuleType | None:
    return self._loader.create_module(spec)

  def exec_module(self, module: ModuleType) -> None:
    vars(module).update(_STAND_INS.get(module.__name__, {}))
    self._waits = True
    vars(module)['__getattr__'] = lambda name: self._get(module, name)

  def _get(self, module: ModuleType, name: str) -> Any:
    with self._lock:
      if self._is_running:
        raise AttributeError(f'{module.__name__} has no {name} yet')
      if self._waits:
        self._is_running = True
        ours = vars(module)['__getattr__']
        try:
          self._loader.exec_module(module)
        finally:
          self._is_running = False
        self._waits = False
        # The package may define its own, as EnvPool's Procgen does.
        if vars(module)['__getattr__'] is ours:
          del vars(module)['__getattr__']
    return getattr(module, name)
