#!/usr/bin/env bash
# Copies a run's work directory to a bucket with gcloud. On every worker:
#
#   launch/backup.sh restore WORKDIR URL     before its learner starts
#   launch/backup.sh follow WORKDIR URL PID  until its learner has ended
#
# Worker 0 owns all but hosts/, worker i owns hosts/i. A file named backup in
# each part has the URL of its copy.
set -euo pipefail

readonly SECONDS_BETWEEN=300
# Other workers' parts, unfinished files, and those of this machine only.
readonly SKIP='^(hosts|reverb)/.*|.*(-tmp|\.(tmp|partial|lock|sock))\b.*'
readonly METADATA=http://metadata.google.internal/computeMetadata/v1/instance

die() {
  printf 'backup: %s\n' "$*" >&2
  exit 1
}

copy() {
  gcloud storage rsync --recursive "--exclude=$SKIP" "$@"
}

# Restores the copy if there is no run here, and records the URL on both sides.
restore() {
  local found
  [[ ! -e $folder/backup || $(<"$folder/backup") != "$url" ]] || return 0
  if found=$(gcloud storage ls "$url/backup" 2>&1); then
    [[ ! -e $folder ]] ||
      die "$url has a run, and $folder another; give an empty --backup, or" \
        'move that folder away.'
    # Continues an interrupted copy.
    mkdir -p "$folder.partial"
    copy "$url" "$folder.partial"
    mv "$folder.partial" "$folder"
  elif [[ $found != *'matched no objects'* ]]; then
    die "$url cannot be read: $found"
  fi
  mkdir -p "$folder"
  printf '%s\n' "$url" >"$folder/backup.tmp"
  gcloud storage cp "$folder/backup.tmp" "$url/backup"
  mv "$folder/backup.tmp" "$folder/backup"
}

# Copies every few minutes, and once more when the process has ended.
follow() {
  local status=124
  # A machine that shuts down sends SIGTERM to all processes.
  trap '' TERM
  while ((status == 124)); do
    status=0
    timeout "$SECONDS_BETWEEN" tail --pid="$1" -f /dev/null || status=$?
    # Copy what is new before deleting what is old.
    copy "$folder" "$url" &&
      copy "$folder" "$url" --delete-unmatched-destination-objects ||
      printf 'backup: %s is not up to date, see above.\n' "$url" >&2
  done
}

part=$(curl --silent --show-error --fail --header 'Metadata-Flavor: Google' \
  "$METADATA/attributes/agent-worker-number") || die 'this is no worker of a TPU VM slice.'
part=${part/#0/}
folder=$2${part:+/hosts/$part}
url=${3%/}${part:+/hosts/$part}
"$1" "${@:4}"
