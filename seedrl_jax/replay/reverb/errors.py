"""Errors of a Reverb server; each message is one sentence."""

import grpc

# A server that shuts down cancels its calls.
_GONE = {
  grpc.StatusCode.UNAVAILABLE,
  grpc.StatusCode.ABORTED,
  grpc.StatusCode.CANCELLED,
}


class ReverbError(RuntimeError):
  """Raised if a Reverb server did not do what was asked."""


class ServerLost(ReverbError):
  """Raised if no server answered in time."""


class RequestRefused(ReverbError):
  """The server refused the request, or has no such table."""


def is_lost(error: grpc.RpcError) -> bool:
  """Returns whether the server went away, so that a retry makes sense."""
  code, details = error.code(), error.details() or ''
  if code == grpc.StatusCode.UNKNOWN:
    return 'Stream removed' in details
  return code in _GONE


def translate(
  error: grpc.RpcError, address: str, doing: str, table: str | None = None
) -> ReverbError:
  """Returns the error to raise instead of gRPC's; `doing` is what failed."""
  code = error.code()
  details = ' '.join((error.details() or '').split()) or 'no details'
  place = f'the Reverb server at {address}'
  if table is not None:
    place = f'table {table} of {place}'
  if code == grpc.StatusCode.NOT_FOUND and table is not None:
    return RequestRefused(
      f'There is no table {table} in the Reverb server at {address}: start it '
      "with this run's tables, or name another server."
    )
  start = f'Could not {doing} ({place})'
  if is_lost(error) or code == grpc.StatusCode.DEADLINE_EXCEEDED:
    return ServerLost(
      f'{start}: it does not answer ({details}); see whether it runs, is '
      'overloaded or cannot be reached.'
    )
  return RequestRefused(
    f'{start}: {code.name} ({details}); see that the table was made for this '
    "run's unrolls and by dm-reverb 0.14."
  )
