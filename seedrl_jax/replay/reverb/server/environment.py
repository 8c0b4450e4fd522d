"""Finds the Reverb server's Python, or builds it with uv, once per user."""

import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys

from seedrl_jax.runtime import process

VARIABLE = 'SEEDRL_REVERB_PYTHON'
# Of dm-reverb, which also needs TensorFlow 2.15 and NumPy 1.
_PYTHONS = '>=3.9,<3.12'
_REQUIREMENTS = pathlib.Path(__file__).with_name('requirements.txt')
_PROBE = 'import importlib.util as u; exit(not u.find_spec("reverb"))'
# Arguments: uv, a Python, the folder, the requirements. A build that outlives
# its starter keeps the lock. --no-deps omits TensorBoard and others. The import
# compiles Reverb for the first start. Exit code 3: no Python.
_BUILD = """set -eu
exec 9>>"$2.lock"
flock 9
[ -e "$2/bin/python" ] && [ -e "$2/complete" ] && exit
exec 3>&2 </dev/null >"$2.log" 2>&1
set -x
rm -rf "$2"
"$0" venv --python="$1" "$2" || exit 3
echo "reverb: building $2, once:" \
  'about 30 s, 250 MB to download, 1 GB on disk.' >&3 || :
exec 3>&-
"$0" pip install --python="$2/bin/python" --no-deps --only-binary=:all: -r "$3"
"$2/bin/python" -I -c 'import reverb'
touch "$2/complete"
"""


class EnvironmentUnavailable(RuntimeError):
  """No Python can run a Reverb server, and none can be made."""


class NoReverb(EnvironmentUnavailable):
  """Reverb is not published for this machine or for any Python on it."""


def ensure(named: str | None = None) -> str:
  """Returns the path of a Python that has Reverb; builds it if missing.

  `named` is the value of --reverb_python; SEEDRL_REVERB_PYTHON by default.
  Raises EnvironmentUnavailable, or `NoReverb` if there can be none.
  """
  if (sys.platform, platform.machine()) != ('linux', 'x86_64'):
    raise NoReverb(
      f'Reverb is published for Linux on x86_64 only, not for {sys.platform} '
      f'on {platform.machine()}; use --config.replay.backend=embedded, or a '
      'server on another machine (--config.replay.address).'
    )
  # If this Python is too new, uv finds another or downloads one.
  subject, base = '', _PYTHONS
  if named := named or os.environ.get(VARIABLE):
    subject = f'--reverb_python={named}: '
    base = os.path.abspath(shutil.which(named) or named)
    # A shell has an exit code for what cannot be run.
    probe = ['sh', '-c', '"$0" -I -c "$1"', base, _PROBE]
    if subprocess.run(probe, capture_output=True).returncode == 0:
      return base
  elif sys.version_info < (3, 12):
    base = os.path.realpath(sys.executable)
  key = hashlib.sha256(base.encode() + _REQUIREMENTS.read_bytes()).hexdigest()
  folder = process.cache_folder().absolute() / f'reverb-{key[:12]}'
  try:
    if not all((folder / x).exists() for x in ('bin/python', 'complete')):
      from uv import find_uv_bin  # An actor has no uv.

      folder.parent.mkdir(parents=True, exist_ok=True)
      pathlib.Path(f'{folder}.lock').touch()
      subprocess.run(
        ['sh', '-c', _BUILD, find_uv_bin(), base, folder, _REQUIREMENTS],
        check=True,
        # As pip does, uv trusts the certificates of the system.
        env={
          'UV_CACHE_DIR': f'{folder.parent}/uv',
          'UV_NATIVE_TLS': 'true',
          'UV_SYSTEM_CERTS': 'true',
          **os.environ,
        },
        # A project in the current folder does not configure uv.
        cwd=folder.parent,
      )
  except (ImportError, OSError, subprocess.CalledProcessError) as e:
    status = getattr(e, 'returncode', None)
    why = f'{e}: install uv, or set SEEDRL_CACHE to a writable folder'
    why = f'{folder}.log says why' if status else ' '.join(why.split())
    has_no_python = status == 3 and base == _PYTHONS
    raise (NoReverb if has_no_python else EnvironmentUnavailable)(
      f"{subject}the Reverb server's environment cannot be built ({why}); name "
      'a Python that has dm-reverb, or one from 3.9 to 3.11, by '
      '--reverb_python, or use --config.replay.backend=embedded.'
    ) from e
  return f'{folder}/bin/python'
