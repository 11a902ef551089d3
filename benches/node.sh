# shellcheck shell=bash
# What the benchmarks share: $netns, a network namespace with the rules of a large node; $scratch; a clock. They source it, as
# root, and `make bench` builds $kpx.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
kpx=${KPX:-target/static/kpx}
runs=${RUNS:-10}
netns=kpx-bench-$$

[ "$(id -u)" = 0 ] || { echo "$0: a network namespace takes root" >&2; exit 2; }
[ -x "$kpx" ] || { echo "$0: no $kpx: 'make bench' builds it" >&2; exit 2; }

scratch=$(mktemp -d)
leave() {
    # Programs that the benchmark leaves running.
    ip netns pids "$netns" 2>/dev/null | xargs -r kill || true
    ip netns del "$netns" 2>/dev/null || true
    rm -rf "$scratch"
}
trap leave EXIT

# Runs a command in $netns.
inside() { ip netns exec "$netns" "$@"; }

# Makes $netns anew, with the address of the recorded node.
fresh() {
    ip netns del "$netns" 2>/dev/null || true
    ip netns add "$netns"
    ip -n "$netns" link set lo up
    ip -n "$netns" link add eth0 type veth peer name far0
    ip -n "$netns" addr add 10.0.2.15/24 dev eth0
    ip -n "$netns" link set eth0 up
    ip -n "$netns" link set far0 up
    ip -n "$netns" route add default via 10.0.2.2
    # The network of its pods: without a route to them, kpx looks for the cause of each Service that fails.
    ip -n "$netns" link add cni0 type bridge
    ip -n "$netns" addr add 10.128.255.254/16 dev cni0
    ip -n "$netns" link set cni0 up
    # As on a node: the cause of what fails is looked for in all rules.
    inside sysctl -q -w net.ipv4.ip_forward=1
}

# Puts the chains of each table into no order, always the same: in kube-proxy's order, that of their hashes, iptables-nft-save
# 1.8.9 lists them twelve times as fast as in that of the alphabet.
mixed() {
    awk -v seed=testdata/nodes/scale-2000x10-iptables/node/iptables-save.txt.gz '
        BEGIN { shuffle = "shuf --random-source=" seed }
        /^:KUBE-/ { print | shuffle; mixing = 1; next }
        mixing { close(shuffle); mixing = 0 }
        { print; fflush() }
    '
}

# Copies the recording of 2000 Services of 10 endpoints to $scratch/bundle, and has $netns contain its rules.
restored() {
    cp -r testdata/nodes/scale-2000x10-iptables "$scratch/bundle"
    find "$scratch/bundle" -name '*.gz' -exec gunzip {} +
    fresh
    for name in ct_state_invalid_dropped_pkts localhost_nps_accepted_pkts; do
        inside nfacct add "$name"
    done
    mixed <"$scratch/bundle/node/iptables-save.txt" | inside iptables-nft-restore
    mixed <"$scratch/bundle/node/ip6tables-save.txt" | inside ip6tables-nft-restore
}

# Prints the milliseconds that a command takes. kpx exits with up to 3 if it ran and found something.
milliseconds() {
    local start=$EPOCHREALTIME status=0
    "$@" >/dev/null 2>"$scratch/why" || status=$?
    [ "$status" -le 3 ] || { echo "$0: $* failed ($status)" >&2; cat "$scratch/why" >&2; return 1; }
    awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print (b - a) * 1000 }'
}

# Prints the median of the numbers that it reads.
middle() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

# Prints the median milliseconds of a command, after two runs that do not count.
median() {
    local i
    for ((i = 0; i < runs + 2; i++)); do milliseconds "$@"; done | tail -n "$runs" | middle
}

status=0
# Runs two commands in turns, ours and theirs, and compares their medians: what it is, the most that ours may take, ours, theirs.
compare() {
    local ours theirs i
    read -ra ours <<<"$3"
    read -ra theirs <<<"$4"
    for ((i = 0; i < runs + 1; i++)); do
        milliseconds "${ours[@]}" >&3
        milliseconds "${theirs[@]}" >&4
    done 3>"$scratch/ours" 4>"$scratch/theirs"
    awk -v what="$1" -v most="$2" -v ours="$(middle <"$scratch/ours")" -v theirs="$(middle <"$scratch/theirs")" 'BEGIN {
        printf "%-10s kpx %7.1f ms   all rules %7.1f ms   %.2f times (at most %s)\n", what, ours, theirs, ours / theirs, most
        exit ours > theirs * most
    }' || status=1
}
