#!/usr/bin/env bash
# Runs every fuzz target for its share of FUZZ_SECONDS (default 60) and prints one line for each, which
# scripts/count_tests.py counts. As many run at a time as there are cores. Starts from the seeds in fuzz/seeds/;
# what is found stays in fuzz/corpus/. Needs cargo-fuzz in PATH. FUZZ_NODES=1 adds the target that compiles the network
# stack, 85 packages, in two minutes.
#
#   FUZZ_SECONDS=30 scripts/fuzz.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# Address sanitizer finds nothing in code without `unsafe`, and costs half of the inputs.
options=(--sanitizer none --debug-assertions)
[[ -z ${FUZZ_NODES:-} ]] || options+=(--features nodes)

# The whole store runs some ten inputs a second and a decoder hundreds of thousands, so it gets four shares of ten.
seconds_for() {
    local shares=1
    case $1 in
    store) shares=4 ;;
    registry) shares=2 ;;
    esac
    local seconds=$((${FUZZ_SECONDS:-60} * shares / 10))
    echo $((seconds > 0 ? seconds : 1))
}

# Runs a target and tells how that ended.
fuzz() {
    local target=$1 log=target/test-logs/fuzz-$1.txt artifact
    mkdir -p "fuzz/corpus/$target" "fuzz/seeds/$target"
    if cargo +nightly fuzz run "${options[@]}" "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
        -max_total_time="$(seconds_for "$target")" -timeout=120 -rss_limit_mb=2048 -max_len=4096 -len_control=0 >"$log" 2>&1; then
        echo "fuzz $target ... ok ($(sed -n 's/^Done \([0-9]*\) runs.*/\1 inputs/p' "$log" | tail -n 1))"
        return
    fi
    # What it died of, and the input in a form that fits a line: the artifact stays behind on another machine.
    grep -vE '^(INFO|#|WARNING)' "$log" | tail -n 20 | cut -c1-300
    grep -m 1 -A 2 'panicked at' "$log" || true
    artifact=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    [[ -z $artifact ]] || { echo "its input, in base64:"; base64 -w 250 "$artifact"; }
    echo "fuzz $target ... FAILED"
    return 1
}

if [[ ${1:-} == --target ]]; then
    # What it tells comes in one piece, since another one may be telling too.
    status=0
    told=$(fuzz "$2") || status=1
    printf '%s\n' "$told"
    exit "$status"
fi

# The ones that take longest begin first.
mapfile -t targets < <(sed -n 's/^name = "\(.*\)"$/\1/p' fuzz/Cargo.toml | grep -v '^inshore-fuzz$' |
    { if [[ -n ${FUZZ_NODES:-} ]]; then cat; else grep -v '^node_messages$'; fi; } |
    while read -r target; do echo "$(seconds_for "$target") $target"; done | sort -rn | cut -d ' ' -f 2)

if ! rustc +nightly --version >/dev/null 2>&1; then
    for target in "${targets[@]}"; do
        echo "fuzz $target ... skipped: needs a nightly toolchain, run 'rustup toolchain install nightly'"
    done
    exit 0
fi

mkdir -p target/test-logs
cargo +nightly fuzz build "${options[@]}"
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I TARGET scripts/fuzz.sh --target TARGET
