"""An environment whose steps are numbered, and what became of them.

Every observation names its environment and its own number. `counted_agent`
writes down which of them the learner was trained on; `tally` finds what is
missing among them and what came twice. Needs no JAX, as actors do not.
"""

import os
import pathlib
from collections.abc import Collection
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

EPISODE = 10
# Where `counted_agent` writes, as it is told nothing by the configuration.
VARIABLE = 'SEEDRL_TEST_COUNTED'

_NAME_BYTES, _NUMBER_BYTES = 4, 3
_RECORD = np.dtype('<i8')


class Counted(gymnasium.Env):
  """Pays for the action that it shows; episodes last ten steps.

  Observations are bytes: the action that pays (0 or 255), the environment's
  name, and the observation's number, from 0 in its life.
  """

  def __init__(self, folder: str = ''):
    """Takes a name that no other has.

    Args:
      folder: gets a file that holds how many actions the environment took;
        empty: none.
    """
    self.observation_space = spaces.Box(
      0, 255, (1 + _NAME_BYTES + _NUMBER_BYTES,), np.uint8
    )
    self.action_space = spaces.Discrete(2)
    self._name = os.urandom(_NAME_BYTES)
    self._folder = folder
    self._file: int | None = None
    self._number = 0
    self._actions = 0
    self._step = 0
    self._wanted = 0

  def _observe(self) -> np.ndarray:
    self._wanted = int(self.np_random.integers(2))
    number = self._number.to_bytes(_NUMBER_BYTES, 'big')
    self._number += 1
    shown = bytes([255 * self._wanted]) + self._name + number
    return np.frombuffer(shown, np.uint8)

  def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
    super().reset(**kwargs)
    self._step = 0
    self._note()
    return self._observe(), {}

  def step(
    self, action: Any
  ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
    self._step += 1
    self._actions += 1
    self._note()
    reward = float(action == self._wanted)
    return self._observe(), reward, self._step == EPISODE, False, {}

  def _note(self) -> None:
    if not self._folder:
      return
    if self._file is None:
      path = pathlib.Path(self._folder, self._name.hex())
      self._file = os.open(path, os.O_WRONLY | os.O_CREAT)
    # In one piece, for whoever reads meanwhile.
    os.pwrite(self._file, self._actions.to_bytes(8, 'big'), 0)

  def close(self) -> None:
    if self._file is not None:
      os.close(self._file)
      self._file = None


def counted(folder: str = '') -> gymnasium.Env:
  """The factory that a configuration names."""
  return Counted(folder)


def actions_taken(folder: pathlib.Path) -> list[int]:
  """Returns how many actions each environment took that ever stepped."""
  return [int.from_bytes(p.read_bytes(), 'big') for p in folder.iterdir()]


def note_unrolls(observation: np.ndarray) -> None:
  """Writes down the unrolls of a batch, `[T + 1, B, 8]`.

  For each: the environment's name, the numbers of the first and the last
  observation, and whether all between are of that environment and in order.
  """
  digits = np.asarray(observation, np.int64)[..., 1:]
  weights = 256 ** np.arange(_NAME_BYTES)[::-1]
  name = digits[..., :_NAME_BYTES] @ weights
  number = digits[..., _NAME_BYTES:] @ weights[-_NUMBER_BYTES:]
  whole = (name == name[0]).all(axis=0) & (np.diff(number, axis=0) == 1).all(
    axis=0
  )
  records = np.stack([name[0], number[0], number[-1], whole], axis=1)
  with open(os.environ[VARIABLE], 'ab', buffering=0) as file:
    file.write(records.astype(_RECORD).tobytes())


class Tally(NamedTuple):
  """What the learner was trained on.

  Attributes:
    unrolls: in all.
    environments: that they are of.
    steps: numbers of observations that follow each other in them, in all.
    broken: unrolls that mix environments, or leave steps out.
    missing: steps between an environment's unrolls that are in none of them.
    repeated: steps that are in more than one.
  """

  unrolls: int
  environments: int
  steps: int
  broken: int
  missing: int
  repeated: int


def names(folder: pathlib.Path) -> list[int]:
  """Returns the names of the environments that ever stepped."""
  return [int(path.name, 16) for path in folder.iterdir()]


def tally(path: pathlib.Path, only: Collection[int] | None = None) -> Tally:
  """Reads what `note_unrolls` wrote.

  Args:
    path: the file.
    only: names of the environments that count; None: all.
  """
  records = np.fromfile(path, _RECORD).reshape(-1, 4)
  if only is not None:
    records = records[np.isin(records[:, 0], list(only))]
  # A learner may try its update on zeros first.
  records = records[records[:, 0] != 0]
  missing = repeated = 0
  for name in np.unique(records[:, 0]):
    mine = records[records[:, 0] == name]
    mine = mine[np.argsort(mine[:, 1], kind='stable')]
    # Consecutive unrolls share an observation.
    steps_between = mine[1:, 1] - np.maximum.accumulate(mine[:, 2])[:-1]
    missing += int(mine[0, 1] + np.maximum(steps_between, 0).sum())
    repeated += int(np.maximum(-steps_between, 0).sum())
  return Tally(
    unrolls=len(records),
    environments=len(np.unique(records[:, 0])),
    steps=int((records[:, 2] - records[:, 1]).sum()),
    broken=int(len(records) - records[:, 3].sum()),
    missing=missing,
    repeated=repeated,
  )
