"""Why an actor and a learner that is there cannot agree on TLS.

gRPC only says that no connection came about. `call` then asks the port itself:
a handshake of TLS, by Python's own `ssl`, which says what is wrong. Nothing
else is sent, so no token either.
"""

import socket
import ssl

from seedrl_jax.actors import addresses, credentials

# Seconds for the port to answer.
_SECONDS = 5.0
_OTHER_NAME = 'call the learner by a name that it holds, or make another'
# By OpenSSL's codes of what is wrong with a certificate.
_ADVICE = {10: 'make a new one', 62: _OTHER_NAME, 64: _OTHER_NAME}


def disagreement(address: addresses.Address, roots: bytes) -> str:
  """Returns what about TLS keeps an actor from its learner; '' if nothing.

  Args:
    address: of the learner; no unix socket.
    roots: PEM of the authorities that the actor trusts; empty: it calls
      without TLS.
  """
  host, _, port = address.text.rpartition(':')
  host = host.removeprefix('[').removesuffix(']')
  try:
    with (
      socket.create_connection((host, int(port)), _SECONDS) as connection,
      credentials.tls_context(roots).wrap_socket(
        connection, server_hostname=host
      ),
    ):
      is_tls = True
  except ssl.SSLCertVerificationError as e:
    advice = _ADVICE.get(e.verify_code, 'give its authority by --tls_roots')
    return (
      f'the certificate at {address.text} is refused '
      f'({e.verify_message.rstrip(".")}): {advice}.'
    )
  except TimeoutError:
    return ''
  except (ssl.SSLError, ConnectionResetError):
    is_tls = False
  except (OSError, UnicodeError):
    return ''
  if is_tls and not roots:
    return (
      f'{address.text} wants TLS: give its certificate, or its authority, by '
      '--tls_roots.'
    )
  if roots and not is_tls:
    return (
      f'there is no TLS at {address.text}: give the learner '
      '--config.actors.tls_certificate, or leave out --tls_roots.'
    )
  return ''
