# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_kpx_global_optspecs
    string join \n from= cluster-from= kubeconfig= context= no-api node= netns= root= family= o/output= color= ascii timeout= q/quiet v/verbose h/help V/version
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

complete -c kpx -n "__fish_kpx_needs_command" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_needs_command" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_needs_command" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_needs_command" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_needs_command" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_needs_command" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_needs_command" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_needs_command" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_needs_command" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_needs_command" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_needs_command" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_needs_command" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_needs_command" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_needs_command" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_needs_command" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_needs_command" -s V -l version -d 'Print version'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "doctor" -d 'Say what is wrong with this node and how to mend it'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "explain" -d 'Explain a check: symptom, mechanism, how to verify by hand, fix, incidents'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "resolve" -d 'Say what cluster DNS should answer for a name, and what it does'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "diff" -d 'Say where this node differs from what its Services ask for'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "snapshot" -d 'Write everything kpx can read into a bundle, to look at elsewhere or to report a bug'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "show" -d 'Show one view of the live state, joined to the Services it serves'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "trace" -d 'Show the way a packet takes through the rules, and where it ends'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "render" -d 'Print what kube-proxy would program, as text that the standard tools load'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "preflight" -d 'Say whether this node can run a mode, and load the kernel modules that it needs'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "reconcile" -d 'Plan what removes the differences that `kpx diff` shows, and with --apply do it'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "cleanup" -d 'Plan what removes the things that a mode left behind, and with --apply do it'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "bridge" -d 'Serve Services by a table of kpx\'s own while kube-proxy changes its mode'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "migrate" -d 'Move this node to another mode without losing a connection, and take it back'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "completions" -d 'Print a completion script'
complete -c kpx -n "__fish_kpx_needs_command" -f -a "man" -d 'Print a manual page'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l only -d 'Run only these checks: ids, names or groups, separated by commas' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l skip -d 'Leave these checks out: ids, names or groups, separated by commas' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l ignore-file -d 'Do not tell what this file names, each entry with a reason and a last day [default: /etc/kpx/ignore.yaml on a live node, if it is there]' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l textfile -d 'Also write the prom format to this file, whole or not at all, for node-exporter\'s textfile collector' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l for -d 'Ask what stands in the way of a move to this mode, and what to heed before it: an error stops it' -r -f -a "iptables\t'Chains of KUBE-* rules'
ipvs\t'Virtual servers, sets and a few rules'
nftables\t'The nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l fail-on -d 'Exit with 1 from which severity on' -r -f -a "error\t'Traffic is, or will be, lost'
warning\t'The same, or a risk'
never\t'Whatever is found'"
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l wait -d 'Look again until nothing is wrong, at most this long' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l list -d 'Print the checks instead of running them'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand explain" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand explain" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand explain" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand explain" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l namespace -d 'The namespace of the pod that asks' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l cluster-domain -d 'The cluster\'s domain' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l server -d 'Ask this server, not that of Service kube-system/kube-dns' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l env -d 'Also list what a container finds of the Service in its environment'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand resolve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l mode -d 'Compare with this mode (default: the one kube-proxy is configured for)' -r -f -a "iptables\t'Chains of KUBE-* rules'
ipvs\t'Virtual servers, sets and a few rules'
nftables\t'The nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand diff" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand diff" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l redact -d 'Replace addresses and names, each by the same one everywhere, and leave logs and secrets out'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l script -d 'Print a POSIX shell script that makes a bundle with standard tools alone'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand snapshot" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand show" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand show" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand show" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand show" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand show" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand show" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand show" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand show" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand show" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand show" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand show" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand show" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand show" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l source -d 'Where from: an address, a pod of this node, host, or external' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l protocol -d 'The protocol, where the target leaves it open' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l as -d 'Trace over what kube-proxy would program in this mode, instead of what is there' -r -f -a "iptables\t'Chains of KUBE-* rules'
ipvs\t'Virtual servers, sets and a few rules'
nftables\t'The nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand trace" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l established -d 'Trace a later packet of a connection: filters see it as established, nat is what its first packet met'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l probe -d 'Open one real connection from this host, and say which backend took it'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand trace" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand render" -l mode -d 'Render this mode (default: the one kube-proxy is configured for)' -r -f -a "iptables\t'Chains of KUBE-* rules'
ipvs\t'Virtual servers, sets and a few rules'
nftables\t'The nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand render" -l part -d 'Print this part alone' -r -f -a "iptables\t'Rules, for iptables-restore --noflush; IPv4\'s, unless --family 6 is given'
ipset\t'Sets, for ipset restore'
ipvs\t'Virtual and real servers, for ipvsadm --restore'
addresses\t'kube-ipvs0 and its addresses, for ip -batch'
nftables\t'Tables, for nft -f'
sysctl\t'Kernel settings, for sysctl -p'"
complete -c kpx -n "__fish_kpx_using_subcommand render" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand render" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand render" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand render" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand render" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand render" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand render" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand render" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand render" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand render" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand render" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand render" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand render" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l to -d 'The mode' -r -f -a "iptables\t'Chains of KUBE-* rules'
ipvs\t'Virtual servers, sets and a few rules'
nftables\t'The nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l load -d 'Load the modules that the mode needs, and see the kernel do what it needs them for, in a network namespace made for that'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l persist -d 'Have the modules loaded at every boot, by the file /etc/modules-load.d/kpx.conf'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -s y -l yes -d 'Agree to the plan beforehand'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand preflight" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l mode -d 'Bring the node to this mode (default: the one kube-proxy is configured for)' -r -f -a "iptables\t'Chains of KUBE-* rules'
ipvs\t'Virtual servers, sets and a few rules'
nftables\t'The nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l only -d 'Change only these layers, separated by commas (default: all)' -r -f -a "iptables\t'Chains and rules'
ipset\t'IP sets'
ipvs\t'Virtual and real servers'
link\t'kube-ipvs0 and its addresses'
nftables\t'The nftables table'
sysctl\t'Kernel settings'"
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l force -d 'Go on although another service proxy owns the node'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l no-drain -d 'Delete real servers at once, with their connections, instead of closing them first'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l apply -d 'Carry the plan out, instead of printing it alone'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -s y -l yes -d 'Agree to the plan beforehand'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand reconcile" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l mode -d 'Remove what this mode left behind' -r -f -a "iptables\t'Chains of KUBE-* rules'
ipvs\t'Virtual servers, sets and a few rules'
nftables\t'The nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l force -d 'Go on although it is the mode that serves the node'
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l apply -d 'Carry the plan out, instead of printing it alone'
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -s y -l yes -d 'Agree to the plan beforehand'
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand cleanup" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l mode -d 'Serve NodePorts, and masquerade, as this mode does (default: the one kube-proxy is configured for)' -r -f -a "iptables\t'Chains of KUBE-* rules'
ipvs\t'Virtual servers, sets and a few rules'
nftables\t'The nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l lease -d 'How long the bridge serves new connections after follow or guard renewed it last: 10s to 1h' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l await -d 'guard: wait this long for a bridge, and longer while another kpx changes the node or another guard runs' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l detach -d 'guard: in the background, as a transient unit of systemd where that runs'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l apply -d 'Carry the plan out, instead of printing it alone'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -s y -l yes -d 'Agree to the plan beforehand'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand bridge" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l to -d 'The mode' -r -f -a "iptables\t'Chains of KUBE-* rules'
ipvs\t'Virtual servers, sets and a few rules'
nftables\t'The nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l scheduler -d 'Set the scheduler of virtual servers, too' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l strict-arp -d 'Set strictARP, too' -r -f -a "true\t''
false\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l strategy -d 'What becomes of connections meanwhile [default: bridge where nftables is entered or ipvs is left, else in-place]' -r -f -a "bridge\t'A table of kpx\'s own takes new connections; those that ipvs forwards are waited for before the change'
in-place\t'The modes\' own rules take over from each other'
drain-node\t'The node is cordoned and its pods are evicted first; then as in-place, and it is uncordoned at the end'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l left -d 'Where kube-proxy has gone to the new mode by itself, this is the mode it left: what that left behind is removed' -r -f -a "iptables\t'Chains of KUBE-* rules'
ipvs\t'Virtual servers, sets and a few rules'
nftables\t'The nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l skip -d 'Go on although these checks find something in the way: ids, names or groups, separated by commas' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l confirm-timeout -d 'Turn back where kube-proxy does not serve in the new mode, or Services do not answer, after this long' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l drain-timeout -d 'Wait this long for connections to end that go with the virtual servers, and for evicted pods to leave' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l lease -d 'How long the bridge serves new connections after kpx or its guard renewed it last: 10s to 1h' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l image -d 'Do what is to be done on a node in a privileged pod of this image, which has kpx; without it, the commands are told' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l service-account -d 'The service account of these pods, in kube-system; deploy/rbac.yaml makes this one' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l soak -d 'Watch each node this long before the next one' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l ready-timeout -d 'How long a new pod may take to be ready' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l dry-run -d 'Say what would be done, and what it costs, and do nothing'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l brief -d 'With --dry-run, say only what stands in the way and what it costs'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l delete-bare-pods -d 'With --strategy drain-node, evict pods without a controller, too: nobody makes them again'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l delete-emptydir-data -d 'With --strategy drain-node, evict pods with an emptyDir, too: what is in it is lost'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l this-node -d 'The node that kpx runs on, with --node NAME where its Node has another name'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l accept-loss -d 'Go on with connections that have not ended by then: they break'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -s y -l yes -d 'Agree to the plan beforehand'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l again -d 'Take what is done already for done, and go on with what was begun: for whoever repeats a command'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l all-nodes -d 'Move all nodes, one after the other; --node NAME,NAME moves these'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l staged -d 'Move nodes to a second DaemonSet by a label, so that no restart moves another one'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -f -a "prepare" -d 'Do all that comes before the change of kube-proxy\'s configuration, and leave that to others'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -f -a "finish" -d 'Wait until kube-proxy serves in the new mode, and remove what the old one left: what comes after prepare'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -f -a "status" -d 'Say where the newest migration of this node stands'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -f -a "resume" -d 'Go on with a migration that stopped on the way'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and not __fish_seen_subcommand_from prepare finish status resume rollback" -f -a "rollback" -d 'Take a migration back: one that stopped on the way, or the newest that was done'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l to -d 'The mode' -r -f -a "iptables\t'Chains of KUBE-* rules'
ipvs\t'Virtual servers, sets and a few rules'
nftables\t'The nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l scheduler -d 'Set the scheduler of virtual servers, too' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l strict-arp -d 'Set strictARP, too' -r -f -a "true\t''
false\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l strategy -d 'What becomes of connections meanwhile [default: bridge where nftables is entered or ipvs is left, else in-place]' -r -f -a "bridge\t'A table of kpx\'s own takes new connections; those that ipvs forwards are waited for before the change'
in-place\t'The modes\' own rules take over from each other'
drain-node\t'The node is cordoned and its pods are evicted first; then as in-place, and it is uncordoned at the end'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l left -d 'Where kube-proxy has gone to the new mode by itself, this is the mode it left: what that left behind is removed' -r -f -a "iptables\t'Chains of KUBE-* rules'
ipvs\t'Virtual servers, sets and a few rules'
nftables\t'The nftables table kube-proxy'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l skip -d 'Go on although these checks find something in the way: ids, names or groups, separated by commas' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l confirm-timeout -d 'Turn back where kube-proxy does not serve in the new mode, or Services do not answer, after this long' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l drain-timeout -d 'Wait this long for connections to end that go with the virtual servers, and for evicted pods to leave' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l lease -d 'How long the bridge serves new connections after kpx or its guard renewed it last: 10s to 1h' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l dry-run -d 'Say what would be done, and what it costs, and do nothing'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l brief -d 'With --dry-run, say only what stands in the way and what it costs'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l delete-bare-pods -d 'With --strategy drain-node, evict pods without a controller, too: nobody makes them again'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l delete-emptydir-data -d 'With --strategy drain-node, evict pods with an emptyDir, too: what is in it is lost'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l this-node -d 'The node that kpx runs on, with --node NAME where its Node has another name'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l accept-loss -d 'Go on with connections that have not ended by then: they break'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -s y -l yes -d 'Agree to the plan beforehand'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l again -d 'Take what is done already for done, and go on with what was begun: for whoever repeats a command'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from prepare" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l confirm-timeout -d 'Turn back where kube-proxy does not serve in the new mode, or Services do not answer, after this long' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l drain-timeout -d 'Wait this long for connections to end that go with the virtual servers, and for evicted pods to leave' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l lease -d 'How long the bridge serves new connections after kpx or its guard renewed it last: 10s to 1h' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l this-node -d 'The node that kpx runs on, with --node NAME where its Node has another name'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l accept-loss -d 'Go on with connections that have not ended by then: they break'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -s y -l yes -d 'Agree to the plan beforehand'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l again -d 'Take what is done already for done, and go on with what was begun: for whoever repeats a command'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from finish" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l all-nodes -d 'The migration of the cluster\'s nodes, whoever began it and wherever'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l this-node -d 'The node that kpx runs on'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l confirm-timeout -d 'Turn back where kube-proxy does not serve in the new mode, or Services do not answer, after this long' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l drain-timeout -d 'Wait this long for connections to end that go with the virtual servers, and for evicted pods to leave' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l lease -d 'How long the bridge serves new connections after kpx or its guard renewed it last: 10s to 1h' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l all-nodes -d 'The migration of the cluster\'s nodes, whoever began it and wherever'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l this-node -d 'The node that kpx runs on, with --node NAME where its Node has another name'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l accept-loss -d 'Go on with connections that have not ended by then: they break'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -s y -l yes -d 'Agree to the plan beforehand'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l again -d 'Take what is done already for done, and go on with what was begun: for whoever repeats a command'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from resume" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l confirm-timeout -d 'Turn back where kube-proxy does not serve in the new mode, or Services do not answer, after this long' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l drain-timeout -d 'Wait this long for connections to end that go with the virtual servers, and for evicted pods to leave' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l lease -d 'How long the bridge serves new connections after kpx or its guard renewed it last: 10s to 1h' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l all-nodes -d 'The migration of the cluster\'s nodes, whoever began it and wherever'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l until-restart -d 'Do all that comes before the change of kube-proxy\'s configuration, and leave that and the restart to others'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l this-node -d 'The node that kpx runs on, with --node NAME where its Node has another name'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l accept-loss -d 'Go on with connections that have not ended by then: they break'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -s y -l yes -d 'Agree to the plan beforehand'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l again -d 'Take what is done already for done, and go on with what was begun: for whoever repeats a command'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand migrate; and __fish_seen_subcommand_from rollback" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand completions" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand completions" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand completions" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand completions" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kpx -n "__fish_kpx_using_subcommand man" -l from -d 'Read a bundle (folder, .tar or .tar.gz) instead of this node' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand man" -l cluster-from -d 'Read this node live, but the cluster\'s objects and kube-proxy\'s configuration from a bundle' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand man" -l kubeconfig -d 'Use this kubeconfig file' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand man" -l context -d 'Use this context of the kubeconfig' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l node -d 'Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l netns -d 'Look at this network namespace, by name or path' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l root -d 'Where the host\'s root file system is mounted' -r -F
complete -c kpx -n "__fish_kpx_using_subcommand man" -l family -d 'Look at one IP family' -r -f -a "4\t'IPv4'
6\t'IPv6'"
complete -c kpx -n "__fish_kpx_using_subcommand man" -s o -l output -d 'How to print: human, wide, json or yaml, and what the command adds' -r -f -a "human\t''
wide\t''
json\t''
yaml\t''"
complete -c kpx -n "__fish_kpx_using_subcommand man" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal that wants it'
always\t'Always'
never\t'Never'"
complete -c kpx -n "__fish_kpx_using_subcommand man" -l timeout -d 'How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long' -r
complete -c kpx -n "__fish_kpx_using_subcommand man" -l no-api -d 'Do not ask the Kubernetes API'
complete -c kpx -n "__fish_kpx_using_subcommand man" -l ascii -d 'Print ASCII alone'
complete -c kpx -n "__fish_kpx_using_subcommand man" -s q -l quiet -d 'Say less'
complete -c kpx -n "__fish_kpx_using_subcommand man" -s v -l verbose -d 'Say more; twice for error reports in full'
complete -c kpx -n "__fish_kpx_using_subcommand man" -s h -l help -d 'Print help (see more with \'--help\')'
