#!/bin/sh
# Takes the state of a Kubernetes node's service proxy with standard tools alone, as a bundle for `kpx --from`.
# It only reads and loads no kernel module. errors.txt in the bundle lists the files that are missing, with the reasons.
#
# Run as root on the node:   sh snapshot.sh [FOLDER]
# The result, FOLDER.tar.gz, holds addresses and names of the cluster: treat it as confidential.

set -u
umask 077
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH LC_ALL=C

node=${NODE_NAME:-$(uname -n)}
dir=${1:-kpx-snapshot-$node-$(date -u +%Y%m%dT%H%M%SZ)}
dir=${dir%/}
if [ -e "$dir" ] || [ -e "$dir.tar.gz" ]; then
    echo "$0: $dir or $dir.tar.gz exists; name another folder" >&2
    exit 4
fi
mkdir -p "$dir/node" "$dir/kube-proxy" "$dir/cluster" || exit 4
: >"$dir/errors.txt"

# note FILE REASON
note() {
    printf '%s: %s\n' "$1" "$2" >>"$dir/errors.txt"
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# Runs a command for no longer than 20 seconds, where that can be had.
limited() {
    if has timeout; then
        timeout 20 "$@"
    else
        "$@"
    fi
}

# take FILE COMMAND...: keeps what the command prints, wholly or not at all
take() {
    file=$1
    shift
    if ! has "$1"; then
        note "$file" "$1 is not installed"
    elif ! limited "$@" >"$dir/$file" 2>"$dir/stderr"; then
        note "$file" "$* failed: $(tail -n 1 "$dir/stderr")"
        rm -f "$dir/$file"
    fi
    rm -f "$dir/stderr"
}

# copy FILE SOURCE
copy() {
    if [ ! -e "$2" ]; then
        note "$1" "$2 does not exist"
    elif ! cat "$2" >"$dir/$1" 2>/dev/null; then
        note "$1" "$2 cannot be read"
        rm -f "$dir/$1"
    fi
}

# Tells whether a tool can be run without the kernel loading this module for it.
present() {
    [ ! -e /proc/modules ] && return 0
    grep -q "^$1 " /proc/modules && return 0
    [ -d "/sys/module/$1" ] && return 0
    grep -q "/$1\.ko" "/lib/modules/$(uname -r)/modules.builtin" 2>/dev/null
}

# take_with MODULE FILE COMMAND...
take_with() {
    module=$1
    shift
    if present "$module"; then
        take "$@"
    else
        note "$1" "the module $module is not loaded, so there is nothing to list"
    fi
}

# lines FILE SOURCE...: every line behind its file's name
lines() {
    file=$1
    shift
    for source in "$@"; do
        if [ -f "$source" ]; then
            sed "s|^|$source: |" "$source" >>"$dir/$file"
        fi
    done
}

take node/kernel-release.txt uname -r

# What tells this machine from others, as the kubelet reports it of its Node.
{
    echo "host-name = $(uname -n)"
    for file in /etc/machine-id /var/lib/dbus/machine-id; do
        if [ -s "$file" ]; then
            echo "machine-id = $(cat "$file")"
            break
        fi
    done
    [ -r /proc/sys/kernel/random/boot_id ] && echo "boot-id = $(cat /proc/sys/kernel/random/boot_id)"
    [ -r /sys/class/dmi/id/product_uuid ] && echo "system-uuid = $(cat /sys/class/dmi/id/product_uuid)"
    [ -r /sys/class/dmi/id/board_asset_tag ] && echo "asset-tag = $(cat /sys/class/dmi/id/board_asset_tag)"
} >"$dir/node/host.txt"

# iptables: the back end in use under its plain name, the other one under its own.
take node/iptables-version.txt iptables --version
for ip in ip ip6; do
    tables=/proc/net/${ip}_tables_names
    case $("${ip}tables" --version 2>/dev/null) in
    *nf_tables*)
        take_with nf_tables "node/${ip}tables-save.txt" "${ip}tables-save" -c
        if [ -s "$tables" ]; then
            take "node/${ip}tables-legacy-save.txt" "${ip}tables-legacy-save" -c
        fi
        ;;
    *)
        if [ -s "$tables" ]; then
            take "node/${ip}tables-save.txt" "${ip}tables-save" -c
        else
            note "node/${ip}tables-save.txt" "iptables is not installed, or the kernel has no table of it"
        fi
        if has "${ip}tables-nft-save"; then
            take_with nf_tables "node/${ip}tables-nft-save.txt" "${ip}tables-nft-save" -c
        fi
        ;;
    esac
done
if [ -s /proc/net/arp_tables_names ]; then
    take node/arptables-legacy.txt arptables-legacy -n --line-numbers -L
fi
take_with nf_tables node/nft.json nft -j list ruleset
take_with nf_tables node/nft.txt nft list ruleset
take_with ip_set node/ipset-save.txt ipset save
# It opens netlink even to tell its version.
take_with nfnetlink node/conntrack-version.txt conntrack --version

# ipvsadm loads ip_vs by itself.
if [ -e /proc/net/ip_vs ]; then
    take node/ipvsadm-save.txt ipvsadm -Sn
    take node/ipvsadm-stats.txt ipvsadm -Ln --stats
    take node/ipvsadm-timeout.txt ipvsadm -Ln --timeout
    copy node/ip_vs_conn.txt /proc/net/ip_vs_conn
else
    note node/ipvsadm-save.txt "the kernel has no IPVS: /proc/net/ip_vs does not exist"
fi

# The lists of xt_recent, and the kernel's clock.
if [ -d /proc/net/xt_recent ]; then
    lines node/xt_recent.txt /proc/net/xt_recent/* /proc/uptime
    [ -r /proc/timer_list ] && sed -n '/^jiffies: /{s|^|/proc/timer_list: |p;q}' /proc/timer_list >>"$dir/node/xt_recent.txt"
else
    note node/xt_recent.txt "xt_recent is not loaded, so no list remembers clients"
fi

take node/ip-addr.json ip -j addr
take node/ip-link.json ip -j -d link
take node/ip-route.json ip -j route show table all
take node/ip-rule.json ip -j rule
take node/ip-neigh.json ip -j neigh
take_with xfrm_user node/ip-xfrm-policy.txt ip xfrm policy
take_with xfrm_user node/ip-xfrm-state.txt ip xfrm state list nokeys
# The filters of each link, as one document.
filters() {
    qdiscs=$(limited tc -j qdisc) || return
    printf '{"qdiscs":%s,"classes":[' "${qdiscs:-[]}"
    separator=
    for path in /sys/class/net/*; do
        link=${path##*/}
        all=$(limited tc -s -j class show dev "$link" 2>/dev/null | tr -d '\n')
        case $all in
        '' | '[]' | '[ ]') continue ;;
        esac
        printf '%s{"dev":"%s","classes":%s}' "$separator" "$link" "$all"
        separator=,
    done
    printf '],"filters":['
    separator=
    for path in /sys/class/net/*; do
        link=${path##*/}
        for hook in ingress egress root; do
            # Without a parent, tc lists those of the root.
            # shellcheck disable=SC2086
            all=$(limited tc -j filter show dev "$link" ${hook#root} 2>/dev/null | tr -d '\n')
            case $all in
            '' | '[]' | '[ ]') continue ;;
            esac
            printf '%s{"dev":"%s","hook":"%s","filters":%s}' "$separator" "$link" "$hook" "$all"
            separator=,
        done
    done
    echo ']}'
}
if ! has tc; then
    note node/tc.json "tc is not installed"
elif ! filters >"$dir/node/tc.json" 2>/dev/null; then
    note node/tc.json "tc -j qdisc failed"
    rm -f "$dir/node/tc.json"
fi
# inside COMMAND...: runs it in the network of process $pid
inside() {
    limited nsenter --net="/proc/$pid/ns/net" "$@" 2>/dev/null
}

# part FILE COMMAND...: what the command prints inside, behind the name of the file
part() {
    echo "--- $1"
    shift
    inside "$@"
}

# Settings that decide on what pods send and take in.
pod_settings='net.ipv4.conf.all.accept_local net.ipv4.conf.eth0.accept_local net.ipv4.conf.all.arp_ignore
    net.ipv4.conf.eth0.arp_ignore net.ipv4.ip_default_ttl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports
    net.ipv4.tcp_ecn net.ipv4.tcp_timestamps'

# The networks of pods: the addresses, links, routes, neighbours, qdiscs, sockets and rules of each.
pod_networks() {
    seen=" $(readlink /proc/self/ns/net) "
    for path in /proc/[0-9]*; do
        namespace=$(readlink "$path/ns/net" 2>/dev/null) || continue
        case $seen in
        *" $namespace "*) continue ;;
        esac
        seen="$seen$namespace "
        pid=${path#/proc/}
        case $(inside ip -j addr) in
        *'"global"'*) ;;
        *) continue ;;
        esac
        echo "=== $pid"
        part node/ip-addr.json ip -j addr
        part node/ip-link.json ip -j -d link
        part node/ip-route.json ip -j route show table all
        part node/ip-rule.json ip -j rule
        part node/ip-neigh.json ip -j neigh
        if has tc && qdiscs=$(inside tc -j qdisc); then
            printf '%s\n' '--- node/tc.json' "{\"qdiscs\":${qdiscs:-[]},\"filters\":[]}"
        fi
        # shellcheck disable=SC2086
        part node/sysctl.txt sysctl -e $pod_settings
        part node/ss.txt env PROC_ROOT="/proc/$pid" ss -lntuH
        if has nft && present nf_tables; then
            part node/nft.json nft -j list ruleset
        fi
        if [ -s "$path/net/ip_tables_names" ] || inside nft -j list tables | grep -q '"table"'; then
            part node/iptables-save.txt iptables-save -c
            part node/ip6tables-save.txt ip6tables-save -c
        fi
    done
}
if ! has nsenter; then
    note node/pod-networks.txt "nsenter is not installed"
elif ! readlink /proc/1/ns/net >/dev/null 2>&1 && [ "$(id -u)" != 0 ]; then
    note node/pod-networks.txt "only root sees the networks of other processes"
else
    pod_networks >"$dir/node/pod-networks.txt"
fi
for table in tcp tcp6 udp udp6; do
    copy "node/proc-net-$table.txt" "/proc/net/$table"
done
if present tcp_diag && present udp_diag && present sctp_diag; then
    take node/ss.txt ss -lntuSHp
else
    # With this variable ss reads /proc instead of a socket that has modules loaded.
    take node/ss.txt env PROC_ROOT=/proc ss -lntuHp
fi

# Two kinds of settings are secrets.
take node/sysctl.all sysctl -a
if [ -e "$dir/node/sysctl.all" ]; then
    grep -E '^(net\.|kernel\.(osrelease|modules_disabled))' "$dir/node/sysctl.all" |
        grep -vE 'tcp_fastopen_key|stable_secret' >"$dir/node/sysctl.txt"
    rm -f "$dir/node/sysctl.all"
fi
copy node/proc-modules.txt /proc/modules
copy node/modules-builtin.txt "/lib/modules/$(uname -r)/modules.builtin"
copy node/modules-dep.txt "/lib/modules/$(uname -r)/modules.dep"
lines node/modules-load.txt /etc/modules /etc/modules-load.d/*.conf /run/modules-load.d/*.conf \
    /usr/lib/modules-load.d/*.conf
lines node/modprobe.txt /etc/modprobe.d/*.conf /run/modprobe.d/*.conf /usr/lib/modprobe.d/*.conf \
    /lib/modprobe.d/*.conf
# some FILE PATTERN SOURCE...: the lines that begin so, each behind its file's name
some() {
    file=$1
    pattern=$2
    shift 2
    for source in "$@"; do
        if [ -f "$source" ]; then
            sed -n "s|^[[:space:]]*\($pattern\)|$source: \1|p" "$source" >>"$dir/$file"
        fi
    done
}
: >"$dir/node/firewalls.txt"
some node/firewalls.txt FlushAllOnReload= /etc/firewalld/firewalld.conf
some node/firewalls.txt StrictForwardPorts= /etc/firewalld/firewalld.conf
some node/firewalls.txt 'flush ruleset' /etc/nftables.conf /etc/sysconfig/nftables.conf
for unit in /etc/systemd/system/*.wants/firewalld.service /etc/systemd/system/*.wants/nftables.service; do
    if [ -L "$unit" ]; then
        echo "$unit: enabled" >>"$dir/node/firewalls.txt"
    fi
done
: >"$dir/node/link-managers.txt"
some node/link-managers.txt managed= /run/NetworkManager/devices/*
some node/link-managers.txt ADMIN_STATE= /run/systemd/netif/links/*
take node/dmesg.txt dmesg
take_with ip_set node/ipset-version.txt ipset --version
take_with nfnetlink node/nft-version.txt nft --version
copy node/nf_conntrack-stat.txt /proc/net/stat/nf_conntrack
copy node/arp_cache-stat.txt /proc/net/stat/arp_cache
copy node/ndisc_cache-stat.txt /proc/net/stat/ndisc_cache
take_with nf_conntrack_netlink node/conntrack.txt conntrack -L

# kube-proxy: its file, seen from inside its container, and what it says of itself.
pid=
for comm in /proc/[0-9]*/comm; do
    if [ "$(cat "$comm" 2>/dev/null)" = kube-proxy ]; then
        pid=${comm#/proc/}
        pid=${pid%/comm}
        break
    fi
done
config=
if [ -n "$pid" ]; then
    config=$(tr '\0' '\n' <"/proc/$pid/cmdline" |
        sed -n -e 's/^--config=//p' -e '/^--config$/{n;p;}' | head -n 1)
fi
if [ -n "$config" ]; then
    copy kube-proxy/config.conf "/proc/$pid/root$config"
else
    note kube-proxy/config.conf "no kube-proxy runs here with --config, or it is not visible"
fi

if [ -n "$pid" ] && [ -d "/proc/$pid/root/" ]; then
    if [ -e "/proc/$pid/root/etc/protocols" ] || [ -L "/proc/$pid/root/etc/protocols" ]; then
        echo /etc/protocols >>"$dir/kube-proxy/tools.txt"
    fi
    for tool in conntrack ipset iptables modprobe nft; do
        for folder in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
            path=/proc/$pid/root$folder/$tool
            # A link may lead to where only the container's own root makes sense of it.
            if [ -e "$path" ] || [ -L "$path" ]; then
                echo "$folder/$tool" >>"$dir/kube-proxy/tools.txt"
            fi
        done
    done
fi

# ask FILE URL
ask() {
    if has curl; then
        take "$1" curl -sS --max-time 10 --noproxy '*' "$2"
    elif has wget; then
        take "$1" wget -q -T 10 -O - "$2"
    else
        note "$1" "neither curl nor wget is installed"
    fi
}
ask kube-proxy/proxy-mode.txt http://127.0.0.1:10249/proxyMode
ask kube-proxy/metrics.txt http://127.0.0.1:10249/metrics
ask kube-proxy/configz.json http://127.0.0.1:10249/configz
ask kube-proxy/healthz.json http://127.0.0.1:10256/healthz

# The cluster, with the user's own kubeconfig or one that a node has.
if [ -z "${KUBECONFIG:-}" ] && [ ! -e "${HOME:-/root}/.kube/config" ]; then
    for file in /etc/kubernetes/admin.conf /etc/kubernetes/kubelet.conf; do
        if [ -r "$file" ]; then
            KUBECONFIG=$file
            export KUBECONFIG
            break
        fi
    done
fi
# get FILE ARGUMENT...
get() {
    file=$1
    shift
    take "$file" kubectl --request-timeout=10s get -o json "$@"
}
get cluster/services.json services -A
get cluster/endpointslices.json endpointslices -A
get cluster/nodes.json nodes
get cluster/configmaps.json configmaps -n kube-system --field-selector metadata.name=kube-proxy
get cluster/daemonsets.json daemonsets -n kube-system
get cluster/pods.json pods -A --field-selector "spec.nodeName=$node"

# An empty answer is no answer.
find "$dir/kube-proxy" "$dir/cluster" -type f -size 0 -exec rm -f {} +
missing=$(cat "$dir/errors.txt")
if has tar && has gzip && tar -C "$(dirname "$dir")" -cf - "$(basename "$dir")" | gzip >"$dir.tar.gz"; then
    rm -rf "$dir"
    dir=$dir.tar.gz
fi
if [ -n "$missing" ]; then
    {
        echo "missing from the bundle:"
        echo "$missing" | sed 's/^/  /'
        case $missing in
        *cluster/*)
            echo "to add the objects of the cluster, on a machine with kpx and a kubeconfig:"
            echo "  kpx --from $dir --kubeconfig FILE snapshot --file complete.tar.gz"
            ;;
        esac
        echo "kpx itself reads more of a node than this script: kpx snapshot"
    } >&2
fi
echo "$dir"
