#!/usr/bin/env bash
# How long the whole doctor takes beside the tools that read or check all rules, on a node with 2000 Services of 10
# endpoints:
#
#     offline   kpx --from BUNDLE doctor    at most 1.5 times    iptables-nft-restore --test  on the same rules
#     live      kpx doctor                  at most 1.3 times    iptables-nft-save
#
# Runs in a network namespace of its own, as root; `make bench` builds and calls it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
kpx=${KPX:-target/release/kpx}
recording=testdata/nodes/scale-2000x10-iptables
runs=${RUNS:-10}

[ "$(id -u)" = 0 ] || { echo "benches/doctor.sh: a network namespace takes root" >&2; exit 2; }
[ -x "$kpx" ] || { echo "benches/doctor.sh: no $kpx: 'make bench' builds it" >&2; exit 2; }

netns=kpx-bench-$$
scratch=$(mktemp -d)
trap 'ip netns del "$netns" 2>/dev/null || true; rm -rf "$scratch"' EXIT

cp -r "$recording" "$scratch/bundle"
find "$scratch/bundle" -name '*.gz' -exec gunzip {} +
rules=$scratch/bundle/node/iptables-save.txt

ip netns add "$netns"
inside="ip netns exec $netns"
ip -n "$netns" link set lo up
ip -n "$netns" link add eth0 type veth peer name far0
ip -n "$netns" addr add 10.0.2.15/24 dev eth0
ip -n "$netns" link set eth0 up
ip -n "$netns" link set far0 up
ip -n "$netns" route add default via 10.0.2.2
for name in ct_state_invalid_dropped_pkts localhost_nps_accepted_pkts; do
    $inside nfacct add "$name"
done
$inside iptables-nft-restore <"$rules"
$inside ip6tables-nft-restore <"$scratch/bundle/node/ip6tables-save.txt"

# Prints the seconds that a command took.
seconds() {
    local start=$EPOCHREALTIME
    "$@" >/dev/null 2>"$scratch/why" || [ $? -le 3 ] || { cat "$scratch/why" >&2; return 1; }
    awk -v start="$start" -v end="$EPOCHREALTIME" 'BEGIN { print end - start }'
}

# Prints the median of a file's numbers.
median() {
    sort -n "$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}

status=0
# Compares two commands, run in turns: what it is, the most that ours may take, ours, theirs.
compare() {
    local ours theirs i
    read -ra ours <<<"$3"
    read -ra theirs <<<"$4"
    : >"$scratch/ours"
    : >"$scratch/theirs"
    for ((i = 0; i < runs + 1; i++)); do
        seconds "${ours[@]}" >>"$scratch/ours"
        seconds "${theirs[@]}" >>"$scratch/theirs"
    done
    awk -v what="$1" -v most="$2" -v ours="$(median "$scratch/ours")" -v theirs="$(median "$scratch/theirs")" 'BEGIN {
        printf "%-8s kpx doctor %7.1f ms   all rules %7.1f ms   %.2f times (at most %s)\n", what, ours * 1000, theirs * 1000, ours / theirs, most
        exit ours > theirs * most
    }' || status=1
}

compare offline 1.5 "$kpx --from $scratch/bundle doctor" "$inside iptables-nft-restore --test $rules"
compare live 1.3 "$kpx --netns $netns --cluster-from $scratch/bundle --node node1 doctor" "$inside iptables-nft-save"
[ "$status" = 0 ] || echo "benches/doctor.sh: the doctor takes longer than it may" >&2
exit "$status"
