# Part of ci.sh that makes root file systems of other distributions. The tests of the drop-in run
# programs in them. ci.sh sources this file.

# Descriptions of the roots, `NAME.sh` each.
ROOTS=dropin/tests/roots

# Makes the roots with these names, or all, in the directory `roots` of cargo's target directory.
# Keeps those that are up to date.
part_roots() { # NAME...
    local name names=("$@") folder
    folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/roots
    if [ $# = 0 ]; then
        for name in "$ROOTS"/*.sh; do names+=("$(basename "$name" .sh)"); done
    fi
    mkdir -p "$folder"
    for name in "${names[@]}"; do
        if ! [ -f "$ROOTS/$name.sh" ]; then
            echo "there is no $ROOTS/$name.sh" >&2
            return 2
        fi
        # The lock is for two runs at the same time, of which one makes the root.
        (
            flock 9 || exit 1
            make_root "$ROOTS/$name.sh" "$folder/$name"
        ) 9>"$folder/$name.lock" || return 1
    done
}

# Makes all roots, in whose tests no program may then be missing. Prints the reason if there is no
# mmdebstrap; the tests are then ignored.
dropin_roots() {
    local file names=
    if ! need_package mmdebstrap mmdebstrap; then
        echo "SKIPPED: mmdebstrap, which makes roots of other distributions, is not installed and cannot be installed here"
        return 0
    fi
    if ! part_roots; then
        [ -z "${UWARP_REQUIRE_ROOTS-}" ] || return 1
        echo "SKIPPED: the roots were not made, so their tests are ignored"
        return 0
    fi
    for file in "$ROOTS"/*.sh; do names+=" $(basename "$file" .sh)"; done
    export UWARP_REQUIRE_ROOTS=$names
}

# The same in `all`, which goes on without a root if the mirror fails. It runs beside parts that
# install packages, so it installs none.
part_roots_sample() {
    if ! command -v mmdebstrap >/dev/null 2>&1 || ! part_roots; then
        echo "SKIPPED: the root was not made, so its tests are ignored"
    fi
}

# Makes a root from its description. It gets its name when it is complete. Needs root, or user
# namespaces and a range of user numbers in /etc/subuid; mmdebstrap says what is missing.
make_root() { # DESCRIPTION ROOT
    local description=$1 root=$2 new=$2.new start=$SECONDS mirror options=() file
    if cmp -s "$description" "$root/etc/uwarp-root"; then
        echo "$root is up to date"
        return 0
    fi
    if ! need_package mmdebstrap mmdebstrap; then
        echo "mmdebstrap is not installed and cannot be installed here (needs root and apt)" >&2
        return 1
    fi
    . "$description"
    mirror=$(debian_mirror) || return 1
    set -f
    for file in $WITHOUT; do options+=(--dpkgopt="path-exclude=$file"); done
    for file in $BUT; do options+=(--dpkgopt="path-include=$file"); done
    set +f
    echo "$TITLE, into $root"
    rm -rf "$new"
    mkdir "$new" || return 1
    # As an archive, because mmdebstrap otherwise leaves files of several users in a directory that
    # an ordinary user makes, and `cargo clean` could not remove them.
    # A mirror that stalls would otherwise hold the other parts.
    if ! timeout -k 10 900 mmdebstrap --quiet --variant=essential --format=tar --include="${PACKAGES//[[:space:]]/ }" \
        --aptopt='Acquire::Languages "none"' "${options[@]}" "$SUITE" - "$mirror" |
        tar -x -C "$new" --no-same-owner --exclude='./dev/*'; then
        rm -rf "$new"
        echo "mmdebstrap could not make $TITLE; its messages are above" >&2
        return 1
    fi
    # Programs of other users must get in. Nobody gains rights by what is kept here.
    find "$new" -xdev -perm /6000 -exec chmod a-s {} + || return 1
    chmod 755 "$new" || return 1
    cp "$description" "$new/etc/uwarp-root" || return 1
    rm -rf "$root" || return 1
    mv -T "$new" "$root" || return 1
    echo "$TITLE took $((SECONDS - start)) s and $(du -sm "$root" | cut -f1) MB"
}

# Prints the mirror of this machine's Debian packages.
debian_mirror() {
    local release uri
    release=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
    uri=$(apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(REPO_URI)' 'Created-By: Packages' 'Component: main' 2>/dev/null |
        awk -v release="$release" '$1 == "Debian" && ($2 == release || $2 == "stable") { print $3; exit }')
    if [ -z "$uri" ]; then
        echo "apt has no mirror of Debian packages for '$release'" >&2
        return 1
    fi
    echo "$uri"
}
