"""Tests for how actors may reach learners."""

import pathlib
import subprocess

import ml_collections
import pytest

from seedrl_jax.configs import base
from seedrl_jax.engines import access
from tests.actors import certificates


def _config(**values: object) -> ml_collections.ConfigDict:
  config = base.get_config().actors
  config.update(values)
  return config


def test_what_is_made_is_for_the_learners(tmp_path: pathlib.Path):
  new_access = access.make(['10.0.0.1', '10.0.0.2', '10.0.0.1'])
  path = tmp_path / 'crt'
  path.write_bytes(new_access.files['tls.crt'])
  for host in ('10.0.0.1', '10.0.0.2'):
    checked = subprocess.run(
      ['openssl', 'x509', '-in', path, '-checkip', host],
      capture_output=True,
      text=True,
      check=True,
    )
    assert 'does match' in checked.stdout
  assert new_access.files_in(new_access.learner_flags) == new_access.files
  # The key stays with the learners.
  assert set(new_access.files_in(new_access.actor_flags)) == {
    'tls.crt',
    'token',
  }
  assert access.make(['10.0.0.1']).files['token'] != new_access.files['token']


def test_openssl_that_fails_or_is_missing_is_said(
  monkeypatch: pytest.MonkeyPatch,
):
  with pytest.raises(ValueError, match='openssl failed: '):
    access.make(['no address'])
  monkeypatch.setenv('PATH', '/nowhere')
  with pytest.raises(ValueError, match=r'is not here; install it, or give --c'):
    access.make(['10.0.0.1'])


def test_what_is_given_is_passed_on(tmp_path: pathlib.Path):
  assert access.configured(_config()) is None
  earlier = _config(tls_certificate='/dev/fd/9', token_file='/dev/fd/8')
  assert access.configured(earlier) is None
  crt, key = map(str, certificates.make(tmp_path))
  (tmp_path / 'token').write_text('secret')
  token = str(tmp_path / 'token')
  named = _config(tls_certificate=crt, tls_key=key, token_file=token)
  configured = access.configured(named)
  assert configured == access.Access(
    actor_flags=[f'--tls_roots={crt}', f'--token_file={token}']
  )
  assert access.configured(_config(insecure=True)).actor_flags == ['--insecure']


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'token_file': '/no'}, r'token_file=/no: No such file'),
    ({'tls_certificate': '/no'}, r'tls_key must be given together'),
  ],
)
def test_what_learners_would_refuse_is_refused(
  values: dict[str, str], message: str
):
  with pytest.raises(ValueError, match=message):
    access.configured(_config(**values))
