#!/usr/bin/env bash
# What `kpx serve` costs on a node with 2000 Services of 10 endpoints, while a rule changes every minute:
#
#     processor    at most 1% of one, from the end of the first reading on
#     memory       at most 64 MiB resident, without the process of a reading, whose peak is printed
#
# Runs in a network namespace of its own, as root, for TIME seconds (15 minutes); `make bench` builds and calls it.
# shellcheck source=benches/node.sh
source "$(dirname "${BASH_SOURCE[0]}")/node.sh"
time=${TIME:-900}
port=${PORT:-10299}

restored
inside nft add table ip foreign

ip netns exec "$netns" "$kpx" --cluster-from "$scratch/bundle" --node node1 --timeout 60s serve --listen "127.0.0.1:$port" &

# Prints the value of a metric.
value() {
    local text
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf 'GET /metrics HTTP/1.1\r\nHost: bench\r\n\r\n' >&3
    text=$(cat <&3)
    exec 3>&-
    awk -v name="$1" '$1 == name { print $2 }' <<<"${text//$'\r'/}"
}
export -f value
export port
ask() { inside bash -c "value '$1'"; }

until [ "$(ask 'kpx_readings_total{reading="node",result="ok"}' 2>/dev/null || true)" = 1 ]; do sleep 1; done
began=$(ask kpx_processor_seconds_total)
start=$SECONDS
most=0
while [ $((SECONDS - start)) -lt "$time" ]; do
    sleep 60
    inside nft add chain ip foreign "c$SECONDS"
    memory=$(ask kpx_resident_memory_bytes)
    [ "$memory" -le "$most" ] || most=$memory
done
ended=$(ask kpx_processor_seconds_total)
peak=$(ask kpx_reading_memory_peak_bytes)
readings=$(ask 'kpx_readings_total{reading="node",result="ok"}')
awk -v used="$(awk "BEGIN { print $ended - $began }")" -v first="$began" -v time=$((SECONDS - start)) \
    -v memory="$most" -v peak="$peak" -v readings="$readings" 'BEGIN {
        printf "processor  %.2f%% (%.1f s in %d s; start and first reading %.1f s; %d readings)\n", 100 * used / time, used, time, first, readings
        printf "memory     %.1f MiB; a process of a reading %.1f MiB at most\n", memory / 2^20, peak / 2^20
        exit !(used / time <= 0.01 && memory <= 64 * 2^20)
    }'
