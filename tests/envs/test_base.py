"""Tests of the contract of `EnvStream`, for each kind of stream in `KINDS`."""

import threading
from typing import Any

import chex
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.envs import base
from tests.envs import streams

KINDS = {
  'envpool': lambda: streams.config('CartPole-v1', max_episode_steps=6),
  'gymnasium': lambda: streams.toy('scripted'),
}
FIRST, _, LAST = types.StepType


@pytest.fixture(params=KINDS)
def section(request: pytest.FixtureRequest) -> Any:
  return KINDS[request.param]()


@pytest.mark.parametrize(('num_envs', 'batch_size'), [(6, 6), (6, 2), (3, 1)])
def test_outputs_fit_the_spec_and_every_environment_has_its_turn(
  section: Any, num_envs: int, batch_size: int
):
  stream = streams.make(section, num_envs, batch_size)
  assert (stream.num_envs, stream.batch_size) == (num_envs, batch_size)
  seen: set[int] = set()
  for _ in range(30 * num_envs // batch_size):
    output = stream.recv()
    streams.assert_fits(output, stream.spec)
    assert len(output.env_id) == batch_size
    seen |= set(output.env_id.tolist())
    stream.send(np.zeros(batch_size, np.int32), output.env_id)
  assert seen == set(range(num_envs))
  stream.close()


def test_episodes_are_well_formed(section: Any):
  stream = streams.make(section, 4, 2)
  outputs = streams.roll(stream, np.zeros((80, 2), np.int32))
  finished = 0
  for env in range(4):
    step_type = np.array(streams.column(outputs, 'step_type', env))
    reward = np.array(streams.column(outputs, 'reward', env))
    discount = np.array(streams.column(outputs, 'discount', env))
    first, last = step_type == FIRST, step_type == LAST
    assert first[0] and last.any()
    chex.assert_trees_all_equal(first[1:], last[:-1])
    assert (reward[first] == 0).all() and (reward[~first] > 0).all()
    assert (discount[~last] == 1).all()
    # Steps after the last LAST belong to an unfinished episode.
    finished += int((~first)[: np.flatnonzero(last)[-1] + 1].sum())
  episodes = stream.take_episodes()
  assert sum(e.length for e in episodes) == finished
  assert all(e.frames == e.length for e in episodes)
  assert stream.take_episodes() == []
  assert stream.dropped_episodes == 0


def test_any_order_of_a_batch_may_be_sent(section: Any):
  straight, turned = (streams.make(section, 4) for _ in '12')
  for t in range(10):
    a, b = straight.recv(), turned.recv()
    order_a, order_b = np.argsort(a.env_id), np.argsort(b.env_id)
    for x, y in zip(a, b, strict=True):
      chex.assert_trees_all_equal(x[order_a], y[order_b])
    action = (np.arange(4, dtype=np.int32) + t) % 2
    straight.send(action, np.arange(4, dtype=np.int32))
    turned.send(action[::-1], np.arange(4, dtype=np.int32)[::-1])


def test_closed_stream_gives_and_takes_nothing(section: Any):
  stream = streams.make(section, 2)
  output = stream.recv()
  stream.close()
  stream.close()
  with pytest.raises(base.StreamClosed, match=stream.spec.name):
    stream.recv()
  with pytest.raises(base.StreamClosed, match=stream.spec.name):
    stream.send(np.zeros(2, np.int32), output.env_id)
  assert stream.take_episodes() == []


def test_close_wakes_a_waiting_recv(
  section: Any, monkeypatch: pytest.MonkeyPatch
):
  stream: Any = streams.make(section, 2)
  stream.recv()
  waiting, ended = threading.Event(), threading.Event()
  wait = stream._changed.wait

  def tell_and_wait() -> None:
    waiting.set()
    wait()

  monkeypatch.setattr(stream._changed, 'wait', tell_and_wait)

  def receive() -> None:
    with pytest.raises(base.StreamClosed):
      stream.recv()
    ended.set()

  thread = threading.Thread(target=receive, daemon=True)
  thread.start()
  assert waiting.wait(timeout=300)
  stream.close()
  assert ended.wait(timeout=300)


def test_close_with_steps_under_way(section: Any):
  stream = streams.make(section, 8, 2)
  streams.roll(stream, np.zeros((9, 2), np.int32))
  stream.close()
  with pytest.raises(base.StreamClosed):
    stream.recv()


def test_one_thread_may_send_what_another_received(section: Any):
  stream = streams.make(section, 4, 2)
  received: list[types.EnvOutput] = []
  arrived = threading.Semaphore(0)

  def receive() -> None:
    try:
      while True:
        received.append(stream.recv())
        arrived.release()
    except base.StreamClosed:
      arrived.release()

  thread = threading.Thread(target=receive, daemon=True)
  thread.start()
  for t in range(200):
    assert arrived.acquire(timeout=300)
    stream.send(np.zeros(2, np.int32), received[t].env_id)
  stream.close()
  thread.join(timeout=300)
  assert not thread.is_alive()


@pytest.mark.parametrize(
  'action', [np.zeros(3), np.zeros((2, 1)), np.zeros(())]
)
def test_actions_of_a_wrong_shape_are_refused(section: Any, action: np.ndarray):
  stream = streams.make(section, 2)
  env_id = stream.recv().env_id
  with pytest.raises(ValueError, match=r'must be \[B\] and \[B\]'):
    stream.send(action.astype(np.int32), env_id)


@pytest.mark.parametrize(
  ('ids', 'consecutive'),
  [
    ([3, 4, 5], True),
    ([7], True),
    ([5, 4, 3], False),
    ([3, 5, 6], False),
    ([3, 5, 4, 6], False),
  ],
)
def test_only_consecutive_ascending_ids_become_a_slice(
  ids: list[int], consecutive: bool
):
  env_id = np.array(ids, np.int32)
  values = np.arange(100, 110)
  found = base.as_slice(env_id)
  assert isinstance(found, slice) == consecutive
  np.testing.assert_array_equal(values[found], values[env_id])
