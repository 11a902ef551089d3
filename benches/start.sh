#!/usr/bin/env bash
# How long kpx takes to start, beside a program that does nothing, and how large it is:
#
#     benches/start.sh [PROGRAM]
#
# The program is that of `make static`, unless another one is named. Each command runs 200 times, and twice: the faster series
# counts. Needs no root.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
kpx=${1:-target/static/kpx}
runs=200

repeated() {
    for ((at = 0; at < runs; at++)); do
        "$@" >/dev/null
    done
}
# Milliseconds for one run of a command: elapsed, and of the processor, which other programs change less.
took() {
    local TIMEFORMAT='%R %U %S'
    for _ in 1 2; do
        { time repeated "$@"; } 2>&1
    done | sort -n | awk -v runs="$runs" '
        NR == 1 { printf "%.2f ms, %.2f ms of a processor", $1 * 1000 / runs, ($2 + $3) * 1000 / runs }'
}

echo "$kpx: $(stat -c %s "$kpx") bytes"
for command in /bin/true "$kpx --version" "$kpx explain" "$kpx explain MX01" "$kpx help doctor"; do
    # shellcheck disable=SC2086
    printf '%-40s %s\n' "$command" "$(took $command)"
done
