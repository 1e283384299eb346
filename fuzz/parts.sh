# The parts of ci.sh about fuzzing; sourced by it. docs/testing.md has the commands for one target.

FUZZ_TRIPLE=x86_64-unknown-linux-gnu
# The version that CI runs.
CARGO_FUZZ=0.13.2

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

# cargo-fuzz, installed beside what is built where the user has none, or another version.
need_cargo_fuzz() {
    local tools
    need_fuzzing || return 1
    if [ "$(cargo fuzz --version 2>/dev/null)" != "cargo-fuzz $CARGO_FUZZ" ]; then
        tools=$(realpath -m "${CARGO_TARGET_DIR:-target}")/tools
        if ! cargo install cargo-fuzz --version "$CARGO_FUZZ" --locked --root "$tools"; then
            echo "SKIPPED: cargo-fuzz $CARGO_FUZZ cannot be installed here"
            return 1
        fi
        PATH=$tools/bin:$PATH
    fi
    cargo fuzz --version
}

# Every target a fixed number of executions, and whether the targets find faults on purpose.
part_fuzz-smoke() (
    test_mutants oracles
    need_cargo_fuzz || return 0
    # Optimization across crates takes longer than so few executions win by it.
    export CARGO_PROFILE_RELEASE_LTO=off
    cargo +nightly fuzz build || return 1
    local logs status=0
    logs=$(mktemp -d)
    fuzz_smoke_runs "$logs" 0 &
    local other=$!
    fuzz_smoke_runs "$logs" 1 || status=$?
    wait "$other" || status=$?
    if [ "$status" = 0 ]; then
        fuzz_smoke_minimizes "$logs" || status=$?
    fi
    rm -rf "$logs"
    return "$status"
)

# Every second target, as a person starts it. The seeds and dictionaries come without being named.
fuzz_smoke_runs() { # LOGS REMAINDER
    local count=0 target runs log started
    for target in $(cargo fuzz list); do
        case $target in
            mpa_startup | mpa_deframe | ddp_segment | rdmap_terminate) runs=10000 ;;
            rdmap_message | mpa_sealed | ddp_placement | capture_file) runs=2000 ;;
            *) runs=300 ;;
        esac
        if [ $((count % 2)) = "$2" ]; then
            log=$1/$target
            started=$SECONDS
            if ! cargo +nightly fuzz run "$target" -- "-runs=$runs" -seed=1 -timeout=60 >"$log" 2>&1; then
                tail -60 "$log"
                return 1
            fi
            grep -q "files found in .*fuzz/seeds/$target\$" "$log" || { echo "$target has not found its seeds"; return 1; }
            if [ -f "fuzz/dictionaries/$target.dict" ] && ! grep -q '^Dictionary: ' "$log"; then
                echo "$target has not found its dictionary"
                return 1
            fi
            echo "$target: $runs executions in $((SECONDS - started)) s"
        fi
        count=$((count + 1))
    done
}

# One corpus minimized: it is left with inputs of the seeds, which it had not.
fuzz_smoke_minimizes() { # LOGS
    local corpus=$1/corpus
    mkdir "$corpus"
    cargo +nightly fuzz cmin mpa_deframe "$corpus" >"$1/cmin" 2>&1 || { tail -60 "$1/cmin"; return 1; }
    [ -n "$(ls "$corpus")" ] || { echo "cargo fuzz cmin has not found the seeds"; return 1; }
}

# Lines and regions of the three cores that the seeds and the corpora of all targets together reach. `cargo fuzz coverage`
# measures one target at a time.
part_fuzz-coverage() {
    need_fuzzing llvm-tools || return 0
    local tools directory binary
    tools=$(rustc +nightly --print sysroot)/lib/rustlib/$FUZZ_TRIPLE/bin
    directory=$(realpath -m "${CARGO_TARGET_DIR:-target}/fuzz-coverage")
    rm -f "$directory"/*.profraw
    binary=$(RUSTFLAGS="-Cinstrument-coverage" LLVM_PROFILE_FILE="$directory/build-%p.profraw" \
        cargo +nightly test --locked --target-dir "$directory" -p uwarp-fuzz --test replay --no-run \
        --message-format=json | sed -n 's/.*"executable":"\([^"]*replay-[^"]*\)".*/\1/p')
    rm -f "$directory"/*.profraw
    UWARP_FUZZ_CORPUS=$PWD/fuzz/corpus LLVM_PROFILE_FILE="$directory/run-%p.profraw" \
        "$binary" every_ --test-threads=1
    "$tools/llvm-profdata" merge -sparse "$directory"/run-*.profraw -o "$directory/run.profdata"
    "$tools/llvm-cov" export "$binary" -instr-profile="$directory/run.profdata" -summary-only \
        --sources "$PWD"/{mpa,ddp,rdmap}/src >"$directory/run.json"
    "$tools/llvm-cov" show "$binary" -instr-profile="$directory/run.profdata" \
        --sources "$PWD"/{mpa,ddp,rdmap}/src >"$directory/lines.txt"
    echo "line by line: $directory/lines.txt"
    UWARP_FUZZ_COVERAGE=$directory/run.json UWARP_FUZZ_REPORT=$(report_path fuzz-coverage) \
        cargo test --locked -p uwarp-fuzz --test coverage -- --nocapture
}
