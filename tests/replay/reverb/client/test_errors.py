"""Which failures are losses, and the messages for users."""

import grpc
import pytest

from seedrl_jax.replay.reverb.client import errors

_CODE = grpc.StatusCode


class _Failure(grpc.RpcError):
  def __init__(self, code: grpc.StatusCode, details: str | None = None):
    super().__init__()
    self._code, self._details = code, details

  def code(self) -> grpc.StatusCode:
    return self._code

  def details(self) -> str | None:
    return self._details


@pytest.mark.parametrize(
  ('code', 'details', 'lost'),
  [
    (_CODE.UNAVAILABLE, None, True),
    (_CODE.UNKNOWN, 'Stream removed', True),
    (_CODE.CANCELLED, 'CANCELLED', True),
    (_CODE.UNKNOWN, 'a bug', False),
    (_CODE.INTERNAL, None, False),
    (_CODE.NOT_FOUND, None, False),
  ],
)
def test_which_failures_are_losses(code, details, lost):
  assert errors.is_lost(_Failure(code, details)) == lost


@pytest.mark.parametrize('code', list(_CODE))
def test_every_failure_is_one_line_that_says_where(code):
  error = errors.translate(_Failure(code, 'a\nb'), 'host:1', 'sample', 't')
  assert isinstance(error, errors.ReverbError)
  assert isinstance(error, errors.UnknownTable) == (code == _CODE.NOT_FOUND)
  assert '\n' not in str(error) and str(error).endswith('.')
  assert 'table t' in str(error) and 'host:1' in str(error)
