#!/usr/bin/env bash
# Packs a built command into FOLDER: a tarball, a Debian package, a container's root with its Containerfile,
# and the debug information. SHA256SUMS then lists every file of FOLDER, also the wheel that is there already.
#
#   LEVEL=9 scripts/package.sh target/release/inshore FOLDER
#
# LEVEL is the level of compression: 1 is fast, 9 is small.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

command=$(realpath "$1")
out=$(realpath -m "$2")
level=${LEVEL:-9}
version=$(scripts/version.sh)
arch=$(uname -m)
name=inshore-$version-linux-$arch
maintainer="The Inshore authors <maintainers@inshore.invalid>"
python=$(scripts/find-python.sh)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

mkdir -p "$out" target
work=$(mktemp -d "$PWD/target/packing.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/$name

# Runs tar, with options of its own, so that the same files give the same bytes.
pack() {
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu "$@"
}

# Lays out everything below a prefix such as /usr/local. The stripped command names the file that has its line
# numbers.
make_tree() {
    mkdir -p "$tree/bin"
    objcopy --only-keep-debug --compress-debug-sections=zlib "$command" "$out/$name.debug"
    chmod 644 "$out/$name.debug"
    objcopy --strip-all --add-gnu-debuglink="$out/$name.debug" "$command" "$tree/bin/inshore"

    "$command" man --out "$tree/share/man/man1"
    local shell completions
    while read -r shell completions; do
        mkdir -p "$tree/share/${completions%/*}"
        "$command" completions "$shell" >"$tree/share/$completions"
    done <<'END'
bash bash-completion/completions/inshore
zsh zsh/site-functions/_inshore
fish fish/vendor_completions.d/inshore.fish
END
    install -D -m 644 packaging/inshore-node.service -t "$tree/lib/systemd/system"
    install -D -m 644 README.md CHANGELOG.md LICENSE -t "$tree/share/doc/inshore"
    "$python" scripts/notices.py inshore-cli "$arch-unknown-linux-gnu" >"$tree/share/doc/inshore/THIRD-PARTY"
}

# Packs the same tree below /usr, as Debian's policy wants it: compressed pages, another folder for zsh, a
# copyright file. The unit is not enabled, since a node needs credentials first.
make_deb() {
    local deb=$work/deb doc=$work/deb/usr/share/doc/inshore
    mkdir -p "$deb/DEBIAN" "$work/debian"
    cp -a "$tree" "$deb/usr"
    find "$deb/usr/share/man" -type f -exec gzip -9n {} +
    mv "$deb/usr/share/zsh/site-functions" "$deb/usr/share/zsh/vendor-completions"
    sed -i 's|/usr/local/bin/|/usr/bin/|' "$deb/usr/lib/systemd/system/inshore-node.service"
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
    gzip -9nc >"$doc/changelog.Debian.gz" <<END
inshore ($version-1) unstable; urgency=medium

  * changelog.gz lists the changes.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END
    gzip -9n "$doc/THIRD-PARTY"
    rm "$doc/LICENSE" "$doc/CHANGELOG.md"
    install -m 644 packaging/copyright "$doc/copyright"

    # dpkg-shlibdeps names the libraries. For symbols that glibc 2.34 moved from libpthread to libc it asks for 2.34,
    # also where the command takes them from the older library; so glibc's version is that of the newest symbol.
    touch "$work/debian/control"
    local depends newest
    newest=$(objdump -T "$tree/bin/inshore" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
    depends=$(cd "$work" && dpkg-shlibdeps -O -edeb/usr/bin/inshore 2>/dev/null |
        sed -n "s/libc6 (>= [^)]*)/libc6 (>= ${newest#GLIBC_})/; s/^shlibs:Depends=//p")
    cat >"$deb/DEBIAN/control" <<END
Package: inshore
Version: $version-1
Architecture: $(dpkg --print-architecture)
Maintainer: $maintainer
Installed-Size: $(du -sk "$deb/usr" | cut -f 1)
Depends: $depends
Recommends: fuse3
Section: database
Priority: optional
Description: analytics on data several times larger than memory
 Inshore sorts, groups, searches and asks SQL of files, and ranks and searches
 graphs, in exactly the memory that it was given: the rest stays on flash.
 .
 fuse3 is needed for "inshore store mount" alone.
END
    (cd "$deb" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    dpkg-deb --root-owner-group -Zxz -z"$level" --build "$deb" "$out" >/dev/null
}

# Packs the command with the shared libraries of this machine that it loads, and the files by which glibc
# resolves names. The store belongs to the user that the Containerfile names.
make_container() {
    local root=$work/root library user=65532
    install -D "$tree/bin/inshore" "$root/usr/bin/inshore"
    ldd "$command" | grep -o '/[^ )]*' >"$work/libraries"
    # Older releases of glibc load these by name.
    local folder
    folder=$(dirname "$(grep -m 1 '/libc\.so' "$work/libraries")")
    ls "$folder"/libnss_{files,dns}.so.2 "$folder/libresolv.so.2" >>"$work/libraries" 2>/dev/null || true
    while read -r library; do
        install -D "$library" "$root$library"
    done <"$work/libraries"
    install -D -m 644 "$tree"/share/doc/inshore/{LICENSE,THIRD-PARTY} -t "$root/usr/share/doc/inshore"
    # Where this machine's glibc comes from Debian, its licence lies here.
    [[ ! -e /usr/share/doc/libc6/copyright ]] ||
        install -D -m 644 /usr/share/doc/libc6/copyright -t "$root/usr/share/doc/libc6"

    mkdir -p "$root"/{dev,etc,proc,sys,var/lib}
    install -d -m 1777 "$root/tmp"
    install -d -m 700 "$work/store/var/lib/inshore"
    printf '%s\n' root:x:0:0::/:/ "inshore:x:$user:$user::/var/lib/inshore:/" >"$root/etc/passwd"
    printf '%s\n' root:x:0: "inshore:x:$user:" >"$root/etc/group"
    echo "hosts: files dns" >"$root/etc/nsswitch.conf"

    pack -cf "$work/root.tar" -C "$root" .
    pack -rf "$work/root.tar" -C "$work/store" --owner=$user --group=$user ./var/lib/inshore
    gzip -"$level"nc "$work/root.tar" >"$out/$name-root.tar.gz"
    sed "s|@ROOT@|$name-root.tar.gz|" packaging/Containerfile >"$out/Containerfile"
}

make_tree
pack -cf - -C "$work" "$name" | gzip -"$level"n >"$out/$name.tar.gz"
if command -v dpkg-deb dpkg-shlibdeps >/dev/null; then
    make_deb
else
    echo "skipped: no .deb, since dpkg-deb or dpkg-shlibdeps is missing" >&2
fi
make_container
rm -f "$out/SHA256SUMS"
(cd "$out" && sha256sum -- *) >"$work/sums"
mv "$work/sums" "$out/SHA256SUMS"
