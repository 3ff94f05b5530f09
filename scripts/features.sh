#!/usr/bin/env bash
# Compiles the command and the library with each set of features alone; with --run it also asks the command for verbs: those of
# the set are there, others are errors that name the feature. Prints one line for each set, which scripts/count_tests.py counts.
#
#   scripts/features.sh graph                          one set, as CI does
#   scripts/features.sh --run graph records text sql wasm nodes vectors
#
# Development profile, in the build folder of the tests, so that equal dependencies are built once. The command that is left there
# is that of the last set, until it is built again.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
built=$target/debug/inshore

# A verb of each feature, and the features that a set brings along.
verb_of() {
    case $1 in
    graph) echo "graph --help" ;;
    records) echo "sort --help" ;;
    text) echo "search --help" ;;
    sql) echo "sql --help" ;;
    wasm) echo "kernel --help" ;;
    nodes) echo "node --help" ;;
    vectors) echo "nearest --help" ;;
    esac
}
has() {
    case $1:$2 in
    "$2:$1" | wasm:text | nodes:text | nodes:records) return 0 ;;
    *) return 1 ;;
    esac
}

run=''
if [[ ${1:-} == --run ]]; then
    run=1
    shift
fi

# Called in a condition, where bash goes on after a command that fails.
check() {
    local set=$1 feature said
    # The library, too: the command asks for some features of dependencies that the library has to ask for by itself.
    cargo check --quiet ${LOCKED:-} -p inshore --no-default-features --features "$set" || return 1
    cargo check --quiet ${LOCKED:-} -p inshore-cli --no-default-features --features "$set" || return 1
    [[ -n $run ]] || return 0
    cargo build --quiet ${LOCKED:-} -p inshore-cli --no-default-features --features "$set" || return 1
    [[ $("$built" --version) == *"features: "*"$set"* ]] || { echo "--version does not tell of $set"; return 1; }
    for feature in graph records text sql wasm nodes vectors; do
        # shellcheck disable=SC2046
        if has "$set" "$feature"; then
            "$built" $(verb_of "$feature") >/dev/null || return 1
        elif said=$("$built" $(verb_of "$feature") 2>&1) || [[ $said != *"needs the feature \`$feature\`"* ]]; then
            echo "$(verb_of "$feature"), in a build with $set alone: $said"
            return 1
        fi
    done
}

status=0
for set in "$@"; do
    # Warnings, of what a set leaves unused, are errors.
    if said=$(check "$set" 2>&1) && [[ $said != *warning:* ]]; then
        echo "features $set ... ok"
    else
        echo "$said" | tail -n 40
        echo "features $set ... FAILED"
        status=1
    fi
done
exit "$status"
