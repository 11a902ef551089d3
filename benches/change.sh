#!/usr/bin/env bash
# How long it takes to program a large node, and to take that back, beside the tools that only load text:
#
#     from empty   kpx reconcile --apply    against  iptables-restore --noflush  of the same text
#     cleanup      kpx reconcile --cleanup      against  iptables-restore --noflush  of the same lines in the order in which
#                                           iptables-save lists the chains
#
# At most 1.15 and 1.2 times. What is cleaned up was written in kube-proxy's order. 2000 Services of 10 endpoints, in
# network namespaces of its own, as root; `make bench` builds and calls it.
# shellcheck source=benches/node.sh
source "$(dirname "${BASH_SOURCE[0]}")/node.sh"
recording=testdata/nodes/scale-2000x10-iptables
runs=${RUNS:-3}

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

# `iptables-nft-restore` has a dash in its name.
# shellcheck disable=SC2317 # `milliseconds` calls it.
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
on_node reconcile --cleanup iptables --force -o wide >"$scratch/plan" || [ $? = 1 ]
texts "$scratch/none" <"$scratch/plan"
for file in "$scratch/none"/*; do listed <"$file" >"$scratch/none.listed/${file##*/}"; done

for ((i = 0; i < runs; i++)); do
    fresh
    milliseconds load "$scratch/all" >>"$scratch/all.theirs"
    fresh
    milliseconds on_node reconcile --apply --yes -q >>"$scratch/all.ours"
    fresh
    as_kube_proxy
    milliseconds load "$scratch/none.listed" >>"$scratch/none.theirs"
    fresh
    as_kube_proxy
    milliseconds load "$scratch/none" >>"$scratch/none.ordered"
    fresh
    as_kube_proxy
    milliseconds on_node reconcile --cleanup iptables --force --apply --yes -q >>"$scratch/none.ours"
done
# Prints two times, and whether ours is at most `limit` of theirs.
at_most() {
    awk -v what="$1" -v limit="$2" -v ours="$(least <"$3")" -v theirs="$(least <"$4")" 'BEGIN {
        printf "%-12s kpx %7.2f s   iptables-restore %7.2f s   %5.2f times\n", what, ours / 1000, theirs / 1000, ours / theirs
        exit ours > limit * theirs
    }' || status=1
}
at_most "from empty" 1.15 "$scratch/all.ours" "$scratch/all.theirs"
at_most cleanup 1.2 "$scratch/none.ours" "$scratch/none.theirs"
awk -v time="$(least <"$scratch/none.ordered")" 'BEGIN { printf "%-12s %28s %7.2f s\n", "", "in the order of kpx", time / 1000 }'
[ "$status" = 0 ] || echo "$0: kpx takes longer than it may" >&2
exit "$status"
