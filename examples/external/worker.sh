#!/usr/bin/env bash
# A worker of external_worker_task in bash and curl. It renews its lease and reports its progress after each frame: a frame
# takes less than a third of the lease, so one process is enough. ../worker/worker.sh is one for commands that take longer.
#   ROWLOCK_API=http://127.0.0.1:8090 ROWLOCK_TOKEN=rlk_… ./worker.sh
set -uo pipefail
me="bash-$$-$RANDOM$RANDOM" lease=${ROWLOCK_LEASE:-30} # a new name for each process
stopping='' && trap 'stopping=1' TERM

ask() { # VERB BODY: repeats the request until the server answers; fails if it refuses
  local answer
  while true; do
    answer=$(curl --silent --max-time 60 --write-out '\n%{http_code}' --header "Authorization: Bearer $ROWLOCK_TOKEN" \
      --header 'Content-Type: application/json' --data "{\"worker\":\"$me\"${2:+,$2}}" "$ROWLOCK_API/api/worker/$1")
    case ${answer##*$'\n'} in
      2??) printf '%s' "${answer%$'\n'*}" && return 0 ;;
      000 | 429 | 5??) sleep 1 ;; # no server, or it is busy
      *) echo "$1: ${answer%$'\n'*}" >&2 && return 1 ;; # 409: this worker has lost the run
    esac
  done
}

render() { # FRAMES: the work
  local frame told
  for ((frame = 1; frame <= $1; frame++)); do
    sleep "${PACE:-0.5}"
    ask progress "$run,\"percent\":$((100 * frame / $1)),\"message\":\"frame $frame of $1\"" >/dev/null || return
    told=$(ask heartbeat "\"runs\":[{$run}],\"lease\":$lease") || return
    [[ $told == *'"hold":"kept"'* ]] || return # it is cancelled, or lost
  done
}

while [[ -z $stopping ]]; do
  job=$(ask claim "\"topics\":[\"external_worker_task@1\"],\"lease\":$lease,\"wait\":20,\"runs\":[]") || exit
  [[ $job =~ \"id\":\"([0-9a-f-]+)\",\"version\":([0-9]+) ]] || continue
  run="\"id\":\"${BASH_REMATCH[1]}\",\"version\":${BASH_REMATCH[2]}"
  [[ $job =~ \"frames\":([0-9]+) ]] && frames=${BASH_REMATCH[1]}
  [[ $job =~ \"target\":(\"([^\"\\]|\\.)*\") ]] && target=${BASH_REMATCH[1]} # with its quotes, as JSON
  if render "$frames"; then
    ask complete "$run,\"result\":{\"target\":$target,\"frames\":$frames}"
  else
    ask give-up "$run" # acknowledges the cancel; refused if the run is lost, which is as well
  fi
  echo
done
ask goodbye ''
