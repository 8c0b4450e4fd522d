"""What the network makes of each array of an observation."""

import itertools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.networks import block_conv, torsos
from seedrl_jax.runtime import nest, workdir

# Environments whose small images have categories as bytes: bounds do not tell.
_GRIDS = re.compile(r'\b(MiniGrid|BabyAI|Sokoban)-')
# One-hot levels of grids and scalar integers; the last includes all larger
# values.
GRID_LEVELS = 16
SCALAR_LEVELS = 64
# A wider one-hot code becomes a table of learned vectors, if these are fewer
# numbers.
_WIDEST_ONE_HOT = 1024
VECTOR_SIZE = 64
_MOST_ROWS = 1 << 20


class Leaf(NamedTuple):
  """What the network makes of an observation's array."""

  name: str  # the key, with dots between nested keys; '' if there is none
  spec: types.ArraySpec
  # The environment's axes in the device's order; those from the third on become
  # one axis of channels if the leaf is an image.
  axes: tuple[int, ...]
  shape: tuple[int, ...]  # on the device; `[H, W, C]` of an image
  torso: str  # see `torsos.resolve_torso`
  layer: block_conv.ConvLayer | None  # which takes blocks of pixels
  has_levels: bool  # whether bytes gain a one-hot code of `GRID_LEVELS`
  is_brightness: bool = False  # choices are quantities: many, in a picture
  is_normalized: bool = False  # whether `pixels.Statistics` normalises pixels

  @property
  def is_coded(self) -> bool:
    """Whether each number is coded by its value, all of which are known."""
    values = self.spec.categories
    if not values or self.is_brightness:
      return False
    # `to_features` has levels enough for small ones, as in earlier releases.
    first = values[0]
    return bool(self.shape) or first.start < 0 or first.stop > SCALAR_LEVELS

  @property
  def becomes_bytes(self) -> bool:
    """Whether larger integers that are brightness become bytes."""
    return self.is_brightness and all(
      x.start >= 0 and x.stop <= 256 for x in self.spec.categories or ()
    )

  def arrange(self, x: jax.Array) -> jax.Array:
    """Brings `[..., *spec.shape]` to `[..., *shape]`, or to blocks of pixels.

    On CPU, blocking single frames of bytes is much cheaper than stacks of
    floats.
    """
    batch = x.ndim - len(self.axes)
    order = (*range(batch), *(batch + axis for axis in self.axes))
    x = x.transpose(order).reshape((*x.shape[:batch], *self.shape))
    if self.becomes_bytes:
      x = x.astype(jnp.uint8)
    return x if self.layer is None else block_conv.space_to_depth(x, self.layer)

  def arrange_values(self, values: Sequence[int]) -> np.ndarray:
    """Brings a number per entry of the array to the device, `[..., C]`."""
    x = np.reshape(values, self.spec.shape).transpose(self.axes)
    return x.reshape(self.shape or (1,))

  def value_counts(self) -> list[int]:
    """Returns the number of values of each entry of the last axis."""
    counts = self.arrange_values([len(x) for x in self.spec.categories or ()])
    return counts.reshape((-1, counts.shape[-1])).max(axis=0).tolist()

  @property
  def is_embedded(self) -> bool:
    """Whether learned vectors, not a one-hot code, stand for values."""
    counts = self.value_counts()
    return sum(counts) > max(_WIDEST_ONE_HOT, VECTOR_SIZE * len(counts))

  def describe_array(self) -> str:
    """Returns in words what is taken."""
    text = f'{self.name} {self.spec.dtype}{list(self.spec.shape)}'.lstrip()
    if len(self.shape) == 3:
      height, width, channels = self.shape
      plural = '' if channels == 1 else 's'
      text += f' as {height}x{width} pixels with {channels} channel{plural}'
      if len(self.axes) > 2:
        text += f' (axes {self.axes[0]} and {self.axes[1]})'
    if self.is_brightness:
      text += f' of up to {max(self.value_counts())} values, taken as numbers'
    if self.has_levels:
      text += f', {GRID_LEVELS} one-hot levels per channel'
    if self.is_coded:
      text += f', {sum(self.value_counts())} '
      text += 'learned vectors' if self.is_embedded else 'one-hot levels'
    elif not self.shape and self.spec.dtype.kind in 'iu':
      text += f', {SCALAR_LEVELS} one-hot levels'
    return text

  def describe_torso(self) -> str:
    """Returns in words what takes it."""
    text = f'torso {self.torso}'
    return f'{text} on normalised pixels' if self.is_normalized else text

  def describe(self) -> str:
    return f'{self.describe_array()}, {self.describe_torso()}'


def to_image(x: np.ndarray, layout: str) -> np.ndarray:
  """Returns an array of rank 2 or more as `[H, W, C]`."""
  axes, shape = _as_image(x.shape, layout)
  return x.transpose(axes).reshape(shape)


def _as_image(
  shape: tuple[int, ...], layout: str
) -> tuple[tuple[int, ...], tuple[int, int, int]]:
  """Returns an array's axes with height and width first, and `(H, W, C)`.

  Layout 'auto' takes the adjacent pair whose smaller side is largest. Of
  several it takes a square, then the first. So (3, 84, 84) and (84, 84, 100)
  are 84x84.
  """
  rank = len(shape)
  first = max(0, rank - (2 if layout == 'channels_first' else 3))
  if layout == 'auto':
    pairs = [(min(p), p[0] == p[1]) for p in itertools.pairwise(shape)]
    first = pairs.index(max(pairs))
  others = [i for i in range(rank) if i not in (first, first + 1)]
  height, width, *_ = shape[first:]
  channels = math.prod(shape[i] for i in others)
  return (first, first + 1, *others), (height, width, channels)


def make_leaf(
  config: types.Config, spec: types.ArraySpec, env_id: str, name: str = ''
) -> Leaf:
  """Chooses the input that an array becomes; `config` is `config.network`.

  Arrays of rank 3 are images. A matrix is a grey image, and an array of rank 4
  a stack of images, if it is convolved: by a convolution that `torso` names, or
  by 'auto' if both sides are at least `SMALLEST_PICTURE`.

  Raises ValueError if the torso does not fit; names the flag.
  """
  shape, torso, rank = spec.shape, config.torso, len(spec.shape)
  axes = tuple(range(rank))
  if rank in (2, 3, 4):
    image_axes, image = _as_image(shape, config.image_layout)
    is_large = torso == 'auto' and torsos.is_picture(image)
    if rank == 3 or torsos.is_convolution(torso) or is_large:
      shape, axes = image, image_axes
  resolved = torsos.resolve_torso(torso, shape)
  leaf = Leaf(name, spec, axes, shape, resolved, None, False)
  is_picture = torsos.is_picture(shape)
  if leaf.is_coded and is_picture:
    counts = leaf.value_counts()
    is_brightness = sum(counts) > GRID_LEVELS * len(counts)
    leaf = leaf._replace(is_brightness=is_brightness)
  if leaf.is_coded or len(shape) != 3:
    return leaf
  if is_picture:
    is_bytes = spec.dtype == np.uint8 or leaf.becomes_bytes
    return leaf._replace(
      layer=torsos.strided_layer(resolved),
      is_normalized=config.normalize_pixels and is_bytes,
    )
  is_grid = config.categories == 'on' or (
    config.categories == 'auto' and _GRIDS.search(env_id) is not None
  )
  return leaf._replace(has_levels=is_grid and spec.dtype == np.uint8)


def read_leaves(
  config: types.Config, env_spec: types.EnvSpec
) -> tuple[Leaf, ...]:
  """Returns the input that each array of an observation becomes, in order.

  The task is left out. An action mask is, too, or becomes a vector of booleans.

  Raises what `make_leaf` does.
  """
  observation, key = env_spec.observation, env_spec.stream.action_mask
  hidden = [key] if key else []
  if env_spec.stream.tasks:
    hidden.append(types.TASK)
  if hidden:
    observation = {k: x for k, x in observation.items() if k not in hidden}
  if key and config.use_action_mask:
    shape = (sum(env_spec.action.sizes),)
    observation[key] = types.ArraySpec(shape, np.dtype(bool))
  return tuple(
    make_leaf(config, spec, env_spec.env_id, name)
    for name, spec in nest.flatten_with_paths(observation)
  )


def make_leaves(
  config: types.Config, env_spec: types.EnvSpec
) -> tuple[Leaf, ...]:
  """Returns `read_leaves` for a network, which must be able to take them.

  Raises ValueError if the torso fits none, or not one of them; names the flag.
  """
  leaves = read_leaves(config, env_spec)
  if not leaves:
    raise ValueError(
      f'--config.network.use_action_mask=False: {env_spec.env_id} observes '
      'nothing but its action mask; give True.'
    )
  if torsos.is_convolution(config.torso) and all(
    leaf.torso == 'mlp' for leaf in leaves
  ):
    raise ValueError(
      f'--config.network.torso={config.torso} convolves arrays of 2 to 4 axes, '
      f'and {env_spec.env_id} observes none; take auto or mlp.'
    )
  for leaf in leaves:
    if leaf.is_coded and (rows := sum(leaf.value_counts())) > _MOST_ROWS:
      raise ValueError(
        f'{leaf.name or "The observation"} of {env_spec.env_id} is a choice '
        f'among {rows} values, too many to learn each; let the environment '
        'observe numbers (a Box) instead.'
      )
  return leaves


def describe(config: types.Config, env_spec: types.EnvSpec) -> str:
  """Returns a line about the arrays of an observation."""
  leaves = read_leaves(config, env_spec)
  texts = [leaf.describe() for leaf in leaves]
  if key := env_spec.stream.action_mask:
    texts.append(f'{key} masks actions')
  return f'Observation: {"; ".join(texts)}.'


def check_release(
  directory: workdir.Workdir, config: types.Config, env_spec: types.EnvSpec
) -> None:
  """Raises WorkdirError if a run took some arrays of observations otherwise.

  It may have had another action mask, or other tasks. Or it is of an earlier
  release, which wrote no categories to `env_spec.json`. The parameters may have
  the same shapes.
  """
  if not directory.env_spec_json.exists():
    return
  saved_spec = directory.read_env_spec()
  for key in ('action_mask', 'tasks'):
    before, now = (getattr(x.stream, key) for x in (saved_spec, env_spec))
    if before != now:
      raise workdir.WorkdirError(
        f'--workdir={directory.path}: its run has {key}={before!r}, and this '
        f'one {now!r}; give the same --config.env.{key}.'
      )
  saved = nest.flatten(saved_spec.observation)
  if all(spec.categories is not None for spec in saved):
    return
  changed = [
    leaf.describe()
    for leaf in read_leaves(config, env_spec)
    if _differs_from_earlier(leaf, config)
  ]
  if changed:
    raise workdir.WorkdirError(
      f'--workdir={directory.path}: is of an earlier release, whose network '
      f'took the observation otherwise; this one takes {"; ".join(changed)}. '
      'Go on with that release, or start with another --workdir. If only '
      'one-hot levels are missing, --config.network.categories=on adds them.'
    )


def _differs_from_earlier(leaf: Leaf, config: types.Config) -> bool:
  shape = leaf.spec.shape
  if len(shape) != 3:
    return leaf.is_coded or len(leaf.shape) == 3
  layout = config.image_layout
  if layout == 'auto' and shape[0] < shape[-1]:
    layout = 'channels_first'
  had_levels = leaf.spec.dtype == np.uint8 and not torsos.is_picture(leaf.shape)
  return (
    leaf.is_coded
    or (leaf.becomes_bytes and leaf.spec.dtype != np.uint8)
    or leaf.axes[0] != int(layout == 'channels_first')
    or leaf.has_levels != had_levels
  )
