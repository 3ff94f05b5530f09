#!/usr/bin/env bash
# Installs the packages in FOLDER into clean places and runs a job with each. Each check prints one line,
# which scripts/count_tests.py counts.
#
#   scripts/dist_check.sh target/dist               what `make dist` has made
#   scripts/dist_check.sh target/package wheel deb  some checks of what `make package-check` has made
#   SUITES="bullseye trixie" scripts/dist_check.sh target/dist deb
#
# The .deb and the container are tried by chroot, which takes root. SUITES are the Debian releases that the
# .deb is installed on; their roots are made once and kept in .tools/.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(realpath "${1:?"usage: scripts/dist_check.sh FOLDER [CHECK...]"}")
version=$(scripts/version.sh)
arch=$(uname -m)
name=inshore-$version-linux-$arch
python=$(scripts/find-python.sh)
wheel=$(ls "$out"/*.whl)
# The oldest glibc that a release runs on.
glibc=2.28

checks=(checksums sbom tarball debug deb container wheel)
if [[ $wheel == *manylinux* ]]; then
    checks+=(glibc manylinux)
    # The oldest that Debian's mirrors serve: glibc 2.31.
    : "${SUITES:=bullseye}"
else
    # Built for the glibc of this machine, so it runs on this release and newer ones.
    : "${SUITES:=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")}"
fi

(($# == 1)) || checks=("${@:2}")

work=$(mktemp -d "$PWD/target/dist-check.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/$name
tar -xf "$out/$name.tar.gz" -C "$work"

# Ends a check that this machine cannot do.
skip() {
    echo "$1"
    exit 77
}

# Ends a check whose answer is wrong.
fail() {
    echo "$1"
    exit 1
}

is() {
    [[ $2 == "$3" ]] || fail "$1: found '$2', expected '$3'"
}

# True where version $1 is at most version $2.
at_most() {
    [[ $(printf '%s\n' "$1" "$2" | sort --version-sort | tail -n 1) == "$2" ]]
}

# Runs the job with a command, and compares its answers with those of this machine's tools. The command sees
# the folder as INSIDE, this script as OUTSIDE.
#
#   job OUTSIDE INSIDE COMMAND...
job() {
    local outside=$1 inside=$2
    shift 2
    export INSHORE_STORE=$inside/store
    is "version" "$("$@" --version | sed -n '1s/^\([^ ]* [^ ]*\).*/\1/p')" "inshore $version"

    awk 'BEGIN { srand(7); for (i = 0; i < 200000; i++) print int(rand() * 1e9) }' >"$outside/lines.txt"
    "$@" sort "$inside/lines.txt" -o "$inside/sorted.txt" --memory 16MiB --quiet
    LC_ALL=C sort "$outside/lines.txt" | cmp - "$outside/sorted.txt"

    "$@" graph generate kronecker --scale 13 --edge-factor 8 --seed 1 --name made --memory 16MiB --quiet
    "$@" graph export made -o "$inside/edges.csv" --memory 16MiB --quiet
    "$@" graph pagerank made --iterations 10 --memory 16MiB -o "$inside/ranks.csv" --quiet
    is "ranks" "$(tail -n +2 "$outside/ranks.csv" | wc -l)" $((1 << 13))
    "$python" scripts/check_ranks.py "$outside/edges.csv" "$outside/ranks.csv" 10
    "$@" graph check made "$inside/ranks.csv" --iterations 10

    "$@" sql "SELECT count(*) AS n FROM '$inside/edges.csv'" -o "$inside/count.csv" --quiet
    is "edges by SQL" "$(tail -n 1 "$outside/count.csv")" "$(tail -n +2 "$outside/edges.csv" | wc -l)"
    echo "sort, pagerank and sql are right"
}

# Runs a command in a root, with processes and mounts of its own. Options of chroot may stand before the root.
in_root() {
    unshare --mount --pid --fork bash -euc '
        for root; do [[ $root == --* ]] || break; done
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        exec chroot "$@"' in_root "$@"
}

need_root() {
    (($(id -u) == 0)) || skip "chroot needs root"
    unshare --mount --pid --fork true 2>/dev/null || skip "this machine forbids namespaces"
}

# Makes .tools/root-SUITE of Debian's essential packages, unless it is there. mmdebstrap is unpacked and not
# installed.
debian_root() {
    local root=$PWD/.tools/root-$1 tool=$PWD/.tools/mmdebstrap
    [[ ! -d $root ]] || return 0
    command -v apt-get >/dev/null || skip "a Debian root needs apt-get"
    if [[ ! -d $tool ]]; then
        mkdir -p "$work/mmdebstrap"
        (cd "$work/mmdebstrap" && { apt-get download -qq mmdebstrap || { apt-get update -qq &&
            apt-get download -qq mmdebstrap; }; }) || skip "Debian's packages cannot be reached"
        mkdir -p "$tool"
        dpkg-deb -x "$work"/mmdebstrap/*.deb "$tool"
    fi
    "$tool/usr/bin/mmdebstrap" --quiet --mode=root --variant=essential "$1" "$work/root-$1" ||
        skip "mmdebstrap cannot make a root of '$1'"
    mv "$work/root-$1" "$root"
}

check_checksums() {
    cd "$out"
    sha256sum --check --strict --quiet SHA256SUMS
    is "files" "$(cut -c 67- SHA256SUMS | sort)" "$(find . -type f ! -name SHA256SUMS -printf '%P\n' | sort)"
    echo "$(wc -l <SHA256SUMS) files"
}

check_sbom() {
    local sboms=("$wheel")
    # The command's is made by `make dist` alone.
    [[ $wheel != *manylinux* ]] || sboms+=("$out/$name.cdx.json")
    "$python" scripts/check_sbom.py "${sboms[@]}"
}

check_tarball() {
    local page script
    for page in inshore inshore-sort inshore-graph-pagerank; do
        grep -q '^\.TH' "$tree/share/man/man1/$page.1" || fail "$page.1 is no manual page"
    done
    for script in bash-completion/completions/inshore zsh/site-functions/_inshore \
        fish/vendor_completions.d/inshore.fish; do
        [[ -s $tree/share/$script ]] || fail "$script is missing"
    done
    grep -q '^zstd-sys ' "$tree/share/doc/inshore/THIRD-PARTY" || fail "zstd's licence is missing"
    bash -n "$tree/share/bash-completion/completions/inshore"
    mkdir "$work/tarball"
    job "$work/tarball" "$work/tarball" "$tree/bin/inshore"
}

# The stripped command must name its debug file, and that must lead from an address to a line.
check_debug() {
    local address
    readelf --string-dump=.gnu_debuglink "$tree/bin/inshore" | grep "$name\.debug"
    address=$(nm -C "$out/$name.debug" | awk '$3 == "inshore::main" { print $1 }')
    # .ci/run builds without, which is quicker.
    [[ ${CARGO_PROFILE_DEV_DEBUG:-} != false ]] || skip "this command was built without line numbers"
    addr2line -e "$out/$name.debug" "$address" | grep 'main\.rs:[0-9]' || fail "inshore::main has no line"
    du -h "$out/$name.debug" | cut -f 1
}

check_deb() {
    local deb suite root file unit
    deb=$(ls "$out"/*.deb) || skip "dpkg-dev was missing, so there is no .deb"
    need_root
    [[ -n $SUITES ]] || skip "no release of Debian is named in SUITES"
    for suite in $SUITES; do
        debian_root "$suite"
        root=$work/deb-$suite
        cp -a ".tools/root-$suite" "$root"
        cp "$deb" "$root/tmp/inshore.deb"
        in_root "$root" dpkg --install /tmp/inshore.deb
        in_root "$root" dpkg --verify inshore
        for file in share/man/man1/inshore.1.gz share/doc/inshore/copyright \
            share/bash-completion/completions/inshore share/zsh/vendor-completions/_inshore \
            share/fish/vendor_completions.d/inshore.fish; do
            [[ -s $root/usr/$file ]] || fail "$file is missing"
        done
        unit=$root/usr/lib/systemd/system/inshore-node.service
        is "the unit's command" "$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$unit")" /usr/bin/inshore
        mkdir "$root/tmp/job"
        job "$root/tmp/job" /tmp/job in_root "$root" inshore
        in_root "$root" dpkg --purge inshore
        [[ ! -e $root/usr/bin/inshore ]] || fail "the command is there after the package was removed"
        echo "on $suite, $(in_root "$root" ldd --version | sed -n '1s/.*) //p' | sed 's/^/glibc /')"
    done
}

check_container() {
    need_root
    local root=$work/container user entry
    mkdir "$root"
    tar -xf "$out/$(sed -n 's/^ADD \(.*\) \/$/\1/p' "$out/Containerfile")" -C "$root"
    user=$(sed -n 's/^USER //p' "$out/Containerfile")
    entry=$(sed -n 's/^ENTRYPOINT \["\(.*\)"\]$/\1/p' "$out/Containerfile")
    is "owner of the store" "$(stat -c %u:%g "$root/var/lib/inshore")" "$user"
    install -d -o "${user%:*}" -g "${user#*:}" "$root/data"
    job "$root/data" /data in_root "--userspec=$user" "$root" "$entry"
}

# Installs the wheel into an environment of its own, with pyarrow and nothing else.
check_wheel() {
    local began=$SECONDS
    "$python" -m venv "$work/venv"
    "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
    # -I: the package comes from the environment, and not from this checkout.
    "$work/venv/bin/python" -I scripts/wheel_job.py "$work/python-store"
    echo "first answer $((SECONDS - began)) s after pip began"
}

check_glibc() {
    "$python" -m zipfile -e "$wheel" "$work/wheel"
    local file newest
    for file in "$tree/bin/inshore" "$work/wheel/inshore/_native.abi3.so"; do
        newest=$(objdump -T "$file" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
        at_most "${newest#GLIBC_}" "$glibc" || fail "${file##*/} needs $newest, and may need $glibc"
    done
    echo "no symbol is newer than $glibc"
}

check_manylinux() {
    local tag
    tag=$(auditwheel show "$wheel" | tr '\n' ' ' |
        sed -n "s/.* platform tag: \"manylinux_\([0-9]*_[0-9]*\)_$arch\".*/\1/p")
    [[ -n $tag ]] && at_most "${tag/_/.}" "$glibc" || fail "auditwheel: $(auditwheel show "$wheel")"
    # Without -q, which would end before the list does, and that is an error in a pipe.
    "$python" -m zipfile -l "$wheel" | grep '/licenses/THIRD-PARTY ' ||
        fail "the wheel holds no licences of its dependencies"
    [[ ${wheel##*/} == *-abi3-* ]] || fail "the wheel is for one Python: $wheel"
    echo "manylinux_$tag, abi3"
}

# Runs a check in a shell of its own. errexit would be off in a condition, so the status is read afterwards.
run_check() {
    local began=$SECONDS log=$work/$1.txt code last
    set +e
    (
        set -e
        "check_$1"
    ) >"$log" 2>&1
    code=$?
    set -e
    last=$(tail -n 1 "$log")
    case $code in
    0) echo "package $1 ... ok ($last; $((SECONDS - began)) s)" ;;
    77) echo "package $1 ... skipped: $last" ;;
    *)
        tail -n 20 "$log"
        echo "package $1 ... FAILED"
        status=1
        ;;
    esac
}

status=0
for check in "${checks[@]}"; do
    run_check "$check"
done
exit "$status"
