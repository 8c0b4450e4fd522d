"""Makes the start of a program cheap. Imports nothing of JAX.

EnvPool imports every family of environments, and one of them matplotlib. RLax
imports Distrax, and that TensorFlow Probability, only for functions that it
has deprecated. All of this took a third of a program's start.
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

# RLax annotates two functions with this name, and need not have it for that.
_STAND_INS = {'distrax': {'DistributionLike': Any}}


def defer_packages() -> None:
  """Has Distrax and EnvPool's families imported when they are first used.

  What is imported already stays as it is.
  """
  if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder())


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
  """Pauses the garbage collector, which finds nothing while imports run.

  It does not look later either at what was made meanwhile.
  """
  gc.disable()
  try:
    yield
  finally:
    gc.freeze()
    gc.enable()


class _Finder(importlib.abc.MetaPathFinder):
  """Finds packages that can wait, and gives them a loader that waits."""

  def find_spec(
    self,
    fullname: str,
    path: Sequence[str] | None,
    target: ModuleType | None = None,
  ) -> importlib.machinery.ModuleSpec | None:
    if fullname != 'distrax' and not fullname.startswith('envpool.'):
      return None
    spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
    # A module that is no package is imported only by who needs it.
    if spec and spec.loader and spec.submodule_search_locations:
      spec.loader = _Loader(spec.loader)
    return spec


class _Loader(importlib.abc.Loader):
  """Runs a package's code when its first attribute is asked for."""

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
        # The package may have put its own there, as EnvPool's Procgen does.
        if vars(module)['__getattr__'] is ours:
          del vars(module)['__getattr__']
    return getattr(module, name)
