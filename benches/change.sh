#!/usr/bin/env bash
# How long it takes to program a large node, and to take that back, beside the tools that only load text:
#
#     from empty   kpx reconcile --apply    against  iptables-restore --noflush  of the same text
#     cleanup      kpx cleanup --apply      against  iptables-restore --noflush  of the same lines in the order in which
#                                           iptables-save lists the chains
#
# At most 1.15 and 1.2 times. What is cleaned up was written in the order that kube-proxy comes upon its chains, which is
# that of their hashes: none. (Of chains that were made in alphabetical order, iptables-nft-save 1.8.9 makes a list twelve
# times as slowly.) 2000 Services of 10 endpoints, in network namespaces of its own, as root; `make bench`
# builds and calls it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
kpx=${KPX:-target/release/kpx}
recording=testdata/nodes/scale-2000x10-iptables
runs=${RUNS:-3}

[ "$(id -u)" = 0 ] || { echo "benches/change.sh: a network namespace takes root" >&2; exit 2; }
[ -x "$kpx" ] || { echo "benches/change.sh: no $kpx: 'make bench' builds it" >&2; exit 2; }

netns=kpx-bench-change-$$
scratch=$(mktemp -d)
trap 'ip netns del "$netns" 2>/dev/null || true; rm -rf "$scratch"' EXIT

fresh() {
    ip netns del "$netns" 2>/dev/null || true
    ip netns add "$netns"
    ip -n "$netns" link set lo up
    ip -n "$netns" link add eth0 type veth peer name far0
    ip -n "$netns" addr add 10.0.2.15/24 dev eth0
    ip -n "$netns" link set eth0 up
}
inside() { ip netns exec "$netns" "$@"; }
on_node() { "$kpx" --netns "$netns" --cluster-from "$recording" --node node1 "$@"; }

# Takes the text of the steps of iptables out of a plan: one file for each program, in order.
texts() {
    local dir=$1
    mkdir -p "$dir"
    awk -v dir="$dir" '
        /^ +(undo: )?ip6?tables.*-restore --noflush <<.EOF.$/ {
            keep = !/undo: /
            if (keep) { program = $1; out = sprintf("%s/%02d-%s", dir, ++count, program) }
            next
        }
        keep && /^ +EOF$/ { keep = 0; close(out) }
        keep { sub(/^ +/, ""); print > out }
    '
}

seconds() {
    local start=$EPOCHREALTIME
    "$@" >"$scratch/out" 2>&1 || { cat "$scratch/out" >&2; return 1; }
    awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
}
# `iptables-nft-restore` has a dash in its name.
load() {
    local file name
    for file in "$1"/*; do
        name=${file##*/}
        inside "${name#??-}" --noflush <"$file"
    done
}
least() { sort -n | head -n 1; }

# Sorts the chains of each table: those that are made or emptied, and those that are deleted, by name.
listed() {
    awk '
        function flush() { close(sort) }
        BEGIN { sort = "LC_ALL=C sort" }
        /^:|^-X / { print | sort; sorting = 1; next }
        sorting { flush(); sorting = 0 }
        { print; fflush() }
    '
}
# Puts the chains of each table into no order, always the same.
mixed() {
    awk -v seed="$recording" '
        BEGIN { shuffle = "shuf --random-source=" seed "/node/iptables-save.txt.gz" }
        /^:KUBE-/ { print | shuffle; mixing = 1; next }
        mixing { close(shuffle); mixing = 0 }
        { print; fflush() }
    '
}
# Programs the node as kube-proxy would have: in no order, table by table.
as_kube_proxy() {
    local file name
    for file in "$scratch/all.mixed"/*; do
        name=${file##*/}
        inside "${name#??-}" <"$file"
    done
}

fresh
on_node reconcile -o wide >"$scratch/plan" || [ $? = 1 ]
texts "$scratch/all" <"$scratch/plan"
mkdir "$scratch/all.mixed" "$scratch/none.listed"
for file in "$scratch/all"/*; do mixed <"$file" >"$scratch/all.mixed/${file##*/}"; done
as_kube_proxy
on_node cleanup --mode iptables --force -o wide >"$scratch/plan" || [ $? = 1 ]
texts "$scratch/none" <"$scratch/plan"
for file in "$scratch/none"/*; do listed <"$file" >"$scratch/none.listed/${file##*/}"; done

status=0
compare() {
    awk -v what="$1" -v limit="$2" -v ours="$3" -v theirs="$4" 'BEGIN {
        printf "%-12s kpx %7.2f s   iptables-restore %7.2f s   %5.2f times\n", what, ours, theirs, ours / theirs
        exit ours > limit * theirs
    }' || status=1
}

for ((i = 0; i < runs; i++)); do
    fresh
    seconds load "$scratch/all" >>"$scratch/all.theirs"
    fresh
    seconds on_node reconcile --apply --yes -q >>"$scratch/all.ours"
    fresh
    as_kube_proxy
    seconds load "$scratch/none.listed" >>"$scratch/none.theirs"
    fresh
    as_kube_proxy
    seconds load "$scratch/none" >>"$scratch/none.ordered"
    fresh
    as_kube_proxy
    seconds on_node cleanup --mode iptables --force --apply --yes -q >>"$scratch/none.ours"
done
compare "from empty" 1.15 "$(least <"$scratch/all.ours")" "$(least <"$scratch/all.theirs")"
compare cleanup 1.2 "$(least <"$scratch/none.ours")" "$(least <"$scratch/none.theirs")"
printf '%-12s %28s %7.2f s\n' "" "in kpx's own order" "$(least <"$scratch/none.ordered")"
[ "$status" = 0 ] || echo "benches/change.sh: kpx takes longer than it may" >&2
exit "$status"
