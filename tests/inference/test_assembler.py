"""Tests of unroll assembly against the reference in `assembly`."""

import types as python_types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.inference import assembler, specs
from seedrl_jax.replay import base as replay
from tests.inference import assembly, toys


def _any_batch(rng: np.random.Generator, speed: np.ndarray) -> np.ndarray:
  """Returns random environments in random order, fast ones more often."""
  ids = np.flatnonzero(rng.random(len(speed)) < speed)
  if not len(ids):
    return rng.integers(0, len(speed), 1)
  return rng.permutation(ids) if rng.random() < 0.5 else ids


@pytest.mark.parametrize('seed', range(40))
def test_any_batches_equal_the_reference(seed: int):
  rng = np.random.default_rng(seed)
  num_envs, width, length = (int(rng.integers(1, n)) for n in (12, 9, 8))
  overlap = int(rng.choice([1, rng.integers(1, length + 1), length]))
  burn_in = rng.choice([None, rng.integers(overlap)])
  bed = assembly.Bed(
    num_envs, length, overlap, width, seed % 4 != 0, seed, burn_in
  )
  # From equal speeds to differences of a factor of hundreds.
  speed = rng.random(num_envs) ** rng.integers(0, 8)
  reset_rate = rng.choice([0.0, 0.02, 0.2])
  cuts = [rng.permutation(num_envs)[:3] for _ in '123']
  for _ in range(30):
    if rng.random() < reset_rate:
      size = rng.integers(1, num_envs + 1)
      bed.reset(rng.permutation(num_envs)[:size])
    bed.step(_any_batch(rng, speed))
    # Consecutive groups, which take turns for a while.
    groups = np.split(np.arange(num_envs), np.sort(cuts[rng.integers(3)]))
    for _ in range(rng.integers(4)):
      for group in groups:
        if len(group):
          bed.step(group)
  bed.drain()
  bed.check_untouched()
  # Each open block holds an unfinished column, and a new one opens only if no
  # column is free.
  assert bed.most_open <= num_envs + num_envs // width + 2


@pytest.mark.parametrize('overlap', [1, 2, 3, 4])
@pytest.mark.parametrize('width', [1, 2, 8])
def test_environments_in_step_lose_nothing_and_open_few_blocks(
  overlap: int, width: int
):
  bed = assembly.Bed(4, length=4, overlap=overlap, width=width)
  for _ in range(40):
    bed.step(np.arange(4))
    # Only what shares a block with unfinished unrolls is missing.
    assert len(bed.missing) < width
  assert bed.most_open <= -(-4 // width) + 1
  starts = [k.start for k in bed.due if k.env == 2]
  assert starts == list(range(0, 40 - 4, 5 - overlap))
  bed.check_untouched()


def test_core_states_are_taken_only_at_an_unrolls_start():
  bed = assembly.Bed(3, length=4, overlap=2, width=3)
  taken = [bed.step([2, 0, 1]) for _ in range(10)]
  assert [t for t, rows in enumerate(taken) if rows] == [0, 3, 6, 9]
  bed = assembly.Bed(3, length=3, width=3)
  bed.step([1])
  # Environments 2 and 0 start; 1, between them, does not.
  assert bed.step([2, 1, 0]) == [0, 2]
  bed.step([0, 1, 2])
  # Environment 1 is at its last step, where its next unroll starts.
  assert bed.step([0, 2, 1]) == [2]


def test_a_slow_environment_holds_up_only_the_unrolls_beside_it():
  bed = assembly.Bed(6, length=4, width=2)
  for _ in range(3):
    bed.step(np.arange(6))
  for _ in range(30):
    bed.step([1, 2, 3, 4, 5])
  held_up = [key for key, batch in bed.due.items() if batch < 28]
  assert set(held_up) - set(bed.inserted) == {assembly.Key(1, 0, 0)}
  for _ in range(2):
    bed.step([0])
  assert assembly.Key(1, 0, 0) in bed.inserted


def test_reset_drops_half_an_unroll_and_frees_its_column():
  bed = assembly.Bed(2, length=3, width=2)
  for _ in range(3):
    bed.step([0, 1])
  bed.reset([1])
  # Again, and one that never stepped: no error.
  bed.reset([1])
  bed.step([0])
  assert not bed.inserted
  # Environment 0's next unroll takes the free column.
  for _ in range(3):
    bed.step([0])
  assert set(bed.inserted) == {assembly.Key(0, 0, 0), assembly.Key(0, 0, 3)}
  assert len(bed.allocated) == 2


def test_environments_that_come_and_go_take_no_memory():
  bed = assembly.Bed(4, length=5, width=2)
  for t in range(100):
    bed.step(np.arange(4))
    bed.reset([t % 4, (t + 1) % 4])
  assert len(bed.allocated) <= 4
  bed.drain()


@pytest.mark.parametrize(('length', 'overlap'), [(3, 0), (3, 4), (1, 2)])
def test_overlap_that_leaves_no_new_step_is_refused(length: int, overlap: int):
  with pytest.raises(ValueError, match=f'cannot overlap by {overlap}'):
    assembly.Bed(2, length, overlap)


def test_the_time_of_inserts_is_counted(monkeypatch: pytest.MonkeyPatch):
  clock = [100.0]
  seen = []
  monkeypatch.setattr(
    assembler,
    'time',
    python_types.SimpleNamespace(perf_counter=lambda: clock[0]),
  )
  bed = assembly.Bed(1, length=1, width=1)

  def insert(block: object) -> None:
    clock[0] += 3.0
    seen.append(bed.assembler.waited)
    if len(seen) == 2:
      raise replay.StoreClosed('closed')

  bed.writer.on_insert = insert
  for _ in range(2):
    bed.step([0])
  assert bed.assembler.waited == 3
  # What the store raises is passed on.
  with pytest.raises(replay.StoreClosed):
    bed.step([0])
  assert seen == [3, 6]
  assert bed.assembler.waited == 6


def test_priorities_are_those_of_the_block_and_compiled_before():
  spec = specs.unroll_spec(toys.SPEC, 1, (), ())
  traced = []

  def initial_priorities(steps: types.Steps) -> jax.Array:
    assert steps.observation == ()
    traced.append(steps.reward.shape)
    return jnp.sum(jnp.abs(steps.reward), axis=0)

  agent = python_types.SimpleNamespace(initial_priorities=initial_priorities)
  device = jax.devices()[1]
  priorities = assembler.make_priorities(agent, spec, 3, device)
  unroll = specs.blank_batch(spec, 3).unroll
  unroll.steps.reward[:] = [[1.0, -2.0, 0.5], [1.0, 2.0, 0.0]]
  assert priorities(unroll).tolist() == [2, 4, 0.5]
  assert traced == [(2, 3)]
  agent.initial_priorities = None
  assert assembler.make_priorities(agent, spec, 3, device) is None
