"""Times all environments of a run: alone, and with inference."""

import functools
from collections.abc import Callable, Sequence
from typing import cast

from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.lab.benchmarks import environments, timing
from seedrl_jax.run import opening
from seedrl_jax.run import plan as plan_lib
from seedrl_jax.runtime import process, threads

_JOIN_SECONDS = 60.0
# Of each environment on average, before the first window.
_FIRST_STEPS = 2


def time_envs(
  plan: plan_lib.Plan, parts: opening.Parts, windows: timing.Windows
) -> timing.Timing:
  """Times the environments of all streams with random actions."""
  acts = [environments.act_randomly(w.stream) for w in stream_workers(parts)]
  return _time(acts, plan, windows)


def time_with_inference(
  plan: plan_lib.Plan, parts: opening.Parts, windows: timing.Windows
) -> timing.Timing:
  """Times environments and inference, which records nothing, of all streams."""
  acts = []
  for share, recording in zip(plan.shares, stream_workers(parts), strict=True):
    worker = worker_lib.InferenceWorker(
      stream=recording.stream,
      device_step=recording.device_step,
      sink=None,
      parameters=functools.partial(parts.publisher.latest, share.device),
      global_env_id=share.global_env_id,
    )
    worker.compile()
    acts.append(functools.partial(_infer, worker))
  return _time(acts, plan, windows)


def stream_workers(parts: opening.Parts) -> list[worker_lib.InferenceWorker]:
  """Returns the workers of a run whose environments are all on the host."""
  return cast(list[worker_lib.InferenceWorker], list(parts.workers))


def _infer(worker: worker_lib.InferenceWorker) -> int:
  # Without a sink no environment trains.
  before = worker.counters.eval_steps
  worker.step()
  return worker.counters.eval_steps - before


def _time(
  acts: Sequence[Callable[[], int]],
  plan: plan_lib.Plan,
  windows: timing.Windows,
) -> timing.Timing:
  """Times functions that return steps; each has a thread, pinned as in a run.

  Raises:
    Exception: the first of a thread.
  """
  group = threads.ThreadGroup()
  steps = [0] * len(acts)

  def run(i: int) -> None:
    while not group.should_stop():
      steps[i] += acts[i]()

  offset = plan.config.topology.inference_affinity_offset
  for i in range(len(acts)):
    core = process.pinned_core(offset, i)
    group.start(f'inference-{i}', functools.partial(run, i), core)

  def wait() -> None:
    if group.wait(windows.seconds):
      assert group.failure is not None
      raise group.failure.error

  num_envs = sum(len(share.global_env_id) for share in plan.shares)
  try:
    # Threads start, and environments reset, which takes an emulator long.
    wait()
    while sum(steps) < _FIRST_STEPS * num_envs:
      wait()
    return timing.watch(lambda: sum(steps), wait, windows.number)
  finally:
    group.stop()
    group.join(_JOIN_SECONDS)
