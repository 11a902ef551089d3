#!/usr/bin/env bash
# What `kpx top -o json` costs on a node with 2000 Services of 10 endpoints and thousands of connections, at 2 s:
#
#     processor    below 3% of one, from the first interval on
#     interval     at most 2.2 s on average: kpx prolongs it where it would use more
#     xtables      no program takes the lock of iptables
#
# Runs in a network namespace of its own, as root, for TIME seconds (one minute) with CONNECTIONS entries of the connection
# table (5000); `make bench` builds and calls it.
# shellcheck source=benches/node.sh
source "$(dirname "${BASH_SOURCE[0]}")/node.sh"
time=${TIME:-60}
connections=${CONNECTIONS:-5000}

restored

# Connections from one client port each to a Service and its endpoint, as the rules would translate them.
fill() {
    local port=1024 at=0 service endpoint pair
    mapfile -t pairs <"$scratch/pairs"
    while [ "$at" -lt "$connections" ]; do
        pair=${pairs[at % ${#pairs[@]}]}
        service=${pair% *} endpoint=${pair#* }
        conntrack -I -p tcp --timeout 86400 --state ESTABLISHED -s 10.244.1.250 -d "${service%:*}" \
            --sport $((port + at % 60000)) --dport "${service#*:}" -r "${endpoint%:*}" -q 10.244.1.250 \
            --reply-port-src "${endpoint#*:}" --reply-port-dst $((port + at % 60000)) >/dev/null 2>&1
        at=$((at + 1))
    done
}
awk '
    /^\[.*-A KUBE-SERVICES -d .* -j KUBE-SVC-|^-A KUBE-SERVICES -d .* -j KUBE-SVC-/ {
        for (i = 1; i < NF; i++) {
            if ($i == "-d") address = $(i + 1)
            if ($i == "--dport") port = $(i + 1)
        }
        sub("/32", "", address)
        service[$NF] = address ":" port
    }
    / -A KUBE-SVC-|^-A KUBE-SVC-/ && $NF ~ /^KUBE-SEP-/ {
        for (i = 1; i < NF; i++) if ($i == "-A") chain = $(i + 1)
        owner[$NF] = chain
    }
    / -A KUBE-SEP-|^-A KUBE-SEP-/ && / --to-destination / {
        for (i = 1; i < NF; i++) if ($i == "-A") chain = $(i + 1)
        endpoint[chain] = $NF
    }
    END {
        for (chain in endpoint)
            if (owner[chain] in service) print service[owner[chain]], endpoint[chain]
    }' "$scratch/bundle/node/iptables-save.txt" >"$scratch/pairs"
[ -s "$scratch/pairs" ] || { echo "$0: no endpoint in the recording" >&2; exit 2; }
export -f fill
export connections scratch
inside bash -c fill
entries=$(inside conntrack -C)
[ "$entries" -ge "$connections" ] || { echo "$0: only $entries connections" >&2; exit 2; }

# iptables creates the file of the lock when it takes it.
XTABLES_LOCKFILE=$scratch/xtables.lock ip netns exec "$netns" "$kpx" --cluster-from "$scratch/bundle" --node node1 --timeout 60s \
    top -o json --interval 2s --count $((time / 2)) >"$scratch/lines" &
child=$!

# Prints the processor time of kpx and its ended children, in ticks.
used() { sed 's/.*) //' "/proc/$child/stat" | awk '{ print $12 + $13 + $14 + $15 }'; }

until [ -s "$scratch/lines" ]; do sleep 0.1; done
began=$(used)
start=$(date +%s%N)
ended=$began
end=$start
while now=$(used 2>/dev/null) && [ -n "$now" ]; do
    ended=$now
    end=$(date +%s%N)
    for file in "/proc/$child/fd/"*; do
        case $(readlink "$file" || true) in
        */xtables.lock) touch "$scratch/xtables.lock" ;;
        esac
    done
    sleep 0.5
done
wait "$child"
lines=$(wc -l <"$scratch/lines")
interval=$(sed 's/.*"seconds":\([0-9.]*\).*/\1/' "$scratch/lines" | awk '{ sum += $1 } END { print sum / NR }')
lock="not taken"
[ ! -e "$scratch/xtables.lock" ] || lock=TAKEN
ticks=$(getconf CLK_TCK)
awk -v used=$((ended - began)) -v nanoseconds=$((end - start)) -v ticks="$ticks" -v lines="$lines" -v entries="$entries" \
    -v lock="$lock" -v interval="$interval" 'BEGIN {
        time = nanoseconds / 1e9
        share = used / ticks / time
        printf "processor  %.2f%% (%.2f s in %.0f s; %d intervals; %d connections)\n", 100 * share, used / ticks, time, lines, entries
        printf "interval   %.2f s\n", interval
        printf "xtables    lock %s\n", lock
        exit !(share < 0.03 && interval <= 2.2 && lock == "not taken")
    }'
