#!/usr/bin/env bash
# Sets up .venv, then runs launch/train.py with all arguments. A new run's default
# --config is V-trace on CartPole, the default --workdir a new folder in runs/.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/launch/setup.sh"

config=''
workdir=''
previous=''
for argument in "$@"; do
  case $argument in
    --config=* | -config=*) config=${argument#*=} ;;
    --workdir=* | -workdir=*) workdir=${argument#*=} ;;
  esac
  case $previous in
    --config | -config) config=$argument ;;
    --workdir | -workdir) workdir=$argument ;;
  esac
  previous=$argument
done

defaults=()
if [[ ! $config ]]; then
  config=vtrace_cartpole
fi
if [[ ! $workdir ]]; then
  # A config may take an argument after a colon: configs/file.py:argument.
  name=$(basename "${config%%:*}" .py)
  defaults+=("--workdir=$root/runs/$name-$(date +%Y%m%d-%H%M%S)")
fi
exec "${SEEDRL_VENV:-$root/.venv}/bin/python" "$root/launch/train.py" \
  "${defaults[@]}" "$@"
