#!/usr/bin/env bash
# Runs launch/learner.py in a container, with all arguments. learner.yaml calls
# it, because Kubernetes takes exit code 0 for "done", also of a learner that
# was told to leave its node: that one ends here with 143, and goes on elsewhere
# from the checkpoint that it saved.
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
# The signal may have come just before this was known.
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
