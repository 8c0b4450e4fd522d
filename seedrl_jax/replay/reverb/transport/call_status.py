"""How a gRPC call over HTTP/2 ended.

Used by `call.py`. gRPC's document PROTOCOL-HTTP2 says where the status is, and
what stands for it where there is none.
"""

import urllib.parse
from collections.abc import Mapping

import grpc

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
_CODES: dict[bytes, grpc.StatusCode] = {
  b'%d' % code.value[0]: code for code in grpc.StatusCode
}
_RETRY_STATUS = (b'429', b'502', b'503', b'504')
# Error codes of HTTP/2; all others are INTERNAL.
_RESET_CODES = {
  7: UNAVAILABLE,
  8: grpc.StatusCode.CANCELLED,
  11: grpc.StatusCode.RESOURCE_EXHAUSTED,
  12: grpc.StatusCode.PERMISSION_DENIED,
}


class CallError(grpc.RpcError):
  """A call ended with an error; read like one of gRPC's own."""

  def __init__(self, code: grpc.StatusCode, details: str):
    """Takes what kind of error it is, and the server's words or ours."""
    super().__init__(f'{code.name}: {details}')
    self._code = code
    self._details = details

  def code(self) -> grpc.StatusCode:
    """What kind of error it is."""
    return self._code

  def details(self) -> str:
    """The server's words, or ours where it had none."""
    return self._details


def check_fields(fields: Mapping[bytes, bytes]) -> None:
  """Raises what a response's header fields say, unless all went well.

  Args:
    fields: of its headers and trailers.
  """
  if b'grpc-status' not in fields:
    status = fields.get(b':status', b'none')
    code = UNAVAILABLE if status in _RETRY_STATUS else grpc.StatusCode.UNKNOWN
    raise CallError(code, f'no answer of gRPC, HTTP status {status!r}')
  code = _CODES.get(fields[b'grpc-status'], grpc.StatusCode.UNKNOWN)
  if code != grpc.StatusCode.OK:
    message = fields.get(b'grpc-message', b'').decode('ascii', 'replace')
    raise CallError(code, urllib.parse.unquote(message, errors='replace'))


def reset(number: int) -> CallError:
  """Returns what HTTP/2's error code in a RST_STREAM means."""
  code = _RESET_CODES.get(number, grpc.StatusCode.INTERNAL)
  return CallError(code, f'the server ended the call, error {number}')
