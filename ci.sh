#!/usr/bin/env bash
# Runs parts of the CI, selected by name. Without an argument, prints the list of parts.
set -euo pipefail
cd "$(dirname "$0")"
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-always}"
# This is enough for line numbers in backtraces. Full debug information would take minutes to build,
# and gigabytes of space.
export CARGO_PROFILE_DEV_DEBUG="${CARGO_PROFILE_DEV_DEBUG:-line-tables-only}"
# CI builds everything once. The data for incremental compilation would take 6 GB.
if [ "${CI-}" = true ]; then
    export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
fi

say() { printf '\n== %s\n' "$*"; }

usage() {
    cat <<'EOF'
usage: ./ci.sh PART...
       ./ci.sh interop [--dangerous] [FILTER...]
       ./ci.sh sim [OPTION...]
       ./ci.sh aarch64 [sample | whole]
       ./ci.sh bench [scale | dropin] [OPTION...]
       ./ci.sh bench whole [--rounds N]
       ./ci.sh instructions [--record]
       ./ci.sh roots [NAME...]
  fmt      formatting
  words    the language of comments and docs: width, first words, phrases to avoid
  book     the HTML site of all pages by mdBook (installs it), in target/book; a broken link fails
  clippy   lints, all targets, warnings are errors
  doc      documentation, warnings are errors
  package  every published crate, built from its package with licences and readme; `all` makes the
           packages and does not build them
  deny     the licences, duplicates and sources of all crates, by cargo-deny (installs it); rules:
           deny.toml
  advisories  the crates against the published vulnerabilities, whose database is downloaded; not in
           `all`
  sbom     the contents of each package as CycloneDX, by cargo-cyclonedx (installs it)
  paths    the release build; an executable that contains a directory of this machine fails
  release  everything that a release consists of, from a commit, in target/dist: archive, packages,
           their contents and SHA256SUMS; not in `all`
  reproducible  `release` in two clones, whose files must be the same; not in `all`
  msrv     the published crates on the oldest Rust that Cargo.toml promises (installs it); not in
           `all`
  nostd    the protocol cores on a target without an operating system
  aarch64  the unit tests on aarch64 under QEMU's user emulation, and Debian's programs for it on
           the drop-in library (installs what it needs when root); `aarch64 whole` adds the
           integration tests; `all` has `aarch64 sample`, the unit tests alone
  musl     the command as one static file, and the unit tests of the transport, with musl
  test     every test of the workspace (the README's command)
  miri     the protocol cores and registered memory under Miri (installs it on nightly); `all`
           leaves out the cores that neither have nor use `unsafe`
  tsan     many connections on many threads under ThreadSanitizer (nightly, with a standard library
           built for it)
  tshark   the captures, read by Wireshark's dissectors (installs tshark when root)
  demo     the main job, as the README shows it, and two processes of rping
  conformance-full  uwarp's endpoint against the conformance suite in all sixteen configurations,
           in both roles, three times; not in `all`, whose `test` has four of them
  mutants-smoke  uwarp's endpoint with one deliberate fault at a time against the cases of the
           conformance suite that must find it
  mutants  the same against all cases; writes target/reports/mutants.md; not in `all`
  fuzz-smoke  a fixed number of executions of every fuzz target, by cargo-fuzz (nightly; installs
           cargo-fuzz), and whether the targets find deliberate faults
  fuzz-coverage  lines and regions of the protocol cores that the fuzzers reach; writes
           target/reports/fuzz-coverage.md; not in `all`
  sim      10,000 runs of the simulator; --seeds N for more; --seed S --log shows one run. `all`
           has 4,000
  robustness  hostile peers attack a real process, with full loads, about 28 minutes; writes
           target/reports/robustness.md; not in `all`, whose `test` has small loads
  bench    uwarp beside raw TCP and other programs, about 8 minutes; writes
           target/reports/performance.md; not in `all`. --install-peers installs the other programs
           when root, and --json FILE writes all values. More sections of that report: `bench scale`
           (many connections), `bench dropin` (unmodified RDMA programs beside `uwarp perf`, MPI
           beside MPI over TCP). `bench whole` runs all of these and bench-siw, about 20 minutes,
           or 5 with --rounds 1, which shows no spread
  bench-siw  uwarp beside Linux siw in a virtual machine; a section of the same report; not in `all`
  bench-micro  single steps of the data path, by criterion; not in `all`
  instructions  instructions of the data path by callgrind, against dev/bench/instructions.txt
           (installs valgrind when root); --record writes that file; not in `all`
  dropin   unmodified RDMA programs of the distribution on the drop-in libibverbs and librdmacm, in
           both personas, and published crates and wheels (installs them when root); `test` has the
           programs in the default persona
  roots    root file systems of other distributions (trixie: Debian 13) for the tests of `dropin`,
           in roots in the target directory, by mmdebstrap (installs it when root) from the mirror of
           this machine's apt; a root that is up to date is kept. `all` makes them, and `test` then
           runs every 13th of their rows
  interop  tests, programs of the distribution and the conformance suite against Linux siw in a
           virtual machine (installs what it needs when root). A FILTER is a part of a test's name;
           without one it writes target/reports/interop.md. --dangerous adds the cases that crash or
           wedge the guest, each in a guest of its own, and writes
           target/reports/conformance-siw.md. Programs that connect repeatedly connect 50 times, in
           `all` 10 times (UWARP_INTEROP_CONNECTIONS). In `all`, every fourth of the tests on Unix
           datagrams that also run on TAP devices (UWARP_INTEROP_SAMPLE)
  all      all of these; what .ci/run calls
docs/testing.md describes the tests. Reports are written to target/reports, or reports in
CARGO_TARGET_DIR where that is set.
EOF
}

# Installs a missing Debian package if root. Fails if the command is still missing.
need_package() { # COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 && return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing $2"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null
    fi
    command -v "$1" >/dev/null 2>&1
}

# Creates the directory of the reports, and prints the path of the report with this name.
report_path() { # NAME
    local folder
    folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/reports
    mkdir -p "$folder"
    printf '%s/%s.md\n' "$folder" "$1"
}

# Succeeds if a TAP device can be created in a new network namespace.
own_namespace() {
    local try='ip tuntap add uwarp0 mode tap'
    unshare -Urn sh -c "$try" 2>/dev/null || unshare -n sh -c "$try" 2>/dev/null
}

# Flags that compile the sites for deliberate faults (dev/mutant/) into the stack. A `cfg` is used,
# because a Cargo feature would be published.
MUTANTS="${RUSTFLAGS-} --cfg uwarp_mutants"

part_fmt() {
    cargo fmt --all --check
    cargo fmt --manifest-path dropin/tests/crates/Cargo.toml --check
    # Cargo would take `tests/x.rs` for a test of its own.
    local modules
    modules=$(find . -name mod.rs -not -path './target/*' -not -path '*/tests/*/mod.rs')
    if [ -n "$modules" ]; then
        printf 'a module `x` is `x.rs`, not `x/mod.rs`:\n%s\n' "$modules" >&2
        return 1
    fi
}
part_clippy() {
    cargo clippy --workspace --all-targets --locked -- -D warnings
    RUSTFLAGS=$MUTANTS cargo clippy -p uwarp-mutant -p uwarp-sim -p uwarp-fuzz --all-targets --locked -- -D warnings
}
part_doc() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked; }

# Checks the package of each published crate. It must build from its own files, contain its readme
# and licences, and not mention mutants in its manifest.
part_package() { # OPTION...
    local crates packages=() crate file content
    crates=$(published_crates)
    for crate in $crates; do packages+=(-p "$crate"); done
    cargo package --locked --allow-dirty "$@" "${packages[@]}"
    local built=${CARGO_TARGET_DIR:-target}/package
    for crate in $crates; do
        for file in "$built/$crate"-[0-9]*.crate; do
            content=$(tar -tzf "$file")
            for wanted in README.md LICENSE-MIT LICENSE-APACHE; do
                grep -q "/$wanted$" <<<"$content" || { echo "$file lacks $wanted"; return 1; }
            done
            if tar -xzOf "$file" --wildcards '*/Cargo.toml' '*/Cargo.toml.orig' | grep -i mutant; then
                echo "$file names the mutants in its manifest, and these are not published"
                return 1
            fi
        done
    done
}

# Checks the packages without building the crates, because the builds take minutes.
part_package_files() { part_package --no-verify; }

part_nostd() {
    need_target $EMBEDDED || return 0
    cargo build -p uwarp-mpa -p uwarp-ddp -p uwarp-rdmap --no-default-features --target $EMBEDDED --locked
}

part_test() {
    if command -v tshark >/dev/null 2>&1; then
        export UWARP_REQUIRE_TSHARK=1
    fi
    # If a network namespace and a TAP device can be created, no test that needs them may skip.
    need_package ip iproute2 || true
    if own_namespace; then
        export UWARP_REQUIRE_NETNS=1
    fi
    # Every test binary runs, so that one run shows every failure. The failures are repeated at the
    # end, because their binaries can be thousands of lines above it.
    local said status=0
    said=$(mktemp)
    cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$said" || status=$?
    if [ "$status" != 0 ]; then
        say "what has failed"
        awk '/Running|Doc-tests/ { binary = $0 } /^failures:/ && !show { print binary; show = 1 }
            show; /^test result:/ { show = 0 }' "$said"
    fi
    rm -f "$said"
    return "$status"
}

# Miri interprets programs, which is some hundred times slower, so property tests run few cases.
# INSTA_WORKSPACE_ROOT is set, so that snapshot tests need not ask cargo for the workspace. Tests
# that need a real kernel (descriptors, sleeping threads) do not run. Miri uses one core, so two
# processes run at the same time.
part_miri() { # [sample]
    need_nightly miri rust-src || return 0
    # Registered memory is accessed by words of several sizes, which Miri's emulation of weak memory
    # does not support.
    export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-disable-weak-memory-emulation"
    # XorShift is the cheapest generator of random numbers.
    export PROPTEST_CASES=${MIRI_CASES:-4} PROPTEST_RNG_ALGORITHM=xs INSTA_WORKSPACE_ROOT=$PWD
    local miri="cargo +$NIGHTLY miri test --locked --lib"
    # Builds uwarp-engine and its dependencies before the two processes below start. The protocol
    # crates need dependencies with other features, which their process builds itself.
    $miri --no-run -p uwarp-engine
    local said
    said=$(mktemp)
    # Connections, causes and limits reach memory through `mem` alone, and have long property tests.
    # The tests of headroom need limits of a kernel.
    $miri -p uwarp-engine -- --skip connection:: --skip cause:: --skip headroom:: --skip limits:: \
        >"$said" 2>&1 &
    local other=$! status=0
    # ddp and rdmap forbid `unsafe` and depend on no crate that has it, so a sample leaves them out.
    # mpa depends on a CRC of processor instructions.
    local cores=(-p uwarp-mpa)
    [ "${1-}" = sample ] || cores+=(-p uwarp-ddp -p uwarp-rdmap)
    $miri "${cores[@]}" || status=$?
    wait "$other" || status=$?
    cat "$said"
    rm -f "$said"
    return "$status"
}

part_miri_sample() { part_miri sample; }

part_tsan() {
    need_nightly rust-src || return 0
    RUSTFLAGS="-Zsanitizer=thread" TSAN_OPTIONS="halt_on_error=1" \
        cargo "+$NIGHTLY" test --locked -Zbuild-std --target x86_64-unknown-linux-gnu \
        -p uwarp-verbs --test threads
}

part_conformance-full() {
    cargo test --release --locked -p uwarp-conformance --test ours -- --ignored --nocapture
}

# Runs the test target with this name, with deliberate faults compiled in. The crates are built
# together. They are optimized, because the tests make many runs.
test_mutants() { # NAME
    RUSTFLAGS=$MUTANTS cargo test --profile sim --locked -p uwarp-mutant -p uwarp-sim -p uwarp-fuzz --test "$1"
}

part_mutants-smoke() { test_mutants mutants; }

part_sim() { # OPTION...
    cargo run --profile sim --locked -q -p uwarp-sim -- --jobs "$(nproc)" "$@"
}

part_sim_sample() { part_sim --seeds 4000; }

part_bench() { # [scale | dropin] OPTION... | whole [--rounds N]
    if [ "${1-}" = whole ]; then
        shift
        bench_whole "$@"
        return
    fi
    local built=${CARGO_TARGET_DIR:-target}/release which=() more=()
    case "${1-}" in scale | dropin)
        which=("$1")
        shift
        ;;
    esac
    # The drop-in library must be next to the command.
    [ "${which[*]}" != dropin ] || more=(-p uwarp-dropin)
    cargo build --release --locked -p uwarp -p uwarp-bench "${more[@]}"
    "$built/uwarp-bench" "${which[@]}" --uwarp "$built/uwarp" --write "$(report_path performance)" "$@"
}

bench_whole() { # [--rounds N]
    local rounds=() peers=()
    if [ $# -gt 0 ]; then
        if [ $# != 2 ] || [ "$1" != --rounds ] || ! [[ $2 =~ ^[1-9][0-9]*$ ]]; then
            echo "bench whole takes --rounds N, N being at least 1, and nothing else; it was given: $*" >&2
            return 2
        fi
        rounds=("$@")
        peers=(--peer-rounds "$2")
    fi
    part_bench --install-peers "${rounds[@]}" "${peers[@]}"
    part_bench scale "${rounds[@]}"
    part_bench dropin --install-peers "${rounds[@]}"
    part_bench-siw "${rounds[@]}"
}

# Counts the instructions of the data path, because they do not depend on the load of the machine.
# Fails if a message takes more instructions than recorded.
part_instructions() { # [--record]
    if ! need_package valgrind valgrind; then
        echo "SKIPPED: valgrind is not installed and cannot be installed here (needs root and apt)"
        return 0
    fi
    cargo build --release --locked -p uwarp-bench --bin uwarp-bench --example traffic
    local built=${CARGO_TARGET_DIR:-target}/release
    "$built/uwarp-bench" instructions --traffic "$built/examples/traffic" "$@"
}

part_bench-siw() { # OPTION...
    local missing
    . dev/interop/guest/packages.sh
    install_guest_packages "$(missing_packages)"
    missing=$(missing_packages | tr '\n' ' ')
    if [ -n "$missing" ]; then
        echo "SKIPPED: these Debian packages are missing and cannot be installed here (needs root and apt): $missing"
        return 0
    fi
    cargo build --release --locked -p uwarp -p uwarp-bench
    local built=${CARGO_TARGET_DIR:-target}/release
    "$built/uwarp-bench" siw --uwarp "$built/uwarp" --write "$(report_path performance)" "$@"
}

part_bench-micro() { cargo bench --locked -p uwarp-bench; }

part_mutants() {
    UWARP_MUTANTS_REPORT=$(report_path mutants) part_mutants-smoke
}

part_robustness() {
    # For a C program on the drop-in library.
    install_guest_packages "$(missing_packages gcc libc6-dev libibverbs-dev librdmacm-dev)"
    UWARP_ROBUSTNESS=full UWARP_ROBUSTNESS_REPORT=$(report_path robustness) \
        cargo test --release --locked -p uwarp --test robustness
}

. fuzz/parts.sh
. .ci/targets.sh
. .ci/words.sh
. .ci/book.sh
. .ci/toolchain.sh
. .ci/supply.sh
. .ci/roots.sh

part_tshark() {
    if ! need_package tshark tshark; then
        echo "SKIPPED: tshark is not installed and cannot be installed here (needs root and apt)"
        return 0
    fi
    tshark --version 2>/dev/null | head -1
}

part_demo() {
    part_paths
    say "uwarp demo"
    ./target/release/uwarp demo
    say "uwarp rping, two processes"
    ./target/release/uwarp rping -s -a 127.0.0.1 -p 7174 -v -C 10 &
    local server=$!
    # The client is retried only while the server does not listen yet. If the client fails, the
    # server is killed.
    local tries=0 said
    until said=$(./target/release/uwarp rping -c -a 127.0.0.1 -p 7174 -C 10 -S 4096 -v -V 2>&1); do
        tries=$((tries + 1))
        if [ "$tries" -ge 20 ] || [[ "$said" != *"nothing listens"* ]]; then
            printf '%s\n' "$said"
            kill "$server" 2>/dev/null || true
            return 1
        fi
        sleep 0.2
    done
    printf '%s\n' "$said"
    wait "$server"
}

# Debian packages with programs that run on the drop-in library, and with tools to compile programs
# for it.
DROPIN_PACKAGES="rdmacm-utils ibverbs-utils libibverbs1 librdmacm1 perftest qperf fio tgt libiscsi-bin qemu-system-x86 libfabric-bin libfabric1 python3-pyverbs
    openmpi-bin libopenmpi-dev ucx-utils mpich libmpich-dev gcc libc6-dev libibverbs-dev librdmacm-dev iproute2 util-linux"

# Prints those of the Debian packages that are not installed.
missing_packages() { # PACKAGE...
    local package
    for package; do
        dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || printf ' %s' "$package"
    done
}

# Those to build published crates for it, and to install published wheels.
PUBLISHED_PACKAGES="cmake libclang-dev pkg-config python3 python3-pip libnuma1 libcurl4"

# Installs the packages of the programs for the drop-in library. If all are installed, no test that
# needs them may skip.
dropin_packages() { # MORE...
    local package missing="" version
    # shellcheck disable=SC2086
    install_guest_packages "$(missing_packages $DROPIN_PACKAGES "$@")"
    # shellcheck disable=SC2086
    for package in $DROPIN_PACKAGES "$@"; do
        version=$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null || true)
        echo "$package ${version:-is not installed}"
        [ -n "$version" ] || missing+=" $package"
    done
    # Tests may still skip if unprivileged namespaces or the tests of pyverbs are missing. The
    # latter are in /usr/share/doc, which Debian's container images omit.
    local try='unshare -n -u true && ip link add uw0 type veth peer name uw1' nobody=()
    [ "$(id -u)" != 0 ] || nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs)
    if "${nobody[@]}" unshare -Urn sh -c "$try" && [ -d /usr/share/doc/rdma-core/tests ]; then
        [ -n "$missing" ] || export UWARP_REQUIRE_DROPIN=1
    fi
}

# Installs the wheels of dropin/tests/py/wheels.txt, 450 MB, into a directory for the tests. pip
# keeps what it has downloaded.
dropin_wheels() {
    local wheels
    if [ "$(uname -m)" != x86_64 ] || ! /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
        echo "SKIPPED: the wheels are for Python 3.11 on x86-64"
        return 0
    fi
    wheels=$(realpath -m "${CARGO_TARGET_DIR:-target}")/wheels
    rm -rf "$wheels"
    if ! /usr/bin/python3 -m pip install --quiet --no-deps --require-hashes --only-binary :all: \
        --requirement dropin/tests/py/wheels.txt --target "$wheels"; then
        [ -z "${UWARP_REQUIRE_DROPIN-}" ] || return 1
        echo "SKIPPED: the wheels cannot be installed here"
        return 0
    fi
    export UWARP_DROPIN_WHEELS=$wheels
}

part_dropin() {
    # shellcheck disable=SC2086
    dropin_packages $PUBLISHED_PACKAGES
    dropin_roots
    dropin_wheels
    export UWARP_DROPIN_CRATES=1
    # Number of migrations that the test of QEMU runs. If memory can change while it is being sent,
    # one migration in eight fails.
    export UWARP_MIGRATIONS=${UWARP_MIGRATIONS:-50}
    release_build
    # `--workspace` selects the features of all members, as in `test`.
    UWARP_BIN=$(realpath "${CARGO_TARGET_DIR:-target}")/release/uwarp
    export UWARP_BIN
    cargo test --workspace --locked --test dropin
    say "the same in the persona iwarp"
    UWARP_TEST_PERSONA=iwarp cargo test --workspace --locked --test dropin
}

part_interop() { # [--dangerous] FILTER...
    if [ "${1-}" = --dangerous ]; then
        shift
        export UWARP_CONFORMANCE_DANGEROUS=1
    fi
    if [ "$(uname -sm)" != "Linux x86_64" ]; then
        echo "SKIPPED: the guest needs Linux on x86-64, and this is $(uname -sm)"
        return 0
    fi
    . dev/interop/guest/packages.sh
    install_guest_packages "$(missing_packages)"
    local missing
    missing=$(missing_packages | tr '\n' ' ')
    if [ -n "$missing" ]; then
        echo "SKIPPED: these Debian packages are missing and cannot be installed here (needs root and apt): $missing"
        return 0
    fi
    local built=0
    dev/interop/guest/build.sh >/dev/null || built=$?
    # Exit status 4: Debian has a newer kernel, and the installed version is no longer available.
    if [ "$built" = 4 ] && [ "$(id -u)" = 0 ]; then
        install_guest_packages linux-headers-amd64
        built=0
        dev/interop/guest/build.sh >/dev/null || built=$?
    fi
    [ "$built" = 0 ] || return "$built"
    release_build
    local target filter
    target=$(realpath "${CARGO_TARGET_DIR:-target}")
    filter=$(IFS=,; printf '%s' "$*")
    # Only a run of all tests writes a report.
    if [ $# = 0 ]; then
        UWARP_INTEROP_REPORT=${UWARP_INTEROP_REPORT:-$(report_path interop)}
        export UWARP_INTEROP_REPORT
    fi
    # The tests are optimized, because debug builds spend minutes on patterns and CRCs of 16 MiB.
    # Linking with LTO would take a minute more.
    UWARP_INTEROP=1 UWARP_BIN=$target/release/uwarp \
        cargo test --profile sim --locked --no-fail-fast -p uwarp-interop --test interop --test conformance -- ${filter:+"$filter"}
}

install_guest_packages() { # PACKAGES
    if [ -z "$1" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        return 0
    fi
    say "installing" $1
    apt-get update -qq || true
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $1 >/dev/null || true
}

# Parts that only compute run in the background. The other parts leave processors idle while crates
# wait for each other, while the linker works, and while tests wait. The background parts run at low
# priority, because some other parts have time limits. Their output is printed when they end.
BESIDE=
BESIDE_SAYS=
trap '[ -z "$BESIDE" ] || kill -- "-$BESIDE" 2>/dev/null || true; [ -z "$BESIDE_SAYS" ] || rm -f "$BESIDE_SAYS"' EXIT

begin_beside() { # PART...
    BESIDE_SAYS=$(mktemp)
    # `set -m` gives the job its own process group, which the trap kills when this script ends.
    set -m
    (
        renice -n 19 -p "$BASHPID" >/dev/null
        for part in "$@"; do
            say "$part"
            start=$SECONDS
            # The subshell keeps the exports of a part from reaching the other parts.
            ("part_$part")
            say "$part took $((SECONDS - start)) s beside others"
        done
    ) >"$BESIDE_SAYS" 2>&1 &
    BESIDE=$!
    set +m
}

end_beside() {
    local status=0
    wait "$BESIDE" || status=$?
    BESIDE=
    cat "$BESIDE_SAYS"
    rm -f "$BESIDE_SAYS"
    return "$status"
}

part_build_tests() { cargo test --workspace --locked --no-run; }

# The tests come last, so that the output ends with the test runner's summary.
part_all() {
    local part start took=
    export UWARP_INTEROP_CONNECTIONS=${UWARP_INTEROP_CONNECTIONS:-10}
    export UWARP_INTEROP_SAMPLE=${UWARP_INTEROP_SAMPLE:-4}
    export MIRI_CASES=${MIRI_CASES:-2}
    # Toolchains and packages are installed first, because two installations at once would fail.
    need_nightly miri rust-src || true
    need_fuzzing || true
    need_target $MUSL || true
    need_target $EMBEDDED || true
    need_aarch64 || true
    need_package mmdebstrap mmdebstrap || true
    begin_beside mutants-smoke sim_sample miri_sample tsan aarch64_sample book deny sbom roots_sample
    for part in tshark fmt words clippy doc package_files nostd musl demo interop fuzz-smoke build_tests; do
        say "$part"
        start=$SECONDS
        "part_$part"
        took+=" $part $((SECONDS - start)) s,"
    done
    start=$SECONDS
    say "what ran beside these"
    local status=0
    end_beside || status=$?
    say "these took:$took and what ran beside them $((SECONDS - start)) s more"
    [ "$status" = 0 ] || return "$status"
    # `test` also runs the tests of `dropin`, which need these packages.
    say "packages of the programs for the drop-in library"
    dropin_packages
    # `test` uses the command and the library that `interop` has built as users get them.
    local built
    built=$(realpath "${CARGO_TARGET_DIR:-target}")/release
    if [ -x "$built/uwarp" ] && [ -e "$built/libuwarp_dropin.so" ] &&
        [ -e "$built/libuwarp_redirect.so" ]; then
        export UWARP_BIN=$built/uwarp
    fi
    # All rows of a root take about a minute. Every 13th is one each of listing devices, a C
    # program, ping-pong, perftest, MPI and UCX.
    export UWARP_TEST_ROOTS_SAMPLE=${UWARP_TEST_ROOTS_SAMPLE:-13}
    say test
    part_test
}

[ $# -gt 0 ] || { usage; exit 2; }
need_toolchain
if [ "$1" = interop ] || [ "$1" = sim ] || [ "$1" = bench ] || [ "$1" = aarch64 ] || [ "$1" = instructions ] || [ "$1" = roots ]; then
    part=$1
    shift
    say "$part"
    "part_$part" "$@"
    exit
fi
for part in "$@"; do
    case "$part" in
        fmt | words | book | clippy | doc | package | nostd | musl | test | tshark | demo | dropin | miri | tsan | conformance-full | mutants | mutants-smoke | fuzz-smoke | fuzz-coverage | sim | robustness | deny | advisories | sbom | paths | release | reproducible | msrv | bench-siw | bench-micro) say "$part"; "part_$part" ;;
        all) part_all ;;
        *) usage; exit 2 ;;
    esac
done
