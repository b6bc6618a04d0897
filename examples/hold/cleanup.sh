#!/bin/bash
# Usage: bash cleanup.sh FILE...
#
# Works under a lease that lives as long as descriptor 3: nothing refreshes it, nothing has to give it
# back, and it ends if this script is killed. Ends with 75 if somebody else has the key, with 69 if
# the service gives no lease for another reason, with 79 if the lease is lost.
set -eu

URL=${LOCKKEEPER_URL:-http://127.0.0.1:8080}
exec 3< <(exec curl -sN -X POST "$URL/hold/cleanup?ttl=3s")
trap "kill $! 2>/dev/null || true" EXIT # the key is free at once
read -r LINE <&3 || true # an error has no line break
case $LINE in
    *'"acquired"'*) ;;
    *'"lock_held"'*) exit 75 ;;
    *) echo "no lease: ${LINE:-$URL does not answer}" >&2; exit 69 ;;
esac
TOKEN=${LINE#*'"token":"'} TOKEN=${TOKEN%%'"'*}

# Reads what has come, and asks the service, because what has come may be old. Fails if the lease is
# lost, or the service gone or stopped.
BEGUN= # the first part of a line, whose rest may come later
still_mine() {
    local rest
    while read -r -t 0.01 rest <&3 || (($? <= 128)); do
        [[ $BEGUN$rest == *'"alive"'* ]] || return 1
        BEGUN=
    done
    BEGUN+=$rest
    curl -sf -m 1 -H "Lock-Token: $TOKEN" "$URL/locks/cleanup" | grep -q '"mine":true'
}

echo "at work"
for FILE; do
    still_mine || exit 79
    bash step.sh "$FILE" 3<&- # without 3<&- the step would keep the lease, as with flock
done
echo "done"
