"""A worker on a scripted stream, and the unrolls that it should record."""

import itertools
from typing import NamedTuple

import chex
import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import assembler as assembler_lib
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import lag_gate, specs
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.replay import blocks
from tests.inference import assembly, toys

LENGTH = 4
_FIRST = types.StepType.FIRST


class Gate(lag_gate.LagGate):
  """Has newer parameters after each second wait."""

  def __init__(self, queue: assembler_lib.BlockWriter):
    super().__init__(queue, batch_size=1, max_lag=0)
    self.waits = 0

  def wait(self) -> None:
    self.waits += 1

  @property
  def version(self) -> int:
    return 10 + self.waits // 2


class Bench:
  """A worker on a stream, and its unrolls.

  The parameter version is the batch's number, counted from 10, or that of a
  gate.
  """

  def __init__(
    self,
    stream: envs.EnvStream,
    num_train: int,
    width: int = 1,
    overlap: int = 1,
    has_core: bool = True,
    is_gated: bool = False,
  ):
    self.stream = stream
    self.overlap, self.has_core = overlap, has_core
    self.num_train = num_train
    num_eval = stream.num_envs - num_train
    # Run-wide ids differ from the stream's, also in order.
    self.global_env_id = np.concatenate([
      400 - 3 * np.arange(num_train),
      toys.FIRST_EVAL_ID + np.arange(num_eval),
    ]).astype(np.int32)
    agent = toys.make_agent(has_core, overlap)
    output_spec = specs.output_spec(agent, toys.SPEC, toys.PARAMS)
    device_step = device_step_lib.DeviceStep(
      agent,
      toys.SPEC,
      output_spec,
      jax.local_devices()[0],
      stream.num_envs,
      jax.random.PRNGKey(0),
    )
    core = specs.core_spec(agent)
    layout = blocks.UnrollLayout(
      specs.unroll_spec(toys.SPEC, LENGTH, output_spec, core)
    )
    self.inserted: list[types.Unroll] = []
    self.versions = itertools.count(10)
    self.writer = assembly.Writer(
      lambda: layout.new_block(width),
      lambda block: self.inserted.append(block.unroll),
    )
    self.gate = Gate(self.writer) if is_gated else None
    self.assembler = assembler_lib.UnrollAssembler(
      self.gate or self.writer,
      self.global_env_id[:num_train],
      LENGTH,
      overlap,
      width,
    )
    self.worker = worker_lib.InferenceWorker(
      stream=stream,
      device_step=device_step,
      sink=self.assembler,
      parameters=lambda: (
        self.gate.version if self.gate else next(self.versions),
        toys.PARAMS,
      ),
      global_env_id=self.global_env_id,
      gate=self.gate,
    )
    # Of each batch, when its actions are sent.
    self.sent_versions: list[int] = []
    send = stream.send

    def send_and_note(action: np.ndarray, env_id: np.ndarray) -> None:
      gate, batch = self.gate, len(self.sent_versions)
      self.sent_versions.append(gate.version if gate else 10 + batch)
      send(action, env_id)

    stream.send = send_and_note  # type: ignore[method-assign]

  def run(self) -> None:
    """Runs to the end of the schedule."""
    with pytest.raises(envs.StreamClosed):
      self.worker.run(lambda: False)

  def unrolls(self) -> dict[tuple[int, int], types.Unroll]:
    """Returns the finished unrolls by (global id, first step)."""
    result = {}
    for unroll in self.inserted:
      for column, env_id in enumerate(unroll.env_id.tolist()):
        one = types.Unroll(
          jax.tree.map(lambda x, c=column: x[:, c], unroll.steps),
          jax.tree.map(lambda x, c=column: x[c], unroll.initial_core),
          unroll.env_id[column],
        )
        start = int(one.steps.observation['vector'][0, 1])
        assert (env_id, start) not in result
        result[env_id, start] = one
    return result


class _Step(NamedTuple):
  steps: types.Steps
  core: types.Nest


def _histories(bench: Bench) -> list[list]:
  """Returns each environment's steps as the worker should record them."""
  stream, global_env_id = bench.stream, bench.global_env_id
  assert isinstance(stream, toys.Stream)
  histories: list[list[_Step]] = [[] for _ in range(stream.num_envs)]
  last_action = [0] * stream.num_envs
  core = [(0, np.zeros(2, np.float32))] * stream.num_envs
  for batch, (output, action) in enumerate(
    zip(stream.outputs, stream.actions, strict=True)
  ):
    for row, env in enumerate(output.env_id.tolist()):
      first = output.step_type[row] == _FIRST
      previous_action = 0 if first else last_action[env]
      seen = [3 * output.reward[row], previous_action, first]
      observation = {k: x[row] for k, x in output.observation.items()}
      steps = types.Steps(
        observation=observation,
        reward=output.reward[row],
        discount=output.discount[row],
        step_type=output.step_type[row],
        previous_action=np.int32(previous_action),
        agent_output=toys.Output(
          action=action[row],
          seen=np.array(seen, np.float32),
          env_id=global_env_id[env],
        ),
        parameter_version=np.int32(bench.sent_versions[batch]),
      )
      before = dict(zip(('steps', 'vector'), core[env], strict=True))
      before['steps'] = np.int32(before['steps'])
      histories[env].append(_Step(steps, before))
      last_action[env] = int(action[row])
      count = 1 if first else core[env][0] + 1
      core[env] = (count, observation['vector'])
  return histories


def check(bench: Bench) -> None:
  """Compares all unrolls of width-1 blocks with the environments' steps."""
  histories = _histories(bench)
  unrolls = bench.unrolls()
  expected = {}
  for env in range(bench.num_train):
    history, env_id = histories[env], bench.global_env_id[env]
    for start in range(0, len(history) - LENGTH, LENGTH + 1 - bench.overlap):
      part = history[start : start + LENGTH + 1]
      steps = jax.tree.map(lambda *x: np.stack(x), *[s.steps for s in part])
      core = part[0].core if bench.has_core else ()
      expected[env_id, start] = types.Unroll(steps, core, env_id)
  assert len(expected) >= bench.num_train
  assert set(unrolls) == set(expected)
  for key, unroll in expected.items():
    actual = unrolls[key]
    if bench.gate:
      # The action of the last step was not sent, but one chosen later.
      actual, unroll = (
        _without_last_action(actual),
        _without_last_action(unroll),
      )
    chex.assert_trees_all_equal(actual, unroll)


def _without_last_action(unroll: types.Unroll) -> types.Unroll:
  steps = unroll.steps
  output = jax.tree.map(lambda x: x[:-1], steps.agent_output)
  version = steps.parameter_version[:-1]
  return unroll._replace(
    steps=steps._replace(agent_output=output, parameter_version=version)
  )
