"""Configurations, policies and readers for tests of demonstrations."""

import io
import pathlib
from typing import Any

import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.configs import r2d2_base
from seedrl_jax.demonstrations import folder as folder_lib
from seedrl_jax.demonstrations import recording, teacher
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.replay import blocks
from seedrl_jax.runtime import progress
from tests import runs

# U, burn-in and T + 1 of a sequence.
UNROLL, BURN_IN, STEPS = 4, 2, 7


def student(**values: Any) -> Any:
  """Returns an R2D2 config with LSTM and frame stacking on the toy."""
  config = r2d2_base.get_config()
  runs.set_keys(
    config,
    **{
      'env__factory': 'tests.envs.toys:scripted',
      'env__num_envs': 4,
      'num_eval_envs': 0,
      'unroll_length': UNROLL,
      'burn_in': BURN_IN,
      'batch_size': 4,
      'network__hidden_sizes': (4,),
      'network__lstm_size': 3,
      'network__head_hidden_size': 4,
      'network__frame_stack': 3,
      'replay__backend': 'embedded',
      'replay__patience': 600.0,
      'replay__max_size': 64,
      'replay__min_size': 4,
      'topology__max_devices': 1,
      'log__writers': ('csv',),
      'total_env_frames': 600,
      **values,
    },
  )
  return config


def by_step(env_spec: types.EnvSpec, seed: int) -> Any:
  """A policy: the action is the step's number, plus the seed."""

  def act(output: types.EnvOutput) -> np.ndarray:
    step = output.observation[:, 1].astype(np.int64)
    return (step + seed) % env_spec.action.num_values

  return act


def unknown_action(env_spec: types.EnvSpec, seed: int) -> Any:
  """A policy with invalid actions."""
  del seed
  return lambda output: np.full(len(output.env_id), env_spec.action.num_values)


def record(
  config: Any, out: pathlib.Path | str, **options: Any
) -> recording.Recording:
  """Records a policy, unless a teacher is named."""
  if 'teacher_workdir' in options:
    options['teacher_workdir'] = str(options['teacher_workdir'])
  else:
    options.setdefault('policy', 'tests.demonstrations.recording_runs:by_step')
  wanted = recording.RecordingOptions(out=str(out), **options)
  return recording.record(config, wanted, progress.ProgressLine(io.StringIO()))


def read(folder: pathlib.Path, config: Any) -> tuple[types.Unroll, np.ndarray]:
  """Returns a folder's sequences as one unroll, and their priorities."""
  env_spec = env_factory.make_env_spec(config)
  agent = agents.load_agent(config, env_spec)
  student = teacher.Student(agent, config, env_spec)
  spec = recording.unroll_spec(student, agent, env_spec.stream)
  layout = blocks.UnrollLayout(spec)
  count = folder_lib.read_manifest(str(folder)).sequences
  block = layout.new_block(count)
  priorities = np.zeros(count)
  for column, (leaves, priority) in enumerate(
    folder_lib.sequences(str(folder), layout)
  ):
    priorities[column] = priority[0]
    for rows, leaf in zip(layout.rows(block), leaves, strict=True):
      rows[column] = leaf
  return block.unroll, priorities
