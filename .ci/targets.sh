# Parts of ci.sh for other processors and for another C library. ci.sh sources this file.

AARCH64=aarch64-unknown-linux-gnu
MUSL=x86_64-unknown-linux-musl
EMBEDDED=thumbv7em-none-eabi

# Installs the standard library of a target. Prints the reason and fails if that is impossible.
need_target() { # TARGET
    rustup target list --installed 2>/dev/null | grep -qx "$1" && return 0
    if ! rustup target add "$1"; then
        echo "SKIPPED: the target $1 is not installed and cannot be added here"
        return 1
    fi
}

# Installs a linker, a C library and an emulator for aarch64. Prints the missing packages and fails
# if they cannot be installed.
need_aarch64() {
    local missing
    need_target $AARCH64 || return 1
    missing=$(aarch64_missing)
    install_guest_packages "$missing"
    missing=$(aarch64_missing)
    if [ -n "$missing" ]; then
        echo "SKIPPED: these Debian packages are missing and cannot be installed here (needs root and apt): $missing"
        return 1
    fi
    qemu-aarch64-static --version | head -1
}

aarch64_missing() {
    local missing=()
    command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || missing+=(gcc-aarch64-linux-gnu)
    [ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ] || missing+=(libc6-dev-arm64-cross)
    command -v qemu-aarch64-static >/dev/null 2>&1 || missing+=(qemu-user-static)
    echo "${missing[*]}"
}

# Tests the workspace on aarch64 with a cross compiler and QEMU's user emulation. The emulation does
# not reproduce the memory ordering of an aarch64 processor. Tests that cannot run under emulation
# check QEMU_LD_PREFIX, and print why they skip.
part_aarch64() ( # [sample | whole]
    aarch64_ready || return 0
    if [ "${1-}" = sample ]; then
        # With all cases of property tests, the emulation takes four minutes.
        export PROPTEST_CASES=${PROPTEST_CASES:-32}
        aarch64_tests "${AARCH64_TESTED[@]}" -p uwarp-dropin --lib
        return
    fi
    cargo build --locked --target $AARCH64
    if [ "${1-}" = whole ]; then
        # The integration tests of the drop-in are left out, because they run programs of this
        # machine.
        aarch64_tests "${AARCH64_TESTED[@]}"
        aarch64_tests -p uwarp-dropin --lib
    else
        aarch64_tests "${AARCH64_TESTED[@]}" -p uwarp-dropin --lib
    fi
    aarch64_programs "$(realpath "${CARGO_TARGET_DIR:-target}")/$AARCH64/debug"
)

part_aarch64_sample() { part_aarch64 sample; }

AARCH64_TESTED=(-p uwarp-mpa -p uwarp-ddp -p uwarp-rdmap -p uwarp-engine -p uwarp-llp -p uwarp-verbs)

aarch64_tests() { cargo test --locked --target $AARCH64 "$@"; }

# Sets the environment of a cross build. Prints the reason and fails if that is impossible.
aarch64_ready() {
    if [ "$(uname -m)" = aarch64 ]; then
        echo "SKIPPED: this machine is aarch64 itself, and \`./ci.sh test\` has more"
        return 1
    fi
    need_aarch64 || return 1
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64-static
    export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
}

# Runs Debian's own arm64 programs on the drop-in library.
aarch64_programs() { # BUILT
    local root=${CARGO_TARGET_DIR:-target}/aarch64-root prefix port=7179
    if ! need_package mmdebstrap mmdebstrap; then
        echo "SKIPPED: mmdebstrap, which unpacks Debian's programs for arm64, is not installed and cannot be installed here"
        return 0
    fi
    if ! [ -x "$root/usr/bin/rping" ]; then
        rm -rf "$root"
        mmdebstrap --quiet --architectures=arm64 --variant=extract \
            --include=libc6,libc-bin,rdmacm-utils,ibverbs-utils,perftest "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root"
    fi
    root=$(realpath "$root")
    prefix=$(mktemp -d)
    qemu-aarch64-static "$1/uwarp" run --install "$prefix"
    export QEMU_LD_PREFIX=$root QEMU_SET_ENV=LD_LIBRARY_PATH=$prefix/lib/uwarp
    say "ibv_devinfo"
    qemu-aarch64-static "$root/usr/bin/ibv_devinfo"
    pair_of_programs "rping -s -a 127.0.0.1 -p $port -C 100" "rping -c -a 127.0.0.1 -p $port -C 100 -V" "$root"
    pair_of_programs "ib_write_bw -R -n 100 -p $port" "ib_write_bw -R -n 100 -p $port 127.0.0.1" "$root"
    pair_of_programs "ib_write_lat -R -n 100 -p $port" "ib_write_lat -R -n 100 -p $port 127.0.0.1" "$root"
    rm -rf "$prefix"
}

# Runs a server and a client. The client is retried until the server listens.
pair_of_programs() { # SERVER CLIENT ROOT
    local server tries=0 said
    say "$2"
    # shellcheck disable=SC2086
    timeout 120 qemu-aarch64-static "$3/usr/bin/"$1 >/dev/null &
    server=$!
    # shellcheck disable=SC2086
    until said=$(timeout 120 qemu-aarch64-static "$3/usr/bin/"$2 2>&1); do
        tries=$((tries + 1))
        if [ "$tries" -ge 100 ] || ! kill -0 "$server" 2>/dev/null; then
            printf '%s\n' "$said"
            kill "$server" 2>/dev/null || true
            return 1
        fi
        sleep 0.2
    done
    printf '%s\n' "$said" | tail -3
    wait "$server"
}

# Builds the command as one static executable.
part_musl() {
    need_target $MUSL || return 0
    cargo build --locked --target $MUSL -p uwarp
    local uwarp=${CARGO_TARGET_DIR:-target}/$MUSL/debug/uwarp
    local headers
    headers=$(readelf -l "$uwarp") || return 1
    if grep -q INTERP <<<"$headers"; then
        echo "$uwarp is linked dynamically"
        return 1
    fi
    "$uwarp" demo
    cargo test --locked --target $MUSL --lib -p uwarp-llp
}
