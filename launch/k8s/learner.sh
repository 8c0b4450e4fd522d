#!/usr/bin/env bash
# Runs launch/learner.py in a container, with all arguments. Kubernetes takes
# exit code 0 for "done", so a stopped learner ends with 143 and resumes on
# another node.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
stopped=''
interrupted=''
learner=''

# shellcheck disable=SC2329
stop() {
  stopped=yes
  interrupted=yes
  kill -TERM "$learner" 2>/dev/null || true
}

trap stop TERM INT
"${SEEDRL_VENV:-$root/.venv}/bin/python" "$root/launch/learner.py" "$@" &
learner=$!
# The signal may have come before `learner` was set.
[[ ! $stopped ]] || stop

status=0
while :; do
  interrupted=''
  wait "$learner" && status=0 || status=$?
  [[ $interrupted ]] || break
done
if [[ $stopped && $status == 0 ]]; then
  status=143
fi
exit "$status"
