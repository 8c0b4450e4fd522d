#!/usr/bin/env bash
# Checks lint, format and types, then runs the tests in two processes (`-n 0`:
# one, for a debugger). `--all` adds the learning tests, which take minutes
# each. `--oldest` runs the tests with the oldest dependencies that are
# supported and Python 3.11, in a new environment. Other arguments go to pytest.
#
# Some tests are skipped without a program: sudo apt-get install rsync shellcheck
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
extras=test,video

pytest_arguments=(-n 2 --dist=worksteal)
oldest=''
for argument in "$@"; do
  case $argument in
    # Undoes pyproject.toml's `-m 'not slow'` and its time limit.
    --all)
      pytest_arguments+=(-m '' -o faulthandler_timeout=10800)
      extras+=,craftax,jumanji
      ;;
    --oldest) oldest=yes ;;
    *) pytest_arguments+=("$argument") ;;
  esac
done

"$root/launch/setup.sh" --extras=$extras
cd "$root"
python=${SEEDRL_VENV:-$root/.venv}/bin/python
if [[ $oldest ]]; then
  # The lower bounds in pyproject.toml, which pip cannot choose by itself, in a
  # new environment, as uv keeps what is installed.
  export SEEDRL_VENV=$root/.venv-oldest
  command -v python3.11 >/dev/null || {
    echo 'test: --oldest needs python3.11 on the PATH; install it.' >&2
    exit 1
  }
  python3.11 -m venv --clear "$SEEDRL_VENV"
  python=$SEEDRL_VENV/bin/python
  "$python" -m pip install --quiet --disable-pip-version-check uv
  "$python" -m uv pip install --quiet --python="$python" \
    --resolution=lowest-direct --editable=".[$extras]"
else
  "$python" -m ruff check
  "$python" -m ruff format --check
  "$python" -m mypy
fi
exec "$python" -m pytest "${pytest_arguments[@]}"
