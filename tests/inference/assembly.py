"""A simple reference for `UnrollAssembler`, and its test bed.

The reference cuts unrolls out of a Python list of each environment's steps.
Blocks of the assembler must hold each of them once; `missing` lists those to
come.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import assembler as assembler_lib
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import blocks

_POISON = 111
_CORE = (
  types.ArraySpec((2,), np.dtype(np.float32)),
  types.ArraySpec((), np.dtype(np.int32)),
)
# Environment, its life (a reset begins one), step in that life.
_TAG = types.ArraySpec((3,), np.dtype(np.int32))
_STEPS = types.Steps(
  observation={
    'image': types.ArraySpec((2, 1, 2), np.dtype(np.uint8)),
    'tag': _TAG,
  },
  reward=types.ArraySpec((), np.dtype(np.float32)),
  discount=types.ArraySpec((), np.dtype(np.float32)),
  step_type=types.ArraySpec((), np.dtype(np.uint8)),
  previous_action=types.ArraySpec((), np.dtype(np.int32)),
  agent_output=(types.ArraySpec((3,), np.dtype(np.float32)),),
  parameter_version=types.ArraySpec((), np.dtype(np.int32)),
)


class Key(NamedTuple):
  """An unroll's environment, life and first step."""

  env: int
  life: int
  start: int


class _Recorded(NamedTuple):
  steps: types.Steps
  core: types.Nest


def _unroll_spec(length: int, has_core: bool) -> types.Unroll:
  steps = jax.tree.map(
    lambda s: types.ArraySpec((length + 1, *s.shape), s.dtype),
    _STEPS,
    is_leaf=types.is_spec,
  )
  env_id = types.ArraySpec((), np.dtype(np.int32))
  return types.Unroll(steps, _CORE if has_core else (), env_id)


class Writer:
  """Replaces the store; tests may set `on_insert`."""

  def __init__(
    self,
    allocate: Callable[[], replay.Block],
    on_insert: Callable[[replay.Block], None],
  ):
    self._allocate = allocate
    self.on_insert = on_insert

  def allocate(self) -> replay.Block:
    return self._allocate()

  def insert(
    self, block: replay.Block, priorities: np.ndarray | None = None
  ) -> None:
    del priorities
    self.on_insert(block)


class Bed:
  """Steps environments through an assembler and checks its blocks.

  Attributes:
    allocated: its blocks, in order; new ones are filled with poison.
    inserted: keys of the unrolls that it returned.
    due: for each expected unroll, the batch that completed it.
    batches: number of batches so far.
    most_open: most blocks that were open between batches.
  """

  def __init__(
    self,
    num_envs: int,
    length: int,
    overlap: int = 1,
    width: int = 3,
    has_core: bool = True,
    seed: int = 0,
    burn_in: int | None = None,
  ):
    self.length, self.overlap, self.has_core = length, overlap, has_core
    self._burn_in = burn_in
    self.global_env_id = 100 + 7 * np.arange(num_envs)
    self.allocated: list[replay.Block] = []
    self.inserted: dict[Key, types.Steps] = {}
    self.due: dict[Key, int] = {}
    self.batches = self.most_open = 0
    self._rng = np.random.default_rng(seed)
    self._layout = blocks.UnrollLayout(_unroll_spec(length, has_core))
    self._width = width
    self._life = [0] * num_envs
    self._history: list[list[_Recorded]] = [[] for _ in range(num_envs)]
    self._expected: dict[Key, list[_Recorded]] = {}
    self._handed_over: list[tuple[replay.Block, list[np.ndarray]]] = []
    self._groups: dict[bytes, assembler_lib.EnvGroup] = {}
    self.writer = Writer(self._allocate, self._insert)
    self.assembler = assembler_lib.UnrollAssembler(
      self.writer, self.global_env_id, length, overlap, width, burn_in=burn_in
    )

  @property
  def missing(self) -> dict[Key, int]:
    """Those of `due` that are not inserted yet."""
    return {k: n for k, n in self.due.items() if k not in self.inserted}

  def step(self, env_id: list[int] | np.ndarray) -> list[int]:
    """Passes one step of each of the environments, in this order.

    Returns the rows whose core states the assembler took.
    """
    ids = np.asarray(env_id, np.int32)
    steps, core = self._make_batch(ids)
    for i, env in enumerate(ids.tolist()):
      row = jax.tree.map(lambda x, i=i: x[i], (steps, core))
      self._record(env, _Recorded(*row))
    leaves = jax.tree.leaves(
      steps._replace(parameter_version=int(steps.parameter_version[0]))
    )
    taken: list[int] = []

    def take_core(rows: np.ndarray) -> list[np.ndarray]:
      taken.extend(rows.tolist())
      return [x[rows] for x in core]

    # As the worker, keeps the groups that come again.
    group = assembler_lib.EnvGroup(ids, envs.as_slice(ids))
    group = self._groups.setdefault(ids.tobytes(), group)
    self.assembler.record(group, leaves, take_core)
    self.batches += 1
    num_open = len(self.allocated) - len(self._handed_over)
    self.most_open = max(self.most_open, num_open)
    return taken

  def reset(self, env_id: list[int] | np.ndarray) -> None:
    """Disconnects environments; their next step begins a new life."""
    self.assembler.reset(np.asarray(env_id, np.int32))
    for env in np.asarray(env_id).tolist():
      self._life[env] += 1
      self._history[env] = []

  def drain(self) -> None:
    """Steps all environments until all that is due now is inserted."""
    before = set(self.due)
    everyone = np.arange(len(self._life))
    for _ in range(8 * (self.length + 1) * (len(everyone) + self._width)):
      if before <= set(self.inserted):
        break
      self.step(everyone)
    assert before <= set(self.inserted), sorted(before - set(self.inserted))

  def check_untouched(self) -> None:
    """Checks that no block was written to after it was inserted."""
    for block, copies in self._handed_over:
      chex.assert_trees_all_equal(block.leaves, copies)

  def _make_batch(self, ids: np.ndarray) -> tuple[types.Steps, types.Nest]:
    n = len(ids)

    def values(spec: types.ArraySpec) -> np.ndarray:
      return self._rng.integers(0, 100, (n, *spec.shape)).astype(spec.dtype)

    steps = jax.tree.map(values, _STEPS, is_leaf=types.is_spec)
    for i, env in enumerate(ids.tolist()):
      tag = env, self._life[env], len(self._history[env])
      steps.observation['tag'][i] = tag
    steps.step_type[:] = self._rng.integers(3, size=n)
    version = np.full(n, self.batches, np.int32)
    core = tuple(values(s) for s in _CORE) if self.has_core else ()
    return steps._replace(parameter_version=version), core

  def _record(self, env: int, recorded: _Recorded) -> None:
    history = self._history[env]
    history.append(recorded)
    start = len(history) - 1 - self.length
    stride = self.length + 1 - self.overlap
    if start >= 0 and start % stride == 0 and self._trains(history[start:]):
      key = Key(env, self._life[env], start)
      self._expected[key] = history[start:]
      self.due[key] = self.batches

  def _trains(self, unroll: list[_Recorded]) -> bool:
    if self._burn_in is None:
      return True
    after = unroll[self._burn_in + 1 :][: self.length + 1 - self.overlap]
    return any(r.steps.step_type != types.StepType.FIRST for r in after)

  def _allocate(self) -> replay.Block:
    block = self._layout.new_block(self._width)
    for leaf in block.leaves:
      leaf.fill(_POISON)
    self.allocated.append(block)
    return block

  def _insert(self, block: replay.Block) -> None:
    tags = block.unroll.steps.observation['tag'][0]
    keys = [Key(*tag) for tag in tags.tolist()]
    columns = []
    for key in keys:
      assert key in self._expected, f'{key} is no unroll of the reference'
      assert key not in self.inserted, f'{key} was handed over twice'
      recorded = self._expected[key]
      steps = jax.tree.map(lambda *x: np.stack(x), *[r.steps for r in recorded])
      self.inserted[key] = steps
      env_id = np.int32(self.global_env_id[key.env])
      columns.append(types.Unroll(steps, recorded[0].core, env_id))
    expected = types.Unroll(
      jax.tree.map(lambda *x: np.stack(x, axis=1), *[c.steps for c in columns]),
      jax.tree.map(lambda *x: np.stack(x), *[c.initial_core for c in columns]),
      np.stack([c.env_id for c in columns]),
    )
    chex.assert_trees_all_equal(block.unroll, expected)
    self._handed_over.append((block, [x.copy() for x in block.leaves]))
