#!/usr/bin/env bash
# Prints the version that all crates and packages of this workspace have.
set -euo pipefail
cd "$(dirname "$0")/.."
sed -n '/^\[workspace\.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml
