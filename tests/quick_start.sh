# shellcheck shell=bash
# Sourced: the commands of README.md's quick start, as a newcomer types them.

# README [URL]: runs the block of commands that makes a token, prints the answers, and fails if their
# statuses are not those that the README shows.
quick_start() {
    local block answers statuses expected
    block=$(awk '/^```/ { inside = !inside; text = ""; next }
        inside { text = text $0 "\n"; if (/openssl rand/ && !found) found = NR }
        found && /^# 204$/ { print text; exit }' "$1")
    [ -n "$block" ] || { echo "$1 has no quick start" >&2; return 1; }
    expected=$(grep -oE '^# .*[0-9]{3}$' <<<"$block" | grep -oE '[0-9]{3}$' | xargs)
    answers=$(bash -c "${block//http:\/\/localhost:8080/${2:-http://localhost:8080}}")
    echo "$answers"
    statuses=$(grep -oE ' [0-9]{3}$' <<<"$answers" | xargs)
    [ "$statuses" = "$expected" ] || {
        echo "the quick start answers $statuses, not $expected" >&2
        return 1
    }
}
