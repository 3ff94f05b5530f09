#!/usr/bin/env bash
# Builds the packages of a release for this machine's architecture into FOLDER. `make dist` calls it with the
# tools of packaging/requirements.txt in PATH.
#
#   scripts/dist.sh FOLDER
#
# zig links with the symbols of glibc 2.28, whatever glibc this machine has. maturin builds the command and
# the extension: both share the compiled dependencies, and each gets an SBOM. cargo-zigbuild and
# cargo-cyclonedx would do the same for the command, as two more tools to build and to keep in step.
set -euo pipefail
cd "$(dirname "$0")/.."

glibc=2.28
arch=$(uname -m)
target=$arch-unknown-linux-gnu
build=target/dist-build
out=${1:?"usage: scripts/dist.sh FOLDER"}
version=$(scripts/version.sh)
python=$(scripts/find-python.sh)

# The same commit gives the same bytes: the time is the commit's, and messages hold no path of this machine.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
RUSTFLAGS="--remap-path-prefix=$PWD=/inshore --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
export SOURCE_DATE_EPOCH RUSTFLAGS
# `make clean` removes these caches too.
export CARGO_ZIGBUILD_CACHE_DIR=$PWD/$build/zig ZIG_GLOBAL_CACHE_DIR=$PWD/$build/zig

maturin=(maturin build --locked --profile dist --target "$target" --target-dir "$build" --zig
    --compatibility "manylinux_${glibc/./_}" --auditwheel check)

rm -rf "$out" "$build/command"
mkdir -p "$out"
# The wheel around the command is not shipped; the SBOM is taken out of it.
"${maturin[@]}" --manifest-path crates/cli/Cargo.toml --bindings bin --compression-method stored \
    --out "$build/command"
trap 'rm -f python/THIRD-PARTY' EXIT
"$python" scripts/notices.py inshore-python "$target" >python/THIRD-PARTY
"${maturin[@]}" --manifest-path python/Cargo.toml --strip --out "$out"

"$python" -m zipfile -e "$build"/command/*.whl "$build/command/unpacked"
# Paths of this checkout name the workspace's own crates.
sed "s|path+file://$PWD/|path+file:///inshore/|g" \
    "$build"/command/unpacked/*.dist-info/sboms/*.cyclonedx.json >"$out/inshore-$version-linux-$arch.cdx.json"

scripts/package.sh "$build/$target/dist/inshore" "$out"
