#!/bin/sh
# Installs the lockkeeper of a release on Linux: fetches the tarball of this machine's architecture
# and the checksums, compares them, and puts the program into /usr/local/bin for root, else into
# ~/.local/bin. It needs curl or wget, tar with gzip, and sha256sum; those of busybox will do.
#
#   LOCKKEEPER_RELEASES  URL of the directory with the files of a release
#   LOCKKEEPER_VERSION   version to install
#   LOCKKEEPER_DIRECTORY directory for the program
#
# Checksums show damage. For the origin there is a signature: SECURITY.md of the repository.
set -eu

repository=https://lockkeeper.example/lockkeeper
version=${LOCKKEEPER_VERSION:-1.0.0-rc.1}
releases=${LOCKKEEPER_RELEASES:-$repository/releases/download/v$version}

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

architecture() {
    [ "$(uname -s)" = Linux ] || fail "releases are for Linux, and this is $(uname -s)"
    case $(uname -m) in
    x86_64 | amd64) echo x86_64 ;;
    aarch64 | arm64) echo aarch64 ;;
    *) fail "releases are for x86_64 and aarch64, and this is $(uname -m); build it with cargo" ;;
    esac
}

fetch() { # NAME, into the directory $there
    if has curl; then
        curl -fsSL -o "$there/$1" "$releases/$1"
    elif has wget; then
        wget -q -O "$there/$1" "$releases/$1"
    else
        fail "needs curl or wget"
    fi || fail "cannot fetch $releases/$1"
}

verify() { # NAME
    expected=$(sed -n "s/^\([0-9a-f]\{64\}\) [ *]$1\$/\1/p" "$there/SHA256SUMS")
    [ -n "$expected" ] || fail "$releases/SHA256SUMS has no checksum of $1"
    if has sha256sum; then
        found=$(sha256sum "$there/$1")
    elif has shasum; then
        found=$(shasum -a 256 "$there/$1")
    else
        fail "needs sha256sum or shasum"
    fi
    [ "${found%% *}" = "$expected" ] ||
        fail "$1 is not the file of the release: its checksum is ${found%% *}, not $expected"
}

directory() {
    if [ -n "${LOCKKEEPER_DIRECTORY-}" ]; then
        echo "$LOCKKEEPER_DIRECTORY"
    elif [ "$(id -u)" = 0 ]; then
        echo /usr/local/bin
    else
        echo "${HOME:?install.sh: HOME is not set}/.local/bin"
    fi
}

# The new program takes the place of an old one only when it has run.
place() { # PROGRAM DIRECTORY
    mkdir -p "$2" 2>/dev/null || fail "cannot make $2; set LOCKKEEPER_DIRECTORY"
    [ -w "$2" ] || fail "may not write to $2; set LOCKKEEPER_DIRECTORY"
    staged=$2/.lockkeeper.$$
    cp "$1" "$staged" || fail "cannot write to $2"
    chmod 755 "$staged"
    installed=$("$staged" version) || fail "the program does not run here"
    mv -f "$staged" "$2/lockkeeper"
    staged=''
}

# All in functions: of a script that arrives in part, nothing runs.
main() {
    name=lockkeeper-$version-$(architecture)-linux
    there=$(mktemp -d)
    staged=''
    trap 'rm -rf "$there" ${staged:+"$staged"}' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    fetch SHA256SUMS
    fetch "$name.tar.gz"
    verify "$name.tar.gz"
    tar -xzf "$there/$name.tar.gz" -C "$there" "$name/lockkeeper" || fail "cannot unpack $name.tar.gz"
    bin=$(directory)
    place "$there/$name/lockkeeper" "$bin"
    echo "$installed is in $bin/lockkeeper"
    case :$PATH: in
    *":$bin:"*) start=lockkeeper ;;
    *)
        start=$bin/lockkeeper
        echo "$bin is not on your PATH; to add it: export PATH=\"$bin:\$PATH\""
        ;;
    esac
    echo "Start it with '$start serve'; it keeps its leases in ./lockkeeper-data."
}

main
