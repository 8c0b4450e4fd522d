"""Tests of one inference stream with a scripted stream and a tiny agent."""

import itertools
import types as python_types
from collections.abc import Callable
from typing import Any

import chex
import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.replay import base as replay
from tests.inference import toys, worker_bench

_FIRST = types.StepType.FIRST


def _shuffled(num_envs: int, sizes: tuple[int, ...]) -> list[list[int]]:
  rng = np.random.default_rng(7)
  return [
    rng.permutation(num_envs)[: sizes[t % len(sizes)]].tolist()
    for t in range(60)
  ]


# If 4 of 6 train, environments 4 and 5 evaluate.
_SCHEDULES = {
  'all train': (6, [[0, 1, 2], [3, 4, 5]] * 12),
  'evaluation last': (4, [[0, 1, 2, 4], [3, 0, 1, 5]] * 15),
  'evaluation between': (4, [[0, 4, 1], [2, 5, 3]] * 12),
  'only evaluation, only training': (4, [[4, 5], [0, 1], [3, 2]] * 12),
  'any': (4, _shuffled(6, (4,))),
}


@pytest.mark.parametrize('overlap', [1, 3])
@pytest.mark.parametrize('has_core', [True, False])
@pytest.mark.parametrize('name', _SCHEDULES)
def test_unrolls_hold_what_happened(name: str, has_core: bool, overlap: int):
  num_train, schedule = _SCHEDULES[name]
  stream = toys.Stream(6, schedule)
  bench = worker_bench.Bench(
    stream, num_train, overlap=overlap, has_core=has_core
  )
  bench.run()
  worker_bench.check(bench)
  moved = [0, 0]
  for output, action in zip(stream.outputs, stream.actions, strict=True):
    evaluates = output.env_id >= num_train
    # Evaluation environments act greedily, the others do not.
    np.testing.assert_array_equal(action == 0, evaluates)
    for env, kind in zip(evaluates, output.step_type, strict=True):
      moved[int(env)] += int(kind != _FIRST)
  counters = bench.worker.counters
  assert [counters.env_steps, counters.eval_steps] == moved
  assert counters.batches == len(schedule)


@pytest.mark.parametrize('overlap', [1, 3])
@pytest.mark.parametrize('has_core', [True, False])
@pytest.mark.parametrize('name', _SCHEDULES)
def test_unrolls_begin_with_the_parameters_after_a_wait(
  name: str, has_core: bool, overlap: int
):
  num_train, schedule = _SCHEDULES[name]
  stream = toys.Stream(6, schedule)
  bench = worker_bench.Bench(
    stream, num_train, overlap=overlap, has_core=has_core, is_gated=True
  )
  bench.worker.compile()
  with toys.count_compilations() as compiled:
    bench.run()
  assert not compiled
  worker_bench.check(bench)
  assert bench.gate and bench.gate.waits > 3
  # All unrolls but those of the start begin after a wait; steps within one
  # may have newer parameters, never older ones.
  for unroll in bench.inserted:
    versions = unroll.steps.parameter_version[overlap - 1 : -1, 0]
    assert (np.diff(versions) >= 0).all()


def test_the_learner_may_train_between_an_unroll_and_the_next():
  stream = toys.Stream(2, [[0, 1]] * 13)
  bench = worker_bench.Bench(stream, 2, width=2, is_gated=True)
  inserts, sends = [], []
  for _ in range(13):
    bench.worker.step()
    inserts.append(len(bench.inserted))
    sends.append(len(stream.actions))
  # Unrolls end with the steps 5, 9 and 13, whose actions come one call later.
  assert inserts == [0] * 4 + [1] * 4 + [2] * 4 + [3]
  assert sends == [1, 2, 3, 4, 4, 6, 7, 8, 8, 10, 11, 12, 12]
  assert bench.gate and bench.gate.waits == 2
  versions = np.concatenate([
    u.steps.parameter_version[:-1, 0] for u in bench.inserted
  ])
  assert versions.tolist() == [10] * 8 + [11] * 4


def _reorder(observation: dict[str, np.ndarray]) -> tuple:
  # Unlike a tree's leaves, not ordered by name.
  vector, image = observation['vector'], observation['image']
  return {'b': vector, 'a': image}, image


@pytest.mark.parametrize('reorder', [_reorder, lambda x: x['vector']])
def test_leaves_are_in_the_order_of_steps(
  reorder: Callable, monkeypatch: pytest.MonkeyPatch
):
  stream = toys.Stream(3, [[0, 1, 2]] * 6)
  # Without a core the agent ignores observations.
  bench = worker_bench.Bench(stream, 3, has_core=False)
  recv = stream.recv

  def recv_reordered() -> types.EnvOutput:
    output = recv()
    return output._replace(observation=reorder(output.observation))

  monkeypatch.setattr(stream, 'recv', recv_reordered)
  written: list[list[Any]] = []
  monkeypatch.setattr(
    bench.assembler, 'record', lambda _, leaves, __: written.append(leaves)
  )
  bench.run()
  last_action = np.zeros(3, np.int32)
  for batch, leaves in enumerate(written):
    output, action = stream.outputs[batch], stream.actions[batch]
    first = output.step_type == _FIRST
    previous_action = np.where(first, 0, last_action).astype(np.int32)
    seen = [3 * output.reward, previous_action, first]
    steps = types.Steps(
      observation=reorder(output.observation),
      reward=output.reward,
      discount=output.discount,
      step_type=output.step_type,
      previous_action=previous_action,
      agent_output=toys.Output(
        action, np.stack(seen, axis=1).astype(np.float32), bench.global_env_id
      ),
      parameter_version=10 + batch,
    )
    chex.assert_trees_all_equal(leaves, jax.tree.leaves(steps))
    last_action = action
  assert len(written) == 6


def test_partial_batches_are_padded_and_compile_nothing_in_mid_run():
  schedule = _shuffled(6, (1, 2, 3, 4, 5))
  stream = toys.Stream(6, schedule, min_batch_size=1)
  bench = worker_bench.Bench(stream, 4, overlap=2)
  bench.worker.compile()
  # No batch used the parameters of compilation.
  bench.versions = itertools.count(10)
  with toys.count_compilations() as compiled:
    bench.run()
  assert not compiled
  worker_bench.check(bench)


def test_batches_are_padded_to_the_next_size(monkeypatch: pytest.MonkeyPatch):
  sizes = []
  call = device_step_lib.DeviceStep.__call__

  def spy(self: Any, params: Any, observation: Any, header: np.ndarray) -> Any:
    shapes = {x.shape[0] for x in [header, *observation.values()]}
    assert len(shapes) == 1
    sizes.extend(shapes)
    return call(self, params, observation, header)

  monkeypatch.setattr(device_step_lib.DeviceStep, '__call__', spy)
  schedule = [list(range(n)) for n in (1, 2, 3, 4, 5)]
  worker_bench.Bench(toys.Stream(6, schedule, min_batch_size=2), 6).run()
  assert sizes == [2, 2, 4, 4, 5]


def test_blocks_are_as_wide_as_asked_for():
  bench = worker_bench.Bench(toys.Stream(4, [[0, 1], [2, 3]] * 9), 4, width=4)
  bench.run()
  ids = [400, 397, 394, 391]
  assert [u.env_id.tolist() for u in bench.inserted] == [ids] * 2


def test_times_are_counted_where_they_are_spent(
  monkeypatch: pytest.MonkeyPatch,
):
  clock = [100.0]

  def spend(seconds: float, function: Callable) -> Callable:
    def wrapped(*args: Any) -> Any:
      clock[0] += seconds
      return function(*args)

    return wrapped

  stream = toys.Stream(2, [[0, 1]] * 9)
  bench = worker_bench.Bench(stream, 2, width=2)
  writer = bench.writer
  writer.on_insert = spend(1000.0, writer.on_insert)
  monkeypatch.setattr(stream, 'recv', spend(1.0, stream.recv))
  monkeypatch.setattr(stream, 'send', spend(10.0, stream.send))
  monkeypatch.setattr(
    worker_lib,
    'time',
    python_types.SimpleNamespace(perf_counter=lambda: clock[0]),
  )
  for _ in range(9):
    bench.worker.step()
  counters = bench.worker.counters
  assert counters.environment_wait == 9
  assert counters.act == 90
  assert counters.idle_env_seconds == 2 * 90
  assert bench.worker.store_wait == bench.assembler.waited > 0


def test_run_ends_when_told_to_stop_or_the_stream_or_store_is_closed():
  stream = toys.Stream(2, [[0, 1]] * 9)
  bench = worker_bench.Bench(stream, 2)
  bench.worker.run(lambda: bench.worker.counters.batches == 3)
  assert bench.worker.counters.batches == 3

  def insert(block: replay.Block) -> None:
    raise RuntimeError('The store is closed.')

  bench.writer.on_insert = insert
  with pytest.raises(RuntimeError, match='store is closed'):
    bench.worker.run(lambda: False)
  assert bench.worker.counters.batches == worker_bench.LENGTH
  stream.close()
  bench.run()


def test_batches_that_never_recur_shut_out_none_that_do():
  worker = worker_bench.Bench(toys.Stream(6, [[*range(6)]]), 6).worker
  for ids in itertools.permutations(range(6), 3):
    worker._layout(np.array(ids, np.int32).tobytes())
  recurring = np.arange(6, dtype=np.int32).tobytes()
  assert worker._layout(recurring) is worker._layout(recurring)


@pytest.mark.parametrize(
  ('dropped', 'starts'),
  [
    # An unroll has five steps and shares the last with the next.
    ({}, [0, 4, 8]),
    # Environment 1's steps 4 and 5 begin no unroll; the next starts at 6.
    ({6: [1]}, [0, 6, 10]),
    # An evaluation environment has no unrolls to drop.
    ({6: [2]}, [0, 4, 8]),
  ],
)
def test_half_built_unrolls_of_who_went_away_are_dropped(
  dropped: dict[int, list[int]],
  starts: list[int],
  monkeypatch: pytest.MonkeyPatch,
):
  stream = toys.Stream(3, [[0, 1, 2]] * 15)

  def take_dropped() -> np.ndarray:
    return np.array(dropped.get(len(stream.outputs) - 1, []), np.int32)

  monkeypatch.setattr(stream, 'take_dropped', take_dropped)
  bench = worker_bench.Bench(stream, 2)
  bench.run()
  ids = bench.global_env_id
  actual = sorted(bench.unrolls())
  assert [start for env_id, start in actual if env_id == ids[0]] == [0, 4, 8]
  assert [start for env_id, start in actual if env_id == ids[1]] == starts
