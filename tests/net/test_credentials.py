"""Tests for seedrl_jax/net/credentials.py."""

import pathlib

import ml_collections
import pytest

from seedrl_jax.configs import base as base_config
from seedrl_jax.net import credentials
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
    ({'token_file': '{}/empty'}, 'empty: is empty'),
    ({'token_file': '{}/lines'}, 'one line of printable ASCII'),
  ],
)
def test_files_that_will_not_do_are_refused(
  values: dict[str, str], sentence: str, tmp_path: pathlib.Path
):
  (tmp_path / 'empty').touch()
  (tmp_path / 'lines').write_text('a\nb')
  values = {key: path.format(tmp_path) for key, path in values.items()}
  with pytest.raises(ValueError, match=sentence):
    credentials.learner_security(_section(**values))


@pytest.mark.parametrize('text', ['no PEM', 'ü', '-----BEGIN CERTIFICATE-----'])
def test_actor_takes_no_roots_that_are_none(text: str, tmp_path: pathlib.Path):
  (tmp_path / 'roots').write_text(text)
  with pytest.raises(ValueError, match='holds no certificate in PEM'):
    credentials.actor_security(str(tmp_path / 'roots'), '')


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


@pytest.mark.parametrize(
  'learner, trusted, sentence',
  [
    ('good', '', 'if the learner has a certificate, give --tls_roots'),
    ('', 'good', '; the learner needs a certificate for the host in'),
    ('good', 'other', 'self.signed certificate.* --tls_roots must hold it'),
    ('renamed', 'renamed', 'name .* certificate for the host in --lea'),
    ('', '', 'Connection refused'),
  ],
)
def test_who_disagrees_on_tls_is_told(
  learner: str, trusted: str, sentence: str, tmp_path: pathlib.Path
):
  pairs = {'': (b'', b'')}
  options = {'renamed': {'names': 'DNS:elsewhere'}}
  for name in {learner, trusted} - {''}:
    folder = tmp_path / name
    folder.mkdir()
    files = certificates.make(folder, **options.get(name, {}))
    pairs[name] = files[0].read_bytes(), files[1].read_bytes()
  security = credentials.Security(*pairs[learner])
  with toys.learner('127.0.0.1:0', security=security) as (server, _):
    if not trusted and not learner:
      server.close(ended=False)
    group = toys.RunningGroup(
      server.addresses[0],
      security=credentials.Security(pairs[trusted][0]),
      patience=0.01,
    )
    group.join()
  assert isinstance(group.error, RuntimeError)
  with pytest.raises(RuntimeError, match=sentence):
    raise group.error
