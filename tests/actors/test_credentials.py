"""Tests for seedrl_jax/actors/credentials.py."""

import pathlib
import re

import ml_collections
import pytest

from configs import base as base_config
from seedrl_jax.actors import addresses, credentials
from seedrl_jax.actors.actor_side import connection
from tests.actors import certificates, toys


def _section(**values: object) -> ml_collections.ConfigDict:
  section = base_config.get_config().actors
  section.update(values)
  return section


def test_learners_files_are_read(tmp_path: pathlib.Path):
  for name in 'certificate', 'key', 'token':
    (tmp_path / name).write_text(f'{name}\n')
  assert credentials.learner_security(
    _section(
      tls_certificate=str(tmp_path / 'certificate'),
      tls_key=str(tmp_path / 'key'),
      token_file=str(tmp_path / 'token'),
    )
  ) == credentials.Security(b'certificate\n', b'key\n', 'token')
  assert credentials.learner_security(_section()) == credentials.Security()


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
    credentials.learner_security(_section(**values))


@pytest.mark.parametrize('text', ['', 'no PEM', '-----BEGIN CERTIFICATE-----'])
def test_actor_takes_no_roots_that_are_none(text: str, tmp_path: pathlib.Path):
  (tmp_path / 'roots').write_text(text)
  with pytest.raises(ValueError, match=r'is empty|holds no certificate in PEM'):
    credentials.actor_security(str(tmp_path / 'roots'), '')


def test_roots_may_be_remarked_upon(
  certificate: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
):
  roots = '# Zürich\n'.encode() + certificate[0].read_bytes()
  (tmp_path / 'roots').write_bytes(roots)
  found = credentials.actor_security(str(tmp_path / 'roots'), '')
  assert found.certificate == roots


@pytest.mark.parametrize('mode', [0o600, 0o640, 0o604])
def test_secrets_that_others_may_read_are_told_of(
  mode: int, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
  for name in 'certificate', 'key', 'token':
    (tmp_path / name).write_text(name)
    (tmp_path / name).chmod(mode)
  token = str(tmp_path / 'token')
  credentials.learner_security(
    _section(
      tls_certificate=str(tmp_path / 'certificate'),
      tls_key=str(tmp_path / 'key'),
      token_file=token,
    )
  )
  credentials.actor_security('', token)
  told = [record.getMessage() for record in caplog.records]
  flags = ('--config.actors.tls_key', '--config.actors.token_file')
  assert len(told) == (0 if mode == 0o600 else 3)
  for flag, line in zip((*flags, '--token_file'), told, strict=False):
    assert line.startswith(f'{flag}={tmp_path}/')
    assert line.endswith('others on this machine may read it; chmod 600 it.')


def test_only_calls_that_show_the_token_are_admitted():
  security = credentials.Security(token='secret')
  assert security.admits(security.metadata())
  assert credentials.Security().admits(())
  other = credentials.Security(token='Secret')
  for shown in (
    (),
    other.metadata(),
    (('authorization', b'secret'),),
    (('authorization', '\xe9'),),
  ):
    assert not security.admits(shown)


@pytest.fixture(scope='module', name='pairs')
def pairs_fixture(tmp_path_factory) -> dict[str, tuple[bytes, bytes]]:
  """Returns PEM certificates and keys by name; '' has neither."""
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


def _connection(
  target: addresses.Address, roots: bytes
) -> connection.LearnerConnection:
  security = credentials.Security(certificate=roots)
  return connection.LearnerConnection(target, security)


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
  security = credentials.Security(*pairs[learner])
  with toys.learner('localhost:0', security=security) as (server, _):
    target = addresses.parse('--learner', server.addresses[0])
    one = connection.LearnerConnection(
      target, credentials.Security(pairs[trusted][0])
    )
    expected = re.escape(sentence.replace('X', target.text))
    with pytest.raises(connection.PeerLost, match=expected):
      one.open()
    one.close()


@pytest.mark.parametrize('trusted', ['', 'good'])
def test_where_nobody_is_there_is_no_disagreement(
  trusted: str, pairs, tmp_path: pathlib.Path
):
  for text in 'localhost:1', f'unix:{tmp_path}/none':
    target = addresses.parse('--learner', text)
    one = connection.LearnerConnection(
      target, credentials.Security(pairs[trusted][0])
    )
    with pytest.raises(connection.PeerLost, match=f'nobody answers at {text}'):
      one.open()
    one.close()
