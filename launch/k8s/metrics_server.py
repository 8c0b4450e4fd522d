"""Serves the newest row of a run's metrics.csv as JSON, for autoscalers.

`python launch/k8s/metrics_server.py --workdir=… --port=8080` answers any GET,
with status 503 if no run trains in the work directory.
"""

import csv
import functools
import http.server
import json
import pathlib
import sys
import time
from collections.abc import Sequence

from absl import app, flags

_WORKDIR = flags.DEFINE_string(
  'workdir',
  None,
  "A run's work directory, which need not exist.",
  required=True,
)
_PORT = flags.DEFINE_integer(
  'port', 8080, 'To listen on; 0: any.', lower_bound=0, upper_bound=65535
)
# A run writes a row every two seconds, except while it compiles or saves.
_STALE_SECONDS = 120.0


def newest_row(path: pathlib.Path) -> dict[str, float]:
  """Returns the last complete row of a metrics.csv; empty values are left out.

  Raises:
    OSError: if there is none, or it has not changed for minutes.
    ValueError: if it has no complete row yet.
  """
  if time.time() - path.stat().st_mtime > _STALE_SECONDS:
    raise TimeoutError(f'{path} is old')
  # What follows the last line's end is incomplete.
  names, *rows = path.read_text().split('\n')[:-1] or ['']
  header, values = csv.reader([names, *rows[-1:]])
  columns = zip(header, values, strict=True)
  return {name: float(value) for name, value in columns if value}


class _Handler(http.server.BaseHTTPRequestHandler):
  """Answers with a row of the file `path`."""

  def __init__(self, path: pathlib.Path, *args: object):
    self._path = path
    super().__init__(*args)  # type: ignore[arg-type]

  def do_GET(self) -> None:
    try:
      body, status = json.dumps(newest_row(self._path)), 200
    except (OSError, ValueError) as e:
      body, status = json.dumps({'error': str(e)}), 503
    self.send_response(status)
    self.send_header('Content-Type', 'application/json')
    self.end_headers()
    self.wfile.write(body.encode())

  def log_message(self, *args: object) -> None:
    """Says nothing: it is asked several times a minute."""


def main(argv: Sequence[str]) -> None:
  """Serves until it is ended."""
  if len(argv) > 1:
    sys.exit(f'metrics_server: unexpected arguments: {" ".join(argv[1:])}')
  path = pathlib.Path(_WORKDIR.value, 'metrics.csv')
  handler = functools.partial(_Handler, path)
  try:
    server = http.server.ThreadingHTTPServer(('', _PORT.value), handler)
  except OSError as e:
    sys.exit(f'metrics_server: --port={_PORT.value}: {e.strerror}.')
  print(f'serves {path} on port {server.server_port}', flush=True)
  server.serve_forever()


if __name__ == '__main__':
  app.run(main)
