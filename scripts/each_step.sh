#!/usr/bin/env bash
# Makes each of the targets that are named, one after the other, and tells at the end how each went and how long it
# took. One that fails does not hide what the others would say.
#
#   LOCKED=--locked scripts/each_step.sh lint-rust test-rust
set -uo pipefail
cd "$(dirname "$0")/.."

status=0
told=()
for step in "$@"; do
    began=$SECONDS
    if "${MAKE:-make}" --no-print-directory "$step" LOCKED="${LOCKED:-}"; then
        went=ok
    else
        went=FAILED
        status=1
    fi
    told+=("$(printf '%-12s %-6s %4d s' "$step" "$went" "$((SECONDS - began))")")
done
echo
printf '%s\n' "${told[@]}"
exit "$status"
