#!/usr/bin/env bash
# How long kpx takes to read kube-proxy's table in nftables mode from the kernel, beside `nft -j list table`: 2000 Services
# of 10 endpoints. `kpx snapshot` is measured as a whole, with an empty namespace beside it to show what is not the table.
# Runs in network namespaces of its own, as root; `make bench` builds and calls it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
kpx=${KPX:-target/release/kpx}
recording=testdata/nodes/scale-2000x10-nftables/node/nft.json.gz
runs=${RUNS:-10}

[ "$(id -u)" = 0 ] || { echo "benches/nft.sh: a network namespace takes root" >&2; exit 2; }
[ -x "$kpx" ] || { echo "benches/nft.sh: no $kpx: 'make bench' builds it" >&2; exit 2; }

full=kpx-bench-nft-$$
empty=kpx-bench-none-$$
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"; ip netns del "$full" 2>/dev/null || true; ip netns del "$empty" 2>/dev/null || true' EXIT
ip netns add "$full"
ip netns add "$empty"

# A map names chains that are listed after it, so the chains come first: each object begins after `{"KIND":`.
gunzip -c "$recording" | sed 's/}, {"\(table\|set\|map\|chain\|rule\)": {/}\n{"\1": {/g; s/^{"nftables": \[//; s/\]}$//' >"$scratch/objects"
{
    printf '{"nftables": ['
    for kind in table chain set map rule; do
        grep "^{\"$kind\": " "$scratch/objects" || true
    done | paste -sd,
    printf ']}\n'
} | ip netns exec "$full" nft -j -f -

# Prints the median milliseconds of a command; kpx exits with 3 if something else could not be read.
median() {
    local i start status
    for ((i = 0; i < runs + 2; i++)); do
        start=$EPOCHREALTIME
        status=0
        "$@" >/dev/null 2>&1 || status=$?
        case $status in 0 | 3) ;; *) echo "benches/nft.sh: $* failed ($status)" >&2; return 1 ;; esac
        awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print (b - a) * 1000 }'
    done | tail -n "$runs" | sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}

bundle() { "$kpx" --netns "$1" --no-api snapshot -o "$(mktemp -d -p "$scratch")/bundle"; }
snapshot() { median bundle "$1"; }
tool=$(median ip netns exec "$full" nft -j list table ip kube-proxy)
all=$(snapshot "$full")
none=$(snapshot "$empty")
printf 'nft -j list table  %8.1f ms\n' "$tool"
printf 'kpx snapshot       %8.1f ms\n' "$all"
printf 'without tables     %8.1f ms\n' "$none"
awk -v tool="$tool" -v all="$all" -v none="$none" 'BEGIN {
    printf "kpx takes %.0f%% of the time of nft\n", 100 * (all - none) / tool
}'
