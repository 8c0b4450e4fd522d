"""Which failures are losses, and the messages for users."""

import grpc
import pytest

from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.client import errors

_CODE = grpc.StatusCode


@pytest.mark.parametrize(
  ('code', 'details', 'lost'),
  [
    (_CODE.UNAVAILABLE, '', True),
    (_CODE.UNKNOWN, 'Stream removed', True),
    (_CODE.CANCELLED, 'CANCELLED', True),
    (_CODE.UNKNOWN, 'a bug', False),
    (_CODE.INTERNAL, '', False),
    (_CODE.NOT_FOUND, '', False),
  ],
)
def test_which_failures_are_losses(code, details, lost):
  assert errors.is_lost(transport.StreamError(code, details)) == lost


@pytest.mark.parametrize('code', list(_CODE))
def test_every_failure_is_one_line_that_says_where(code):
  error = errors.translate(
    transport.StreamError(code, 'a\nb'), 'host:1', 'sample', 't'
  )
  assert isinstance(error, errors.ReverbError)
  assert isinstance(error, errors.UnknownTable) == (code == _CODE.NOT_FOUND)
  assert '\n' not in str(error) and str(error).endswith('.')
  assert 'table t' in str(error) and 'host:1' in str(error)
