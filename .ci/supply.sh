# Parts of ci.sh for the supply chain: the rules for dependencies, and the packages of a release with
# their lists of contents. ci.sh sources this file.

# Versions that CI checks with.
CARGO_DENY=0.20.2
CARGO_CYCLONEDX=0.5.9

# Checks the crates that uwarp is built from against deny.toml: licences, duplicates, sources.
part_deny() {
    # A debug build takes 60 s on two idle cores, and its check 2 s.
    need_program cargo-deny "$CARGO_DENY" --debug || return 0
    cargo deny --locked check --hide-inclusion-graph bans licenses sources
}

# Compares the crates with the published vulnerabilities. Downloads their database.
part_advisories() {
    need_program cargo-deny "$CARGO_DENY" --debug || return 0
    cargo deny --locked check --hide-inclusion-graph advisories
}

# Sets the flags that replace the directories of this machine in executables, so that a release has
# the same bytes wherever it is built. Cargo's `trim-paths`, which does the same, is not stable.
#
# The encoded form is used because a directory can contain spaces. Cargo ignores RUSTFLAGS beside
# it, so their content is taken over.
portable_paths() {
    local flags=() flag target sysroot registry cargo_home encoded=
    read -ra flags <<<"${RUSTFLAGS-}"
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    sysroot=$(rustc --print sysroot)
    cargo_home=$(realpath -m "${CARGO_HOME:-$HOME/.cargo}")
    # Of several rules that match, the last one is used.
    flags+=("--remap-path-prefix=$PWD=/uwarp" "--remap-path-prefix=$target=/uwarp/target"
        "--remap-path-prefix=$cargo_home=/cargo")
    # The name of this directory contains a hash of the registry's address, which a mirror changes.
    for registry in "$cargo_home"/registry/src/*/; do
        flags+=("--remap-path-prefix=${registry%/}=/cargo/registry")
    done
    # With the component rust-src, rustc finds the standard library's sources here.
    flags+=("--remap-path-prefix=$sysroot/lib/rustlib/src/rust=/rustc/$(rustc -vV | sed -n 's/^commit-hash: //p')")
    for flag in "${flags[@]}"; do encoded+=${encoded:+$'\x1f'}$flag; done
    export CARGO_ENCODED_RUSTFLAGS=$encoded
}

# Builds the command and the libraries of `uwarp run` as users get them.
release_build() (
    # A release has all heuristics (`engine/src/policy.rs`).
    unset UWARP_POLICY_OFF
    # The directories of the dependencies' sources must exist before they are replaced.
    cargo fetch --locked
    portable_paths
    cargo build --release --locked -p uwarp -p uwarp-dropin -p uwarp-redirect
)

# Fails if an executable of the release contains a directory of this machine.
part_paths() {
    release_build
    local built
    built=$(realpath "${CARGO_TARGET_DIR:-target}")/release
    no_paths "$built/uwarp" "$built/libuwarp_dropin.so" "$built/libuwarp_redirect.so"
}

no_paths() { # FILE...
    local file directory found
    for file in "$@"; do
        for directory in "$PWD" "$HOME" "$(realpath -m "${CARGO_TARGET_DIR:-target}")" \
            "$(realpath -m "${CARGO_HOME:-$HOME/.cargo}")" "$(rustc --print sysroot)"; do
            # A short path, such as the home directory "/", is a part of many words.
            [ ${#directory} -ge 4 ] || continue
            # Not `grep -q`, which would end the pipe early.
            found=$(strings -n 4 "$file" | grep -F -m 3 -e "$directory/" || true)
            if [ -n "$found" ]; then
                printf '%s contains the build directory %s:\n%s\n' "$file" "$directory" "$found"
                return 1
            fi
        done
    done
    echo "no directory of this machine in: $*"
}

# Writes the contents of a workspace member as CycloneDX: each crate with version, licence, hash of
# its package and the crates that it is built from. The tool writes into the tree, for all members.
sboms() { # FOLDER TARGET MEMBER_FOLDER...
    local folder=$1 target=$2 member status=0
    shift 2
    # An epoch instead of the time of the build; `release` sets that of the commit.
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0} cargo cyclonedx --quiet --format json \
        --spec-version 1.5 --target "$target" --override-filename uwarp-sbom || status=$?
    if [ "$status" = 0 ]; then
        mkdir -p "$folder"
        for member in "$@"; do
            # References to members contain the directory of the build.
            sed "s|path+file://$PWD|path+file:///uwarp|g" "$member/uwarp-sbom.json" \
                >"$folder/$(name_of "$member").cdx.json"
        done
    fi
    rm -f -- */uwarp-sbom.json */*/uwarp-sbom.json
    return "$status"
}

# Checks that the contents can be listed, that no crate is missing, and that no directory of this
# machine is named.
part_sbom() (
    need_program cargo-cyclonedx "$CARGO_CYCLONEDX" --debug || return 0
    local folder file name
    folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/sbom
    rm -rf "$folder"
    # shellcheck disable=SC2046
    sboms "$folder" all $(published_folders) dropin dropin/redirect
    for file in "$folder"/*.cdx.json; do
        name=$(basename "$file" .cdx.json)
        grep -q '"bomFormat": "CycloneDX"' "$file" || { echo "$file is no CycloneDX"; return 1; }
        # `cargo tree` finds the crates by another way. The tool also lists some that are only built
        # with features that uwarp does not select.
        cargo tree --locked --prefix none --target all --edges normal,build -p "$name" --format '{p}' |
            awk 'NF { sub(/^v/, "", $2); print $1 "@" $2 }' | LC_ALL=C sort -u >"$folder/wanted"
        grep -oE '"bom-ref": "[^"]*#[^" ]*"' "$file" | sed -E 's/.*#([^"]*)"/\1/' |
            LC_ALL=C sort -u >"$folder/found"
        if LC_ALL=C comm -23 "$folder/wanted" "$folder/found" | grep .; then
            echo "$file lacks these crates, which \`cargo tree\` lists"
            return 1
        fi
        if grep -F -m 1 -e "$PWD" -e "$HOME/" "$file"; then
            echo "$file contains a directory of this machine"
            return 1
        fi
        echo "$(basename "$file"): $(wc -l <"$folder/found") crates"
    done
    rm "$folder"/{wanted,found}
)

# Writes everything that a release consists of to target/dist: an archive with the command, the
# drop-in library, pages and licences; the packages of the published crates; the contents of each; and
# the checksums of all. The same commit gives the same bytes.
part_release() (
    need_program cargo-cyclonedx "$CARGO_CYCLONEDX" --debug || return 1
    if [ -n "$(git status --porcelain)" ]; then
        echo "a release is built from a commit, and these files are not committed:"
        git status --short
        return 1
    fi
    local target built dist triple version stage name crate
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export SOURCE_DATE_EPOCH
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    built=$target/release
    dist=$target/dist
    triple=$(rustc -vV | sed -n 's/^host: //p')
    version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
    rm -rf "$dist"
    mkdir -p "$dist"

    release_build
    no_paths "$built/uwarp" "$built/libuwarp_dropin.so" "$built/libuwarp_redirect.so"
    name=uwarp-$version-$triple
    stage=$target/stage/$name
    rm -rf "$target/stage"
    mkdir -p "$stage/share/doc/uwarp" "$stage/share/man/man1"
    "$built/uwarp" run --install "$stage" >/dev/null
    release_pages "$built/uwarp" "$stage"
    sboms "$stage/share/doc/uwarp" "$triple" cli dropin dropin/redirect
    cp "$stage"/share/doc/uwarp/uwarp.cdx.json "$dist/$name.cdx.json"
    cp "$stage"/share/doc/uwarp/uwarp-dropin.cdx.json "$dist/$name.dropin.cdx.json"
    cp "$stage"/share/doc/uwarp/uwarp-redirect.cdx.json "$dist/$name.redirect.cdx.json"
    # `run --install` copies the modes of the build, which depend on the umask.
    chmod -R u=rwX,go=rX "$stage"
    # Order, owners and times are fixed, and gzip stores no name and no time.
    LC_ALL=C tar -C "$target/stage" --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$SOURCE_DATE_EPOCH" --format=ustar -cf - "$name" | gzip -9n >"$dist/$name.tar.gz"

    # The builds of the packages are checked by `./ci.sh package`.
    part_package --no-verify
    # shellcheck disable=SC2046
    sboms "$dist" all $(published_folders)
    for crate in $(published_crates); do
        cp "$target/package/$crate-$version.crate" "$dist/"
        mv "$dist/$crate.cdx.json" "$dist/$crate-$version.crate.cdx.json"
    done
    (cd "$dist" && LC_ALL=C sha256sum -- *.crate *.json *.tar.gz >SHA256SUMS)
    cat "$dist/SHA256SUMS"
    echo "$dist"
)

# Copies the pages and licences, and writes the manual pages.
release_pages() { # COMMAND STAGE
    cp README.md CHANGELOG.md SECURITY.md LICENSE-MIT LICENSE-APACHE dropin/MATRIX.md "$2/share/doc/uwarp/"
    "$1" man "$2/share/man/man1" >/dev/null
}

# Builds the release in two clones of the commit, in directories of different lengths, and compares
# all files. Fails on a difference.
part_reproducible() (
    local root clone status=0
    # Installed here once. Both clones find it by PATH.
    need_program cargo-cyclonedx "$CARGO_CYCLONEDX" --debug || return 1
    root=$(mktemp -d)
    for clone in one two/deeper; do
        say "release in a clone: $clone"
        git clone --quiet . "$root/$clone"
        # No setting of the caller may point both builds to one directory.
        (cd "$root/$clone" && env -u CARGO_TARGET_DIR ./ci.sh release) || status=$?
        [ "$status" = 0 ] || break
    done
    if [ "$status" = 0 ]; then
        if diff -r "$root/one/target/dist" "$root/two/deeper/target/dist"; then
            echo "both releases have the same bytes: $(wc -l <"$root/one/target/dist/SHA256SUMS") files"
        else
            echo "the same commit gave different releases; the directories are kept: $root"
            return 1
        fi
    fi
    rm -rf "$root"
    return "$status"
)

# Names and folders of the published crates.
published_folders() { grep -L "^publish = false" -- */Cargo.toml tools/*/Cargo.toml | xargs -n 1 dirname; }
published_crates() { for folder in $(published_folders); do name_of "$folder"; done; }
name_of() { sed -n '/^\[package\]/,/^version/s/^name = "\(.*\)"$/\1/p' "$1/Cargo.toml"; } # FOLDER
