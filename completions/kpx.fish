# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_kpx_global_optspecs
    string join \n from= cluster-from= kubeconfig= context= cluster= user= as= as-group= proxy-credentials no-api node= image= programs= netns= root= family= o/output= color= ascii pager= no-pager timeout= ignore= q/quiet v/verbose V/version h/help
end

function __fish_kpx_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_kpx_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_kpx_using_subcommand
    set -l cmd (__fish_kpx_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c kpx -n "__fish_kpx_needs_command" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_needs_command" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_needs_command" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_needs_command" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_needs_command" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_needs_command" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_needs_command" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_needs_command" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_needs_command" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_needs_command" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_needs_command" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_needs_command" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_needs_command" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_needs_command" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_needs_command" -s o -l output -d 'Print in this format' -r
complete -c kpx -n "__fish_kpx_needs_command" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_needs_command" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_needs_command" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_needs_command" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_needs_command" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_needs_command" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_needs_command" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_needs_command" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_needs_command" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_needs_command" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_needs_command" -s V -l version -d 'Print version'
complete -c kpx -n "__fish_kpx_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "doctor" -d 'Find problems of this node and how to fix them'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "explain" -d 'Explain a check, or how a provider\'s mode is changed'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "resolve" -d 'Compare cluster DNS with the cluster\'s Services'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "diff" -d 'Compare the live rules with the cluster\'s Services'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "snapshot" -d 'Record the node in a bundle for offline analysis'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "report" -d 'Write a page for a ticket: findings, drift, traces, plan'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "show" -d 'Show one view of the live state'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "top" -d 'Watch the traffic of Services, by backend'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "watch" -d 'Print what changes on this node, as it happens'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "serve" -d 'Serve metrics and the health of this node'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "mcp" -d 'Serve questions of an MCP client, such as an editor'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "trace" -d 'Trace a packet through the rules to its destination'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "why" -d 'Explain why a Service does not work'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "render" -d 'Print the rules that kube-proxy would program'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "preflight" -d 'Check that a node can run a mode; load its modules'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "reconcile" -d 'Repair the node\'s rules, or remove another mode\'s'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "bridge" -d 'Serve Services while kube-proxy changes its mode'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "migrate" -d 'Switch nodes to another mode, or roll back'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "access" -d 'Show the permissions that kpx needs, and which are missing'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "completions" -d 'Print a shell completion script'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "man" -d 'Print a man page'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "help" -d 'Print the help of a command'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "version" -d 'Print the version'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l only -d 'Run these checks only: ids, names or groups' -r -f -a "MX01\t'No leftovers of the iptables mode on a node in another mode'
MX02\t'No leftovers of the ipvs mode on a node in another mode'
MX03\t'No leftovers of the nftables mode on a node in another mode'
MX11\t'No leftovers of the userspace mode on a node in another mode'
MX08\t'Chains that two modes share are entered only by the running mode'
MX06\t'No migration by kpx is unfinished'
MX09\t'A migration\'s bridge is kept up to date, or removed'
MX04\t'kube-proxy runs wherever its rules exist'
MX05\t'kube-proxy has the same mode on all nodes'
MX07\t'The first sync in nftables mode does not take minutes'
MX10\t'The first sync in nftables mode will take less than a minute'
MX13\t'The tables called kube-proxy belong to kube-proxy'
MX12\t'Connections that work now work in the new mode'
KP01\t'The configured mode, the reported mode and the kernel\'s rules agree'
KP03\t'kube-proxy has no flags that its configuration file overrides'
KP04\t'kube-proxy runs with the settings of its ConfigMap'
KP22\t'kube-proxy starts with its mode, feature gates and configuration'
KP13\t'kube-proxy\'s sync periods do not follow outdated advice'
KP02\t'kube-proxy\'s container stays up'
KP05\t'kube-proxy runs, answers and reports that it is healthy'
KP06\t'kube-proxy has synced since the last change'
KP07\t'None of kube-proxy\'s syncs failed'
KP08\t'kube-proxy\'s syncs are fast enough'
KP21\t'kube-proxy\'s log reports no trouble that keeps it from its work'
KP09\t'kube-proxy can detect local pods\' traffic in every IP family in use'
KP10\t'kube-proxy\'s configuration has the prefixes and links of the pods'
KP11\t'kube-proxy uses the name of its own Node'
KP12\t'kube-proxy knows an address of the node in every IP family in use'
KP14\t'kube-proxy is within three releases of the kubelet'
KP15\t'This kube-proxy release regularly re-checks its virtual servers'
KP16\t'The node\'s nft and kube-proxy\'s can read each other\'s rules'
KP17\t'Only one service proxy runs on the node'
KP19\t'A rollout of kube-proxy waits for each node\'s rules'
KB01\t'No known bug of this kube-proxy release shows on the node'
KM01\t'The kernel provides IPVS if the mode needs it'
KM02\t'The kernel provides the scheduler of ipvs.scheduler'
KM14\t'The module ip_vs is not loaded if nothing will use it'
KM15\t'The kernel can create the link kube-ipvs0'
KM08\t'The kernel is new enough for the mode'
KM09\t'The kernel provides the expressions of the nftables mode'
KM10\t'The kernel provides the matches and targets of the mode'
KM11\t'iptables does not use the legacy backend on a kernel without it'
KM12\t'The kernel tracks connections'
KM13\t'Packets between pods on a bridge pass through iptables'
KM03\t'The modules of the ipvs mode are loaded at boot'
KM04\t'The modules of the running kernel are still installed'
KM05\t'Modules can be loaded if the mode needs more of them'
KM06\t'kube-proxy\'s pod sees the node\'s modules in ipvs mode'
KM07\t'kube-proxy finds the tools that the ipvs mode needs'
SY02\t'IPVS connections are tracked by conntrack'
SY03\t'conn_reuse_mode is right for this kernel'
SY04\t'IPVS ends connections to pods that no longer exist'
SY05\t'IPVS drops client affinity to pods that no longer exist'
SY06\t'The node does not answer ARP for load balancer addresses'
SY11\t'Keepalive packets arrive before IPVS forgets idle connections'
SY13\t'IPVS does not estimate rates of thousands of virtual servers'
SY18\t'The kernel\'s log does not say that it drops packets'
SY15\t'The neighbour tables have not overflowed'
SY16\t'No setting, route or filter of the node stops connections'
SY01\t'The kernel forwards packets between links'
SY08\t'NodePorts work on localhost, which cannot be reached from outside'
SY09\t'Tunnels between nodes have no strict reverse path filter'
SY10\t'Packets that conntrack considers invalid are harmless'
SY12\t'Clients on the node have enough ports, and none of them is a NodePort'
SY17\t'The kernel does not compare the timestamps of clients behind one address'
IB01\t'Only one iptables backend contains kube-proxy\'s rules'
IB02\t'kube-proxy, the kubelet and the node\'s tools use one iptables backend'
IB03\t'The node\'s iptables is as new as the one in kube-proxy\'s image'
IB04\t'No rule of kube-proxy or the kubelet lost its conditions'
IB05\t'All programs that write rules share the iptables lock'
IB06\t'iptables can list and change its tables'
IB07\t'kube-proxy\'s canary chains exist in every table'
IB08\t'No jump to kube-proxy\'s chains is duplicated'
IR06\t'No chain of an old kube-proxy release is left over'
IR12\t'No rule in kube-proxy\'s chains is duplicated'
IR14\t'Few packets are dropped because conntrack considers them invalid'
IR15\t'The iptables mode does not have too many rules'
IR18\t'No DNAT rule of other software leads to a cluster IP'
IR01\t'The built-in chains lead to kube-proxy\'s chains'
IR03\t'Every Service port has its rules, and none is left over'
IR04\t'The rules lead to the current endpoints, and to no others'
IR05\t'No chain of a deleted Service is left over'
IR07\t'Service ports are rejected only if they have no endpoints'
IR17\t'In userspace mode, portals of every Service port lead to kube-proxy'
IR08\t'Load-balancing probabilities spread connections evenly'
IR09\t'The rules that masquerade Service traffic are complete'
IR11\t'The filter rules that accept Service traffic are complete'
IR16\t'No rule of other software drops or diverts traffic to Services'
IR02\t'No rule of other software takes packets before kube-proxy\'s chains'
IR10\t'Only kube-proxy uses the bit that marks packets for masquerading'
IR13\t'No firewall service flushes rules of other software'
NF01\t'kube-proxy\'s table has its hooks and common chains'
NF02\t'The table leads to every Service port, and to no deleted one'
NF03\t'The table\'s chains lead to the current endpoints'
NF04\t'The table rejects only Service ports without endpoints'
VS01\t'Every Service port has its virtual servers'
VS02\t'No virtual server is left over from an old version of a Service'
VS04\t'The real servers are the current endpoints, and no others'
VS05\t'No ready endpoint has weight 0'
VS07\t'No virtual server is empty if the Service has endpoints'
VS08\t'Virtual servers have the configured scheduler and affinity'
VS16\t'The rules for load balancer source ranges are complete'
VS03\t'excludeCIDRs names the virtual servers of other software'
VS11\t'NodePorts do not answer on the node\'s bridges and tunnels'
VS12\t'No Service port has the same number as a NodePort'
VS14\t'The local packet filter accepts traffic for IPVS'
VS06\t'Old connections do not keep drained real servers'
VS09\t'IPVS has the configured timeouts, and idle connections last'
VS10\t'The IPVS connection table has enough buckets'
DV02\t'Every Service address is on kube-ipvs0'
DV03\t'kube-ipvs0 has only addresses of Services'
DV04\t'No address on kube-ipvs0 is a node\'s own address'
DV05\t'NodeLocal DNS does not share an address with kube-ipvs0'
DV08\t'Service addresses do not lead to the node\'s own sockets'
DV09\t'Load balancers that use the PROXY protocol are not bypassed'
DV10\t'Leftover addresses on kube-ipvs0 do not become source addresses'
DV11\t'No agent uses a Service\'s address as the node\'s own'
DV01\t'The link kube-ipvs0 exists in ipvs mode'
DV06\t'No network manager manages kube-proxy\'s link'
DV07\t'kube-ipvs0 does not answer ARP'
DV12\t'kube-ipvs0 does not have thousands of addresses'
IS01\t'Every ipset tool in use can read the existing sets'
IS02\t'kube-proxy\'s IP sets have the type that its rules need'
IS03\t'kube-proxy\'s IP sets have the right members'
IS04\t'kube-proxy\'s IP sets have room for more members'
IS05\t'Every IP set that kube-proxy\'s rules use exists'
IS07\t'The node\'s ipset can parse the members that kube-proxy writes'
NP02\t'No connection of the node has a NodePort as its source port'
NP05\t'No client uses NodePorts on 127.0.0.1'
NP07\t'NodePorts are used only on the node\'s primary address'
NP08\t'No load balancer\'s connection passes through a node that leaves'
NP06\t'Health checks of load balancers reach kube-proxy'
NP01\t'No process of the node listens at an address and port of a Service'
NP03\t'No hostPort of a pod on this node is a NodePort'
NP04\t'nodePortAddresses covers every IP family in use'
CT02\t'UDP and SCTP flows to Services go to existing endpoints'
CT03\t'No UDP flow continues to a Service without endpoints'
CT04\t'No UDP flow to a Service is untranslated'
CT08\t'No waiting TCP connection to a Service leads to another Service\'s pod'
CT06\t'No connection uses IPVS any more'
CT01\t'The conntrack table has free entries'
CT05\t'Conntrack has not dropped packets'
CT07\t'Conntrack timeouts are the configured ones, and idle connections last'
AP03\t'No Service has a node\'s own address'
AP08\t'Service addresses, pods and nodes do not share a range'
AP13\t'No two Nodes share an address or a pod range, and this one has its own'
AP14\t'No Service has the address and port of another, or of a machine'
AP09\t'No client uses cluster IPs that no Service has'
AP10\t'kube-proxy serves every IP family of the Services'
AP12\t'The node\'s own packets reach the API server\'s Service'
AP01\t'Every Service with a selector has ready endpoints'
AP04\t'Services with Local internal traffic have endpoints on this node'
AP06\t'Every endpoint on this node has its pod here'
AP07\t'No Service is assigned to another proxy by its label'
AP11\t'The kernel tracks SCTP if Services use it'
CN09\t'The AWS VPC CNI leads packets of pods by their own interface'
CN01\t'Calico uses the same packet filter as the target mode'
CN02\t'No Calico agent must detect the ipvs mode'
CN03\t'Calico recognises every NodePort in ipvs mode'
CN13\t'eBPF programs of a service proxy have a running agent'
CN14\t'Maps of an eBPF service proxy match the cluster\'s Services'
CN12\t'No rules and links of another network plugin are left over'
CN04\t'No rules of kube-proxy are left over next to an eBPF service proxy'
CN06\t'The hostPorts of running pods lead to them'
CN07\t'Pods on a bridge can reach themselves through a Service'
CN08\t'NodeLocal DNS does not listen on a Service\'s address'
CN10\t'NodeLocal DNS gets the queries to its addresses'
CN11\t'The kernel does not corrupt checksums of masqueraded VXLAN traffic'
CN16\t'Packets between pods keep the address of their pod'
CN15\t'Large packets fit into the links to other nodes and to pods'
DP01\t'Later releases of kube-proxy support the mode'
DP10\t'kube-proxy does not run in the userspace mode, which 1.26 removed'
DP03\t'The ipvs mode has no settings that other modes lack'
DP04\t'The distribution maintains the drivers that kube-proxy uses'
DP05\t'kube-proxy\'s configuration has no removed fields'
DP06\t'A node in ipvs mode has a kernel that supports the nftables mode'
DP07\t'kube-proxy has no flags that newer releases reject'
DP08\t'No Service uses externalIPs, which later releases ignore'
DP09\t'kube-proxy\'s configuration sets a mode'
SV01\t'No Service fails for a reason that only `kpx why` finds'
UP01\t'What the release changes is known from recordings'
UP02\t'The upgrade does not change the mode'
UP03\t'The release supports the ipvs mode if the node uses it'
UP04\t'The release serves the externalIPs of the cluster\'s Services'
UP05\t'NodePorts answer on the same addresses after the upgrade'
UP06\t'The release knows kube-proxy\'s flags and feature gates'
UP07\t'The release adds no known bugs'
UP08\t'The release accepts the addresses in the cluster\'s objects'"
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l skip -d 'Skip these checks: ids, names or groups' -r -f -a "MX01\t'No leftovers of the iptables mode on a node in another mode'
MX02\t'No leftovers of the ipvs mode on a node in another mode'
MX03\t'No leftovers of the nftables mode on a node in another mode'
MX11\t'No leftovers of the userspace mode on a node in another mode'
MX08\t'Chains that two modes share are entered only by the running mode'
MX06\t'No migration by kpx is unfinished'
MX09\t'A migration\'s bridge is kept up to date, or removed'
MX04\t'kube-proxy runs wherever its rules exist'
MX05\t'kube-proxy has the same mode on all nodes'
MX07\t'The first sync in nftables mode does not take minutes'
MX10\t'The first sync in nftables mode will take less than a minute'
MX13\t'The tables called kube-proxy belong to kube-proxy'
MX12\t'Connections that work now work in the new mode'
KP01\t'The configured mode, the reported mode and the kernel\'s rules agree'
KP03\t'kube-proxy has no flags that its configuration file overrides'
KP04\t'kube-proxy runs with the settings of its ConfigMap'
KP22\t'kube-proxy starts with its mode, feature gates and configuration'
KP13\t'kube-proxy\'s sync periods do not follow outdated advice'
KP02\t'kube-proxy\'s container stays up'
KP05\t'kube-proxy runs, answers and reports that it is healthy'
KP06\t'kube-proxy has synced since the last change'
KP07\t'None of kube-proxy\'s syncs failed'
KP08\t'kube-proxy\'s syncs are fast enough'
KP21\t'kube-proxy\'s log reports no trouble that keeps it from its work'
KP09\t'kube-proxy can detect local pods\' traffic in every IP family in use'
KP10\t'kube-proxy\'s configuration has the prefixes and links of the pods'
KP11\t'kube-proxy uses the name of its own Node'
KP12\t'kube-proxy knows an address of the node in every IP family in use'
KP14\t'kube-proxy is within three releases of the kubelet'
KP15\t'This kube-proxy release regularly re-checks its virtual servers'
KP16\t'The node\'s nft and kube-proxy\'s can read each other\'s rules'
KP17\t'Only one service proxy runs on the node'
KP19\t'A rollout of kube-proxy waits for each node\'s rules'
KB01\t'No known bug of this kube-proxy release shows on the node'
KM01\t'The kernel provides IPVS if the mode needs it'
KM02\t'The kernel provides the scheduler of ipvs.scheduler'
KM14\t'The module ip_vs is not loaded if nothing will use it'
KM15\t'The kernel can create the link kube-ipvs0'
KM08\t'The kernel is new enough for the mode'
KM09\t'The kernel provides the expressions of the nftables mode'
KM10\t'The kernel provides the matches and targets of the mode'
KM11\t'iptables does not use the legacy backend on a kernel without it'
KM12\t'The kernel tracks connections'
KM13\t'Packets between pods on a bridge pass through iptables'
KM03\t'The modules of the ipvs mode are loaded at boot'
KM04\t'The modules of the running kernel are still installed'
KM05\t'Modules can be loaded if the mode needs more of them'
KM06\t'kube-proxy\'s pod sees the node\'s modules in ipvs mode'
KM07\t'kube-proxy finds the tools that the ipvs mode needs'
SY02\t'IPVS connections are tracked by conntrack'
SY03\t'conn_reuse_mode is right for this kernel'
SY04\t'IPVS ends connections to pods that no longer exist'
SY05\t'IPVS drops client affinity to pods that no longer exist'
SY06\t'The node does not answer ARP for load balancer addresses'
SY11\t'Keepalive packets arrive before IPVS forgets idle connections'
SY13\t'IPVS does not estimate rates of thousands of virtual servers'
SY18\t'The kernel\'s log does not say that it drops packets'
SY15\t'The neighbour tables have not overflowed'
SY16\t'No setting, route or filter of the node stops connections'
SY01\t'The kernel forwards packets between links'
SY08\t'NodePorts work on localhost, which cannot be reached from outside'
SY09\t'Tunnels between nodes have no strict reverse path filter'
SY10\t'Packets that conntrack considers invalid are harmless'
SY12\t'Clients on the node have enough ports, and none of them is a NodePort'
SY17\t'The kernel does not compare the timestamps of clients behind one address'
IB01\t'Only one iptables backend contains kube-proxy\'s rules'
IB02\t'kube-proxy, the kubelet and the node\'s tools use one iptables backend'
IB03\t'The node\'s iptables is as new as the one in kube-proxy\'s image'
IB04\t'No rule of kube-proxy or the kubelet lost its conditions'
IB05\t'All programs that write rules share the iptables lock'
IB06\t'iptables can list and change its tables'
IB07\t'kube-proxy\'s canary chains exist in every table'
IB08\t'No jump to kube-proxy\'s chains is duplicated'
IR06\t'No chain of an old kube-proxy release is left over'
IR12\t'No rule in kube-proxy\'s chains is duplicated'
IR14\t'Few packets are dropped because conntrack considers them invalid'
IR15\t'The iptables mode does not have too many rules'
IR18\t'No DNAT rule of other software leads to a cluster IP'
IR01\t'The built-in chains lead to kube-proxy\'s chains'
IR03\t'Every Service port has its rules, and none is left over'
IR04\t'The rules lead to the current endpoints, and to no others'
IR05\t'No chain of a deleted Service is left over'
IR07\t'Service ports are rejected only if they have no endpoints'
IR17\t'In userspace mode, portals of every Service port lead to kube-proxy'
IR08\t'Load-balancing probabilities spread connections evenly'
IR09\t'The rules that masquerade Service traffic are complete'
IR11\t'The filter rules that accept Service traffic are complete'
IR16\t'No rule of other software drops or diverts traffic to Services'
IR02\t'No rule of other software takes packets before kube-proxy\'s chains'
IR10\t'Only kube-proxy uses the bit that marks packets for masquerading'
IR13\t'No firewall service flushes rules of other software'
NF01\t'kube-proxy\'s table has its hooks and common chains'
NF02\t'The table leads to every Service port, and to no deleted one'
NF03\t'The table\'s chains lead to the current endpoints'
NF04\t'The table rejects only Service ports without endpoints'
VS01\t'Every Service port has its virtual servers'
VS02\t'No virtual server is left over from an old version of a Service'
VS04\t'The real servers are the current endpoints, and no others'
VS05\t'No ready endpoint has weight 0'
VS07\t'No virtual server is empty if the Service has endpoints'
VS08\t'Virtual servers have the configured scheduler and affinity'
VS16\t'The rules for load balancer source ranges are complete'
VS03\t'excludeCIDRs names the virtual servers of other software'
VS11\t'NodePorts do not answer on the node\'s bridges and tunnels'
VS12\t'No Service port has the same number as a NodePort'
VS14\t'The local packet filter accepts traffic for IPVS'
VS06\t'Old connections do not keep drained real servers'
VS09\t'IPVS has the configured timeouts, and idle connections last'
VS10\t'The IPVS connection table has enough buckets'
DV02\t'Every Service address is on kube-ipvs0'
DV03\t'kube-ipvs0 has only addresses of Services'
DV04\t'No address on kube-ipvs0 is a node\'s own address'
DV05\t'NodeLocal DNS does not share an address with kube-ipvs0'
DV08\t'Service addresses do not lead to the node\'s own sockets'
DV09\t'Load balancers that use the PROXY protocol are not bypassed'
DV10\t'Leftover addresses on kube-ipvs0 do not become source addresses'
DV11\t'No agent uses a Service\'s address as the node\'s own'
DV01\t'The link kube-ipvs0 exists in ipvs mode'
DV06\t'No network manager manages kube-proxy\'s link'
DV07\t'kube-ipvs0 does not answer ARP'
DV12\t'kube-ipvs0 does not have thousands of addresses'
IS01\t'Every ipset tool in use can read the existing sets'
IS02\t'kube-proxy\'s IP sets have the type that its rules need'
IS03\t'kube-proxy\'s IP sets have the right members'
IS04\t'kube-proxy\'s IP sets have room for more members'
IS05\t'Every IP set that kube-proxy\'s rules use exists'
IS07\t'The node\'s ipset can parse the members that kube-proxy writes'
NP02\t'No connection of the node has a NodePort as its source port'
NP05\t'No client uses NodePorts on 127.0.0.1'
NP07\t'NodePorts are used only on the node\'s primary address'
NP08\t'No load balancer\'s connection passes through a node that leaves'
NP06\t'Health checks of load balancers reach kube-proxy'
NP01\t'No process of the node listens at an address and port of a Service'
NP03\t'No hostPort of a pod on this node is a NodePort'
NP04\t'nodePortAddresses covers every IP family in use'
CT02\t'UDP and SCTP flows to Services go to existing endpoints'
CT03\t'No UDP flow continues to a Service without endpoints'
CT04\t'No UDP flow to a Service is untranslated'
CT08\t'No waiting TCP connection to a Service leads to another Service\'s pod'
CT06\t'No connection uses IPVS any more'
CT01\t'The conntrack table has free entries'
CT05\t'Conntrack has not dropped packets'
CT07\t'Conntrack timeouts are the configured ones, and idle connections last'
AP03\t'No Service has a node\'s own address'
AP08\t'Service addresses, pods and nodes do not share a range'
AP13\t'No two Nodes share an address or a pod range, and this one has its own'
AP14\t'No Service has the address and port of another, or of a machine'
AP09\t'No client uses cluster IPs that no Service has'
AP10\t'kube-proxy serves every IP family of the Services'
AP12\t'The node\'s own packets reach the API server\'s Service'
AP01\t'Every Service with a selector has ready endpoints'
AP04\t'Services with Local internal traffic have endpoints on this node'
AP06\t'Every endpoint on this node has its pod here'
AP07\t'No Service is assigned to another proxy by its label'
AP11\t'The kernel tracks SCTP if Services use it'
CN09\t'The AWS VPC CNI leads packets of pods by their own interface'
CN01\t'Calico uses the same packet filter as the target mode'
CN02\t'No Calico agent must detect the ipvs mode'
CN03\t'Calico recognises every NodePort in ipvs mode'
CN13\t'eBPF programs of a service proxy have a running agent'
CN14\t'Maps of an eBPF service proxy match the cluster\'s Services'
CN12\t'No rules and links of another network plugin are left over'
CN04\t'No rules of kube-proxy are left over next to an eBPF service proxy'
CN06\t'The hostPorts of running pods lead to them'
CN07\t'Pods on a bridge can reach themselves through a Service'
CN08\t'NodeLocal DNS does not listen on a Service\'s address'
CN10\t'NodeLocal DNS gets the queries to its addresses'
CN11\t'The kernel does not corrupt checksums of masqueraded VXLAN traffic'
CN16\t'Packets between pods keep the address of their pod'
CN15\t'Large packets fit into the links to other nodes and to pods'
DP01\t'Later releases of kube-proxy support the mode'
DP10\t'kube-proxy does not run in the userspace mode, which 1.26 removed'
DP03\t'The ipvs mode has no settings that other modes lack'
DP04\t'The distribution maintains the drivers that kube-proxy uses'
DP05\t'kube-proxy\'s configuration has no removed fields'
DP06\t'A node in ipvs mode has a kernel that supports the nftables mode'
DP07\t'kube-proxy has no flags that newer releases reject'
DP08\t'No Service uses externalIPs, which later releases ignore'
DP09\t'kube-proxy\'s configuration sets a mode'
SV01\t'No Service fails for a reason that only `kpx why` finds'
UP01\t'What the release changes is known from recordings'
UP02\t'The upgrade does not change the mode'
UP03\t'The release supports the ipvs mode if the node uses it'
UP04\t'The release serves the externalIPs of the cluster\'s Services'
UP05\t'NodePorts answer on the same addresses after the upgrade'
UP06\t'The release knows kube-proxy\'s flags and feature gates'
UP07\t'The release adds no known bugs'
UP08\t'The release accepts the addresses in the cluster\'s objects'"
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l ignore-file -d 'Suppress the findings listed in this file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l textfile -d 'Write Prometheus metrics to this file as well' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l to -d 'Add the checks before a switch to this mode' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l release -d 'Check what an upgrade to this release changes' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l fail-on -d 'Set the lowest severity with exit status 1' -r -f -a "error\t'Lost traffic, now or later'
warning\t'Errors and risks'
never\t'No finding'"
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l wait -d 'Re-check until healthy, at most this long' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -s l -l selector -d 'Read the nodes with these labels' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l parallel -d 'Read this many nodes at a time' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''
short\t''
junit\t''
prom\t''
npd\t''"
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l all-nodes -d 'Run on all nodes of the cluster'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l to -d 'List the checks before a switch to this mode' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l release -d 'List the checks before an upgrade to this release' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand explain" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand explain" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -s n -l namespace -d 'Resolve as a pod in this namespace' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l cluster-domain -d 'Use this cluster domain' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l server -d 'Query this server, not Service kube-system/kube-dns' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -s l -l selector -d 'Read the nodes with these labels' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l parallel -d 'Read this many nodes at a time' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l env -d 'List the Service\'s variables in a container'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l all-nodes -d 'Run on all nodes of the cluster'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l mode -d 'Compare with this mode [default: the configured mode]' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'
userspace\t'portals that lead to kube-proxy, up to 1.25'"
complete -c kpx -n "__fish_kpx_using_subcommand diff" -s l -l selector -d 'Read the nodes with these labels' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l parallel -d 'Read this many nodes at a time' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l packets -d 'Compare the fate of every packet instead of rules'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l all-nodes -d 'Run on all nodes of the cluster'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l file -d 'Write the bundle to this path; - for standard output' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l redact-key -d 'Use the key in this file, so that bundles match' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l items -d 'Record only these items, by their files in a bundle' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -s l -l selector -d 'Read the nodes with these labels' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l parallel -d 'Read this many nodes at a time' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l redact -d 'Replace names and addresses; omit secrets'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l script -d 'Print a shell script that records a bundle'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l all-nodes -d 'Run on all nodes of the cluster'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand report" -l file -d 'Write the page to this file; - for standard output' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand report" -l trace -d 'Add the trace to this address, Service or NodePort' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l timeline -d 'Add the changes that `kpx watch -o json` wrote here' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand report" -s l -l selector -d 'Read the nodes with these labels' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l parallel -d 'Read this many nodes at a time' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -s o -l output -d 'Print in this format' -r -f -a "html\t''"
complete -c kpx -n "__fish_kpx_using_subcommand report" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand report" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand report" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand report" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand report" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand report" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand report" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand report" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand report" -l all-nodes -d 'Run on all nodes of the cluster'
complete -c kpx -n "__fish_kpx_using_subcommand report" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand report" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand report" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand report" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand report" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand report" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand report" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand show" -s n -l namespace -d 'Find the Service in this namespace' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -s l -l selector -d 'Read the nodes with these labels' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l parallel -d 'Read this many nodes at a time' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand show" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand show" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand show" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand show" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand show" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand show" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand show" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand show" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l all-nodes -d 'Run on all nodes of the cluster'
complete -c kpx -n "__fish_kpx_using_subcommand show" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand show" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand show" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand show" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand show" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand show" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand show" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand top" -s n -l namespace -d 'Find the Service in this namespace' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l interval -d 'Read the counters this often' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l count -d 'Print this many intervals, then end' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l sort -d 'Sort by this column' -r -f -a "new\t'new connections'
open\t'open connections'
packets\t'packets'
bytes\t'bytes'
refused\t'rejected and dropped packets'
name\t'names of Services'"
complete -c kpx -n "__fish_kpx_using_subcommand top" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand top" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand top" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand top" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand top" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand top" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand top" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand top" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand top" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand top" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand top" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand top" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand top" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand top" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand top" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand top" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l only -d 'Run these checks only: ids, names or groups' -r -f -a "MX01\t'No leftovers of the iptables mode on a node in another mode'
MX02\t'No leftovers of the ipvs mode on a node in another mode'
MX03\t'No leftovers of the nftables mode on a node in another mode'
MX11\t'No leftovers of the userspace mode on a node in another mode'
MX08\t'Chains that two modes share are entered only by the running mode'
MX06\t'No migration by kpx is unfinished'
MX09\t'A migration\'s bridge is kept up to date, or removed'
MX04\t'kube-proxy runs wherever its rules exist'
MX05\t'kube-proxy has the same mode on all nodes'
MX07\t'The first sync in nftables mode does not take minutes'
MX10\t'The first sync in nftables mode will take less than a minute'
MX13\t'The tables called kube-proxy belong to kube-proxy'
MX12\t'Connections that work now work in the new mode'
KP01\t'The configured mode, the reported mode and the kernel\'s rules agree'
KP03\t'kube-proxy has no flags that its configuration file overrides'
KP04\t'kube-proxy runs with the settings of its ConfigMap'
KP22\t'kube-proxy starts with its mode, feature gates and configuration'
KP13\t'kube-proxy\'s sync periods do not follow outdated advice'
KP02\t'kube-proxy\'s container stays up'
KP05\t'kube-proxy runs, answers and reports that it is healthy'
KP06\t'kube-proxy has synced since the last change'
KP07\t'None of kube-proxy\'s syncs failed'
KP08\t'kube-proxy\'s syncs are fast enough'
KP21\t'kube-proxy\'s log reports no trouble that keeps it from its work'
KP09\t'kube-proxy can detect local pods\' traffic in every IP family in use'
KP10\t'kube-proxy\'s configuration has the prefixes and links of the pods'
KP11\t'kube-proxy uses the name of its own Node'
KP12\t'kube-proxy knows an address of the node in every IP family in use'
KP14\t'kube-proxy is within three releases of the kubelet'
KP15\t'This kube-proxy release regularly re-checks its virtual servers'
KP16\t'The node\'s nft and kube-proxy\'s can read each other\'s rules'
KP17\t'Only one service proxy runs on the node'
KP19\t'A rollout of kube-proxy waits for each node\'s rules'
KB01\t'No known bug of this kube-proxy release shows on the node'
KM01\t'The kernel provides IPVS if the mode needs it'
KM02\t'The kernel provides the scheduler of ipvs.scheduler'
KM14\t'The module ip_vs is not loaded if nothing will use it'
KM15\t'The kernel can create the link kube-ipvs0'
KM08\t'The kernel is new enough for the mode'
KM09\t'The kernel provides the expressions of the nftables mode'
KM10\t'The kernel provides the matches and targets of the mode'
KM11\t'iptables does not use the legacy backend on a kernel without it'
KM12\t'The kernel tracks connections'
KM13\t'Packets between pods on a bridge pass through iptables'
KM03\t'The modules of the ipvs mode are loaded at boot'
KM04\t'The modules of the running kernel are still installed'
KM05\t'Modules can be loaded if the mode needs more of them'
KM06\t'kube-proxy\'s pod sees the node\'s modules in ipvs mode'
KM07\t'kube-proxy finds the tools that the ipvs mode needs'
SY02\t'IPVS connections are tracked by conntrack'
SY03\t'conn_reuse_mode is right for this kernel'
SY04\t'IPVS ends connections to pods that no longer exist'
SY05\t'IPVS drops client affinity to pods that no longer exist'
SY06\t'The node does not answer ARP for load balancer addresses'
SY11\t'Keepalive packets arrive before IPVS forgets idle connections'
SY13\t'IPVS does not estimate rates of thousands of virtual servers'
SY18\t'The kernel\'s log does not say that it drops packets'
SY15\t'The neighbour tables have not overflowed'
SY16\t'No setting, route or filter of the node stops connections'
SY01\t'The kernel forwards packets between links'
SY08\t'NodePorts work on localhost, which cannot be reached from outside'
SY09\t'Tunnels between nodes have no strict reverse path filter'
SY10\t'Packets that conntrack considers invalid are harmless'
SY12\t'Clients on the node have enough ports, and none of them is a NodePort'
SY17\t'The kernel does not compare the timestamps of clients behind one address'
IB01\t'Only one iptables backend contains kube-proxy\'s rules'
IB02\t'kube-proxy, the kubelet and the node\'s tools use one iptables backend'
IB03\t'The node\'s iptables is as new as the one in kube-proxy\'s image'
IB04\t'No rule of kube-proxy or the kubelet lost its conditions'
IB05\t'All programs that write rules share the iptables lock'
IB06\t'iptables can list and change its tables'
IB07\t'kube-proxy\'s canary chains exist in every table'
IB08\t'No jump to kube-proxy\'s chains is duplicated'
IR06\t'No chain of an old kube-proxy release is left over'
IR12\t'No rule in kube-proxy\'s chains is duplicated'
IR14\t'Few packets are dropped because conntrack considers them invalid'
IR15\t'The iptables mode does not have too many rules'
IR18\t'No DNAT rule of other software leads to a cluster IP'
IR01\t'The built-in chains lead to kube-proxy\'s chains'
IR03\t'Every Service port has its rules, and none is left over'
IR04\t'The rules lead to the current endpoints, and to no others'
IR05\t'No chain of a deleted Service is left over'
IR07\t'Service ports are rejected only if they have no endpoints'
IR17\t'In userspace mode, portals of every Service port lead to kube-proxy'
IR08\t'Load-balancing probabilities spread connections evenly'
IR09\t'The rules that masquerade Service traffic are complete'
IR11\t'The filter rules that accept Service traffic are complete'
IR16\t'No rule of other software drops or diverts traffic to Services'
IR02\t'No rule of other software takes packets before kube-proxy\'s chains'
IR10\t'Only kube-proxy uses the bit that marks packets for masquerading'
IR13\t'No firewall service flushes rules of other software'
NF01\t'kube-proxy\'s table has its hooks and common chains'
NF02\t'The table leads to every Service port, and to no deleted one'
NF03\t'The table\'s chains lead to the current endpoints'
NF04\t'The table rejects only Service ports without endpoints'
VS01\t'Every Service port has its virtual servers'
VS02\t'No virtual server is left over from an old version of a Service'
VS04\t'The real servers are the current endpoints, and no others'
VS05\t'No ready endpoint has weight 0'
VS07\t'No virtual server is empty if the Service has endpoints'
VS08\t'Virtual servers have the configured scheduler and affinity'
VS16\t'The rules for load balancer source ranges are complete'
VS03\t'excludeCIDRs names the virtual servers of other software'
VS11\t'NodePorts do not answer on the node\'s bridges and tunnels'
VS12\t'No Service port has the same number as a NodePort'
VS14\t'The local packet filter accepts traffic for IPVS'
VS06\t'Old connections do not keep drained real servers'
VS09\t'IPVS has the configured timeouts, and idle connections last'
VS10\t'The IPVS connection table has enough buckets'
DV02\t'Every Service address is on kube-ipvs0'
DV03\t'kube-ipvs0 has only addresses of Services'
DV04\t'No address on kube-ipvs0 is a node\'s own address'
DV05\t'NodeLocal DNS does not share an address with kube-ipvs0'
DV08\t'Service addresses do not lead to the node\'s own sockets'
DV09\t'Load balancers that use the PROXY protocol are not bypassed'
DV10\t'Leftover addresses on kube-ipvs0 do not become source addresses'
DV11\t'No agent uses a Service\'s address as the node\'s own'
DV01\t'The link kube-ipvs0 exists in ipvs mode'
DV06\t'No network manager manages kube-proxy\'s link'
DV07\t'kube-ipvs0 does not answer ARP'
DV12\t'kube-ipvs0 does not have thousands of addresses'
IS01\t'Every ipset tool in use can read the existing sets'
IS02\t'kube-proxy\'s IP sets have the type that its rules need'
IS03\t'kube-proxy\'s IP sets have the right members'
IS04\t'kube-proxy\'s IP sets have room for more members'
IS05\t'Every IP set that kube-proxy\'s rules use exists'
IS07\t'The node\'s ipset can parse the members that kube-proxy writes'
NP02\t'No connection of the node has a NodePort as its source port'
NP05\t'No client uses NodePorts on 127.0.0.1'
NP07\t'NodePorts are used only on the node\'s primary address'
NP08\t'No load balancer\'s connection passes through a node that leaves'
NP06\t'Health checks of load balancers reach kube-proxy'
NP01\t'No process of the node listens at an address and port of a Service'
NP03\t'No hostPort of a pod on this node is a NodePort'
NP04\t'nodePortAddresses covers every IP family in use'
CT02\t'UDP and SCTP flows to Services go to existing endpoints'
CT03\t'No UDP flow continues to a Service without endpoints'
CT04\t'No UDP flow to a Service is untranslated'
CT08\t'No waiting TCP connection to a Service leads to another Service\'s pod'
CT06\t'No connection uses IPVS any more'
CT01\t'The conntrack table has free entries'
CT05\t'Conntrack has not dropped packets'
CT07\t'Conntrack timeouts are the configured ones, and idle connections last'
AP03\t'No Service has a node\'s own address'
AP08\t'Service addresses, pods and nodes do not share a range'
AP13\t'No two Nodes share an address or a pod range, and this one has its own'
AP14\t'No Service has the address and port of another, or of a machine'
AP09\t'No client uses cluster IPs that no Service has'
AP10\t'kube-proxy serves every IP family of the Services'
AP12\t'The node\'s own packets reach the API server\'s Service'
AP01\t'Every Service with a selector has ready endpoints'
AP04\t'Services with Local internal traffic have endpoints on this node'
AP06\t'Every endpoint on this node has its pod here'
AP07\t'No Service is assigned to another proxy by its label'
AP11\t'The kernel tracks SCTP if Services use it'
CN09\t'The AWS VPC CNI leads packets of pods by their own interface'
CN01\t'Calico uses the same packet filter as the target mode'
CN02\t'No Calico agent must detect the ipvs mode'
CN03\t'Calico recognises every NodePort in ipvs mode'
CN13\t'eBPF programs of a service proxy have a running agent'
CN14\t'Maps of an eBPF service proxy match the cluster\'s Services'
CN12\t'No rules and links of another network plugin are left over'
CN04\t'No rules of kube-proxy are left over next to an eBPF service proxy'
CN06\t'The hostPorts of running pods lead to them'
CN07\t'Pods on a bridge can reach themselves through a Service'
CN08\t'NodeLocal DNS does not listen on a Service\'s address'
CN10\t'NodeLocal DNS gets the queries to its addresses'
CN11\t'The kernel does not corrupt checksums of masqueraded VXLAN traffic'
CN16\t'Packets between pods keep the address of their pod'
CN15\t'Large packets fit into the links to other nodes and to pods'
DP01\t'Later releases of kube-proxy support the mode'
DP10\t'kube-proxy does not run in the userspace mode, which 1.26 removed'
DP03\t'The ipvs mode has no settings that other modes lack'
DP04\t'The distribution maintains the drivers that kube-proxy uses'
DP05\t'kube-proxy\'s configuration has no removed fields'
DP06\t'A node in ipvs mode has a kernel that supports the nftables mode'
DP07\t'kube-proxy has no flags that newer releases reject'
DP08\t'No Service uses externalIPs, which later releases ignore'
DP09\t'kube-proxy\'s configuration sets a mode'
SV01\t'No Service fails for a reason that only `kpx why` finds'
UP01\t'What the release changes is known from recordings'
UP02\t'The upgrade does not change the mode'
UP03\t'The release supports the ipvs mode if the node uses it'
UP04\t'The release serves the externalIPs of the cluster\'s Services'
UP05\t'NodePorts answer on the same addresses after the upgrade'
UP06\t'The release knows kube-proxy\'s flags and feature gates'
UP07\t'The release adds no known bugs'
UP08\t'The release accepts the addresses in the cluster\'s objects'"
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l skip -d 'Skip these checks: ids, names or groups' -r -f -a "MX01\t'No leftovers of the iptables mode on a node in another mode'
MX02\t'No leftovers of the ipvs mode on a node in another mode'
MX03\t'No leftovers of the nftables mode on a node in another mode'
MX11\t'No leftovers of the userspace mode on a node in another mode'
MX08\t'Chains that two modes share are entered only by the running mode'
MX06\t'No migration by kpx is unfinished'
MX09\t'A migration\'s bridge is kept up to date, or removed'
MX04\t'kube-proxy runs wherever its rules exist'
MX05\t'kube-proxy has the same mode on all nodes'
MX07\t'The first sync in nftables mode does not take minutes'
MX10\t'The first sync in nftables mode will take less than a minute'
MX13\t'The tables called kube-proxy belong to kube-proxy'
MX12\t'Connections that work now work in the new mode'
KP01\t'The configured mode, the reported mode and the kernel\'s rules agree'
KP03\t'kube-proxy has no flags that its configuration file overrides'
KP04\t'kube-proxy runs with the settings of its ConfigMap'
KP22\t'kube-proxy starts with its mode, feature gates and configuration'
KP13\t'kube-proxy\'s sync periods do not follow outdated advice'
KP02\t'kube-proxy\'s container stays up'
KP05\t'kube-proxy runs, answers and reports that it is healthy'
KP06\t'kube-proxy has synced since the last change'
KP07\t'None of kube-proxy\'s syncs failed'
KP08\t'kube-proxy\'s syncs are fast enough'
KP21\t'kube-proxy\'s log reports no trouble that keeps it from its work'
KP09\t'kube-proxy can detect local pods\' traffic in every IP family in use'
KP10\t'kube-proxy\'s configuration has the prefixes and links of the pods'
KP11\t'kube-proxy uses the name of its own Node'
KP12\t'kube-proxy knows an address of the node in every IP family in use'
KP14\t'kube-proxy is within three releases of the kubelet'
KP15\t'This kube-proxy release regularly re-checks its virtual servers'
KP16\t'The node\'s nft and kube-proxy\'s can read each other\'s rules'
KP17\t'Only one service proxy runs on the node'
KP19\t'A rollout of kube-proxy waits for each node\'s rules'
KB01\t'No known bug of this kube-proxy release shows on the node'
KM01\t'The kernel provides IPVS if the mode needs it'
KM02\t'The kernel provides the scheduler of ipvs.scheduler'
KM14\t'The module ip_vs is not loaded if nothing will use it'
KM15\t'The kernel can create the link kube-ipvs0'
KM08\t'The kernel is new enough for the mode'
KM09\t'The kernel provides the expressions of the nftables mode'
KM10\t'The kernel provides the matches and targets of the mode'
KM11\t'iptables does not use the legacy backend on a kernel without it'
KM12\t'The kernel tracks connections'
KM13\t'Packets between pods on a bridge pass through iptables'
KM03\t'The modules of the ipvs mode are loaded at boot'
KM04\t'The modules of the running kernel are still installed'
KM05\t'Modules can be loaded if the mode needs more of them'
KM06\t'kube-proxy\'s pod sees the node\'s modules in ipvs mode'
KM07\t'kube-proxy finds the tools that the ipvs mode needs'
SY02\t'IPVS connections are tracked by conntrack'
SY03\t'conn_reuse_mode is right for this kernel'
SY04\t'IPVS ends connections to pods that no longer exist'
SY05\t'IPVS drops client affinity to pods that no longer exist'
SY06\t'The node does not answer ARP for load balancer addresses'
SY11\t'Keepalive packets arrive before IPVS forgets idle connections'
SY13\t'IPVS does not estimate rates of thousands of virtual servers'
SY18\t'The kernel\'s log does not say that it drops packets'
SY15\t'The neighbour tables have not overflowed'
SY16\t'No setting, route or filter of the node stops connections'
SY01\t'The kernel forwards packets between links'
SY08\t'NodePorts work on localhost, which cannot be reached from outside'
SY09\t'Tunnels between nodes have no strict reverse path filter'
SY10\t'Packets that conntrack considers invalid are harmless'
SY12\t'Clients on the node have enough ports, and none of them is a NodePort'
SY17\t'The kernel does not compare the timestamps of clients behind one address'
IB01\t'Only one iptables backend contains kube-proxy\'s rules'
IB02\t'kube-proxy, the kubelet and the node\'s tools use one iptables backend'
IB03\t'The node\'s iptables is as new as the one in kube-proxy\'s image'
IB04\t'No rule of kube-proxy or the kubelet lost its conditions'
IB05\t'All programs that write rules share the iptables lock'
IB06\t'iptables can list and change its tables'
IB07\t'kube-proxy\'s canary chains exist in every table'
IB08\t'No jump to kube-proxy\'s chains is duplicated'
IR06\t'No chain of an old kube-proxy release is left over'
IR12\t'No rule in kube-proxy\'s chains is duplicated'
IR14\t'Few packets are dropped because conntrack considers them invalid'
IR15\t'The iptables mode does not have too many rules'
IR18\t'No DNAT rule of other software leads to a cluster IP'
IR01\t'The built-in chains lead to kube-proxy\'s chains'
IR03\t'Every Service port has its rules, and none is left over'
IR04\t'The rules lead to the current endpoints, and to no others'
IR05\t'No chain of a deleted Service is left over'
IR07\t'Service ports are rejected only if they have no endpoints'
IR17\t'In userspace mode, portals of every Service port lead to kube-proxy'
IR08\t'Load-balancing probabilities spread connections evenly'
IR09\t'The rules that masquerade Service traffic are complete'
IR11\t'The filter rules that accept Service traffic are complete'
IR16\t'No rule of other software drops or diverts traffic to Services'
IR02\t'No rule of other software takes packets before kube-proxy\'s chains'
IR10\t'Only kube-proxy uses the bit that marks packets for masquerading'
IR13\t'No firewall service flushes rules of other software'
NF01\t'kube-proxy\'s table has its hooks and common chains'
NF02\t'The table leads to every Service port, and to no deleted one'
NF03\t'The table\'s chains lead to the current endpoints'
NF04\t'The table rejects only Service ports without endpoints'
VS01\t'Every Service port has its virtual servers'
VS02\t'No virtual server is left over from an old version of a Service'
VS04\t'The real servers are the current endpoints, and no others'
VS05\t'No ready endpoint has weight 0'
VS07\t'No virtual server is empty if the Service has endpoints'
VS08\t'Virtual servers have the configured scheduler and affinity'
VS16\t'The rules for load balancer source ranges are complete'
VS03\t'excludeCIDRs names the virtual servers of other software'
VS11\t'NodePorts do not answer on the node\'s bridges and tunnels'
VS12\t'No Service port has the same number as a NodePort'
VS14\t'The local packet filter accepts traffic for IPVS'
VS06\t'Old connections do not keep drained real servers'
VS09\t'IPVS has the configured timeouts, and idle connections last'
VS10\t'The IPVS connection table has enough buckets'
DV02\t'Every Service address is on kube-ipvs0'
DV03\t'kube-ipvs0 has only addresses of Services'
DV04\t'No address on kube-ipvs0 is a node\'s own address'
DV05\t'NodeLocal DNS does not share an address with kube-ipvs0'
DV08\t'Service addresses do not lead to the node\'s own sockets'
DV09\t'Load balancers that use the PROXY protocol are not bypassed'
DV10\t'Leftover addresses on kube-ipvs0 do not become source addresses'
DV11\t'No agent uses a Service\'s address as the node\'s own'
DV01\t'The link kube-ipvs0 exists in ipvs mode'
DV06\t'No network manager manages kube-proxy\'s link'
DV07\t'kube-ipvs0 does not answer ARP'
DV12\t'kube-ipvs0 does not have thousands of addresses'
IS01\t'Every ipset tool in use can read the existing sets'
IS02\t'kube-proxy\'s IP sets have the type that its rules need'
IS03\t'kube-proxy\'s IP sets have the right members'
IS04\t'kube-proxy\'s IP sets have room for more members'
IS05\t'Every IP set that kube-proxy\'s rules use exists'
IS07\t'The node\'s ipset can parse the members that kube-proxy writes'
NP02\t'No connection of the node has a NodePort as its source port'
NP05\t'No client uses NodePorts on 127.0.0.1'
NP07\t'NodePorts are used only on the node\'s primary address'
NP08\t'No load balancer\'s connection passes through a node that leaves'
NP06\t'Health checks of load balancers reach kube-proxy'
NP01\t'No process of the node listens at an address and port of a Service'
NP03\t'No hostPort of a pod on this node is a NodePort'
NP04\t'nodePortAddresses covers every IP family in use'
CT02\t'UDP and SCTP flows to Services go to existing endpoints'
CT03\t'No UDP flow continues to a Service without endpoints'
CT04\t'No UDP flow to a Service is untranslated'
CT08\t'No waiting TCP connection to a Service leads to another Service\'s pod'
CT06\t'No connection uses IPVS any more'
CT01\t'The conntrack table has free entries'
CT05\t'Conntrack has not dropped packets'
CT07\t'Conntrack timeouts are the configured ones, and idle connections last'
AP03\t'No Service has a node\'s own address'
AP08\t'Service addresses, pods and nodes do not share a range'
AP13\t'No two Nodes share an address or a pod range, and this one has its own'
AP14\t'No Service has the address and port of another, or of a machine'
AP09\t'No client uses cluster IPs that no Service has'
AP10\t'kube-proxy serves every IP family of the Services'
AP12\t'The node\'s own packets reach the API server\'s Service'
AP01\t'Every Service with a selector has ready endpoints'
AP04\t'Services with Local internal traffic have endpoints on this node'
AP06\t'Every endpoint on this node has its pod here'
AP07\t'No Service is assigned to another proxy by its label'
AP11\t'The kernel tracks SCTP if Services use it'
CN09\t'The AWS VPC CNI leads packets of pods by their own interface'
CN01\t'Calico uses the same packet filter as the target mode'
CN02\t'No Calico agent must detect the ipvs mode'
CN03\t'Calico recognises every NodePort in ipvs mode'
CN13\t'eBPF programs of a service proxy have a running agent'
CN14\t'Maps of an eBPF service proxy match the cluster\'s Services'
CN12\t'No rules and links of another network plugin are left over'
CN04\t'No rules of kube-proxy are left over next to an eBPF service proxy'
CN06\t'The hostPorts of running pods lead to them'
CN07\t'Pods on a bridge can reach themselves through a Service'
CN08\t'NodeLocal DNS does not listen on a Service\'s address'
CN10\t'NodeLocal DNS gets the queries to its addresses'
CN11\t'The kernel does not corrupt checksums of masqueraded VXLAN traffic'
CN16\t'Packets between pods keep the address of their pod'
CN15\t'Large packets fit into the links to other nodes and to pods'
DP01\t'Later releases of kube-proxy support the mode'
DP10\t'kube-proxy does not run in the userspace mode, which 1.26 removed'
DP03\t'The ipvs mode has no settings that other modes lack'
DP04\t'The distribution maintains the drivers that kube-proxy uses'
DP05\t'kube-proxy\'s configuration has no removed fields'
DP06\t'A node in ipvs mode has a kernel that supports the nftables mode'
DP07\t'kube-proxy has no flags that newer releases reject'
DP08\t'No Service uses externalIPs, which later releases ignore'
DP09\t'kube-proxy\'s configuration sets a mode'
SV01\t'No Service fails for a reason that only `kpx why` finds'
UP01\t'What the release changes is known from recordings'
UP02\t'The upgrade does not change the mode'
UP03\t'The release supports the ipvs mode if the node uses it'
UP04\t'The release serves the externalIPs of the cluster\'s Services'
UP05\t'NodePorts answer on the same addresses after the upgrade'
UP06\t'The release knows kube-proxy\'s flags and feature gates'
UP07\t'The release adds no known bugs'
UP08\t'The release accepts the addresses in the cluster\'s objects'"
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l ignore-file -d 'Suppress the findings listed in this file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l interval -d 'Check for changes this often' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l check-interval -d 'Read the node at least this often' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l count -d 'Read the node this many times, then end' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l exec -d 'Run this program for each change' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand watch" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l findings -d 'Print changes of findings alone'
complete -c kpx -n "__fish_kpx_using_subcommand watch" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand watch" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand watch" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand watch" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l listen -d 'Serve at this address' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l interval -d 'Read the counters this often' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l check-interval -d 'Run all checks at least this often' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l budget -d 'Use at most N percent of a processor' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l services -d 'Show this many service ports each' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l record -d 'Write a bundle of each change to this folder' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l record-size -d 'Remove the oldest bundles above this size' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l record-interval -d 'Write a bundle no more often than this' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l count -d 'Read the counters this many times, then end' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -s o -l output -d 'Print in this format' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l reading -d 'Run all checks once, and print what the server needs of them'
complete -c kpx -n "__fish_kpx_using_subcommand serve" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand serve" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand serve" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand serve" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -s o -l output -d 'Print in this format' -r
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l no-redact -d 'Do not replace names and addresses in answers'
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand mcp" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -s n -l namespace -d 'Find the Service in this namespace' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l source -d 'Trace from this client only: IP, POD, host or outside' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l protocol -d 'Use this protocol: tcp, udp, sctp, or icmp for a ping' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l mark -d 'Trace a packet that enters with this mark' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l mode -d 'Trace the rules that this mode would have' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l live -d 'Compare with a packet that the kernel traces' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -s l -l selector -d 'Read the nodes with these labels' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l parallel -d 'Read this many nodes at a time' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''
picture\t''
svg\t''
mermaid\t''
dot\t''"
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l established -d 'Trace a later packet of an established connection'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l probe -d 'Open one real connection and report its backend'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l all-nodes -d 'Run on all nodes of the cluster'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand why" -s n -l namespace -d 'Find the Service in this namespace' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l source -d 'Trace from this client only: IP, POD, host or outside' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l probe -d 'Open one real connection to each port' -r -f -a "host\t'The node'
pod\t'A new pod on the node'"
complete -c kpx -n "__fish_kpx_using_subcommand why" -s l -l selector -d 'Read the nodes with these labels' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l parallel -d 'Read this many nodes at a time' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''
picture\t''
svg\t''"
complete -c kpx -n "__fish_kpx_using_subcommand why" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand why" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand why" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand why" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand why" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand why" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand why" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand why" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand why" -l all-nodes -d 'Run on all nodes of the cluster'
complete -c kpx -n "__fish_kpx_using_subcommand why" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand why" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand why" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand why" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand why" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand why" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand why" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand render" -l mode -d 'Use this mode [default: the configured mode]' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand render" -l part -d 'Print this part only' -r -f -a "iptables\t'chains and rules'
ipset\t'IP sets'
ipvs\t'virtual and real servers'
link\t'kube-ipvs0 and its addresses'
nftables\t'the nftables table'
sysctl\t'kernel settings'"
complete -c kpx -n "__fish_kpx_using_subcommand render" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand render" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand render" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand render" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand render" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand render" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand render" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand render" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand render" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand render" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand render" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand render" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand render" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand render" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand render" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l to -d 'Check the requirements of this mode' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -s l -l selector -d 'Read the nodes with these labels' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l parallel -d 'Read this many nodes at a time' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l load -d 'Load the modules that the mode needs, and test them'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l persist -d 'Load the modules at every boot'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -s y -l yes -d 'Do not ask for confirmation'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l all-nodes -d 'Run on all nodes of the cluster'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l mode -d 'Use this mode [default: the configured mode]' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l part -d 'Change only these, with commas between' -r -f -a "iptables\t'chains and rules'
ipset\t'IP sets'
ipvs\t'virtual and real servers'
link\t'kube-ipvs0 and its addresses'
nftables\t'the nftables table'
sysctl\t'kernel settings'
conntrack\t'conntrack entries of dead endpoints; only if named'"
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l cleanup -d 'Remove the leftovers of this mode instead' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'
userspace\t'portals that lead to kube-proxy, up to 1.25'"
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -s l -l selector -d 'Read the nodes with these labels' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l parallel -d 'Read this many nodes at a time' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l force -d 'Continue although another service proxy owns the node'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l no-drain -d 'Delete real servers without draining connections'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l watch -d 'Serve the node in place of kube-proxy; needs --apply'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l apply -d 'Apply the plan, after confirmation'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -s y -l yes -d 'Do not ask for confirmation'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l all-nodes -d 'Run on all nodes of the cluster'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l mode -d 'Serve like this mode' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l lease -d 'Serve this long without renewal: 10s to 1h' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l await -d 'Wait this long for a bridge to guard' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l detach -d 'Run guard in the background'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l apply -d 'Apply the plan, after confirmation'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -s y -l yes -d 'Do not ask for confirmation'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l to -d 'Set the new mode' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l scheduler -d 'Set the scheduler of virtual servers as well' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l strict-arp -d 'Set strictARP as well' -r -f -a "true\t''
false\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l strategy -d 'Handle connections by this strategy' -r -f -a "bridge\t'kpx\'s own table serves new connections; connections through ipvs are drained first'
in-place\t'the new mode\'s rules are built before the old mode\'s are removed'
drain-node\t'the node is drained first, then as in-place, then uncordoned'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l old-mode -d 'Remove the leftovers of this mode as well' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'
userspace\t'portals that lead to kube-proxy, up to 1.25'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l skip -d 'Ignore these checks: ids, names or groups' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l confirm-timeout -d 'Roll back unless healthy after this long [default: 5m]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l drain-timeout -d 'Drain connections and pods this long [default: 20m]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l accept-loss -d 'Accept a loss: connections, or a class of packets' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l lease -d 'Set the lease of the bridge: 10s to 1h [default: 60s]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l service-account -d 'Use this service account of kube-system for the pods' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l soak -d 'Watch each node this long' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l ready-timeout -d 'Wait this long for a new pod to be ready' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l dry-run -d 'Print the plan and its cost; change nothing'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l brief -d 'Print only blockers and cost, with --dry-run'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l delete-bare-pods -d 'Evict pods without a controller'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l delete-emptydir-data -d 'Evict pods with an emptyDir'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l this-node -d 'Switch this machine, with --node NAME'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -s y -l yes -d 'Do not ask for confirmation'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l again -d 'Skip steps that are already done'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l all-nodes -d 'Switch all nodes, one after the other'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l staged -d 'Switch node by node to a second DaemonSet'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l by-hand -d 'Print the commands for each node; start no pods'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -f -a "prepare" -d 'Do the steps before the configuration changes'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -f -a "finish" -d 'Do the steps after kube-proxy\'s restart'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -f -a "status" -d 'Show the newest migration'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -f -a "resume" -d 'Continue a migration that stopped'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -f -a "rollback" -d 'Roll back a migration, stopped or finished'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l to -d 'Set the new mode' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l scheduler -d 'Set the scheduler of virtual servers as well' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l strict-arp -d 'Set strictARP as well' -r -f -a "true\t''
false\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l strategy -d 'Handle connections by this strategy' -r -f -a "bridge\t'kpx\'s own table serves new connections; connections through ipvs are drained first'
in-place\t'the new mode\'s rules are built before the old mode\'s are removed'
drain-node\t'the node is drained first, then as in-place, then uncordoned'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l old-mode -d 'Remove the leftovers of this mode as well' -r -f -a "iptables\t'KUBE-* chains and rules'
ipvs\t'virtual servers, IP sets and a few rules'
nftables\t'the nftables table kube-proxy'
userspace\t'portals that lead to kube-proxy, up to 1.25'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l skip -d 'Ignore these checks: ids, names or groups' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l confirm-timeout -d 'Roll back unless healthy after this long [default: 5m]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l drain-timeout -d 'Drain connections and pods this long [default: 20m]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l accept-loss -d 'Accept a loss: connections, or a class of packets' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l lease -d 'Set the lease of the bridge: 10s to 1h [default: 60s]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l dry-run -d 'Print the plan and its cost; change nothing'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l brief -d 'Print only blockers and cost, with --dry-run'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l delete-bare-pods -d 'Evict pods without a controller'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l delete-emptydir-data -d 'Evict pods with an emptyDir'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l this-node -d 'Switch this machine, with --node NAME'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -s y -l yes -d 'Do not ask for confirmation'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l again -d 'Skip steps that are already done'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l confirm-timeout -d 'Roll back unless healthy after this long [default: 5m]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l drain-timeout -d 'Drain connections and pods this long [default: 20m]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l accept-loss -d 'Accept a loss: connections, or a class of packets' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l lease -d 'Set the lease of the bridge: 10s to 1h [default: 60s]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l this-node -d 'Switch this machine, with --node NAME'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -s y -l yes -d 'Do not ask for confirmation'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l again -d 'Skip steps that are already done'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l all-nodes -d 'Show the cluster\'s migration'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l this-node -d 'Show the migration of this machine'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l confirm-timeout -d 'Roll back unless healthy after this long [default: 5m]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l drain-timeout -d 'Drain connections and pods this long [default: 20m]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l accept-loss -d 'Accept a loss: connections, or a class of packets' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l lease -d 'Set the lease of the bridge: 10s to 1h [default: 60s]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l all-nodes -d 'Continue the cluster\'s migration'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l this-node -d 'Switch this machine, with --node NAME'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -s y -l yes -d 'Do not ask for confirmation'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l again -d 'Skip steps that are already done'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l confirm-timeout -d 'Roll back unless healthy after this long [default: 5m]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l drain-timeout -d 'Drain connections and pods this long [default: 20m]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l accept-loss -d 'Accept a loss: connections, or a class of packets' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l lease -d 'Set the lease of the bridge: 10s to 1h [default: 60s]' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l all-nodes -d 'Roll back the cluster\'s migration'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l until-restart -d 'Stop before the configuration changes'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l this-node -d 'Switch this machine, with --node NAME'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -s y -l yes -d 'Do not ask for confirmation'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l again -d 'Skip steps that are already done'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand access" -l subject -d 'Use this subject in the bindings' -r
complete -c kpx -n "__fish_kpx_using_subcommand access" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand access" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand access" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand access" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand access" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand access" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand access" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand access" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand access" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand access" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand access" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand access" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand access" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand access" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand access" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand access" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand access" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand access" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand access" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand access" -l all-nodes -d 'Add what reading other nodes needs'
complete -c kpx -n "__fish_kpx_using_subcommand access" -l manifest -d 'Print the manifest of roles and bindings'
complete -c kpx -n "__fish_kpx_using_subcommand access" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand access" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand access" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand access" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand access" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand access" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand access" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand completions" -s o -l output -d 'Print in this format' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand completions" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand completions" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand man" -s o -l output -d 'Print in this format' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand man" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand man" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand man" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand man" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand man" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand man" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand man" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand man" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand man" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand man" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand man" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand man" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand man" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand help" -s o -l output -d 'Print in this format' -r
complete -c kpx -n "__fish_kpx_using_subcommand help" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand help" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand help" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand help" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand help" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand help" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand help" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand help" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand help" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand help" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand help" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand help" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand help" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand help" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand help" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand help" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand help" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand help" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand help" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand help" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand help" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand help" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand help" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand help" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand help" -s v -l verbose -d 'Print more details; twice for full error reports'
complete -c kpx -n "__fish_kpx_using_subcommand version" -s o -l output -d 'Print in this format' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand version" -l from -d 'Read a bundle, a support bundle or a pasted text' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand version" -l node -d 'Work on this node' -r
complete -c kpx -n "__fish_kpx_using_subcommand version" -l cluster-from -d 'Read the cluster from a bundle, and the node live' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand version" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand version" -l context -d 'Use this context of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand version" -l cluster -d 'Use this cluster of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand version" -l user -d 'Use this user of the kubeconfig file' -r
complete -c kpx -n "__fish_kpx_using_subcommand version" -l as -d 'Impersonate this user for API requests' -r
complete -c kpx -n "__fish_kpx_using_subcommand version" -l as-group -d 'Impersonate this group; repeat for several' -r
complete -c kpx -n "__fish_kpx_using_subcommand version" -l image -d 'Use this image for pods on nodes' -r
complete -c kpx -n "__fish_kpx_using_subcommand version" -l programs -d 'Copy kpx from this folder to nodes with other processors' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand version" -l netns -d 'Read this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand version" -l root -d 'Use this folder as the host\'s root file system' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand version" -l family -d 'Read only this IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand version" -l color -d 'Use colours' -r -f -a "auto\t'When stdout is a terminal'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand version" -l pager -d 'Show long pages with this program; empty for none' -r
complete -c kpx -n "__fish_kpx_using_subcommand version" -l timeout -d 'Limit the time of each read' -r
complete -c kpx -n "__fish_kpx_using_subcommand version" -l ignore -d 'Ignore the findings of this check' -r
complete -c kpx -n "__fish_kpx_using_subcommand version" -l digest -d 'Print the SHA-256 digest of this program'
complete -c kpx -n "__fish_kpx_using_subcommand version" -s h -l help -d 'Print help'
complete -c kpx -n "__fish_kpx_using_subcommand version" -l proxy-credentials -d 'Use kube-proxy\'s credentials as well, on a node'
complete -c kpx -n "__fish_kpx_using_subcommand version" -l no-api -d 'Do not contact the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand version" -l ascii -d 'Print ASCII characters only'
complete -c kpx -n "__fish_kpx_using_subcommand version" -l no-pager -d 'Do not use a pager'
complete -c kpx -n "__fish_kpx_using_subcommand version" -s q -l quiet -d 'Print results and errors only'
complete -c kpx -n "__fish_kpx_using_subcommand version" -s v -l verbose -d 'Print more details; twice for full error reports'

# Prints names that kpx reads: of Services, pods, nodes, chains and the like.
function __fish_kpx_names
    set -l words (commandline -opc)
    kpx complete -- $words[2..] (commandline -ct) </dev/null 2>/dev/null
end

complete -c kpx -a "(__fish_kpx_names)"
