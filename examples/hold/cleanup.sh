#!/bin/bash
# Usage: bash cleanup.sh FILE...
#
# Works under a lease that lives as long as descriptor 3: nothing refreshes it, nothing has to give it
# back, and it ends if this script is killed. Ends with 75 if somebody else has the key, with 79 if
# the lease is lost.
set -eu

exec 3< <(exec curl -sNf -X POST "${LOCKKEEPER_URL:-http://127.0.0.1:8080}/hold/cleanup?ttl=3s")
read -r LINE <&3 && [[ $LINE == *'"acquired"'* ]] || exit 75

# Reads what has come; fails if the lease is lost, or the service gone.
still_mine() {
    local line
    while read -r -t 0.01 line <&3 || (($? <= 128)); do
        [[ ${line-} == *'"alive"'* ]] || return 1
    done
}

echo "at work"
for FILE; do
    still_mine || exit 79
    bash step.sh "$FILE" 3<&- # without 3<&- the step would keep the lease, as with flock
done
echo "done"
