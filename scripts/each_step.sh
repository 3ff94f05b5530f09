#!/usr/bin/env bash
# Makes each of the targets that are named, one after the other, and tells how each went and how long it took. One that
# fails does not hide what the others would say.
#
# With STEP_LOGS=FOLDER what a target prints goes to FOLDER/TARGET.txt, and only the end of it is shown, where it failed:
# whoever keeps a part of a long output keeps the part that counts.
#
#   LOCKED=--locked STEP_LOGS=target/test-logs scripts/each_step.sh lint-rust test-rust
set -uo pipefail
cd "$(dirname "$0")/.."

# Lines that are shown of a target that failed.
shown=40
noise='^running [0-9]+ tests?$|^test result: ok|^ *(Compiling|Doc-tests|crates/|Checking|Downloaded|Downloading|Documenting|Running|Finished|Fresh|Locking|Adding|Updating) '

status=0
told=()
for step in "$@"; do
    began=$SECONDS
    run=("${MAKE:-make}" --no-print-directory "$step" LOCKED="${LOCKED:-}")
    if [[ -n ${STEP_LOGS:-} ]]; then
        mkdir -p "$STEP_LOGS"
        "${run[@]}" >"$STEP_LOGS/$step.txt" 2>&1
    else
        "${run[@]}"
    fi
    went=$?
    if ((went == 0)); then
        line=$(printf '%-13s ok     %4d s' "$step" "$((SECONDS - began))")
    else
        status=1
        line=$(printf '%-13s FAILED %4d s' "$step" "$((SECONDS - began))")
        [[ -z ${STEP_LOGS:-} ]] || grep -vE "$noise" "$STEP_LOGS/$step.txt" | tail -n "$shown" | cut -c1-300
    fi
    [[ -z ${STEP_LOGS:-} ]] || echo "$line"
    told+=("$line")
done
[[ -n ${STEP_LOGS:-} ]] || printf '%s\n' "" "${told[@]}"
exit "$status"
