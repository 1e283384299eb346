# Parts of ci.sh for fuzzing; sourced by ci.sh. docs/testing.md has the commands for one target.

FUZZ_TRIPLE=x86_64-unknown-linux-gnu
# Version of cargo-fuzz in CI.
CARGO_FUZZ=0.13.2

# Checks for the tools that fuzzing needs. Prints the reason and fails if one is missing.
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

# Makes this version of cargo-fuzz available. A debug build, because it only starts other programs.
need_cargo_fuzz() {
    need_fuzzing || return 1
    need_program cargo-fuzz "$CARGO_FUZZ" --debug
}

# Runs every target a fixed number of times, and checks that the targets find deliberate faults.
part_fuzz-smoke() (
    test_mutants oracles
    need_cargo_fuzz || return 0
    # LTO takes longer than it saves in so few executions.
    export CARGO_PROFILE_RELEASE_LTO=off
    cargo "+$NIGHTLY" fuzz build || return 1
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

# Runs every second target with the command that a person would type. The command names neither
# seeds nor dictionary; the target must find both by itself.
fuzz_smoke_runs() { # LOGS REMAINDER
    local count=0 target runs log started
    for target in $(cargo fuzz list); do
        case $target in
            mpa_startup | mpa_deframe | ddp_segment | rdmap_terminate | ud_datagram) runs=10000 ;;
            rdmap_message | mpa_sealed | ddp_placement | capture_file) runs=2000 ;;
            *) runs=300 ;;
        esac
        if [ $((count % 2)) = "$2" ]; then
            log=$1/$target
            started=$SECONDS
            if ! cargo "+$NIGHTLY" fuzz run "$target" -- "-runs=$runs" -seed=1 -timeout=60 >"$log" 2>&1; then
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

# Minimizes one corpus, which is empty at first. The result must hold inputs taken from the seeds.
fuzz_smoke_minimizes() { # LOGS
    local corpus=$1/corpus
    mkdir "$corpus"
    cargo "+$NIGHTLY" fuzz cmin mpa_deframe "$corpus" >"$1/cmin" 2>&1 || { tail -60 "$1/cmin"; return 1; }
    [ -n "$(ls "$corpus")" ] || { echo "cargo fuzz cmin has not found the seeds"; return 1; }
}

# Measures how many lines and regions of the three protocol crates all seeds and corpora together
# cover. `cargo fuzz coverage` measures one target at a time.
part_fuzz-coverage() {
    need_fuzzing llvm-tools || return 0
    local tools directory binary
    tools=$(rustc "+$NIGHTLY" --print sysroot)/lib/rustlib/$FUZZ_TRIPLE/bin
    directory=$(realpath -m "${CARGO_TARGET_DIR:-target}/fuzz-coverage")
    rm -f "$directory"/*.profraw
    binary=$(RUSTFLAGS="-Cinstrument-coverage" LLVM_PROFILE_FILE="$directory/build-%p.profraw" \
        cargo "+$NIGHTLY" test --locked --target-dir "$directory" -p uwarp-fuzz --test replay --no-run \
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
