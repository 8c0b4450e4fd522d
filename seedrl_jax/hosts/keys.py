"""The configuration keys of several hosts."""

from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import LARGE, integer, number

KEYS: Table = {
  'hosts': Section(
    'Hosts that train together (seedrl learner --coordinator=…). They '
    'share `batch_size`; environments, actors and replay sizes are per host.'
  ),
  'hosts.timeout': Key(
    60.0,
    number(1, 10**9),
    'Seconds without a message after which a host counts as dead.',
  ),
  'hosts.check_period': Key(
    100,
    integer(1, LARGE),
    'Updates between two comparisons of parameters among the hosts.',
  ),
}
