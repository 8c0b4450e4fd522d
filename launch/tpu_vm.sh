#!/usr/bin/env bash
# Trains on the hosts of a Cloud TPU VM slice with gcloud; see --help.
#
# On each worker the tree is ~/seedrl-jax. Its learner locks learner.lock, which
# holds its process id, and writes learner.log.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly ROOT
# In a worker's home directory.
readonly REMOTE=seedrl-jax
# Between questions to gcloud.
readonly POLL_SECONDS=60

usage() {
  cat <<'END'
Usage: launch/tpu_vm.sh COMMAND --name=NAME [OPTION]...

Commands:
  create  makes the slice, unless it exists
  setup   copies this tree to all workers and installs or updates it
  train   starts launch/learner.py on all workers and returns; every argument
          that is no option below, and all after --, goes to the learner
  logs    follows the log of a worker's learner, until Ctrl-C
  stop    makes the learners save a last checkpoint and end
  delete  deletes the slice, with all that is on it; asks first

Options, with the environment variables that stand for them:
  --name=NAME        SEEDRL_TPU_NAME     of the slice; needed
  --zone=ZONE        SEEDRL_TPU_ZONE     default: what gcloud is configured for
  --project=PROJECT  SEEDRL_TPU_PROJECT  default: what gcloud is configured for
  --type=TYPE        SEEDRL_TPU_TYPE     of create; default: v5litepod-16
  --version=VERSION  SEEDRL_TPU_VERSION  of create: the runtime; default: the
                                         type's
  --spot             SEEDRL_TPU_SPOT=1   of create: cheaper, may be taken away
  --queued           SEEDRL_TPU_QUEUED=1 of create: waits in the queue for room
  --backup=URL       SEEDRL_TPU_BACKUP   of train: where in a bucket, as in
                                         gs://bucket/run, copies of the work
                                         directory go, every five minutes and
                                         at the end; a slice without the run
                                         gets it back from there
  --restart                              of train: waits for the end, and makes
                                         the slice anew if it is taken away;
                                         needs --backup, and options of create
  --worker=N                             of logs; default: 0
  --yes                                  of delete: does not ask

Without --backup only the disks of the slice hold what a run has saved.
The hosts find each other by themselves. Each steps as many environments as
--config.env.num_envs says; with --config.actors.max_envs, actors on other
machines may bring more. The hosts share --config.batch_size: multiply what is
good for one by their number.
Without --workdir a run is in runs/NAME, and so the same command resumes it.
END
}

say() { printf 'tpu_vm: %s\n' "$*"; }

die() {
  printf 'tpu_vm: %s\n' "$*" >&2
  exit 1
}

parse_arguments() {
  command=${1:-}
  case $command in
    create | setup | train | logs | stop | delete) shift ;;
    -h | --help | help)
      usage
      exit
      ;;
    '') die 'name a command: create, setup, train, logs, stop or delete.' ;;
    *) die "$command is no command; there are create, setup, train, logs," \
      'stop and delete (--help).' ;;
  esac
  name=${SEEDRL_TPU_NAME:-}
  zone=${SEEDRL_TPU_ZONE:-}
  project=${SEEDRL_TPU_PROJECT:-}
  type=${SEEDRL_TPU_TYPE:-v5litepod-16}
  version=${SEEDRL_TPU_VERSION:-}
  spot=${SEEDRL_TPU_SPOT:-}
  queued=${SEEDRL_TPU_QUEUED:-}
  backup=${SEEDRL_TPU_BACKUP:-}
  restart=''
  worker=0
  yes=''
  rest=()
  while (($#)); do
    case $1 in
      --name=*) name=${1#*=} ;;
      --zone=*) zone=${1#*=} ;;
      --project=*) project=${1#*=} ;;
      --type=*) type=${1#*=} ;;
      --version=*) version=${1#*=} ;;
      --spot) spot=1 ;;
      --queued) queued=1 ;;
      --restart) restart=1 ;;
      --backup=*) backup=${1#*=} ;;
      --worker=*) worker=${1#*=} ;;
      --yes) yes=1 ;;
      -h | --help)
        usage
        exit
        ;;
      --)
        rest+=("${@:2}")
        break
        ;;
      *) rest+=("$1") ;;
    esac
    shift
  done
  [[ $command == train || ${#rest[@]} == 0 ]] ||
    die "${rest[0]} is no option of $command; they are in --help."
  [[ $name ]] || die '--name is missing; give the name of the TPU slice.'
  [[ $name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] ||
    die "--name=$name: may have small letters, digits and hyphens only."
  [[ ! $backup || $backup =~ ^gs://[^/]+/. ]] ||
    die "--backup=$backup: must be a folder of a bucket, as in gs://bucket/run."
  [[ ! $restart || $backup ]] ||
    die '--restart needs --backup=gs://bucket/run to resume from.'
  [[ $worker =~ ^[0-9]+$ ]] ||
    die "--worker=$worker: must be a number; the first worker is 0."
}

# tpu COMMAND ARGUMENT...: calls gcloud with the zone and the project.
tpu() {
  gcloud compute tpus "${kind:-tpu-vm}" "$@" --quiet \
    ${zone:+"--zone=$zone"} ${project:+"--project=$project"}
}

# The same for requests in the queue; each has its slice's name.
queue() { kind=queued-resources tpu "$@"; }

# on WORKER SCRIPT: runs a script in the tree of a worker, or of all of them.
on() {
  tpu ssh "$name" "--worker=$1" "--command=cd $REMOTE && { $2
}"
}

# Sets `state` to the slice's state; empty if there is no slice.
find_state() {
  local answer
  if answer=$(tpu describe "$name" '--format=value(state)' 2>&1); then
    # Before the last line come gcloud's remarks.
    state=${answer##*$'\n'}
  elif [[ $answer == *NOT_FOUND* || $answer == *'not found'* ]]; then
    state=''
  else
    die "gcloud cannot tell about $name: $answer"
  fi
}

warn_of_loss() {
  say "$name may be taken away at any time, with all that is on it; to keep" \
    'what a run saves, give train --backup=gs://bucket/run.'
}

# Sets `version` to the runtime for `type`, unless it is given.
choose_version() {
  [[ ! $version ]] || return 0
  # Google's list: https://cloud.google.com/tpu/docs/runtimes
  case $type in
    v[234]-*) version=tpu-ubuntu2204-base ;;
    v5litepod-*) version=v2-alpha-tpuv5-lite ;;
    v5p-*) version=v2-alpha-tpuv5 ;;
    v6e-*) version=v2-alpha-tpuv6e ;;
    *) die "--type=$type: its runtime is not known here; give --version." ;;
  esac
}

create() {
  choose_version
  find_state
  case $state in
    '') ;;
    PREEMPTED | TERMINATED)
      die "$name is $state, and only what its runs saved to a --backup is" \
        'elsewhere; if you need nothing more of it, make room with:' \
        "launch/tpu_vm.sh delete --name=$name"
      ;;
    *)
      say "$name exists already ($state)."
      return
      ;;
  esac
  if [[ $queued ]]; then
    wait_in_queue
  else
    tpu create "$name" "--accelerator-type=$type" "--version=$version" \
      ${spot:+--spot} || die "gcloud could not create $name, see above."
  fi
  say "created $name ($type); next: launch/tpu_vm.sh setup --name=$name"
  [[ ! $spot ]] || warn_of_loss
}

# Requests the slice, unless that was done before, and waits until it is there.
wait_in_queue() {
  queue describe "$name" >/dev/null 2>&1 ||
    queue create "$name" "--node-id=$name" "--accelerator-type=$type" \
      "--runtime-version=$version" ${spot:+--spot} ||
    die "gcloud could not request $name, see above."
  while :; do
    state=$(queue describe "$name" '--format=value(state.state)') || state='?'
    state=${state##*$'\n'}
    case $state in
      ACTIVE) return ;;
      FAILED | SUSPEND*) die "the request for $name is $state; delete it." ;;
    esac
    say "the request for $name is $state"
    sleep "$POLL_SECONDS"
  done
}

# Prints a script that fails if a learner runs.
refuse_running() {
  cat <<'END'
flock --nonblock learner.lock true || {
  echo "tpu_vm: a learner runs on $(hostname) already; end it with: launch/tpu_vm.sh stop" >&2
  exit 1
}
END
}

setup() {
  local archive
  git -C "$ROOT" rev-parse --git-dir >/dev/null 2>&1 ||
    die "$ROOT is no git clone, which tells what to copy; make one, or git init."
  archive=$(mktemp -d)
  # Expands now, as the variable is local.
  # shellcheck disable=SC2064
  trap "rm -rf '$archive'" EXIT
  # All files that git does not ignore, committed or not.
  git -C "$ROOT" ls-files -z --cached --others --exclude-standard |
    tar --create --gzip --file="$archive/seedrl-jax.tgz" --directory="$ROOT" \
      --ignore-failed-read --null --files-from=-
  tpu ssh "$name" --worker=all "--command=mkdir -p $REMOTE" ||
    die "no ssh to all workers of $name, see above."
  on all "$(refuse_running)" ||
    die "not all workers of $name are ready to be set up, see above."
  tpu scp "$archive/seedrl-jax.tgz" "$name:$REMOTE/" --worker=all ||
    die "the tree could not be copied to all workers of $name, see above."
  say "installing on all workers of $name; the first time takes some minutes"
  on all "$(install_script)" ||
    die 'the installation failed on a worker, see above; run this again.'
  say "ready; next: launch/tpu_vm.sh train --name=$name -- --config=…"
}

install_script() {
  cat <<'END'
set -e
rm -rf configs launch seedrl_jax tests
tar --extract --gzip --file=seedrl-jax.tgz
rm seedrl-jax.tgz
SEEDRL_ACCELERATOR=tpu launch/setup.sh --extras=tpu
END
}

train() {
  local argument arguments='' workdir='' previous='' copy='' follow=''
  for argument in ${rest[@]+"${rest[@]}"}; do
    case $argument in
      --workdir=* | -workdir=*) workdir=${argument#*=} ;;
    esac
    case $previous in
      --workdir | -workdir) workdir=$argument ;;
    esac
    previous=$argument
  done
  if [[ ! $workdir ]]; then
    workdir=runs/$name
    rest=("--workdir=$workdir" ${rest[@]+"${rest[@]}"})
  fi
  printf -v arguments ' %q' "${rest[@]}"
  if [[ $backup ]]; then
    printf -v copy '%q %q' "$workdir" "$backup"
    follow="setsid launch/backup.sh follow $copy \"\$(cat learner.lock)\" \
</dev/null >>learner.log 2>&1 &"
    copy="&& launch/backup.sh restore $copy"
  elif tpu describe "$name" '--format=value(schedulingConfig.spot)' \
    2>/dev/null | grep -q True; then
    warn_of_loss
  fi
  # Checks all before any starts: half a job would wait for the other half.
  on all "$(refuse_running)
.venv/bin/python launch/learner.py$arguments --only_check_args $copy" ||
    die "nothing was started: see what the workers of $name say above."
  # Learner and backup inherit the lock, and outlive this connection as they
  # have their own sessions.
  on all "exec 9>>learner.lock
flock --nonblock 9 || {
  echo \"tpu_vm: another learner has just started on \$(hostname).\" >&2
  exit 1
}
setsid .venv/bin/python launch/learner.py$arguments \
</dev/null >>learner.log 2>&1 &
echo \$! >learner.lock
printf %s $(printf %q "$backup") >learner.backup
$follow" ||
    die "not all workers of $name have started; stop the others with:" \
      "launch/tpu_vm.sh stop --name=$name"
  say "training on all workers of $name; follow it with:" \
    "launch/tpu_vm.sh logs --name=$name"
  [[ ! $restart ]] || keep_training
}

# Waits for the learners' end; makes the slice anew whenever it is taken away.
keep_training() {
  export SEEDRL_TPU_NAME=$name SEEDRL_TPU_ZONE=$zone SEEDRL_TPU_TYPE=$type \
    SEEDRL_TPU_PROJECT=$project SEEDRL_TPU_VERSION=$version \
    SEEDRL_TPU_SPOT=$spot SEEDRL_TPU_QUEUED=$queued SEEDRL_TPU_BACKUP=$backup
  local lost=''
  while sleep "$POLL_SECONDS"; do
    # An answer may fail to come; the next one will.
    state=$(find_state && printf %s "$state") || continue
    [[ ! $state || $state == PREEMPTED || $state == TERMINATED ]] && lost=1
    if [[ $lost ]]; then
      say "$name is ${state:-gone}; making it anew"
      "$0" delete --yes && "$0" create && "$0" setup &&
        "$0" train -- "${rest[@]}" && lost=''
    elif [[ $state == READY ]] &&
      on all 'flock --nonblock learner.lock true' 2>/dev/null; then
      say "the learners of $name have ended; see launch/tpu_vm.sh logs"
      return
    fi
  done
}

logs() {
  tpu ssh "$name" "--worker=$worker" \
    "--command=tail -n 100 -F $REMOTE/learner.log"
}

stop_script() {
  cat <<'END'
if flock --nonblock learner.lock true; then
  echo "tpu_vm: no learner runs on $(hostname)."
else
  kill -TERM "$(cat learner.lock)" ||
    echo "tpu_vm: on $(hostname) a backup is still being written."
fi
END
}

stop() {
  on all "$(stop_script)" || die "not all workers of $name were reached, see above."
  say "asked the learners of $name to save and end; see launch/tpu_vm.sh logs"
}

delete() {
  local answer='' requested=''
  find_state
  ! queue describe "$name" >/dev/null 2>&1 || requested=1
  if [[ ! $state && ! $requested ]]; then
    say "there is no $name."
    return
  fi
  if [[ ! $yes ]]; then
    answer=$(on 0 'cat learner.backup' 2>/dev/null) || true
    printf 'tpu_vm: its last run has %s\n' \
      "${answer:+a copy in }${answer:-no copy elsewhere that is known of.}" >&2
    printf 'tpu_vm: delete %s and all that is on it? [y/N] ' "$name" >&2
    read -r answer || true
    [[ $answer == [yY] || $answer == [yY]es ]] ||
      die "$name was kept; answer y, or give --yes, to delete it."
  fi
  # A request is deleted with its slice.
  if [[ $requested ]]; then
    queue delete "$name" --force
  else
    tpu delete "$name"
  fi || die "gcloud could not delete $name, see above."
  say "deleted $name."
}

main() {
  parse_arguments "$@"
  command -v gcloud >/dev/null ||
    die 'gcloud is not here; install the Google Cloud CLI' \
      '(https://cloud.google.com/sdk/docs/install) and run: gcloud init'
  "$command"
}

main "$@"
