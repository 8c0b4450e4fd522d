"""Tests for seedrl_jax/actors/tls.py: an actor names the cause of no TLS."""

import pathlib
import re

import pytest

from seedrl_jax.actors import addresses
from seedrl_jax.actors.actor_side import call
from tests.actors import certificates, toys


@pytest.fixture(scope='module', name='pairs')
def pairs_fixture(tmp_path_factory) -> dict[str, tuple[bytes, bytes]]:
  """Returns certificates and keys; of no name nothing."""
  made = {
    'good': {},
    'other': {},
    'renamed': {'names': 'DNS:elsewhere'},
    'expired': {'is_expired': True},
  }
  pairs = {'': (b'', b'')}
  for name, options in made.items():
    files = certificates.make(tmp_path_factory.mktemp(name), **options)
    pairs[name] = files[0].read_bytes(), files[1].read_bytes()
  return pairs


@pytest.mark.parametrize(
  'learner, trusted, sentence',
  [
    ('good', '', 'X wants TLS: give its certificate, or its authority, by'),
    ('', 'good', 'there is no TLS at X: give the learner --config.actors.tls_'),
    ('good', 'other', 'the certificate at X is refused (self-signed certifica'),
    ('renamed', 'renamed', 'at X is refused (Hostname mismatch, certificate'),
    ('expired', 'expired', 'X is refused (certificate has expired): make a'),
  ],
)
def test_who_disagrees_on_tls_is_told(
  learner: str, trusted: str, sentence: str, pairs
):
  security = addresses.Security(*pairs[learner])
  with toys.learner('localhost:0', security=security) as (server, _):
    target = addresses.parse('--learner', server.addresses[0])
    one = call.Call(target, addresses.Security(pairs[trusted][0]))
    expected = re.escape(sentence.replace('X', target.text))
    with pytest.raises(call.Lost, match=expected):
      one.open()
    one.close()


@pytest.mark.parametrize('trusted', ['', 'good'])
def test_where_nobody_is_there_is_no_disagreement(
  trusted: str, pairs, tmp_path: pathlib.Path
):
  for text in 'localhost:1', f'unix:{tmp_path}/none':
    target = addresses.parse('--learner', text)
    one = call.Call(target, addresses.Security(pairs[trusted][0]))
    with pytest.raises(call.Lost, match=f'nobody answers at {text}'):
      one.open()
    one.close()
