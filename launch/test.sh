#!/usr/bin/env bash
# Checks the clone: lint, format, types, then the tests. `--all` adds the
# learning proofs, which take minutes each; other arguments go to pytest (two
# processes side by side run the tests; `-n 0` has them in one, for a debugger).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/launch/setup.sh" --extras=test

pytest_arguments=(-n 2 --dist=worksteal)
for argument in "$@"; do
  case $argument in
    # Undoes pyproject.toml's `-m 'not slow'`, and its limit of a test's time.
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
