#!/usr/bin/env bash
# How long a trace takes beside the tools that read or check all rules, on a node with 2000 Services of 10 endpoints:
#
#     live      kpx trace                  against  iptables-nft-save
#     offline   kpx --from BUNDLE trace    against  iptables-nft-restore --test  on the same file
#
# Both must take at most a quarter. Runs in a network namespace of its own, as root; `make bench` builds and calls it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
kpx=${KPX:-target/release/kpx}
recording=testdata/nodes/scale-2000x10-iptables
target=${TARGET:-team-08/svc-00988}
runs=${RUNS:-10}

[ "$(id -u)" = 0 ] || { echo "benches/trace.sh: a network namespace takes root" >&2; exit 2; }
[ -x "$kpx" ] || { echo "benches/trace.sh: no $kpx: 'make bench' builds it" >&2; exit 2; }

netns=kpx-bench-$$
scratch=$(mktemp -d)
trap 'ip netns del "$netns" 2>/dev/null || true; rm -rf "$scratch"' EXIT

cp -r "$recording" "$scratch/bundle"
find "$scratch/bundle" -name '*.gz' -exec gunzip {} +
rules=$scratch/bundle/node/iptables-save.txt
# The counting object of this one rule is not in the namespace.
sed -i '/nfacct/d' "$rules"

ip netns add "$netns"
ip -n "$netns" link set lo up
ip -n "$netns" link add eth0 type veth peer name far0
ip -n "$netns" addr add 10.0.2.15/24 dev eth0
ip -n "$netns" link set eth0 up
ip -n "$netns" link set far0 up
ip -n "$netns" route add default via 10.0.2.2
ip netns exec "$netns" iptables-nft-restore <"$rules"

# Prints the median seconds of a command.
median() {
    if command -v hyperfine >/dev/null; then
        hyperfine -N -w 2 -r "$runs" --export-json "$scratch/times" --output null "$@" >/dev/null 2>"$scratch/why" || { cat "$scratch/why" >&2; return 1; }
        grep -o '"median": [0-9.e-]*' "$scratch/times" | cut -d' ' -f2
    else
        local words i
        read -ra words <<<"$1"
        for ((i = 0; i < runs + 2; i++)); do
            local start=$EPOCHREALTIME
            "${words[@]}" >/dev/null
            echo "$start $EPOCHREALTIME" | awk '{ print $2 - $1 }'
        done | tail -n "$runs" | sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
    fi
}

status=0
# Compares the medians of two commands: what it is, ours, theirs.
compare() {
    local ours theirs
    ours=$(median "$2")
    theirs=$(median "$3")
    awk -v what="$1" -v ours="$ours" -v theirs="$theirs" 'BEGIN {
        printf "%-8s kpx %7.1f ms   all rules %7.1f ms   %5.1f%%\n", what, ours * 1000, theirs * 1000, 100 * ours / theirs
        exit ours > theirs / 4
    }' || status=1
}

inside="ip netns exec $netns"
trace="trace $target --source external"
compare live "$kpx --netns $netns --cluster-from $scratch/bundle --node node1 $trace" "$inside iptables-nft-save"
compare live-bare "$kpx --netns $netns --no-api trace ${ADDRESS:-10.97.3.239:80} --source external" "$inside iptables-nft-save"
compare offline "$kpx --from $scratch/bundle $trace" "$inside iptables-nft-restore --test $rules"
[ "$status" = 0 ] || echo "benches/trace.sh: a trace takes more than a quarter of reading all rules" >&2
exit "$status"
