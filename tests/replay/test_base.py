"""The rules of a table, checked where they are made."""

import pytest

from seedrl_jax import replay


def test_queue_has_a_queues_rules():
  config = replay.TableConfig.queue('q', 10)
  assert (config.sampler, config.max_size) == ('fifo', 10)
  assert (config.max_times_sampled, config.samples_per_insert) == (1, 1.0)


@pytest.mark.parametrize(
  'changes,flag',
  [
    ({'sampler': 'lifo'}, 'sampler=lifo'),
    ({'max_size': 0}, 'max_size=0'),
    ({'max_times_sampled': -1}, 'max_times_sampled=-1'),
    ({'samples_per_insert': -1.0}, 'samples_per_insert=-1.0'),
    ({'samples_per_insert': float('nan')}, 'samples_per_insert=nan'),
    ({'tolerance': -0.1}, 'tolerance=-0.1'),
    ({'priority_exponent': -1.0}, 'priority_exponent=-1.0'),
    ({'min_size': 0}, 'min_size=0'),
    ({'min_size': 11}, 'min_size=11'),
    ({'max_times_sampled': 2, 'samples_per_insert': 4.0}, 'never reaches'),
    ({'sampler': 'fifo', 'max_times_sampled': 2}, 'max_times_sampled=2'),
    ({'sampler': 'fifo', 'samples_per_insert': 2.0}, 'samples_per_insert=2.0'),
  ],
)
def test_bad_rules_name_their_flag(changes, flag):
  rules = {'sampler': 'uniform', 'max_size': 10, 'max_times_sampled': 0}
  if changes.get('sampler') == 'fifo':
    rules['max_times_sampled'] = 1
  with pytest.raises(ValueError, match=r'^--config\.replay\..*\.$') as error:
    replay.TableConfig('t', **{**rules, **changes})
  assert flag in str(error.value)
