#!/usr/bin/env bash
# A worker in bash and curl, for jobs that are over within their lease.
#   ROWLOCK_API=http://127.0.0.1:8090 ROWLOCK_TOKEN=rlk_… ./worker.sh greet
set -euo pipefail

ask() {
  curl --silent --show-error --max-time 60 --header "Authorization: Bearer $ROWLOCK_TOKEN" \
    --header 'Content-Type: application/json' --data "$2" "$ROWLOCK_API/api/worker/$1"
}

while true; do
  # id and version come first in the answer, before the payload.
  job=$(ask claim "{\"worker\": \"bash-$$\", \"topics\": [\"$1\"], \"lease\": 60, \"wait\": 20}") || { sleep 1; continue; }
  [[ $job =~ \"id\":\"([0-9a-f-]+)\",\"version\":([0-9]+) ]] || continue
  run="\"worker\": \"bash-$$\", \"id\": \"${BASH_REMATCH[1]}\", \"version\": ${BASH_REMATCH[2]}"
  if result=$(printf 'done by %s' "$(hostname)"); then # the work
    ask complete "{$run, \"result\": \"$result\"}"
  else
    ask fail "{$run, \"error\": \"exit code $?\"}"
  fi
  echo
done
