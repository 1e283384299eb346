# Parts of ci.sh that select toolchains and install programs. ci.sh sources this file.

# Nightly toolchain of Miri, ThreadSanitizer and the fuzzers. A new one can add a check, a lint or a
# fault of its own, so it changes by a commit.
NIGHTLY=nightly-2026-05-20

# Makes cargo usable here: installs the toolchain of rust-toolchain.toml if it is missing. Where that
# is impossible (no network), selects the user's `stable`, so that the checks run all the same. Their
# result then holds for that version.
need_toolchain() {
    local pinned
    # Without rustup there is one toolchain. With RUSTUP_TOOLCHAIN the user has chosen.
    if ! command -v rustup >/dev/null 2>&1 || [ -n "${RUSTUP_TOOLCHAIN-}" ]; then
        return 0
    fi
    pinned=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
    if rustc "+$pinned" --version >/dev/null 2>&1; then
        return 0
    fi
    say "installing Rust $pinned"
    if rustup toolchain install "$pinned" --profile minimal --component clippy,rustfmt >/dev/null 2>&1; then
        return 0
    fi
    echo "Rust $pinned of rust-toolchain.toml cannot be installed here; these checks run on $(rustc +stable --version)"
    export RUSTUP_TOOLCHAIN=stable
}

# Checks for the nightly toolchain with these components, and installs them. Where the pinned one
# cannot be installed, selects the user's own nightly. Fails, and says what to do, if there is none.
need_nightly() { # COMPONENT...
    local components=()
    [ $# = 0 ] || components=(--component "$(IFS=,; printf '%s' "$*")")
    if [ "$NIGHTLY" != nightly ] &&
        ! rustup toolchain install "$NIGHTLY" --no-self-update --profile minimal "${components[@]}" >/dev/null 2>&1; then
        echo "$NIGHTLY cannot be installed here; trying the installed nightly"
        NIGHTLY=nightly
    fi
    if ! rustc "+$NIGHTLY" --version >/dev/null 2>&1; then
        echo "SKIPPED: there is no nightly toolchain; install it with: rustup toolchain install nightly"
        return 1
    fi
    if [ $# -gt 0 ] && ! rustup component add --toolchain "$NIGHTLY" "$@" >/dev/null 2>&1; then
        echo "SKIPPED: the toolchain $NIGHTLY lacks $*; add it with: rustup component add --toolchain $NIGHTLY $*"
        return 1
    fi
    rustc "+$NIGHTLY" --version
}

# Makes a program available in this version: the user's own, or one that is built from the registry
# into the build directory. Prints the reason and fails if that is impossible.
need_program() { # CRATE VERSION OPTION_OF_CARGO_INSTALL...
    local crate=$1 version=$2 tools
    shift 2
    ! has_program "$crate" "$version" || return 0
    tools=$(realpath -m "${CARGO_TARGET_DIR:-target}")/tools
    PATH=$tools/bin:$PATH
    ! has_program "$crate" "$version" || return 0
    if ! cargo install "$crate" --version "$version" --locked --root "$tools" "$@"; then
        echo "SKIPPED: $crate $version cannot be installed here"
        return 1
    fi
}

# `mdbook` prints "mdbook v1.2.3", others "cargo-deny 1.2.3". Some subcommands of cargo can only be
# started by cargo.
has_program() { # CRATE VERSION
    local said start=("$1")
    [[ $1 != cargo-* ]] || start=(cargo "${1#cargo-}")
    said=$("${start[@]}" --version 2>/dev/null) || return 1
    [[ $said =~ \ v?([0-9.]+)$ ]] && [ "${BASH_REMATCH[1]}" = "$2" ]
}

# Compiles the published crates and the command with the oldest Rust that Cargo.toml promises.
part_msrv() {
    local oldest
    oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    if ! rustup toolchain install "$oldest" --no-self-update --profile minimal >/dev/null 2>&1; then
        echo "SKIPPED: Rust $oldest cannot be installed here"
        return 0
    fi
    rustc "+$oldest" --version
    # shellcheck disable=SC2046
    cargo "+$oldest" check --locked $(published_crates | sed 's/^/-p /') -p uwarp-dropin -p uwarp-redirect
}
