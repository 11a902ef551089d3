#!/usr/bin/env bash
# How long `kpx show sets` takes, which reads IP sets from the kernel, beside `ipset save`: kube-proxy's two largest sets
# in IPVS mode, for 2000 Services of 10 endpoints. `kpx` is measured as a whole, then in an empty namespace to
# show what is not the sets. Runs in a network namespace of its own, as root; `make bench` builds and calls it.
# shellcheck source=benches/node.sh
source "$(dirname "${BASH_SOURCE[0]}")/node.sh"

fresh
awk 'BEGIN {
    print "create KUBE-CLUSTER-IP hash:ip,port"
    print "create KUBE-LOOP-BACK hash:ip,port,ip"
    for (i = 0; i < 2000; i++)
        printf "add KUBE-CLUSTER-IP 10.96.%d.%d,tcp:80\n", i / 250, i % 250 + 1
    for (i = 0; i < 20000; i++) {
        address = sprintf("10.244.%d.%d", i / 250, i % 250 + 1)
        printf "add KUBE-LOOP-BACK %s,tcp:8080,%s\n", address, address
    }
}' | inside ipset restore

show() { median "$kpx" --netns "$netns" --no-api show sets -o json; }
printf 'ipset save     %8.1f ms\n' "$(median inside ipset save)"
printf 'kpx show sets  %8.1f ms\n' "$(show)"
fresh
printf 'without sets   %8.1f ms\n' "$(show)"
