#!/usr/bin/env bash
# Says, in one line for each, which tools are missing and how to get them; exit 1 if any is.
#
#   scripts/need.sh cargo rustfmt clippy cc
set -euo pipefail
cd "$(dirname "$0")/.."

missing=0

lacks() {
    echo "missing: $1" >&2
    missing=1
}

# True where version $1 is at least version $2.
at_least() {
    [ "$(printf '%s\n' "$1" "$2" | sort --version-sort | head -n 1)" = "$2" ]
}

need_cargo() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if ! found=$(rustc --version 2>/dev/null) || ! cargo --version >/dev/null 2>&1; then
        lacks "cargo and rustc $wanted or newer: install them from https://rustup.rs"
        return
    fi
    found=$(cut -d ' ' -f 2 <<<"$found")
    at_least "${found%%-*}" "$wanted" ||
        lacks "rustc $wanted or newer (this one is $found): run 'rustup update stable'"
}

for tool in "$@"; do
    case $tool in
    cargo) need_cargo ;;
    rustfmt)
        cargo fmt --version >/dev/null 2>&1 || lacks "rustfmt: run 'rustup component add rustfmt'" ;;
    clippy)
        cargo clippy --version >/dev/null 2>&1 || lacks "clippy: run 'rustup component add clippy'" ;;
    cc)
        command -v "${CC:-cc}" >/dev/null ||
            lacks "a C compiler (zstd is C): install gcc or clang, e.g. 'apt install build-essential'" ;;
    objcopy)
        command -v objcopy >/dev/null || lacks "objcopy: install binutils, e.g. 'apt install binutils'" ;;
    dpkg)
        command -v dpkg-deb dpkg-shlibdeps >/dev/null ||
            lacks "dpkg-deb or dpkg-shlibdeps: install them, e.g. 'apt install dpkg-dev'" ;;
    python)
        scripts/find-python.sh >/dev/null || missing=1 ;;
    *)
        echo "need.sh: knows cargo, rustfmt, clippy, cc, objcopy, dpkg and python, not '$tool'" >&2
        exit 2 ;;
    esac
done
exit "$missing"
