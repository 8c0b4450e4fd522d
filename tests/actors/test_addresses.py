"""Tests for seedrl_jax/actors/addresses.py: where, and who may."""

import pathlib
import re

import ml_collections
import pytest

from configs import base as base_config
from seedrl_jax.actors import addresses

_FLAG = '--config.actors.addresses'


@pytest.mark.parametrize(
  'text, is_unix, is_local',
  [
    ('unix:/a/b.sock', True, True),
    ('localhost:1', False, True),
    ('127.0.0.9:65535', False, True),
    ('[::1]:1', False, True),
    ('0.0.0.0:1', False, False),
    ('[::]:1', False, False),
    ('10.0.0.1:1', False, False),
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
  assert address.path == tmp_path / 'a.sock'


@pytest.mark.parametrize(
  'text', ['', 'localhost', ':1', 'localhost:', 'a:b', 'a:65536', 'a:-1']
)
def test_what_is_no_address_is_refused(text: str):
  with pytest.raises(ValueError) as caught:
    addresses.parse(_FLAG, text)
  assert (
    str(caught.value) == f'{_FLAG}={text}: must be unix:/path or host:port.'
  )


@pytest.mark.parametrize('path', ['', '/' + 'x' * 107])
def test_paths_that_no_socket_can_have_are_refused(path: str):
  with pytest.raises(ValueError, match='the path of a socket'):
    addresses.parse(_FLAG, f'unix:{path}')


def _section(**values: object) -> ml_collections.ConfigDict:
  section = base_config.get_config().actors
  section.update(values)
  return section


def test_learners_files_are_read(tmp_path: pathlib.Path):
  for name in 'certificate', 'key', 'token':
    (tmp_path / name).write_text(f'{name}\n')
  assert addresses.learner_security(
    _section(
      tls_certificate=str(tmp_path / 'certificate'),
      tls_key=str(tmp_path / 'key'),
      token_file=str(tmp_path / 'token'),
    )
  ) == addresses.Security(b'certificate\n', b'key\n', 'token')
  assert addresses.learner_security(_section()) == addresses.Security()


@pytest.mark.parametrize(
  'values, sentence',
  [
    ({'tls_certificate': 'x'}, 'tls_key must be given together'),
    ({'token_file': '{}/none'}, 'none: No such file'),
    ({'token_file': '{}/blank'}, 'one line of printable ASCII'),
    ({'token_file': '{}/empty'}, 'empty: is empty'),
    ({'token_file': '{}/lines'}, 'one line of printable ASCII'),
  ],
)
def test_files_that_will_not_do_are_refused(
  values: dict[str, str], sentence: str, tmp_path: pathlib.Path
):
  (tmp_path / 'blank').write_text(' \n')
  (tmp_path / 'empty').touch()
  (tmp_path / 'lines').write_text('a\nb')
  values = {key: path.format(tmp_path) for key, path in values.items()}
  with pytest.raises(ValueError, match=sentence):
    addresses.learner_security(_section(**values))


@pytest.mark.parametrize('text', ['', 'no PEM', '-----BEGIN CERTIFICATE-----'])
def test_actor_takes_no_roots_that_are_none(text: str, tmp_path: pathlib.Path):
  (tmp_path / 'roots').write_text(text)
  with pytest.raises(ValueError, match=r'is empty|holds no certificate in PEM'):
    addresses.actor_security(str(tmp_path / 'roots'), '')


def test_roots_may_be_remarked_upon(
  certificate: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
):
  roots = '# Zürich\n'.encode() + certificate[0].read_bytes()
  (tmp_path / 'roots').write_bytes(roots)
  found = addresses.actor_security(str(tmp_path / 'roots'), '')
  assert found.certificate == roots


@pytest.mark.parametrize('mode', [0o600, 0o640, 0o604])
def test_secrets_that_others_may_read_are_told_of(
  mode: int, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
  for name in 'certificate', 'key', 'token':
    (tmp_path / name).write_text(name)
    (tmp_path / name).chmod(mode)
  token = str(tmp_path / 'token')
  addresses.learner_security(
    _section(
      tls_certificate=str(tmp_path / 'certificate'),
      tls_key=str(tmp_path / 'key'),
      token_file=token,
    )
  )
  addresses.actor_security('', token)
  told = [record.getMessage() for record in caplog.records]
  flags = ('--config.actors.tls_key', '--config.actors.token_file')
  assert len(told) == (0 if mode == 0o600 else 3)
  for flag, line in zip((*flags, '--token_file'), told, strict=False):
    assert line.startswith(f'{flag}={tmp_path}/')
    assert line.endswith('others on this machine may read it; chmod 600 it.')


_OPEN = addresses.Address('0.0.0.0:1', False, False)
_LOCAL = addresses.Address('localhost:1', False, True)
_UNIX = addresses.Address('unix:/a', True, True)


@pytest.mark.parametrize(
  'security, missing',
  [
    (addresses.Security(), 'tls_certificate and --config.actors.token_file'),
    (addresses.Security(token='a'), 'give --config.actors.tls_certificate,'),
    (addresses.Security(b'a', b'b'), 'give --config.actors.token_file,'),
  ],
)
def test_learner_is_not_open_to_others_unprotected(
  security: addresses.Security, missing: str
):
  with pytest.raises(ValueError, match=re.escape(missing)):
    addresses.check_listening([_OPEN, _LOCAL], security)
  plain = security._replace(token='')
  addresses.check_listening([_LOCAL], plain)
  addresses.check_listening([_OPEN], plain._replace(insecure=True))
  addresses.check_listening([_OPEN], addresses.Security(b'a', b'b', 'c'))


def test_actor_calls_no_other_machine_in_the_clear():
  security = addresses.Security()
  with pytest.raises(ValueError, match='give --tls_roots'):
    addresses.check_calling(_OPEN, security)
  addresses.check_calling(_LOCAL, security)
  addresses.check_calling(_OPEN, security._replace(certificate=b'a'))
  addresses.check_calling(_OPEN, security._replace(insecure=True))


@pytest.mark.parametrize('address', [_LOCAL, _OPEN])
def test_a_token_is_never_shown_in_the_clear(address: addresses.Address):
  security = addresses.Security(token='secret', insecure=True)
  with pytest.raises(ValueError, match='a token is shown only over TLS or'):
    addresses.check_calling(address, security)
  with pytest.raises(ValueError, match='no actor shows its token at'):
    addresses.check_listening([_UNIX, address], security)
  for check in (
    addresses.check_calling,
    lambda address, security: addresses.check_listening([address], security),
  ):
    check(_UNIX, security)
    check(address, security._replace(certificate=b'a', key=b'b'))


def test_only_who_shows_the_token_is_admitted():
  shown = addresses.metadata(addresses.Security(token='secret'))
  assert addresses.is_admitted(shown, 'secret')
  assert addresses.is_admitted((), '')
  for other in (), addresses.metadata(addresses.Security(token='Secret')):
    assert not addresses.is_admitted(other, 'secret')
  assert not addresses.is_admitted((('authorization', b'secret'),), 'secret')
  assert not addresses.is_admitted((('authorization', '\xe9'),), 'secret')


@pytest.mark.parametrize(
  'replay, learner, expected',
  [
    ('localhost:8000', 'unix:/tmp/a', 'localhost:8000'),
    ('localhost:8000', '127.0.0.1:1', 'localhost:8000'),
    ('localhost:8000', 'far:1', 'far:8000'),
    ('[::1]:8000', '[2001::2]:1', '[2001::2]:8000'),
    ('other:8000', 'far:1', 'other:8000'),
    ('other:8000', 'unix:/tmp/a', 'other:8000'),
  ],
)
def test_an_actor_finds_what_its_learner_has(
  replay: str, learner: str, expected: str
):
  found = addresses.as_seen_from_actor(
    replay, addresses.parse('--learner', learner)
  )
  assert found.text == expected
  assert found.is_local == (expected == 'localhost:8000')
