# The parts of ci.sh about fuzzing; sourced by it. libFuzzer is driven by plain cargo: what cargo-fuzz would pass to rustc
# stands here, and nothing has to be installed but a nightly toolchain and a C++ compiler.

FUZZ_CORES="mpa_startup mpa_deframe mpa_sealed ddp_segment rdmap_message rdmap_terminate ddp_placement capture_file"
FUZZ_LIVE="connection_pair hostile_peer verbs_ops smoltcp_link"
FUZZ_TRACED="uwarp-mpa uwarp-ddp uwarp-rdmap uwarp-capture uwarp-llp uwarp-verbs"
FUZZ_TRIPLE=x86_64-unknown-linux-gnu

# What fuzzing needs. Says so when it is not there.
need_fuzzing() {
    if [ "$(uname -sm)" != "Linux x86_64" ]; then
        echo "SKIPPED: the fuzzers are built for Linux on x86-64, and this is $(uname -sm)"
        return 1
    fi
    need_nightly "$@" || return 1
    if ! need_package c++ g++; then
        echo "SKIPPED: libFuzzer needs a C++ compiler; install one (Debian: g++)"
        return 1
    fi
}

fuzz_target_dir() { realpath -m "${CARGO_TARGET_DIR:-target}/fuzz-$1"; }

# Builds all targets with libFuzzer's instrumentation, and sets `binaries` to where they are. Fails when the build does; in
# `$(fuzz_build ...)` bash would forget `set -e`, and what an earlier build has left would be run. Comparisons are traced in
# the crates of the stack alone: in the models and in the loops over octets that come with them it takes most of the time.
fuzz_build() { # SANITIZER (address, or none: the protocol cores have no unsafe code)
    local directory flags crate traced=()
    directory=$(fuzz_target_dir "$1")
    flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
    flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
    flags+=" --cfg fuzzing -Cdebug-assertions -Coverflow-checks"
    binaries=$directory/$FUZZ_TRIPLE/release
    if [ "$1" != none ]; then
        flags+=" -Zsanitizer=$1"
    fi
    for crate in $FUZZ_TRACED; do
        traced+=(--config "profile.release.package.$crate.rustflags=['-Cllvm-args=-sanitizer-coverage-trace-compares']")
    done
    RUSTFLAGS=$flags CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 \
        cargo +nightly build -Zprofile-rustflags "${traced[@]}" --release --locked --target $FUZZ_TRIPLE \
        --target-dir "$directory" -p uwarp-fuzz --features libfuzzer --bins
}

# Runs one target. What it finds goes to fuzz/crashers/TARGET, for the test to replay.
fuzz_run() { # BINARIES TARGET CORPUS OPTION...
    local binaries=$1 target=$2 corpus=$3 log
    shift 3
    log=$corpus.log
    local crashers=fuzz/crashers/$target dictionary=fuzz/dictionaries/$target.dict
    mkdir -p "$corpus" "$crashers"
    if [ -f "$dictionary" ]; then
        set -- "$@" "-dict=$dictionary"
    fi
    local started=$SECONDS
    # Memory is kept between executions: to give it back and get it again takes a fifth of the time of the live targets. Nobody
    # else writes to the corpus: not to look every second takes less.
    if ! MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=16777216 \
        "$binaries/$target" "$corpus" "fuzz/seeds/$target" "-artifact_prefix=$crashers/" \
        -timeout=20 -report_slow_units=100 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1 -reload=0 \
        -entropic_scale_per_exec_time=1 "$@" >"$log" 2>&1; then
        tail -60 "$log"
        echo "$target: FAILED. The input is in $crashers; replay it with: cargo test -p uwarp-fuzz --test replay"
        return 1
    fi
    rmdir "$crashers" 2>/dev/null || true
    local runs
    runs=$(sed -n 's/^stat::number_of_executed_units: //p' "$log")
    echo "$target: $runs executions in $((SECONDS - started)) s"
}

# Every target a fixed number of executions, and whether the targets find faults on purpose.
part_fuzz-smoke() {
    test_mutants oracles
    need_fuzzing || return 0
    local binaries corpora status=0
    fuzz_build none || return 1
    corpora=$(mktemp -d)
    fuzz_smoke_runs "$binaries" "$corpora" 0 &
    local other=$!
    fuzz_smoke_runs "$binaries" "$corpora" 1 || status=$?
    wait "$other" || status=$?
    rm -rf "$corpora"
    return "$status"
}

# Every second target.
fuzz_smoke_runs() { # BINARIES CORPORA REMAINDER
    local count=0 target runs
    for target in $FUZZ_CORES $FUZZ_LIVE; do
        case $target in
            mpa_startup | mpa_deframe | ddp_segment | rdmap_terminate) runs=30000 ;;
            rdmap_message | ddp_placement | capture_file) runs=5000 ;;
            *) runs=2000 ;;
        esac
        if [ $((count % 2)) = "$3" ]; then
            fuzz_run "$1" "$target" "$2/$target" -seed=1 "-runs=$runs" || return 1
        fi
        count=$((count + 1))
    done
}

fuzz_sanitizer() { # TARGET
    case " $FUZZ_LIVE " in
        *" $1 "*) echo address ;;
        *) echo none ;;
    esac
}

# One target for long. The corpus is kept under the target directory.
part_fuzz() { # TARGET [SECONDS]
    if ! [ -f "fuzz/fuzz_targets/${1:-}.rs" ]; then
        echo "usage: ./ci.sh fuzz TARGET [SECONDS], with one of: $FUZZ_CORES $FUZZ_LIVE"
        return 2
    fi
    need_fuzzing || return 0
    local sanitizer binaries
    sanitizer=$(fuzz_sanitizer "$1")
    fuzz_build "$sanitizer" || return 1
    fuzz_run "$binaries" "$1" "$(fuzz_target_dir "$sanitizer")/corpus/$1" "-max_total_time=${2:-600}"
}

# Every target as often as docs/fuzzing.md asks for, two at a time. Hours.
part_fuzz-long() {
    need_fuzzing || return 0
    local target sanitizer binaries
    for sanitizer in none address; do
        fuzz_build $sanitizer || return 1
    done
    for target in $FUZZ_CORES; do
        echo "$target none 10000000"
    done >"$(fuzz_target_dir none)/long"
    for target in $FUZZ_LIVE; do
        echo "$target address 1000000"
    done >>"$(fuzz_target_dir none)/long"
    export -f fuzz_run fuzz_target_dir
    export FUZZ_TRIPLE
    # shellcheck disable=SC2016
    xargs -P 2 -L 1 bash -c '
        directory=$(fuzz_target_dir "$1")
        fuzz_run "$directory/$FUZZ_TRIPLE/release" "$0" "$directory/corpus/$0" "-runs=$2"
    ' <"$(fuzz_target_dir none)/long"
}

# Lines and regions of the three cores that the seeds and the corpora reach, with no line reached by their own tests.
part_fuzz-coverage() {
    need_fuzzing llvm-tools || return 0
    local tools directory binary
    tools=$(rustc +nightly --print sysroot)/lib/rustlib/$FUZZ_TRIPLE/bin
    directory=$(fuzz_target_dir coverage)
    rm -f "$directory"/*.profraw
    binary=$(RUSTFLAGS="-Cinstrument-coverage" LLVM_PROFILE_FILE="$directory/build-%p.profraw" \
        cargo +nightly test --locked --target-dir "$directory" -p uwarp-fuzz --test replay --no-run \
        --message-format=json | sed -n 's/.*"executable":"\([^"]*replay-[^"]*\)".*/\1/p')
    rm -f "$directory"/*.profraw
    UWARP_FUZZ_CORPUS=$(fuzz_target_dir none)/corpus LLVM_PROFILE_FILE="$directory/run-%p.profraw" \
        "$binary" every_ --test-threads=1
    "$tools/llvm-profdata" merge -sparse "$directory"/run-*.profraw -o "$directory/run.profdata"
    "$tools/llvm-cov" export "$binary" -instr-profile="$directory/run.profdata" -summary-only \
        --sources "$PWD"/{mpa,ddp,rdmap}/src >"$directory/run.json"
    "$tools/llvm-cov" show "$binary" -instr-profile="$directory/run.profdata" \
        --sources "$PWD"/{mpa,ddp,rdmap}/src >"$directory/lines.txt"
    echo "line by line: $directory/lines.txt"
    UWARP_FUZZ_COVERAGE=$directory/run.json cargo test --locked -p uwarp-fuzz --test coverage -- --nocapture
}
