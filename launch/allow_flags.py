"""Flags that allow code named by others to run; see `seedrl_jax.envs.trust`."""

from absl import flags

from seedrl_jax.envs import trust

_FACTORIES = flags.DEFINE_multi_string(
  trust.FACTORY_FLAG.removeprefix('--'),
  [],
  'module:function that may be called to make environments, a torso or an '
  'agent (module:make_agent), besides those of this package. May be repeated.',
)
_OPTIONS = flags.DEFINE_multi_string(
  trust.OPTION_FLAG.removeprefix('--'),
  [],
  'name=value of an option of environments that is text and may be used. May '
  'be repeated.',
)


def allowed() -> list[str]:
  """Returns these flags as `trust.check` takes them."""
  return [
    *(f'{trust.FACTORY_FLAG}={name}' for name in _FACTORIES.value),
    *(f'{trust.OPTION_FLAG}={option}' for option in _OPTIONS.value),
  ]
