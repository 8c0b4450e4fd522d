"""Many Reverb servers in one process; run by the server environment's Python.

Saves each test the seconds of importing Reverb. Reads lines of JSON from its
standard input, {"start": <as main.py takes it>} or {"stop": port}, and answers
each with a line.
"""

import importlib.util
import json
import sys

_MAIN = sys.argv[1]


def main() -> None:
  spec = importlib.util.spec_from_file_location('server_main', _MAIN)
  server_main = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(server_main)
  servers = {}
  for line in sys.stdin:
    request = json.loads(line)
    if 'stop' in request:
      servers.pop(request['stop']).stop()
      server_main._answer(stopped=request['stop'])
      continue
    try:
      server = server_main._serve(request['start'])
    except Exception as e:
      server_main._answer(error=str(e))
      continue
    servers[server.port] = server
    server_main._answer(port=server.port)


if __name__ == '__main__':
  main()
