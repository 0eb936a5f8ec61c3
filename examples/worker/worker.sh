#!/usr/bin/env bash
# A worker in bash and curl. It runs a command for each job of a topic, with the job as JSON on stdin. The command's
# stdout is the result; if it fails, its stderr is the error. A command in bash can have steps: `step NAME COMMAND…` prints
# what the command prints, and stores it. If an earlier run has stored it, the command is not run again.
#   ROWLOCK_API=http://127.0.0.1:8090 ROWLOCK_TOKEN=rlk_… ./worker.sh greet ./handle.sh
set -uo pipefail
topic=$1 && shift
me="bash-$$-$RANDOM$RANDOM" lease=${ROWLOCK_LEASE:-30} # a new name for each process; whole seconds, 3 or more
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
stopping='' && trap 'stopping=1' TERM

ask() { # VERB BODY: repeats the request until the server answers; fails if it refuses
  local answer
  while true; do
    answer=$(printf '{"worker":"%s"%s}' "$me" "${2:+,$2}" | curl --silent --max-time 60 --write-out '\n%{http_code}' \
      --header "Authorization: Bearer $ROWLOCK_TOKEN" --header 'Content-Type: application/json' \
      --data-binary @- "$ROWLOCK_API/api/worker/$1")
    case ${answer##*$'\n'} in
      2??) printf '%s' "${answer%$'\n'*}" && return 0 ;;
      000 | 429 | 5??) sleep 1 ;; # no server, or it is busy
      *) echo "$1: ${answer%$'\n'*}" >&2 && return 1 ;; # 409: this worker has lost the run
    esac
  done
}

text() { # FILE: prints it as a JSON string
  local said
  said=$(tr -d '\000-\010\013-\037' <"$1")
  said=${said//\\/\\\\} said=${said//\"/\\\"} said=${said//$'\t'/\\t}
  printf '"%s"' "${said//$'\n'/\\n}"
}

step() { # NAME COMMAND…: a name of letters, digits, _ and -
  local n position
  echo "$1" >>"$scratch/calls"
  n=$(grep -cx -- "$1" "$scratch/calls") position=$(wc -l <"$scratch/calls")
  local stored="\"name\":\"$1\",\"n\":$n,[^{}]*\"state\":\"succeeded\",\"result\":\"(([^\"\\]|\\.)*)\""
  if [[ $(<"$scratch/steps") =~ $stored ]]; then
    printf '%b\n' "${BASH_REMATCH[1]}" && return
  fi
  "${@:2}" >"$scratch/step" || return
  local said="\"name\":\"$1\",\"n\":$n,\"position\":$((position)),\"state\":\"succeeded\""
  ask checkpoint "$run,$said,\"result\":$(text "$scratch/step")" >/dev/null && printf '%s\n' "$(<"$scratch/step")"
}
export -f ask text step # for commands in bash
export me scratch run

keep() { # RUN PID: renews the lease until the run is cancelled or lost, or this worker is dead
  while sleep "$((lease / 3))" && kill -0 "$$"; do
    [[ $(ask heartbeat "\"runs\":[{$1}],\"lease\":$lease") == *'"hold":"kept"'* ]] || kill "$2"
  done
}

while [[ -z $stopping ]]; do
  job=$(ask claim "\"topics\":[\"$topic\"],\"lease\":$lease,\"wait\":20,\"runs\":[]") || exit
  [[ $job =~ ^\{\"items\":\[\{(\"id\":\"[0-9a-f-]+\",\"version\":[0-9]+)(.*)$ ]] || continue
  run=${BASH_REMATCH[1]} rest=${BASH_REMATCH[2]}
  : >"$scratch/calls" >"$scratch/steps"
  if [[ $rest =~ ^,\"topic\":\"[^\"]*\",\"template_version\":[0-9]+,\"step\":\" ]]; then
    ask steps "$run" >"$scratch/steps" || continue # null: no step is stored
  fi
  "$@" <<<"${job:10:-2}" >"$scratch/result" 2>"$scratch/error" &
  handler=$!
  keep "$run" "$handler" >/dev/null 2>&1 &
  keeper=$!
  wait "$handler" && code=0 || code=$?
  while kill -0 "$handler" 2>/dev/null; do wait "$handler" && code=0 || code=$?; done # a signal to this worker ends `wait` early
  kill "$keeper"
  if [[ $code == 0 ]]; then
    ask complete "$run,\"result\":$(text "$scratch/result")"
  else
    ask fail "$run,\"type\":\"exit code $code\",\"error\":$(text "$scratch/error")"
  fi
  echo
done
ask goodbye ''
