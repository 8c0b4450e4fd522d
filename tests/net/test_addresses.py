"""Tests for seedrl_jax/net/addresses.py."""

import pathlib
import re

import pytest

from seedrl_jax.net import addresses, credentials

_FLAG = '--config.actors.addresses'


@pytest.mark.parametrize(
  'text, is_unix, is_local',
  [
    ('unix:/a/b.sock', True, True),
    ('localhost:1', False, True),
    ('127.0.0.9:65535', False, True),
    ('[::1]:1', False, True),
    ('0.0.0.0:0', False, False),
    ('[::]:1', False, False),
    ('learner.example:1', False, False),
  ],
)
def test_parse(text: str, is_unix: bool, is_local: bool):
  address = addresses.parse(_FLAG, text)
  assert address == addresses.Address(text, is_unix, is_local)


def test_paths_of_sockets_become_absolute(
  monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
  monkeypatch.chdir(tmp_path)
  address = addresses.parse(_FLAG, 'unix:a.sock')
  assert address.text == f'unix:{tmp_path}/a.sock'


_FORMS = 'must be unix:/path, host:port or, with IPv6, [::1]:port.'


@pytest.mark.parametrize(
  'text, sentence',
  [
    ('localhost', _FORMS),
    (':1', _FORMS),
    ('a:65536', _FORMS),
    ('::1:80', _FORMS),
    (
      'unix:',
      'the path of a socket can have 107 bytes; name a shorter one, su',
    ),
    ('unix:/' + 'x' * 107, 'the path of a socket can have 107 bytes; name a '),
  ],
)
def test_what_is_no_address_is_refused(text: str, sentence: str):
  with pytest.raises(ValueError, match=re.escape(f'={text}: {sentence}')):
    addresses.parse(_FLAG, text)


_OPEN = addresses.Address('0.0.0.0:1', False, False)
_LOCAL = addresses.Address('localhost:1', False, True)
_UNIX = addresses.Address('unix:/a', True, True)
_TLS = credentials.Security(b'a', b'b')


def test_learner_is_not_open_to_others_unprotected():
  for security in credentials.Security(), _TLS:
    with pytest.raises(ValueError, match='give --config'):
      addresses.check_listening([_OPEN, _LOCAL], security)
    addresses.check_listening([_LOCAL], security)
    addresses.check_listening([_OPEN], security._replace(insecure=True))
  addresses.check_listening([_OPEN], _TLS._replace(token='c'))


def test_actor_calls_no_other_machine_in_the_clear():
  security = credentials.Security()
  with pytest.raises(ValueError, match='give --tls_roots'):
    addresses.check_calling(_OPEN, security)
  addresses.check_calling(_LOCAL, security)
  addresses.check_calling(_OPEN, _TLS)
  addresses.check_calling(_OPEN, security._replace(insecure=True))


@pytest.mark.parametrize('address', [_LOCAL, _OPEN])
def test_a_token_is_never_shown_in_the_clear(address: addresses.Address):
  security = credentials.Security(token='secret', insecure=True)
  with pytest.raises(ValueError, match='a token is shown only over TLS or'):
    addresses.check_calling(address, security)
  with pytest.raises(ValueError, match='nobody shows a token at'):
    addresses.check_listening([_UNIX, address], security)
  for safe, tls in (_UNIX, security), (address, _TLS._replace(token='c')):
    addresses.check_calling(safe, tls)
    addresses.check_listening([safe], tls)


@pytest.mark.parametrize(
  'replay, learner, expected',
  [
    ('localhost:8000', 'unix:/tmp/a', 'localhost:8000'),
    ('localhost:8000', '127.0.0.1:1', 'localhost:8000'),
    ('[::1]:8000', '[2001::2]:1', '[2001::2]:8000'),
    ('other:8000', 'far:1', 'other:8000'),
    ('other:8000', 'unix:/tmp/a', 'other:8000'),
  ],
)
def test_an_actor_finds_what_its_learner_has(
  replay: str, learner: str, expected: str
):
  address = addresses.as_seen_from_actor(
    replay, addresses.parse('--learner', learner)
  )
  assert address.text == expected
  assert address.is_local == (expected == 'localhost:8000')
