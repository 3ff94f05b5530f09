#!/usr/bin/env bash
# Compiles a crate of the workspace as cargo asks for it (as its RUSTC_WORKSPACE_WRAPPER). With WITH_LINTS=1 clippy and
# rustdoc look at the crate too, and what they warn of is an error. With WITH_LINTS=tests clippy looks only at programs
# with tests and examples: a library compiled with its unit tests has all of the library's code, and rustc's own warnings
# about the library alone (code that only tests use) are errors.
#
# `cargo clippy` and `cargo doc` want all that the workspace depends on once more, without code, which takes minutes. Here
# they look at what is compiled for the tests anyway.
set -euo pipefail

rustc=$1
shift

# What clippy and rustdoc get of the arguments. Cargo must not hear of files that it did not ask for ("artifacts").
clippy=() rustdoc=() before='' out='' is_lib='' is_test='' is_example=''
for word in "$@"; do
    for_clippy=$word for_rustdoc=$word
    case $before:$word in
    *:crates/*/examples/*.rs) is_example=1 ;;
    --crate-type:lib) is_lib=1 ;;
    --crate-name:___) unset WITH_LINTS ;;
    *:--json=*) for_clippy=${word/,artifacts/} for_rustdoc=$for_clippy ;;
    *:--emit=*) for_clippy=--emit=metadata for_rustdoc='' ;;
    *:--out-dir) for_rustdoc='' ;;
    --out-dir:*) out=$word for_clippy=$word/clippy for_rustdoc='' ;;
    *:--test) is_test=1 ;;
    *:-C) for_clippy='' for_rustdoc='' ;;
    -C:incremental=*) for_clippy='' for_rustdoc='' ;;
    -C:*) for_clippy=-C$word for_rustdoc='' ;;
    esac
    [[ -z $for_clippy ]] || clippy+=("$for_clippy")
    [[ -z $for_rustdoc ]] || rustdoc+=("$for_rustdoc")
    before=$word
done

# Nobody runs an example.
[[ -z $is_example ]] || set -- "${@/#--emit=dep-info,link/--emit=dep-info,metadata}"
[[ -z ${WITH_LINTS:-} || -z $out ]] || set -- "$@" -D warnings
# First, since others wait for it and not for the lints.
"$rustc" "$@"

if [[ -n ${WITH_LINTS:-} && -n $out ]]; then
    programs=$("$rustc" --print sysroot)/bin
    if [[ $WITH_LINTS != tests || -n $is_test$is_example ]]; then
        "$programs/clippy-driver" "$rustc" "${clippy[@]}" -D warnings
    fi
    if [[ -n $is_lib && -z $is_test ]]; then
        "$programs/rustdoc" "${rustdoc[@]}" -D warnings --out-dir "$out/../../doc"
    fi
fi
