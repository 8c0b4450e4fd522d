"""The network under the agents' heads.

Frame stack, preprocessing, torsos, previous action and reward, recurrent
core. Acting is the case T = 1 of the same code.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.networks import (
  action_masks,
  coding,
  distributions,
  health,
  memory,
  observations,
  pixels,
  torsos,
)


class CoreState(NamedTuple):
  """What a network keeps between steps; fields are `()` if unused."""

  # Of each stacked leaf `[B, ..., C * (k - 1)]` in the observation's dtype; in
  # blocks for a strided convolution (`block_conv.space_to_depth`).
  frames: tuple[jax.Array, ...]
  lstm: types.Nest  # `memory.LSTMState`, float32 `[B, H]` each


class Network(nn.Module):
  """Computes features of each step of an unroll."""

  config: types.Config  # config.network
  leaves: tuple[observations.Leaf, ...]  # of the observation, in order
  action: types.ActionSpec
  action_mask: str = ''  # its key in the observation; '' if there is none
  num_tasks: int = 0  # 0 if the run has only one

  def task(self, inputs: types.AgentInput) -> jax.Array | None:
    """Returns the task of each step, int32 `[T, B]`; None if there is one."""
    return inputs.observation[types.TASK] if self.num_tasks else None

  def legal(self, inputs: types.AgentInput) -> jax.Array | None:
    """Returns which values of all choices are legal, bool `[T, B, P]`.

    None means all.
    """
    if not self.action_mask:
      return None
    _, mask = action_masks.split(inputs.observation, self.action_mask, 2)
    return action_masks.legal_values(mask, self.action.sizes)

  def initial_core(self, batch: int) -> CoreState:
    """Returns the core state of `batch` environments before any step."""
    history, size = self.config.frame_stack - 1, self.config.lstm_size
    frames = []
    for leaf in self.leaves:
      if leaf.shape and history:
        raw = np.zeros(leaf.spec.shape, leaf.spec.dtype)
        x = jax.eval_shape(leaf.arrange, raw)
        shape = (batch, *x.shape[:-1], x.shape[-1] * history)
        frames.append(jnp.zeros(shape, x.dtype))
    # No array twice, as inference donates the state.
    lstm = memory.LSTMState(jnp.zeros((batch, size)), jnp.zeros((batch, size)))
    return CoreState(tuple(frames), lstm if size else ())

  @nn.compact
  def __call__(
    self, inputs: types.AgentInput, core: CoreState
  ) -> tuple[jax.Array, CoreState]:
    """Maps `[T, B, ...]` and a core to `[T, B, F]` and the next core."""
    chex.assert_rank(inputs.first, 2)
    arrays, frames, earlier = [], [], iter(core.frames)
    for x in self._frames(inputs.observation):
      if core.frames and x.ndim > 2:
        x, state = memory.stack_frames(x, inputs.first, next(earlier))
        frames.append(state)
      arrays.append(x)
    features = self._torsos(arrays, self.task(inputs), *inputs.first.shape)
    if self.config.use_task and self.num_tasks:
      code = jax.nn.one_hot(self.task(inputs), self.num_tasks)
      features = jnp.concatenate([features, code.astype(features.dtype)], -1)
    if self.config.use_previous_action:
      features = self._append_previous(features, inputs)
    lstm = core.lstm
    if self.config.lstm_size:
      dtype = jnp.dtype(self.config.compute_dtype)
      cell = memory.ResettingLSTM(self.config.lstm_size, dtype, name='core')
      features, lstm = cell(features, inputs.first, lstm)
    return features, CoreState(tuple(frames), lstm)

  def pixel_moments(self, observation: types.Nest) -> pixels.NamedMoments:
    """Returns the moments of all normalised pixels of `[T, B, ...]`."""
    frames = zip(self._frames(observation), self.leaves, strict=True)
    task = observation[types.TASK] if self.num_tasks else None
    return {
      pixels.name(i): pixels.moments(x, task, self.num_tasks)
      for i, (x, leaf) in enumerate(frames)
      if leaf.is_normalized
    }

  def _frames(self, observation: types.Nest) -> list[jax.Array]:
    if self.num_tasks:
      observation = {k: x for k, x in observation.items() if k != types.TASK}
    if key := self.action_mask:
      observation, mask = action_masks.split(observation, key, 2)
      if self.config.use_action_mask:
        observation[key] = mask
    arrays = jax.tree.leaves(observation)
    pairs = zip(arrays, self.leaves, strict=True)
    return [leaf.arrange(x) for x, leaf in pairs]

  def _torsos(
    self,
    arrays: list[jax.Array],
    task: jax.Array | None,
    length: int,
    batch: int,
  ) -> jax.Array:
    """Concatenates the torsos of all arrays, each run on `[T * B]` at once."""
    config = self.config
    dtype = jnp.dtype(config.compute_dtype)
    outputs = []
    for i, (x, leaf) in enumerate(zip(arrays, self.leaves, strict=True)):
      x = x.reshape((length * batch, *x.shape[2:]))
      if leaf.is_coded:
        x = coding.Coded(leaf, dtype, name=f'coded_{i}')(x)
      # The raw shape selects the torso; a scalar's one-hot code is a vector.
      num_frames = config.frame_stack if leaf.layer else None
      torso = torsos.make_torso(config, leaf.shape, num_frames, f'torso_{i}')
      statistics = None
      if leaf.is_normalized:
        shape, stack = x.shape[1:], config.frame_stack
        statistics = pixels.Statistics(
          shape, stack, self.num_tasks, name=pixels.name(i)
        )(None if task is None else task.reshape(-1))
      # With several tasks, each image has statistics of its own.
      is_whole = leaf.is_normalized and self.num_tasks
      chunk = 0 if is_whole or len(leaf.shape) != 3 else config.tpu_chunk
      prepare = functools.partial(
        coding.to_features,
        dtype=dtype,
        has_levels=leaf.has_levels,
        statistics=statistics,
      )
      outputs.append(_in_chunks(torso, prepare, x, chunk))
    features = jnp.concatenate(outputs, axis=-1)
    return features.reshape((length, batch, -1))

  def _append_previous(
    self, features: jax.Array, inputs: types.AgentInput
  ) -> jax.Array:
    """Appends previous actions, one-hot or scaled to [-1, 1], and rewards."""
    dtype = features.dtype
    first = inputs.first[..., None]
    action = inputs.previous_action.reshape((*inputs.first.shape, -1))
    codes = [
      _code(spec, numbers, first).astype(dtype)
      for spec, numbers in self.action.split(action)
    ]
    reward = inputs.reward
    if clip := self.config.previous_reward_clip:
      reward = jnp.clip(reward, -clip, clip)
    reward = reward.astype(dtype)[..., None]
    return jnp.concatenate([features, *codes, reward], axis=-1)


def _code(
  spec: types.ActionSpec, action: jax.Array, first: jax.Array
) -> jax.Array:
  """Codes actions `[T, B, N]`; they are none where `first`, `[T, B, 1]`."""
  if spec.is_discrete:
    # Discrete actions begin at 0. The one-hot code of -1, no action, is zero.
    depth = int(np.max(spec.maximum)) + 1
    choice = jnp.where(first, -1, action).astype(jnp.int32)
    return jax.nn.one_hot(choice, depth).reshape((*first.shape[:-1], -1))
  middle, half = distributions.scale(spec)
  return jnp.where(first, 0.0, (action - middle) / half)


def _in_chunks(
  torso: nn.Module,
  prepare: Callable[[jax.Array], jax.Array],
  x: jax.Array,
  chunk: int,
) -> jax.Array:
  """Maps `[N, ...]` to `[N, F]`, with `chunk` rows at a time; 0: with all.

  Features within the torso are computed again for the gradient. So those of a
  chunk can stay in a TPU's on-chip memory, which saves most of the traffic.
  """

  def apply(torso: nn.Module, _: None, x: jax.Array) -> tuple[None, jax.Array]:
    return None, torso(prepare(x))

  n = len(x)
  if not 0 < chunk < n:
    return apply(torso, None, x)[1]
  # Copies of the last image: black ones would be observations of their own to
  # `health`.
  x = jnp.pad(x, ((0, -n % chunk), *((0, 0),) * (x.ndim - 1)), mode='edge')
  loop = nn.scan(
    nn.remat(apply, prevent_cse=False),
    variable_broadcast='params',
    variable_axes={health.COLLECTION: 0},
    split_rngs={'params': False},
  )
  _, features = loop(torso, None, x.reshape((-1, chunk, *x.shape[1:])))
  return features.reshape((-1, features.shape[-1]))[:n]


def make_network(config: types.Config, env_spec: types.EnvSpec) -> Network:
  """Makes the network of `config`, a `config.network`.

  Raises ValueError if the torso does not fit the observation; names the flag.
  """
  leaves = observations.make_leaves(config, env_spec)
  # Frozen: a compiled network must not follow later edits of the config.
  frozen = ml_collections.FrozenConfigDict(config)
  stream = env_spec.stream
  return Network(
    frozen, leaves, stream.action, stream.action_mask, len(stream.tasks)
  )


def make_init(
  module: nn.Module, network: Any, env_spec: types.EnvSpec
) -> Callable[[jax.Array], types.Nest]:
  """Returns a function that makes the parameters of `module` from a key.

  `module` maps `[T, B, ...]` and a core, which `network.initial_core` makes, to
  outputs and a core.
  """

  def init(key: jax.Array) -> types.Nest:
    inputs = dummy_inputs(env_spec)
    return module.init(key, inputs, network.initial_core(1))['params']

  return init


def dummy_inputs(env_spec: types.EnvSpec) -> types.AgentInput:
  """Returns zeros `[1, 1, ...]` for parameter initialisation."""
  observation = jax.tree.map(
    lambda s: jnp.zeros(
      (1, 1, *s.shape), jax.dtypes.canonicalize_dtype(s.dtype)
    ),
    env_spec.observation,
    is_leaf=types.is_spec,
  )
  return types.AgentInput(
    observation=observation,
    reward=jnp.zeros((1, 1)),
    previous_action=jnp.zeros(
      (1, 1, *env_spec.action.shape), env_spec.action.dtype
    ),
    first=jnp.ones((1, 1), bool),
  )
