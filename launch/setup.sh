#!/usr/bin/env bash
# Makes or updates the virtual environment:
#
#   launch/setup.sh [--extras=test,video]
#   launch/setup.sh --actor
#
# Installs missing system packages with apt, as root or if sudo needs no
# password; otherwise says how. Extras add up over calls. With --actor there is
# only what launch/actor.py needs, so no JAX. Environment variables:
#   SEEDRL_VENV         folder of the environment; default: .venv in the clone
#   SEEDRL_PYTHON       interpreter to make it with; default: the newest found
#   SEEDRL_ACCELERATOR  cpu, cuda12, cuda13 or tpu; default: what is here
#
# A stamp in the environment says what it was made for. It is written last, so
# the next call continues an interrupted installation.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly ROOT
readonly VENV=${SEEDRL_VENV:-$ROOT/.venv}
readonly STAMP=$VENV/.seedrl-stamp
readonly PIP_LOG=$VENV/pip.log
readonly UNFINISHED=unfinished
# The system packages that the environment needs.
readonly TABLE=$ROOT/seedrl_jax/envs/libraries.txt
# Time to wait for other uses of apt.
readonly APT_SECONDS=600
# Those of pyproject.toml's dependencies that an actor needs.
readonly ACTOR_PACKAGES='absl-py envpool grpcio gymnasium ml_collections numpy'
readonly ACCELERATORS='cuda12 cuda13 tpu'
# Oldest NVIDIA drivers for CUDA 12 and 13.
readonly CUDA12_DRIVER=525 CUDA13_DRIVER=580
# Oldest cards for CUDA 13: compute capability 7.5.
readonly CUDA13_CAPABILITY=75

say() { printf 'setup: %s\n' "$*"; }

die() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# Prints the words of all arguments, sorted, without duplicates.
unique() { printf '%s\n' "$@" | tr ' ,' '\n' | sort -u | xargs; }

parse_arguments() {
  extras=''
  only=''
  for argument in "$@"; do
    case $argument in
      --extras=*) extras=$(unique "$extras" "${argument#--extras=}") ;;
      --actor) only=actor ;;
      --help)
        # The comment above, without its marks.
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit
        ;;
      *) die "$argument is not an option; there are --extras=a,b and --actor." ;;
    esac
  done
  [[ ! ($only && $extras) ]] || die 'give --actor or --extras, not both.'
  for argument in $extras; do
    # Its line in [project.optional-dependencies]; pip would only warn.
    grep -q "^$argument = \[" "$ROOT/pyproject.toml" ||
      die "--extras=$argument: pyproject.toml has no such extra."
  done
}

# Prints the first interpreter that is new enough and has ensurepip (Debian's
# python3 alone has not); otherwise fails and prints the packages to install.
find_python() {
  local name version incomplete=''
  for name in ${SEEDRL_PYTHON:-python3.14 python3.13 python3.12 python3.11 \
    python3}; do
    version=$("$name" -c 'import sys
if sys.version_info >= (3, 11): print("%d.%d" % sys.version_info[:2])' \
      2>/dev/null) || continue
    [[ $version ]] || continue
    if "$name" -c 'import ensurepip, venv' 2>/dev/null; then
      echo "$name"
      return
    fi
    incomplete=${incomplete:-$version}
  done
  if [[ $incomplete ]]; then
    echo "python$incomplete-venv"
  elif [[ ${SEEDRL_PYTHON:-} ]]; then
    die "SEEDRL_PYTHON=$SEEDRL_PYTHON is not a working Python 3.11 or newer;" \
      "name another, or unset it."
  elif command -v python3 >/dev/null; then
    # Ubuntu 22.04, for one, has a newer one, too.
    echo python3.11 python3.11-venv
  else
    echo python3 python3-venv
  fi
  return 1
}

# Sets `python`, and `packages` to the missing system packages.
inspect_system() {
  local name package user
  packages=()
  python=$VENV/bin/python
  if [[ $remake ]] && ! python=$(find_python); then
    [[ $python ]] || exit 1
    read -ra packages <<<"$python"
    python=python3
  fi
  while read -r name package user; do
    case $user in
      EnvPool) "$python" -c "import ctypes; ctypes.CDLL('$name')" ;;
      test) [[ " $extras " != *' test '* ]] || command -v "$name" ;;
    esac >/dev/null 2>&1 || packages+=("$package")
  done <"$TABLE"
}

apt_install() {
  local try output apt=(env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get --quiet
    -o "DPkg::Lock::Timeout=$APT_SECONDS")
  command -v apt-get >/dev/null ||
    die "there is no apt-get; install what Debian calls $*."
  if [[ $(id -u) != 0 ]]; then
    sudo -n true 2>/dev/null ||
      die "install what is missing with: sudo apt-get install --yes $*"
    apt=(sudo -n "${apt[@]}")
  fi
  say "installing with apt-get: $*"
  # apt does not wait for the lock of its lists.
  for ((try = 0; try < 12; try++)); do
    output=$("${apt[@]}" update 2>&1) && break
    printf '%s\n' "$output" >&2
    [[ $output == *'get lock'* ]] || break
    sleep 5
  done
  output=$("${apt[@]}" install --yes --no-install-recommends "$@" 2>&1) || {
    printf '%s\n' "$output" >&2
    die 'apt-get failed, see above; run this again to continue.'
  }
}

# Sets `python` and installs what is missing.
complete_system() {
  inspect_system
  ((${#packages[@]})) || return 0
  apt_install "${packages[@]}"
  inspect_system
  ((${#packages[@]} == 0)) ||
    die "apt-get has installed it, but ${packages[*]} is still missing."
}

# Succeeds if CUDA 13 supports all cards.
cards_support_cuda13() {
  local capability capabilities
  capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader)
  for capability in ${capabilities//./}; do
    ((capability >= CUDA13_CAPABILITY)) || return 1
  done
}

# Prints cuda13, cuda12, tpu, or nothing.
detect_accelerator() {
  local driver
  if driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader \
    2>/dev/null); then
    driver=${driver%%.*}
    if [[ ! $driver =~ ^[0-9]+$ ]]; then
      return 0
    elif ((driver >= CUDA13_DRIVER)) && cards_support_cuda13; then
      echo cuda13
    elif ((driver >= CUDA12_DRIVER)); then
      echo cuda12
    else
      say "NVIDIA driver $driver is older than $CUDA12_DRIVER:" \
        'the GPU stays unused.' >&2
    fi
  # A TPU VM shows its chips as these devices, and Google (0x1ae0) on its bus.
  elif [[ -e /dev/accel0 || -e /dev/vfio/0 ]] &&
    grep -qs 0x1ae0 /sys/bus/pci/devices/*/vendor; then
    echo tpu
  fi
}

# Adds the stamp's extras and the accelerator's to `extras`. JAX's plugins for
# accelerators exclude each other, so an environment has one.
complete_extras() {
  local installed='' before='' wanted='' extra
  [[ $only ]] && return
  [[ -f $STAMP ]] && installed=$(sed -n 2p "$STAMP")
  for extra in $ACCELERATORS; do
    [[ " $extras " == *" $extra "* ]] && wanted=$extra
    [[ " $installed " == *" $extra "* ]] && before=$extra
  done
  if [[ ! $wanted ]]; then
    case ${SEEDRL_ACCELERATOR:-auto} in
      auto) wanted=${before:-$(detect_accelerator)} ;;
      cpu) wanted='' ;;
      cuda12 | cuda13 | tpu) wanted=$SEEDRL_ACCELERATOR ;;
      *) die "SEEDRL_ACCELERATOR=$SEEDRL_ACCELERATOR is none of auto, cpu," \
        "${ACCELERATORS// /, }." ;;
    esac
  fi
  if [[ $before && $before != "$wanted" ]]; then
    remake="it was made for $before"
    installed=${installed//$before/}
  fi
  extras=$(unique "$extras" "$installed" "$wanted")
}

# Sets `remake` to a reason if the environment cannot be kept.
inspect_environment() {
  local have want
  if [[ ! -d $VENV ]]; then
    remake='it does not exist'
  elif ! have=$("$VENV/bin/python" -I -c \
    'import pip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then
    remake='its Python or pip does not run'
  elif [[ ${SEEDRL_PYTHON:-} ]] && want=$("$SEEDRL_PYTHON" -c \
    'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) &&
    [[ $have != "$want" ]]; then
    remake="it has Python $have, and SEEDRL_PYTHON is $want"
  fi
}

# Prints a digest of what the environment depends on.
fingerprint() {
  {
    cat "$ROOT/pyproject.toml" "$TABLE"
    printf '%s\n' "$ROOT" "$extras" "$only"
    readlink -f "$VENV/bin/python"
    "$VENV/bin/python" -I --version
  } | sha256sum | cut -d ' ' -f 1
}

# Succeeds if the stamp fits and the packages are there.
up_to_date() {
  local modules='absl envpool grpc ml_collections seedrl_jax'
  [[ $only ]] || modules+=' flax jax optax rlax'
  [[ ! $remake && -f $STAMP ]] &&
    [[ $(sed -n 1p "$STAMP") == "$(fingerprint)" ]] &&
    "$VENV/bin/python" -I -c "
import importlib.util, sys
names = '$modules'.split()
sys.exit(any(importlib.util.find_spec(name) is None for name in names))"
}

write_stamp() { printf '%s\n' "$1" "$extras" >"$STAMP"; }

make_environment() {
  say "making $VENV with $("$python" --version) ($remake)"
  if [[ -e $VENV && ! -e $VENV/pyvenv.cfg && ! -e $STAMP ]]; then
    # Fails unless the folder is empty.
    rmdir "$VENV" 2>/dev/null ||
      die "$VENV is there and is no virtual environment; move it away."
  fi
  rm -rf "$VENV"
  mkdir -p "$VENV"
  write_stamp "$UNFINISHED"
  "$python" -m venv "$VENV" || die "$python -m venv failed, see above."
}

# Prints an actor's dependencies from pyproject.toml, one a line.
actor_requirements() {
  sed -n "s/^  \"\(\(${ACTOR_PACKAGES// /\\|}\)[<>=].*\)\",\$/\1/p" \
    "$ROOT/pyproject.toml"
}

pip_install() {
  "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input \
    "$@" >>"$PIP_LOG" 2>&1 && return
  tail -n 20 "$PIP_LOG" >&2
  die "pip failed, see above and $PIP_LOG; run this again to continue."
}

install_package() {
  local target=$ROOT
  [[ $extras ]] && target+="[${extras// /,}]"
  say "installing $target; the first time takes one to two minutes; log: $PIP_LOG"
  : >"$PIP_LOG"
  write_stamp "$UNFINISHED"
  if [[ $only ]]; then
    local packages
    mapfile -t packages < <(actor_requirements)
    pip_install "${packages[@]}"
    pip_install --no-deps --editable "$target"
  else
    pip_install --editable "$target"
  fi
  write_stamp "$(fingerprint)"
  say "ready: $VENV"
}

main() {
  remake=''
  parse_arguments "$@"
  mkdir -p "$(dirname "$VENV")"
  # One set-up at a time. pip inherits the lock and keeps it if this script is
  # killed.
  exec 9>"$VENV.lock"
  if ! flock --nonblock 9; then
    say 'waiting for another set-up of the same environment'
    flock 9
  fi
  complete_extras
  inspect_environment
  up_to_date && return
  complete_system
  if [[ $remake ]]; then
    make_environment
    remake=''
  fi
  install_package
}

main "$@"
