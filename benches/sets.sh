#!/usr/bin/env bash
# How long `kpx show sets` takes, which reads IP sets from the kernel, beside `ipset save`: kube-proxy's two largest sets
# in IPVS mode, for 2000 Services of 10 endpoints. `kpx` is measured as a whole, with an empty namespace beside it to
# show what is not the sets. Runs in network namespaces of its own, as root; `make bench` builds and calls it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
kpx=${KPX:-target/release/kpx}
runs=${RUNS:-10}

[ "$(id -u)" = 0 ] || { echo "benches/sets.sh: a network namespace takes root" >&2; exit 2; }
[ -x "$kpx" ] || { echo "benches/sets.sh: no $kpx: 'make bench' builds it" >&2; exit 2; }

full=kpx-bench-sets-$$
empty=kpx-bench-none-$$
trap 'ip netns del "$full" 2>/dev/null || true; ip netns del "$empty" 2>/dev/null || true' EXIT
ip netns add "$full"
ip netns add "$empty"

awk 'BEGIN {
    print "create KUBE-CLUSTER-IP hash:ip,port"
    print "create KUBE-LOOP-BACK hash:ip,port,ip"
    for (i = 0; i < 2000; i++)
        printf "add KUBE-CLUSTER-IP 10.96.%d.%d,tcp:80\n", i / 250, i % 250 + 1
    for (i = 0; i < 20000; i++) {
        address = sprintf("10.244.%d.%d", i / 250, i % 250 + 1)
        printf "add KUBE-LOOP-BACK %s,tcp:8080,%s\n", address, address
    }
}' | ip netns exec "$full" ipset restore

# Prints the median milliseconds of a command; kpx exits with 3 if something else could not be read.
median() {
    local i start status
    for ((i = 0; i < runs + 2; i++)); do
        start=$EPOCHREALTIME
        status=0
        "$@" >/dev/null 2>&1 || status=$?
        case $status in 0 | 3) ;; *) echo "benches/sets.sh: $* failed ($status)" >&2; return 1 ;; esac
        awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print (b - a) * 1000 }'
    done | tail -n "$runs" | sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}

show() { median "$kpx" --netns "$1" --no-api show sets -o json; }
printf 'ipset save     %8.1f ms\n' "$(median ip netns exec "$full" ipset save)"
printf 'kpx show sets  %8.1f ms\n' "$(show "$full")"
printf 'without sets   %8.1f ms\n' "$(show "$empty")"
