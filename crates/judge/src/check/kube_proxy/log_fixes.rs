//! What mends the troubles that kube-proxy logs, by the words of its errors.

use crate::check::Facts;
use kpx_node::evidence::proxy_log::{self, Kind};
use kpx_node::evidence::{Gap, Item};

pub(super) const GENERIC: &str =
    "Correct what the message names, then restart kube-proxy on this node.";

const NO_EXTENSION: &str = "Load the kernel module of this match or target, xt_NAME, or use a kernel that has it: one line that is refused \
    stops all changes.";

const UNREACHED: &str =
    "Find out why the API server does not answer at the address in kube-proxy's kubeconfig.";

const BY_PROXY: &str = "Add the API server's address to NO_PROXY in the environment of kube-proxy's container, and restart it: an HTTP proxy \
    (HTTPS_PROXY) refuses its connections.";

const UNRESOLVED: &str = "Let the node resolve the name of the API server: the message names the resolver. If that is the \
    cluster's own DNS, kube-proxy needs another resolver (dnsPolicy Default): cluster DNS works only after kube-proxy has \
    started.";

pub(super) const NAME: &str = "Set hostnameOverride (or --hostname-override) to the Node's name, from the pod's spec.nodeName, and restart \
    kube-proxy; if the name is right, look for the Node object.";

/// The [error](proxy_log::NO_SERVERS) in lower case.
const NO_SERVERS: &str = "the kernel takes no virtual servers";

/// The [error](proxy_log::UNREAD_RULES) in lower case.
const UNREAD_RULES: &str = "cannot read a rule that another program wrote";

const NO_MEMORY: &str = "Raise the memory limit of kube-proxy's container, or find out what uses up the memory of the node.";

const NO_RANGE: &str = "Let kube-controller-manager allocate a podCIDR for the Node (--allocate-node-cidrs, --cluster-cidr), or, if the \
    network plugin gives pods their addresses, set detectLocalMode to another mode in kube-proxy's configuration: kube-proxy waits for the \
    Node's podCIDR, which the Node does not have.";

/// Words of an error in lower case: the kernel lacks a module.
const NO_MODULE: [&str; 9] = [
    "could not insert",
    "missing kernel module",
    "rule_append failed (no such file",
    "nf_conntrack_max: no such file",
    "required kernel modules",
    "ipset version",
    "ipvs proxier",
    "couldn't load match",
    "could not process rule: no such file",
];

/// Words of an error in lower case, and how to fix it. The first one counts.
const FIXES: &[(&str, &str)] = &[
    (
        "executable file not found",
        "Install the program that the message names where kube-proxy runs: in the image of its container, or on the node if a service \
         such as k3s contains kube-proxy. Then restart it.",
    ),
    ("proxyconnect tcp", BY_PROXY),
    ("\": forbidden", BY_PROXY),
    ("\": bad gateway", BY_PROXY),
    ("no such host", UNRESOLVED),
    ("server misbehaving", UNRESOLVED),
    (
        "signal: killed",
        "Raise the memory limit of kube-proxy's container: the kernel killed the tool that kube-proxy ran, for want of memory.",
    ),
    (
        "segmentation fault",
        "The tool that kube-proxy runs crashes. The nft in its image does so on sets that a newer nft wrote in any table: remove these \
         (`kpx doctor KP16` names them), or upgrade kube-proxy to 1.37, then restart it.",
    ),
    ("memory allocation problem", NO_MEMORY),
    ("cannot allocate memory", NO_MEMORY),
    (
        "resource temporarily unavailable",
        "Raise the limit of processes of kube-proxy's container or service (pids.max, TasksMax), or find out what uses up the processes \
         or the memory of the node: kube-proxy cannot start a program.",
    ),
    (
        "could not insert",
        "Load the kernel module that the message names on the host, and list it in a file of /etc/modules-load.d: the modprobe of a \
         container often cannot read the compressed modules of the host's kernel.",
    ),
    (
        "missing kernel module",
        "Load the kernel module of the extension that the message names (`modprobe xt_NAME`), or use a kernel that has it: one line that \
         is refused stops all changes.",
    ),
    (
        "rule_append failed (no such file",
        "Load the kernel modules of the line that the message shows: nft_compat, and xt_NAME of its match or target. One line that is \
         refused stops all changes.",
    ),
    (
        "comment too long",
        "Shorten the name of the Service, its namespace or its port, or upgrade kube-proxy: nftables takes comments of 128 characters at \
         most, and one line that is refused stops all changes.",
    ),
    (
        "read-only file system",
        "Let kube-proxy's container write /proc/sys (run it privileged), or change the setting that makes kube-proxy write there: 0 in the \
         fields of conntrack, iptables.localhostNodePorts: false for route_localnet.",
    ),
    (
        "hash is full",
        "Use fewer Services or endpoints, or another mode: kube-proxy makes its IP sets for 65536 members, and this one is full.",
    ),
    (
        "device or resource busy",
        "Find the rule of other software that still jumps to the chain of the message (`nft -a list ruleset`), and delete it.",
    ),
    (
        "nf_conntrack_max: no such file",
        "Load the module with `modprobe nf_conntrack`, and list it in a file of /etc/modules-load.d: the kernel does not track \
         connections yet. If it is missing, install the package with extra kernel modules (kernel-modules-extra on RHEL and Fedora).",
    ),
    (
        "nf_conntrack_max",
        "Set conntrack.maxPerCore to 0 in kube-proxy's configuration, which leaves the kernel's limit as it is, and restart \
         kube-proxy; or set the limit on the host of the container.",
    ),
    (
        "conntrack parameters",
        "Set the field of conntrack that the message names to 0 in kube-proxy's configuration, which leaves the kernel's \
         setting as it is, and restart kube-proxy.",
    ),
    (
        "[nf_conntrack_ipv4]",
        "Upgrade kube-proxy to v1.13 or newer: since kernel 4.19, nf_conntrack contains this module.",
    ),
    ("podcidr allocation", NO_RANGE),
    (
        "required kernel modules",
        "Load the modules that the message names with `modprobe -a`, or install the package with extra kernel modules; then \
         restart kube-proxy.",
    ),
    (
        "ipset version",
        "Load the kernel's IP sets with `modprobe ip_set`. If the module is missing, install the package with extra kernel \
         modules (linux-modules-extra-$(uname -r) on Ubuntu, kernel-modules-extra-$(uname -r) on RHEL and Fedora), or choose \
         another mode.",
    ),
    (
        "ipvs proxier",
        "Load the modules of IPVS, or install the package with extra kernel modules (linux-modules-extra-$(uname -r) on \
         Ubuntu, kernel-modules-extra on RHEL and Fedora), or choose another mode.",
    ),
    (
        "match `recent'",
        "Use a kernel with the module xt_recent (CONFIG_NETFILTER_XT_MATCH_RECENT) or the nftables mode, or remove \
         sessionAffinity: ClientIP from the Services that have it: one line that is refused stops all changes.",
    ),
    (
        "couldn't load target `kube-",
        "The target is a chain that does not exist, and no module: KUBE-MARK-DROP is the kubelet's in releases before 1.28, which makes it when \
         it starts, unless makeIPTablesUtilChains is false in its configuration. Restart the kubelet, then kube-proxy, whose image chooses \
         the back end of iptables with the kubelet's chains when it starts.",
    ),
    ("couldn't load", NO_EXTENSION),
    ("couldn't find match", NO_EXTENSION),
    ("couldn't find target", NO_EXTENSION),
    (
        "unknown option",
        "Load the kernel module of the match or target that has this option, xt_mark for --xor-mark, or use a kube-proxy image \
         with another iptables: one line that is refused stops all changes.",
    ),
    (
        "no chain/target/match by that name",
        "Find the missing chain, or the missing kernel module of a match or target, and restore it: one line that is refused \
         stops all changes.",
    ),
    (
        "could not process rule: no such file",
        "Load the kernel's module for the expression in the line that the message shows (`modprobe -a nft_fib_ipv4 nft_fib_ipv6` for \
         fib, nft_numgen for numgen, nft_nat, nft_masq), use a kernel that has it, or the iptables mode: one line that is refused \
         stops all changes.",
    ),
    (
        "could not process rule: operation not supported",
        "Use a newer kernel, at least 5.13, or the iptables mode: this one lacks what the line that the message shows needs.",
    ),
    (
        "insmod",
        "Load the kernel's table that the message names (`modprobe iptable_nat`, `modprobe ip6table_nat`), or use a kube-proxy \
         image whose iptables works with this kernel.",
    ),
    (
        "adding entry ",
        "Find out why `ipset` refuses entries: add the entry of the message by hand; its release must fit the kernel (`ipset \
         version`), the modules of the sets' types must be loaded (`modprobe -a ip_set_hash_ip ip_set_hash_ipport \
         ip_set_hash_ipportip ip_set_hash_ipportnet ip_set_bitmap_port`), and a set that an older release made may have another \
         type (`ipset list -t`). Repair the sets only then.",
    ),
    (
        "set with the same name already exists",
        "Delete the rules that use the set, then the set (`ipset destroy SET`), and restart kube-proxy on this node: a set keeps \
         the type that it was created with.",
    ),
    (
        "too many open files",
        "Raise fs.inotify.max_user_instances with `sysctl -w fs.inotify.max_user_instances=512`, also in /etc/sysctl.d, and \
         restart kube-proxy.",
    ),
    (
        NO_SERVERS,
        "Load ip_vs and the module of the scheduler (`modprobe -a ip_vs ip_vs_rr`), list them in a file of /etc/modules-load.d, then restart \
         kube-proxy: one that starts before the modules are loaded does not find IPVS later either.",
    ),
    (
        UNREAD_RULES,
        "Find the rule with `nft -a list ruleset ip`, and let its program write tables of its own, or use iptables: it is in a table of \
         iptables (filter, nat, mangle), often in FORWARD or INPUT. A kube-proxy image with a newer iptables (1.8.11) may read it.",
    ),
    (
        "xtables.lock: permission denied",
        "Let kube-proxy's container open /run/xtables.lock: with SELinux or AppArmor, give the file its label again (`restorecon -v \
         /run/xtables.lock`), install the distribution's policy for containers (container-selinux), or run the container privileged.",
    ),
    (
        proxy_log::LOCKED,
        "Find the program that holds /run/xtables.lock with `lslocks`, and end it, or let it take the lock for each change alone \
         (iptables -w): kube-proxy then writes its rules at its next sync. kpx reconcile needs the same lock.",
    ),
    (
        "iptables lock",
        "Mount /run/xtables.lock of the host, writable, into kube-proxy's pod (hostPath of type FileOrCreate), or let its service \
         write /run: kube-proxy opens this file before it writes rules, and shares it with all programs that do.",
    ),
    (
        "parameters/hashsize",
        "Set conntrack.maxPerCore and conntrack.min to 0 in kube-proxy's configuration, so that it leaves the size of the table alone, \
         and set net.netfilter.nf_conntrack_max on the machine itself: inside a container this file cannot be written.",
    ),
    (
        "exec format error",
        "Use an image of kube-proxy that has the processor architecture of this node.",
    ),
    (
        "unknown flag: --kubeconfig ",
        "Write the flag as --kubeconfig=PATH, or as two arguments: the command line has the flag and its value in one argument.",
    ),
    (
        "unknown flag",
        "Remove the flag from kube-proxy's command line, or use a release of kube-proxy that has it.",
    ),
    (
        "runtime error",
        "Use another patch release of kube-proxy: the message is that of a bug in the program. Its log has the lines of code.",
    ),
    (
        "parseip error",
        "Upgrade kube-proxy to v1.18.3 or newer, or the kernel to 3.18 or newer: older kernels do not report the IP family of \
         a real server, and v1.18.0 to v1.18.2 cannot read such an answer.",
    ),
    (
        "could not find the requested resource",
        "Use a kube-proxy of the API server's release: the server does not offer the version of these objects that this one \
         asks for.",
    ),
    (
        "unauthorized",
        "Renew kube-proxy's credentials: restart it, and check its ServiceAccount or kubeconfig.",
    ),
    (
        "forbidden",
        "Grant kube-proxy's user or ServiceAccount the ClusterRole system:node-proxier.",
    ),
    (
        "is not yet valid: current time",
        "Set the clock of this node, and the clock of the machine that made the certificate: one of them is wrong, or the certificate \
         has expired. The message has both times; `timedatectl` shows whether the clock is synchronized. An expired certificate is \
         renewed with `kubeadm certs renew all`, or by the cluster's own tool.",
    ),
    (
        "x509",
        "Check the certificates: the clock of the node, the server's names, and the certificate authority in kube-proxy's \
         kubeconfig.",
    ),
    ("connection refused", UNREACHED),
    ("i/o timeout", UNREACHED),
    ("tls handshake timeout", UNREACHED),
    ("context deadline exceeded", UNREACHED),
    ("connection reset by peer", UNREACHED),
    ("network is unreachable", UNREACHED),
    ("unexpected eof", UNREACHED),
    ("http2: client connection lost", UNREACHED),
    ("no route to host", UNREACHED),
    (
        "address already in use",
        "Stop the process that holds the port that the message names, or change the address in kube-proxy's configuration.",
    ),
    (
        "kubeconfig",
        "Let kube-proxy read its kubeconfig: the file's owner, mode and SELinux label.",
    ),
    (
        "permission denied",
        "Let kube-proxy's container run privileged, or change the setting that makes it write there.",
    ),
];

/// The fix of a certificate whose end has passed.
const EXPIRED: &str = "Renew the certificate, which has expired; the message has its end. On a control plane of kubeadm, `kubeadm certs \
                       check-expiration` lists the ends and `kubeadm certs renew all` renews the certificates; restart the API servers \
                       then. If that end is not past, the clock of this node is wrong: `timedatectl` shows it.";

/// Returns whether `error` comes from a module that cannot be loaded, since those of the running kernel are gone.
pub(super) fn lacks_modules(facts: &Facts<'_>, error: &str) -> bool {
    let error = error.to_lowercase();
    let tree = facts.node.evidence().text(Item::ModulesDep);
    matches!(tree, Err(Gap::Absent(..))) && NO_MODULE.iter().any(|words| error.contains(words))
}

pub(super) fn fix(kind: Kind, error: &str) -> &'static str {
    if kind == Kind::UnknownFields {
        return "Correct the names in kube-proxy's ConfigMap, and restart kube-proxy. The settings of a mode are below iptables, \
                ipvs or nftables, not below the name of a Go type such as KubeProxyIPTablesConfiguration.";
    }
    if kind == Kind::Port && error.contains("address already in use") {
        return "Stop the process, or give the Service another NodePort; `ss -lntup` shows who listens.";
    }
    if kind == Kind::Node {
        return NAME;
    }
    if kind == Kind::Range {
        return NO_RANGE;
    }
    let error = error.to_lowercase();
    if error.contains("x509: certificate has expired") && error.contains(" is after ") {
        return EXPIRED;
    }
    let known = FIXES.iter().find(|(words, _)| error.contains(words));
    known.map_or(GENERIC, |(_, fix)| fix)
}
