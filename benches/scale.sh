#!/usr/bin/env bash
# How the processor time and the memory of kpx grow with the cluster, in each mode:
#
#     SIZES     Services x endpoints of each      500x10 2000x10 5000x10 20000x10 5000x50
#     MODES     modes of kube-proxy               iptables nftables ipvs
#     EXTRAS    what else a large node has        conntrack sockets foreign
#
# The commands read bundles; `reconcile --apply` and `snapshot` run in a network namespace instead, without ip_vs. Each
# command runs RUNS times (2): the least time counts, and the most memory. Prints a table; if OUT is set, writes it and two
# pictures to this folder. Fails if time or memory grows 1.3 times as fast as the cluster, or if kpx needs more than 1 GiB.
#
# As root; `make bench-scale` builds and calls it. Wants jq and GNU time, and 1 GB below TMPDIR.
# shellcheck source=benches/node.sh
source "$(dirname "${BASH_SOURCE[0]}")/node.sh"
sizes=${SIZES-500x10 2000x10 5000x10 20000x10 5000x50}
modes=${MODES-iptables nftables ipvs}
extras=${EXTRAS-conntrack sockets foreign}
runs=${RUNS:-2}
bundle=$scratch/bundle
table=$scratch/table

# Writes Services and their endpoints: every eighth Service has a NodePort, every hundredth endpoint is on this node.
objects() {
    awk -v services="$services" -v endpoints="$endpoints" -v dir="$bundle/cluster" '
        function address(first, n) { return sprintf("10.%d.%d.%d", first + n / 62500, n / 250 % 250, n % 250 + 1) }
        BEGIN {
            service = dir "/services.json"; slice = dir "/endpointslices.json"
            printf "{\"items\":[" >service; printf "{\"items\":[" >slice
            for (n = 0; n < services; n++) {
                comma = n ? ",\n" : "\n"
                port = n % 8 ? "" : ",\"nodePort\":" 30000 + n / 8
                printf "%s{\"metadata\":{\"name\":\"service-%d\",\"namespace\":\"namespace-%d\"},\"spec\":{\"type\":\"%s\"," \
                    "\"clusterIP\":\"%s\",\"ports\":[{\"name\":\"http\",\"protocol\":\"TCP\",\"port\":80,\"targetPort\":8080%s}]}}",
                    comma, n, n % 40, port ? "NodePort" : "ClusterIP", address(96, n), port >service
                printf "%s{\"metadata\":{\"name\":\"service-%d-abcde\",\"namespace\":\"namespace-%d\",\"labels\":{" \
                    "\"kubernetes.io/service-name\":\"service-%d\"}},\"addressType\":\"IPv4\"," \
                    "\"ports\":[{\"name\":\"http\",\"protocol\":\"TCP\",\"port\":8080}],\"endpoints\":[", comma, n, n % 40, n >slice
                for (i = 0; i < endpoints; i++) {
                    at = n * endpoints + i
                    printf "%s{\"addresses\":[\"%s\"],\"nodeName\":\"node%d\",\"conditions\":{\"ready\":true," \
                        "\"serving\":true,\"terminating\":false}}", i ? "," : "", address(128, at), at % 100 >slice
                }
                printf "]}" >slice
            }
            print "]}" >service; print "]}" >slice
        }'
}

# Makes $bundle: a node of $mode on which kube-proxy has not written anything yet.
empty() {
    local recording=testdata/nodes/seed-$mode file
    rm -rf "$bundle"
    cp -r "$recording" "$bundle"
    objects
    for file in addr link; do
        jq -c 'map(select(.ifname != "kube-ipvs0"))' "$recording/node/ip-$file.json" >"$bundle/node/ip-$file.json"
    done
    jq -c 'map(select(.dev != "kube-ipvs0"))' "$recording/node/ip-route.json" >"$bundle/node/ip-route.json"
    rm -f "$bundle"/node/{nft,ipvsadm-*}.txt
    for file in iptables-save ip6tables-save ipset-save ipvsadm-save; do : >"$bundle/node/$file.txt"; done
    echo '{"nftables": []}' >"$bundle/node/nft.json"
    own_ranges
}
# The recordings have fewer pods.
own_ranges() { grep -rlF 10.244.0.0/16 "$bundle" | xargs sed -i 's|10\.244\.0\.0/16|10.128.0.0/9|g'; }

# Adds what kube-proxy writes in mode ipvs to $bundle, as the kernel lists it.
virtual_servers() {
    local node=testdata/nodes/seed-ipvs/node
    cp "$node"/{iptables-save.txt,ip6tables-save.txt,ip-link.json} "$bundle/node"
    own_ranges
    "$kpx" --from "$bundle" render --part ipset | sed 's/ -exist$//' >"$bundle/node/ipset-save.txt"
    "$kpx" --from "$bundle" render --part ipvs >"$bundle/node/ipvsadm-save.txt"
    "$kpx" --from "$bundle" render --part link | sed -n 's|^addr add \([0-9.]*\)/32 .*|"\1"|p' >"$scratch/addresses"
    jq -c --slurpfile all "$scratch/addresses" 'map(if .ifname == "kube-ipvs0"
        then .addr_info[0] as $one | .addr_info = [$all[] as $address | $one | .local = $address]
        else . end)' "$node/ip-addr.json" >"$bundle/node/ip-addr.json"
    jq -c --slurpfile all "$scratch/addresses" 'map(select(.dev == "kube-ipvs0"))[0] as $one
        | map(select(.dev != "kube-ipvs0")) + [$all[] as $address | $one | .dst = $address | .prefsrc = $address]
        ' "$node/ip-route.json" >"$bundle/node/ip-route.json"
}

# What else $bundle may have, in this number: tracked connections of its Services,
conntrack() {
    awk -v count="$count" -v services="$services" -v endpoints="$endpoints" '
        function address(first, n) { return sprintf("10.%d.%d.%d", first + n / 62500, n / 250 % 250, n % 250 + 1) }
        BEGIN {
            for (n = 0; n < count; n++) {
                service = n % services
                endpoint = service * endpoints + int(n / services) % endpoints
                client = "10.244.1." int(n / 50000) + 1; port = 1024 + n % 50000
                printf "tcp      6 86399 ESTABLISHED src=%s dst=%s sport=%d dport=80 src=%s dst=%s sport=8080 dport=%d " \
                    "[ASSURED] mark=0 use=1\n", client, address(96, service), port, address(128, endpoint), client, port
            }
        }' >"$bundle/node/conntrack.txt"
}
# sockets of other programs,
sockets() {
    awk -v count="$count" 'BEGIN {
        for (n = 0; n < count; n++)
            printf "tcp LISTEN 0 4096 127.0.%d.1:%d 0.0.0.0:* users:((\"server\",pid=%d,fd=3))\n",
                n / 20000, 1024 + n % 20000, n + 2
    }' >"$bundle/node/ss.txt"
}
# or rules of another program in the table filter, which every forwarded packet passes.
foreign() {
    awk -v count="$count" '
        function rules() {
            print ":BANNED - [0:0]"
            print "-A FORWARD -j BANNED"
            for (n = 0; n < count; n++) printf "-A BANNED -s 198.%d.%d.%d/32 -j DROP\n", 18 + n / 62500, n / 250 % 250, n % 250 + 1
            done = 1
        }
        /^\*/ { filter = $1 == "*filter" }
        filter && /^COMMIT/ { rules() }
        { print }
        END { if (!done) { print "*filter"; rules(); print "COMMIT" } }
    ' "$scratch/plain/node/iptables-save.txt" >"$bundle/node/iptables-save.txt"
    ! "$kpx" --from "$bundle" doctor | grep -F iptables-save.txt: || { echo "$0: rules that cannot be read" >&2; exit 2; }
}

# Measures a command: its name in the table, and the command.
measure() {
    local what=$1 i status
    shift
    : >"$scratch/costs"
    for ((i = 0; i < runs; i++)); do
        "$prepare"
        status=0
        /usr/bin/time -q -a -o "$scratch/costs" -f '%U %S %e %M' "$@" >"$scratch/out" 2>"$scratch/why" || status=$?
        [ "$status" -le 3 ] || { echo "$0: $* failed ($status)" >&2; cat "$scratch/why" >&2; exit 2; }
    done
    awk -v OFS='\t' -v series="$mode${extra:+ $extra}" -v what="$what" -v services="$services" -v endpoints="$endpoints" \
        -v size="${count:-$((services * endpoints))}" '
        NR == 1 || $1 + $2 < cpu { cpu = $1 + $2 }
        NR == 1 || $3 < wall { wall = $3 }
        $4 > memory { memory = $4 }
        END { print series, what, services, endpoints, size, cpu, wall, memory / 1024 }
    ' "$scratch/costs" | tee -a "$table" | show
}
show() {
    awk -F '\t' '{ printf "%-19s %-19s %8d %9d %8d %8.2f %8.2f %6.0f\n", $1, $2, $3, $4, $5, $6, $7, $8 }'
}
offline() { measure "$1" "$kpx" --from "$bundle" "${@:2}"; }
on_node() { measure "$1" "$kpx" --netns "$netns" --cluster-from "$bundle" --node node1 "${@:2}"; }
# shellcheck disable=SC2317 # `measure` calls it.
forget() { rm -rf "$scratch/live"; }

# Measures the commands on a cluster of this size.
cluster() {
    prepare=true count="" extra=""
    empty
    offline reconcile reconcile
    if [ "$mode" = ipvs ]; then
        virtual_servers
    else
        prepare=fresh
        on_node "reconcile --apply" reconcile --apply --yes
        prepare=forget
        on_node snapshot snapshot -o "$scratch/live"
        prepare=true
        cp "$scratch/live/node"/{iptables-save.txt,ip6tables-save.txt,nft.json} "$bundle/node"
    fi
    "$kpx" --from "$bundle" diff >"$scratch/out" || { echo "$0: $services Services: not what kube-proxy writes" >&2; exit 2; }
    offline "show services" show services
    offline trace trace "$target"
    offline diff diff
    offline doctor doctor
    offline "bridge show" bridge show
    [ -z "${BUNDLES:-}" ] || cp -r "$bundle" "$BUNDLES/$mode-$size"
}

# Measures the commands that read $extra, on the same node with a tenth of it and with all of it.
more() {
    local most
    extra=$1 most=$2
    for count in $((most / 10)) "$most"; do
        rm -rf "$bundle"
        cp -r "$scratch/plain" "$bundle"
        case $extra in
            conntrack)
                conntrack
                offline doctor doctor
                offline "show conntrack" show conntrack
                offline "show services NAME" show services "$target"
                offline "reconcile conntrack" reconcile --part conntrack
                ;;
            sockets)
                sockets
                offline doctor doctor
                offline "show nodeports" show nodeports
                ;;
            foreign)
                foreign
                offline doctor doctor
                offline trace trace "$target"
                offline diff diff
                ;;
        esac
        [ -z "${BUNDLES:-}" ] || cp -r "$bundle" "$BUNDLES/$mode-$extra-$count"
    done
}

printf '%-19s %-19s %8s %9s %8s %8s %8s %6s\n' mode command Services endpoints size cpu/s wall/s MiB
for mode in $modes; do
    for size in $sizes; do
        services=${size%x*} endpoints=${size#*x}
        target=namespace-$((services / 2 % 40))/service-$((services / 2))
        cluster
        [ "$size" = 2000x10 ] || continue
        cp -r "$bundle" "$scratch/plain"
        for extra in $extras; do
            case $extra in
                conntrack) more conntrack 1000000 ;;
                sockets) more sockets 100000 ;;
                foreign) more foreign 10000 ;;
            esac
        done
        rm -rf "$scratch/plain"
    done
done

if [ -n "${OUT:-}" ]; then
    mkdir -p "$OUT"
    awk -F '\t' '
        BEGIN { print "| mode | command | Services | endpoints of each | processor time, s | wall time, s | peak memory, MiB |" }
        BEGIN { print "|---|---|---|---|---|---|---|" }
        { printf "| %s | %s | %d | %d | %.2f | %.2f | %.0f |\n", $1, $2, $3, $4, $6, $7, $8 }
    ' "$table" >"$OUT/table.md"
    awk -v column=6 -v unit="processor time, s" -f benches/scale.awk "$table" >"$OUT/time.svg"
    awk -v column=8 -v unit="peak memory, MiB" -f benches/scale.awk "$table" >"$OUT/memory.svg"
fi

# Compares each row with the row before it that has as many Services, or as many endpoints of each.
awk -F '\t' '
    {
        key = $1 FS $2
        for (n = rows[key]; n; n--) {
            split(row[key, n], old, FS)
            if ((old[3] == $3 || old[4] == $4) && old[5] < $5) break
        }
        row[key, ++rows[key]] = $0
        if ($8 > 1024) say($8 " MiB of memory")
        if (!n) next
        # Times are measured in hundredths of a second.
        if ($6 > 0.3 && $6 > 1.3 * old[6] * $5 / old[5]) say(sprintf("%.1f times the time", $6 / (old[6] + 0.001)))
        if ($8 / old[8] > 1.3 * $5 / old[5]) say(sprintf("%.1f times the memory", $8 / old[8]))
    }
    function say(what) {
        printf "%s, %s, %d: %s, for %.1f times the size\n", $1, $2, $5, what, n ? $5 / old[5] : 1
        # The kernel lists chains and sets, and creates sets, in a time that grows with the square of their number.
        is_kernel = what ~ /time$/ && ($2 == "snapshot" || $1 == "nftables" && $2 == "reconcile --apply")
        if (!is_kernel) failed = 1
    }
    END { exit failed }
' "$table" || { echo "$0: kpx needs more than it may" >&2; status=1; }
exit "$status"
