# shellcheck shell=bash
# Sourced by the scripts beside it: a directory for their run, what they start, and its end.
work=$(mktemp -d)
started=()
ended() {
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null || continue
        wait "$pid" || true
    done
    chmod -R u+w "$work"
    rm -rf --one-file-system "$work"
}
trap ended EXIT
fail() { echo "${0##*/}: $*" >&2; exit 1; }

# LOG PATTERN: waits until the log has such a line, and prints what fits.
heard() {
    for _ in {1..200}; do
        grep -soE -m 1 -- "$2" "$1" | head -n 1 && return
        sleep 0.05
    done
    fail "no '$2' in: $(cat "$1")"
}

# COMMAND...: starts a service on a free port of loopback, whose address is then $url. Its leases are
# in the directory $store, if that is set.
serves() {
    local log
    log=$(mktemp -p "$work")
    "$@" serve --listen 127.0.0.1:0 --store "embedded:${store:-$(mktemp -d -p "$work")}" 2>"$log" &
    started+=($!)
    url=$(heard "$log" 'locks on https?://127\.0\.0\.1:[0-9]+')
    url=${url#locks on }
}

# NAME EXPECTED COMMAND...: the command has to succeed and print a line like this.
prints() {
    local name=$1 expected=$2 said
    shift 2
    said=$("$@" 2>&1) || fail "$name ends with $?: $said"
    grep -qE -- "$expected" <<<"$said" || fail "$name prints: $said"
    echo "${0##*/}: $name: $(tail -n 1 <<<"$said")"
}
