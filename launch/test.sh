#!/usr/bin/env bash
# Checks lint, format and types, then runs the tests in two processes (`-n 0`:
# one, for a debugger). `--all` adds the learning tests, which take minutes
# each; other arguments go to pytest.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/launch/setup.sh" --extras=test,video

pytest_arguments=(-n 2 --dist=worksteal)
for argument in "$@"; do
  case $argument in
    # Undoes pyproject.toml's `-m 'not slow'` and its time limit.
    --all) pytest_arguments+=(-m '' -o faulthandler_timeout=10800) ;;
    *) pytest_arguments+=("$argument") ;;
  esac
done

cd "$root"
python=${SEEDRL_VENV:-$root/.venv}/bin/python
"$python" -m ruff check
"$python" -m ruff format --check
"$python" -m mypy
exec "$python" -m pytest "${pytest_arguments[@]}"
