#!/usr/bin/env bash
# Measures what each heuristic of uwarp pays: builds `uwarp` without it, and runs rows of
# `uwarp perf` of that build and of the whole one by turns. Needs jq, ss and taskset, and a quiet
# machine with two processors.
#
#   dev/bench/policy.sh build [NAME...]     builds target/policy/uwarp-NAME (base: all heuristics)
#   dev/bench/policy.sh measure [NAME...]   measures builds that exist; prints a table for each
#   dev/bench/policy.sh [NAME...]           both
#
# A NAME may be several heuristics with commas between them, which are left out together: a group
# that does not pay needs no further measurement.
#
# Without NAME: every heuristic, after `base2`, a copy of the base, whose ratios are the noise. Any
# other program at target/policy/uwarp-NAME can be measured, too, such as one of an older commit.
# Environment: ROUNDS (5), SECONDS_EACH (0.4), ROWS (a regular expression of row names), CLIENT_CPU
# (1), SERVER_CPU (0), OUT (target/policy).
#
# `pays` is base beside the build without the heuristic, so that above 1 the heuristic is a gain:
# the ratio of the medians, and the least and most ratio of a round.
#
# No row here shows `late_confirmations` (needs Settings::placed_writes: `ib_write_lat` by numbers)
# and `orphan_polling` (perftest's servers: ib_*_lat and ib_*_bw through `uwarp run`).
# `reno_within_host` is measured without `congestion=reno`, so only where the system has BBR.
set -euo pipefail

REPO=$(realpath "$(dirname "$0")/../..")
OUT=${OUT:-$REPO/target/policy}
ROUNDS=${ROUNDS:-5}
SECONDS_EACH=${SECONDS_EACH:-0.4}
ROWS=${ROWS:-.}
CLIENT_CPU=${CLIENT_CPU:-1}
SERVER_CPU=${SERVER_CPU:-0}
export CARGO_TARGET_DIR=$OUT/build
mkdir -p "$OUT"

# Rows: name | pinned or free | arguments. Rows below the first block are for single heuristics:
# sleeping sides (stand_back), memory (reply_wait), large messages one at a time, payload in place.
rows() {
    cat <<'ROWS'
8 B Send latency|pinned|send_lat -s8
8 B Write latency|pinned|write_lat -s8
8 B Send, 64 outstanding|pinned|send_bw -s8 -t64
64 B Send, 64 outstanding|pinned|send_bw -s64 -t64
64 KiB Write|pinned|write_bw -s64K -t16
1 MiB Write|pinned|write_bw -s1M -t16 --warm-up=50
64 KiB Read|pinned|read_bw -s64K -t16
8 B Write, lists of 64|pinned|write_bw -s8 -l64
64 B Write, 8 QPs|pinned|write_bw -s64 -t16 -q8
64 KiB Write, 8 QPs|pinned|write_bw -s64K -t16 -q8
8 B Send latency, both sleep|pinned|send_lat -s8 -e
64 KiB Write, both sleep|pinned|write_bw -s64K -t16 -e --target-sleeps
8 B Write latency, in memory|free|write_lat -s8 --wait memory
64 KiB Send latency|pinned|send_lat -s64K
1 MiB Write latency|pinned|write_lat -s1M
1 MiB Read latency|pinned|read_lat -s1M
64 KiB Write, no CRC|pinned|write_bw -s64K -t16 --crc off
1 MiB Read, no CRC|pinned|read_bw -s1M -t16 --warm-up=50 --crc off
ROWS
}

names() {
    sed -nE 's/^ *[A-Z][A-Za-z]+ = "([a-z_]+)",$/\1/p' \
        "$REPO"/{verbs,llp,engine}/src/policy.rs
}

build_one() {
    local name=$1
    local off=$name
    [ "$name" = base ] && off=
    echo "build without: ${off:-nothing}" >&2
    if [ -n "$off" ]; then export UWARP_POLICY_OFF=$off; else unset UWARP_POLICY_OFF; fi
    cargo build --manifest-path "$REPO/Cargo.toml" --release --locked -p uwarp
    unset UWARP_POLICY_OFF
    cp "$CARGO_TARGET_DIR/release/uwarp" "$OUT/uwarp-$name"
}

build() {
    local name
    build_one base
    cp "$OUT/uwarp-base" "$OUT/uwarp-base2"
    for name in "$@"; do
        [ "$name" = base2 ] || build_one "$name"
    done
}

# Prints one figure: GB/s for 4 KiB and more, million messages/s below, or microseconds. Prints
# nothing if a side fails. Runs in a subshell of its own.
DEVICE=
figure() {
    local program=$1 pinned=$2
    shift 2
    trap '[ -z "${SERVER-}" ] || kill "$SERVER" 2>/dev/null || true' EXIT
    local client=() server=()
    if [ "$pinned" = pinned ]; then
        client=(taskset -c "$CLIENT_CPU")
        server=(taskset -c "$SERVER_CPU")
    fi
    # The CRC is used if either side asks for it, so both sides get the option.
    local both=(--device "$DEVICE")
    case " $* " in *" --crc off "*) both+=(--crc off) ;; esac
    local arguments=() skip=
    local argument
    for argument in "$@"; do
        if [ -n "$skip" ]; then skip=; continue; fi
        if [ "$argument" = --crc ]; then skip=1; continue; fi
        arguments+=("$argument")
    done
    local port=$((20000 + RANDOM % 9000))
    "${server[@]}" "$program" perf -p "$port" "${both[@]}" >/dev/null 2>&1 &
    SERVER=$!
    local tries report=
    for tries in $(seq 50); do
        if ss -Hltn "sport = :$port" | grep -q .; then break; fi
        sleep 0.05
    done
    report=$("${client[@]}" timeout 60 "$program" perf "${arguments[@]}" 127.0.0.1 -p "$port" \
        -D "$SECONDS_EACH" --json "${both[@]}" 2>>"$OUT/errors.log") || true
    if [ -z "$report" ]; then kill "$SERVER" 2>/dev/null || true; fi
    wait "$SERVER" 2>/dev/null || true
    SERVER=
    [ -n "$report" ] || return 0
    jq -r '.rows[0] | .size as $size | .figures | if .bandwidth
        then (if $size >= 4096 then .bandwidth.average / 1e9 else .bandwidth.rate / 1e6 end)
        else .latency.p50 end' <<<"$report"
}

# Prints a line of the table from a file of "base without" pairs, one a round.
summary() {
    python3 - "$@" <<'PYTHON'
import statistics
import sys

name, is_latency, path = sys.argv[1], sys.argv[2] == "latency", sys.argv[3]
pairs = []
for line in open(path):
    parts = line.split()
    if len(parts) == 2:
        pairs.append((float(parts[0]), float(parts[1])))
if not pairs:
    print(f"| {name} | failed, see errors.log | | |")
    sys.exit()
base = statistics.median(pair[0] for pair in pairs)
without = statistics.median(pair[1] for pair in pairs)


def pays(base, without):
    return without / base if is_latency else base / without


each = [pays(*pair) for pair in pairs]
print(
    f"| {name} | {base:.3g} | {without:.3g} | "
    f"{pays(base, without):.3f} ({min(each):.3f} to {max(each):.3f}), {len(pairs)} rounds |",
    flush=True,
)
PYTHON
}

measure_one() {
    local off=$1
    local base=$OUT/uwarp-base without=$OUT/uwarp-$1
    if [ ! -x "$base" ] || [ ! -x "$without" ]; then
        echo "$without is not built" >&2
        return 0
    fi
    printf '\n## %s\n\n| row | base | without | pays |\n|---|---|---|---|\n' "$off"
    case $off in
    *reno_within_host*) DEVICE=tcp:127.0.0.1 ;;
    *) DEVICE=tcp:127.0.0.1,congestion=reno ;;
    esac
    local folder=$OUT/rounds/$off
    rm -rf "$folder"
    mkdir -p "$folder"
    local round number name pinned arguments first second
    for round in $(seq "$ROUNDS"); do
        number=0
        while IFS='|' read -r name pinned arguments; do
            number=$((number + 1))
            [[ $name =~ $ROWS ]] || continue
            # The order changes from round to round.
            # shellcheck disable=SC2086 # the arguments are words
            if ((round % 2)); then
                first=$(figure "$base" "$pinned" $arguments </dev/null)
                second=$(figure "$without" "$pinned" $arguments </dev/null)
            else
                second=$(figure "$without" "$pinned" $arguments </dev/null)
                first=$(figure "$base" "$pinned" $arguments </dev/null)
            fi
            echo "$first $second" >>"$folder/$number"
        done < <(rows)
    done
    number=0
    while IFS='|' read -r name pinned arguments; do
        number=$((number + 1))
        [ -e "$folder/$number" ] || continue
        case $arguments in
        *_lat*) summary "$name" latency "$folder/$number" ;;
        *) summary "$name" bandwidth "$folder/$number" ;;
        esac
    done < <(rows)
}

measure() {
    local name
    for name in "$@"; do
        measure_one "$name" </dev/null | tee -a "$OUT/report.md"
    done
}

what=both
case ${1-} in
build | measure) what=$1; shift ;;
esac
if [ $# = 0 ]; then
    mapfile -t all < <(names)
    set -- base2 "${all[@]}"
fi
case $what in
build) build "$@" ;;
measure) measure "$@" ;;
both) build "$@"; measure "$@" ;;
esac
