"""The configuration keys of remote actors."""

from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import (
  COUNT,
  FLAG,
  SECONDS,
  TEXT,
  each,
  integer,
  number,
)

KEYS: Table = {
  'actors': Section('Environments of other processes (seedrl actor).'),
  'actors.max_envs': Key(
    0,
    integer(0, COUNT),
    'Maximum number of environments of remote actors, in addition to '
    '`env.num_envs`, which may then be 0. 0 means no actors.',
  ),
  'actors.local_inference': Key(
    False,
    FLAG,
    "With `replay.backend='auto'`, chooses Reverb, to which actors with "
    '--inference=local write their unrolls.',
  ),
  'actors.addresses': Key(
    (),
    each(TEXT),
    "Addresses of the learner, each 'unix:/path' or 'host:port'. () means the "
    'socket actors.sock in the work directory.',
  ),
  'actors.batch_size': Key(
    0,
    integer(0, COUNT),
    'Maximum number of environments per inference call of a stream, and in '
    'each group of an actor. 0 means no limit.',
  ),
  'actors.min_batch_size': Key(
    1,
    integer(1, COUNT),
    'Number of environments for which an inference call stops waiting.',
  ),
  'actors.batch_timeout_ms': Key(
    5.0, SECONDS, 'Milliseconds to wait for `min_batch_size`.'
  ),
  'actors.timeout': Key(
    60.0,
    number(0.01, 10**9),
    'Seconds without a message after which the learner drops an actor.',
  ),
  'actors.tls_certificate': Key(
    '',
    TEXT,
    "PEM file with the learner's certificate. Actors on other machines need "
    'TLS and a token, unless `insecure` is set.',
  ),
  'actors.tls_key': Key(
    '', TEXT, 'PEM file with the private key of the certificate.'
  ),
  'actors.token_file': Key(
    '',
    TEXT,
    'File with the secret that actors must send, over TLS or a unix socket.',
  ),
  'actors.insecure': Key(
    False, FLAG, 'Accepts actors on other machines without TLS and token.'
  ),
}
