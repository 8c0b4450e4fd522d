"""An environment with numbered steps, and a count of what became of them.

Every observation names its environment and its own number. `counted_agent`
records which of them the learner trained on; `tally` finds gaps and repeats.
Needs no JAX, as actors do not.
"""

import os
import pathlib
from collections.abc import Collection
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

EPISODE = 10
# Output file of `counted_agent`, which gets no configuration of its own.
VARIABLE = 'SEEDRL_TEST_COUNTED'

_NAME_BYTES, _NUMBER_BYTES = 4, 3
_RECORD = np.dtype('<i8')


class Counted(gymnasium.Env):
  """Rewards the action that it shows; episodes last ten steps.

  Observations are bytes: the rewarded action (0 or 255), the environment's name
  and the observation's number, from 0.
  """

  def __init__(self, folder: str = ''):
    """Takes a unique name; writes its number of actions to `folder`, if any."""
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
    # In one write, as others may read meanwhile.
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
  """Records the unrolls of a batch, `[T + 1, B, 8]`.

  For each: the environment's name, the numbers of the first and last
  observation, and whether it is of one environment, in order and complete.
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
  """What the learner trained on.

  Attributes:
    unrolls: their number.
    environments: number of environments in them.
    steps: pairs of successive observations in them.
    broken: unrolls that mix environments or leave out steps.
    missing: steps that are in none of an environment's unrolls.
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
  """Reads the file of `note_unrolls`; `only` these names count, or all."""
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
