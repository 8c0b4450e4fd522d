"""What a check of an environment has found."""

import dataclasses
import re
from collections.abc import Callable
from typing import TypeVar

from seedrl_jax.envs import registry, step_checks
from seedrl_jax.runtime import settings

_T = TypeVar('_T')


@dataclasses.dataclass
class EnvReport:
  """The results of an environment's check.

  Attributes:
    name: of the environment.
    faults: errors that would end a training.
    warnings: what training accepts, but may be a mistake.
    episodes, steps: number of those played.
    steps_per_second: of a single environment, without resets.
    is_deterministic: whether two environments gave the same observation when
      reset with the same seed; None if they could not be compared.
    network: what `--config.network.torso=auto` takes; '' if nothing can be
      taken.
  """

  name: str
  faults: tuple[str, ...] = ()
  warnings: tuple[str, ...] = ()
  episodes: int = 0
  steps: int = 0
  steps_per_second: float = 0.0
  is_deterministic: bool | None = None
  network: str = ''

  def report(self) -> str:
    """Returns the findings in a few lines."""
    resets = {True: 'the same', False: 'different', None: 'not compared'}
    lines = [
      f'{self.name}: {self.steps} steps in {self.episodes} episodes of random '
      f'actions, {self.steps_per_second:,.0f} steps/s without resets.',
      f'Resets with the same seed: {resets[self.is_deterministic]}.',
      self.network,
      f'Faults: {len(self.faults)}; warnings: {len(self.warnings)}.',
      *(f'Fault: {text}' for text in self.faults),
      *(f'Warning: {text}' for text in self.warnings),
    ]
    return '\n'.join(filter(None, lines))


class Findings:
  """Sentences and their counts; those that differ in numbers are of a kind."""

  def __init__(self) -> None:
    self._texts: dict[str, str] = {}
    self._counts: dict[str, int] = {}

  def add(self, text: str) -> None:
    # Lines of a file are different places.
    kind = re.sub(r'(?<!line )\b\d[\d.,e+-]*', '', text)
    self._texts.setdefault(kind, text)
    self._counts[kind] = self._counts.get(kind, 0) + 1

  def attempt(self, call: Callable[[], _T], method: str = '') -> _T | None:
    """Returns what `call` returns; if it raises, adds that and returns None.

    `method` is the environment's own, if `call` calls one.
    """
    try:
      return call()
    except Exception as e:
      if method:
        text = settings.error_text(e)
        self.add(f'The environment failed in {method}: {text}.')
      elif isinstance(e, step_checks.InvalidStep):
        self.add(f'The environment {e}')
      elif isinstance(e, ValueError | registry.MissingLibraryError):
        self.add(str(e))
      else:
        self.add(f'{settings.error_text(e)}.')
    return None

  def sentences(self) -> tuple[str, ...]:
    return tuple(
      text + (f' ({n} times)' if (n := self._counts[kind]) > 1 else '')
      for kind, text in self._texts.items()
    )
