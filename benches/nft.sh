#!/usr/bin/env bash
# How long kpx takes to read kube-proxy's table in nftables mode from the kernel, beside `nft -j list table`: 2000 Services
# of 10 endpoints. `kpx snapshot` is measured as a whole, then in an empty namespace to show what is not the table.
# Runs in a network namespace of its own, as root; `make bench` builds and calls it.
# shellcheck source=benches/node.sh
source "$(dirname "${BASH_SOURCE[0]}")/node.sh"
recording=testdata/nodes/scale-2000x10-nftables/node/nft.json.gz

fresh
# A map names chains that are listed after it, so the chains come first: each object begins after `{"KIND":`.
gunzip -c "$recording" | sed 's/}, {"\(table\|set\|map\|chain\|rule\)": {/}\n{"\1": {/g; s/^{"nftables": \[//; s/\]}$//' >"$scratch/objects"
{
    printf '{"nftables": ['
    for kind in table chain set map rule; do
        sed -n "/^{\"$kind\": /p" "$scratch/objects"
    done | paste -sd,
    printf ']}\n'
} | inside nft -j -f -

bundle() { "$kpx" --netns "$netns" --no-api snapshot -o "$(mktemp -d -p "$scratch")/bundle"; }
tool=$(median inside nft -j list table ip kube-proxy)
all=$(median bundle)
fresh
none=$(median bundle)
printf 'nft -j list table  %8.1f ms\n' "$tool"
printf 'kpx snapshot       %8.1f ms\n' "$all"
printf 'without tables     %8.1f ms\n' "$none"
awk -v tool="$tool" -v all="$all" -v none="$none" 'BEGIN {
    printf "kpx takes %.0f%% of the time of nft\n", 100 * (all - none) / tool
}'
