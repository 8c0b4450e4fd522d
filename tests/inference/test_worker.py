"""Tests of one inference stream with a scripted stream and a tiny agent."""

import itertools
import types as python_types
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.replay import base as replay
from tests.envs import streams
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
  'evaluation first': (4, [[4, 5, 0, 1], [5, 4, 3, 2]] * 12),
  'evaluation between': (4, [[0, 4, 1], [2, 5, 3]] * 12),
  'only evaluation, only training': (4, [[4, 5], [0, 1], [3, 2]] * 12),
  'any': (4, _shuffled(6, (4,))),
  'one each': (4, [[i] for i in range(6)] * 12),
}


@pytest.mark.parametrize('has_core', [True, False])
@pytest.mark.parametrize('name', _SCHEDULES)
def test_unrolls_hold_what_happened(name: str, has_core: bool):
  num_train, schedule = _SCHEDULES[name]
  bench = worker_bench.Bench(
    toys.Stream(6, schedule), num_train, has_core=has_core
  )
  bench.run()
  worker_bench.check(bench, num_train)


class _ActionLast(NamedTuple):
  env_id: Any
  seen: Any
  action: Any


def test_action_may_be_any_leaf_of_the_output(monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setattr(toys, 'Output', _ActionLast)
  # A new function: JAX caches traces of the old one.
  act = toys._act
  monkeypatch.setattr(toys, '_act', lambda *inputs: act(*inputs))
  bench = worker_bench.Bench(toys.Stream(6, _shuffled(6, (4,))), 4)
  bench.run()
  worker_bench.check(bench, 4)


_OBSERVATIONS: dict[str, Callable] = {
  # Unlike a tree's leaves, not ordered by name.
  'dict': lambda x: {'vector': x['vector'], 'image': x['image']},
  'array': lambda x: x['vector'],
  'nested': lambda x: ({'b': x['vector'], 'a': x['image']}, x['image']),
}


@pytest.mark.parametrize('kind', _OBSERVATIONS)
def test_leaves_are_in_the_order_of_steps(
  kind: str, monkeypatch: pytest.MonkeyPatch
):
  stream = toys.Stream(3, [[0, 1, 2]] * 6)
  # Without a core the agent ignores observations.
  bench = worker_bench.Bench(stream, 3, has_core=False)
  recv = stream.recv

  def recv_reordered() -> types.EnvOutput:
    output = recv()
    changed = _OBSERVATIONS[kind](output.observation)
    return output._replace(observation=changed)

  monkeypatch.setattr(stream, 'recv', recv_reordered)
  written: list[list[Any]] = []
  monkeypatch.setattr(
    bench.worker._assembler, 'write', lambda _, leaves: written.append(leaves)
  )
  bench.run()
  last_action = np.zeros(3, np.int32)
  for version, leaves in enumerate(written, start=10):
    output = stream.outputs[version - 10]
    action = stream.actions[version - 10]
    first = output.step_type == _FIRST
    previous_action = np.where(first, 0, last_action).astype(np.int32)
    seen = [3 * output.reward, previous_action, first]
    steps = types.Steps(
      observation=_OBSERVATIONS[kind](output.observation),
      reward=output.reward,
      discount=output.discount,
      step_type=output.step_type,
      previous_action=previous_action,
      agent_output=toys.Output(
        action, np.stack(seen, axis=1).astype(np.float32), bench.global_env_id
      ),
      parameter_version=version,
    )
    chex.assert_trees_all_equal(leaves, jax.tree.leaves(steps))
    last_action = action
  assert len(written) == 6


def test_overlapping_unrolls_hold_what_happened():
  bench = worker_bench.Bench(toys.Stream(6, _shuffled(6, (4,))), 4, overlap=3)
  bench.run()
  worker_bench.check(bench, 4, overlap=3)


def test_partial_batches_are_padded_and_compile_nothing_in_mid_run():
  schedule = _shuffled(6, (1, 2, 3, 4, 5))
  bench = worker_bench.Bench(
    toys.Stream(6, schedule, min_batch_size=1), 4, overlap=2
  )
  bench.worker.compile()
  # No batch used the parameters of compilation.
  bench.versions = itertools.count(10)
  with toys.count_compilations() as compiled:
    bench.run()
  assert not compiled
  worker_bench.check(bench, 4, overlap=2)


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
  assert [u.env_id.tolist() for u in bench.inserted] == [
    [400, 397, 394, 391]
  ] * 2


def test_evaluation_environments_act_greedily_and_the_others_do_not():
  stream = toys.Stream(6, _SCHEDULES['any'][1])
  worker_bench.Bench(stream, 4).run()
  for output, action in zip(stream.outputs, stream.actions, strict=True):
    is_eval = output.env_id >= 4
    assert (action[is_eval] == 0).all() and (action[~is_eval] > 0).all()


@pytest.mark.parametrize('name', _SCHEDULES)
def test_counters_count_transitions(name: str):
  num_train, schedule = _SCHEDULES[name]
  stream = toys.Stream(6, schedule)
  bench = worker_bench.Bench(stream, num_train)
  bench.run()
  moved = [0, 0]
  for output in stream.outputs:
    for env, kind in zip(output.env_id, output.step_type, strict=True):
      moved[int(env >= num_train)] += int(kind != _FIRST)
  counters = bench.worker.counters
  assert [counters.env_steps, counters.eval_steps] == moved
  assert counters.batches == len(schedule)


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
  bench.sink.insert = spend(1000.0, bench._insert)
  bench.sink.waited = 7.0
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
  assert bench.worker.store_wait == 7.0


def test_run_ends_when_told_to_stop():
  bench = worker_bench.Bench(toys.Stream(2, [[0, 1]] * 9), 2)
  bench.worker.run(lambda: bench.worker.counters.batches == 3)
  assert bench.worker.counters.batches == 3


def test_run_ends_when_the_stream_is_closed():
  stream = toys.Stream(2, [[0, 1]] * 9)
  bench = worker_bench.Bench(stream, 2)
  bench.worker.step()
  stream.close()
  bench.run()
  assert bench.worker.counters.batches == 1


def test_run_ends_when_the_store_is_closed():
  def insert(block: replay.Block) -> None:
    raise RuntimeError('The store is closed.')

  bench = worker_bench.Bench(toys.Stream(1, [[0]] * 9), 1)
  bench.sink.insert = insert
  with pytest.raises(RuntimeError, match='store is closed'):
    bench.worker.run(lambda: False)
  assert bench.worker.counters.batches == worker_bench.LENGTH


def test_worker_tells_what_it_works_on():
  stream = toys.Stream(3, [[0, 1, 2]])
  worker = worker_bench.Bench(stream, 2).worker
  assert worker.stream is stream
  assert worker.num_train_envs == 2


def test_batches_that_never_recur_shut_out_none_that_do():
  worker = worker_bench.Bench(toys.Stream(6, [[*range(6)]]), 6).worker
  for ids in itertools.permutations(range(6), 3):
    worker._layout(np.array(ids, np.int32))
  recurring = np.arange(6, dtype=np.int32)
  assert worker._layout(recurring) is worker._layout(recurring)


def test_smaller_last_group_of_gymnasium_environments():
  stream = streams.make(streams.toy('scripted'), num_envs=5, batch_size=3)
  assert (stream.min_batch_size, stream.batch_size) == (2, 3)
  whole = streams.make(streams.toy('scripted'), num_envs=6, batch_size=3)
  assert whole.min_batch_size == 3
  pool = streams.make(streams.config('CartPole-v1'), num_envs=5, batch_size=3)
  assert pool.min_batch_size == 3
  for each in (stream, whole, pool):
    each.close()
