"""The configuration keys of the learner and its devices."""

from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import (
  COUNT,
  LARGE,
  PROCESSOR,
  TEXT,
  integer,
  optional,
)

KEYS: Table = {
  'topology': Section('The devices for inference and for training.'),
  'topology.inference_to_training': Key(
    '',
    TEXT,
    "Ratio of local devices for inference and training, such as '1:3'. '' "
    'uses a single device for both, and splits several 1:3 if their number '
    'and the batch are divisible, else 1:1.',
  ),
  'topology.streams_per_device': Key(
    1,
    integer(1, 1024),
    'Environment pools per inference device, each with its own thread.',
  ),
  'topology.max_devices': Key(
    0, integer(0, COUNT), 'Uses only the first n devices. 0 uses all.'
  ),
  'topology.inference_affinity_offset': Key(
    -1,
    PROCESSOR,
    'Pins the inference threads to processors, starting with this one. -1 '
    'pins none. With `env.thread_affinity_offset` one higher, cheap '
    'environments do not run on their processors. On two quiet cores this '
    'was a quarter faster with halves; on a shared host it is slower.',
  ),
  'learner': Section('Updates.'),
  'learner.micro_batches': Key(
    1,
    integer(1, COUNT),
    "Number of equal pieces of a device's share of the batch, which go "
    'through the network one by one.',
  ),
  'learner.prefetch': Key(
    1,
    integer(1, 1000),
    'Batches that are copied to the devices ahead of the update.',
  ),
  'learner.publish_period': Key(
    1,
    integer(1, LARGE),
    'Updates between two publications of parameters to inference.',
  ),
  'learner.max_lag': Key(
    None,
    optional(integer(0, LARGE)),
    'Maximum policy lag of an agent with a queue: the age, in batches, of '
    'the parameters that acted when their steps are trained on. Inference '
    'waits for new parameters before an unroll, and older unrolls are '
    'dropped. A batch counts once, however many optimiser steps it takes. 0 '
    'alternates acting and training; it needs one stream, a `batch_size` '
    'that is a multiple of `env.num_envs`, and `env.batch_size` 0. None '
    'means no limit; on the command line, use a large number. See '
    'docs/agents/index.md.',
    int,
  ),
}
