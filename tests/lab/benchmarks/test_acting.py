"""Tests of `seedrl_jax.lab.benchmarks.acting` on streams that cost nothing."""

import contextlib
import threading

import pytest

from seedrl_jax.lab.benchmarks import acting, environments, timing
from seedrl_jax.replay import table_configs
from seedrl_jax.run import opening
from seedrl_jax.run import plan as plan_lib
from seedrl_jax.runtime import threads
from tests import runs
from tests.patience import PATIENCE

_WINDOWS = timing.Windows(2, 0.01)


class _Stream(environments.FreeStream):
  """A free stream that says when it got actions, or breaks."""

  def __init__(self, *args, breaks=False):
    super().__init__(*args)
    self.stepped = threading.Event()
    self._breaks = breaks

  def send(self, action, env_id):
    if self._breaks:
      raise OSError('The toy is broken.')
    assert action.shape == (len(env_id),)
    self.stepped.set()


@contextlib.contextmanager
def _opened(**kwargs):
  """Yields plan, parts and streams: one each of two inference cores."""
  config = runs.tiny(
    topology__max_devices=4, topology__inference_to_training='1:1'
  )
  spec = environments.factory.make_spec(config.env)
  streams = []

  def make(index, share):
    del index
    streams.append(_Stream(spec, len(share.global_env_id), 1, **kwargs))
    return streams[-1]

  plan = plan_lib.make_plan(config)
  state = plan.initial_state()
  parts = opening.Opener(plan, state, make).open()
  with contextlib.closing(parts):
    yield plan, parts, streams


@pytest.mark.parametrize('time', [acting.time_envs, acting.time_with_inference])
def test_drives_all_streams_at_once_and_stores_nothing(monkeypatch, time):
  with _opened() as (plan, parts, streams):
    waits = []

    def wait(group, seconds):
      waits.append(seconds)
      for stream in streams:
        stream.stepped.clear()
        assert stream.stepped.wait(PATIENCE), group.failure
      return group.should_stop()

    def watch(count, wait, number):
      # Each environment has been reset, and has stepped.
      assert count() >= 2 * sum(stream.num_envs for stream in streams)
      waits.clear()
      return original(count, wait, number)

    original = timing.watch
    monkeypatch.setattr(timing, 'watch', watch)
    monkeypatch.setattr(threads.ThreadGroup, 'wait', wait)
    timed = time(plan, parts, _WINDOWS)
    assert 0 < timed.minimum <= timed.median
    assert waits == [0.01] * 2
    assert len(streams) == 2
    assert {p.device for p in plan.shares} == set(plan.topology.inference)
    assert parts.store.info()[table_configs.TABLE].inserts == 0
    assert not any(worker.counters.batches for worker in parts.workers)


def test_resets_are_no_steps():
  with _opened() as (_, _, streams):
    act = environments.act_randomly(streams[0])
    # Both environments reset; then they alternate.
    assert [act() for _ in range(4)] == [0, 0, 1, 1]


def test_failure_of_a_stream_is_raised():
  with (
    _opened(breaks=True) as (plan, parts, _),
    pytest.raises(OSError, match='The toy is broken'),
  ):
    acting.time_envs(plan, parts, timing.Windows(2, PATIENCE))
