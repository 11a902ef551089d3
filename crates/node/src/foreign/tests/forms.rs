//! What terminals, logs, mails and pages do to outputs, and forms that say nothing, little or that there is none.

use super::*;

/// Rules and Services of node w1, as a terminal shows them.
fn session() -> String {
    format!(
        "root@w1:~# iptables-save\n{}root@w1:~# kubectl get svc,endpointslices -A -o yaml\n{}",
        sample("14-iptables-matches.save"),
        sample("56-")
    )
}

/// Returns `text` with each of its lines as `edit` makes it, by its number.
fn each(text: &str, edit: impl Fn(usize, &str) -> String) -> String {
    let lines = text.lines().enumerate();
    lines.map(|(at, line)| edit(at, line) + "\n").collect()
}

fn wrapped(text: &str, width: usize) -> String {
    let mut new = String::new();
    for line in text.lines() {
        let chars: Vec<char> = line.chars().collect();
        for part in chars.chunks(width) {
            new.extend(part);
            new.push('\n');
        }
        if chars.is_empty() {
            new.push('\n');
        }
    }
    new
}

/// Returns the items of the only node with what is missing of each.
fn items(text: &str) -> Vec<(Item, String, Option<String>)> {
    let found = read(text);
    assert_eq!(found.nodes.len(), 1, "{text}");
    assert_eq!(found.unread, Vec::<String>::new(), "{text}");
    let evidence = found.nodes[0].evidence.with_all_parts();
    let items = evidence.iter().map(|(item, read)| {
        let text = read.map_or_else(ToString::to_string, str::to_owned);
        let missing = evidence.missing_part(item).map(str::to_owned);
        (item, text, missing)
    });
    items.collect()
}

#[test]
fn what_surrounds_an_output_is_taken_off() {
    let plain = session();
    let expected = items(&plain);
    assert!(expected.len() > 2, "{expected:?}");
    let quoted = |marks: &'static [&'static str]| {
        each(&plain, |at, line| {
            format!("{}{line}", marks[at % marks.len()])
        })
    };
    let before = |prefix: &str| each(&plain, |_, line| format!("{prefix}{line}"));
    let list = |indent: &str| {
        let inside = each(&plain, |_, line| format!("{indent}{line}"));
        format!("What I did:\n\n1. Both:\n\n{indent}```console\n{inside}{indent}```\n\nThanks!\n")
    };
    for (name, text) in [
        ("a mail", quoted(&["> "])),
        ("a mail without blanks", quoted(&[">"])),
        ("an answer to an answer", quoted(&["> > > ", ">>> "])),
        ("a log of CI", before("2026-11-03T10:22:31.1234567Z ")),
        ("a log with an offset", before("2026-11-03T10:22:31+01:00 ")),
        ("a journal", before("Nov 03 10:22:31 w1 collect.sh[812]: ")),
        ("pdsh", before("w1: ")),
        (
            "cat -n",
            each(&plain, |at, line| format!("{:>6}\t{line}", at + 1)),
        ),
        (
            "an editor",
            each(&plain, |at, line| format!("{}: {line}", at + 1)),
        ),
        ("a fence in a list", list("   ")),
        ("indented code", format!("See:\n\n{}", before("    "))),
        (
            "colours",
            each(&plain, |_, line| format!("\u{1b}[0m{line}\u{1b}[K")),
        ),
        (
            "titles",
            each(&plain, |_, line| {
                format!("\u{1b}]0;root@w1: ~\u{7}{line}\r")
            }),
        ),
        (
            "typing",
            plain.replacen("iptables-save", "iptables-savv\u{8}e", 1),
        ),
        (
            "a chat",
            plain
                .replace("    ", "\u{a0}\u{a0}  ")
                .replace('"', "\u{201d}"),
        ),
        ("80 columns", wrapped(&plain, 80)),
        ("120 columns", wrapped(&plain, 120)),
    ] {
        assert_eq!(items(&text), expected, "{name}");
    }
}

#[test]
fn a_pager_neither_ends_nor_cuts_an_output() {
    let listing = sample("02-");
    let plain = format!("root@w1:~# iptables -t nat -nvL\n{listing}");
    let expected = items(&plain);
    for mark in [
        "\u{1b}[7m--More--(12%)\u{1b}[27m",
        ":",
        "lines 1-5/40 12%",
        "--More--",
    ] {
        let paged = each(&plain, |at, line| match at % 4 {
            3 => format!("{line}\n{mark}"),
            _ => line.to_owned(),
        });
        assert_eq!(items(&format!("{paged}~\n~\n(END)\n")), expected, "{mark}");
        // Behind the last page, the rest is not known.
        let first: Vec<&str> = paged.lines().take(9).collect();
        let first = first.join("\n") + "\n";
        let cut = read(&format!("{first}{mark}\n"));
        let missing = cut.nodes[0].evidence.missing_part(Item::Iptables4);
        assert!(
            missing.unwrap().contains("not shown completely"),
            "{mark}: {missing:?}"
        );
    }
}

#[test]
fn broken_tables_have_the_rows_of_whole_ones() {
    let rows = [
        "NAMESPACE     NAME       TYPE           CLUSTER-IP      EXTERNAL-IP    PORT(S)                  AGE   SELECTOR",
        "edge          ingress    LoadBalancer   10.43.8.8       203.0.113.40   80:31080/TCP             4s    app=ingress",
        "kube-system   kube-dns   ClusterIP      10.43.0.10      <none>         53/UDP,53/TCP,9153/TCP   4s    app=kube-dns",
        "shop          cart       ClusterIP      10.43.120.7     <none>         80/TCP                   4s    app=cart",
    ];
    let table = rows.map(|row| format!("{row}\n")).concat();
    let command = "root@w1:~# kubectl get svc -A -o wide\n";
    let expected = items(&format!("{command}{table}"));
    for width in [60, 80, 100] {
        let broken = format!("{command}{}", wrapped(&table, width));
        assert_eq!(items(&broken), expected, "{width}");
        let trimmed = each(&broken, |_, line| line.trim_end().to_owned());
        assert_eq!(items(&trimmed), expected, "{width}, trimmed");
    }
}

#[test]
fn words_of_other_languages_do_not_matter() {
    let old = |link: &str, addr: &str, mask: &str| {
        evidence(&format!(
            "root@w1:~# ifconfig -a\neth0      {link}  \n          {addr}192.0.2.11  X:192.0.2.255  {mask}255.255.255.0\n"
        ))
    };
    let english = text(
        &old("Link encap:Ethernet", "inet addr:", "Mask:"),
        Item::Addresses,
    );
    assert!(
        english.contains("192.0.2.11") && english.contains("24"),
        "{english}"
    );
    for (link, addr, mask) in [
        ("Link encap:Ethernet", "inet adr:", "Masque:"),
        ("Link encap:Ethernet", "inet Adresse:", "Maske:"),
        (
            "\u{94fe}\u{63a5}\u{5c01}\u{88c5}:\u{4ee5}\u{592a}\u{7f51}",
            "inet \u{5730}\u{5740}:",
            "\u{63a9}\u{7801}:",
        ),
    ] {
        assert_eq!(
            text(&old(link, addr, mask), Item::Addresses),
            english,
            "{addr}"
        );
    }
    let routes = "0.0.0.0         192.0.2.1       0.0.0.0         UG        0 0          0 eth0\n\
                  192.0.2.0       0.0.0.0         255.255.255.0   U         0 0          0 eth0\n";
    let of = |title: &str| {
        text(
            &evidence(&format!("root@w1:~# netstat -rn\n{title}\n{routes}")),
            Item::Routes,
        )
    };
    let english =
        of("Kernel IP routing table\nDestination Gateway Genmask Flags MSS Window irtt Iface");
    assert!(english.contains("192.0.2.1"), "{english}");
    for title in [
        "Kernel-IP-Routentabelle\nZiel            Router          Genmask         Flags   MSS Fenster irtt Iface",
        "\u{5185}\u{6838} IP \u{8def}\u{7531}\u{8868}\n\u{76ee}\u{6807} \u{7f51}\u{5173} \u{5b50}\u{7f51}\u{63a9}\u{7801} \u{6807}\u{5fd7}  MSS Window irtt Iface",
    ] {
        assert_eq!(of(title), english, "{title}");
    }
}

#[test]
fn a_message_in_any_language_is_the_reason_why_an_item_is_missing() {
    for (command, message, item) in [
        (
            "ipvsadm -Ln",
            "-bash: ipvsadm: \u{672a}\u{627e}\u{547d}\u{4ee4}",
            Item::IpvsSave,
        ),
        (
            "iptables-save",
            "bash: iptables-save: Kommando nicht gefunden.",
            Item::Iptables4,
        ),
        (
            "iptables -t nat -nvL KUBE-SERVICES",
            "iptables: No chain/target/match by that name.",
            Item::Iptables4,
        ),
        (
            "nft list ruleset",
            "netlink: Error: cache initialization failed: Operation not permitted",
            Item::Nft,
        ),
        (
            "ip addr",
            "Object \"adr\" is unknown, try \"ip help\".",
            Item::Addresses,
        ),
        (
            "kubectl get svc -A",
            "Error from server (Forbidden): services is forbidden",
            Item::Services,
        ),
    ] {
        let found = read(&format!("root@w1:~# {command}\n{message}\n"));
        let gap = found.nodes[0].evidence.text(item).unwrap_err();
        assert!(
            matches!(&gap, Gap::Failed(_, why) if why == message),
            "{command}: {gap}"
        );
    }
    let none = evidence("$ kubectl get endpointslices -A\nNo resources found\n");
    assert!(NodeSnapshot::new(&none).slices().unwrap().is_empty());
    assert!(none.missing_part(Item::EndpointSlices).is_none());
    for text in [
        "$ kubectl get svc -A -o json\n{\n  \"items\": [\n    {\"kind\": \"Serv\n$ iptables-save\n",
        "$ kubectl get svc -A -o yaml\napiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n\tkind: Service\n$ iptables-save\n",
        "$ crictl pods\nPOD ID CREATED STATE NAME\n0a1b2c 4 days ago Ready web\n$ iptables-save\n",
        "$ kubectl describe pod web\nName: web\nNamespace: shop\nPriority: 0\n$ iptables-save\n",
    ] {
        let found = read(&format!("{text}{SAVE}"));
        assert_eq!(found.unread.len(), 1, "{text}: {:?}", found.unread);
    }
}

#[test]
fn values_of_proc_sys_have_the_names_of_their_files() {
    for command in [
        "cat /proc/sys/net/ipv4/ip_forward",
        "sysctl -n net.ipv4.ip_forward",
    ] {
        let of = evidence(&format!("root@w1:~# {command}\n0\n"));
        assert_eq!(
            text(&of, Item::Sysctl),
            "net.ipv4.ip_forward = 0\n",
            "{command}"
        );
    }
}

#[test]
fn the_title_of_watch_names_its_host() {
    let found = read(&format!(
        "Every 2.0s: iptables-save        w1: Tue Nov  3 10:12:01 2026\n\n{SAVE}"
    ));
    assert_eq!(found.nodes[0].name, "w1");
}

#[test]
fn every_form_that_shows_no_endpoints_says_so() {
    let service = "Name: payments\nNamespace: shop\nType: ClusterIP\nIP: 10.43.201.9\nPort: grpc 8080/TCP\n\
                   TargetPort: grpc/TCP\n";
    for text in [
        "$ kubectl get ep payments -n shop\nNAME ENDPOINTS AGE\npayments   <none>   4s\n".to_owned(),
        "$ kubectl get ep payments -n shop\nNAME ENDPOINTS AGE\npayments            4s\n".to_owned(),
        "$ kubectl get endpointslices -n shop\nNAME ADDRESSTYPE PORTS ENDPOINTS AGE\n\
         payments-x7k2p IPv4 <unset> <unset> 4s\n"
            .to_owned(),
        format!("{service}Endpoints:\n"),
        format!("{service}Endpoints: <none>\n"),
        "apiVersion: v1\nkind: Endpoints\nmetadata:\n  name: payments\n  namespace: shop\n".to_owned(),
        "Name: payments\nNamespace: shop\nSubsets:\n".to_owned(),
        "Name: payments-x7k2p\nNamespace: shop\nLabels: kubernetes.io/service-name=payments\nAddressType: IPv4\n\
         Ports: <unset>\nEndpoints: <none>\n"
            .to_owned(),
    ] {
        let all = evidence(&text);
        let node = NodeSnapshot::new(&all);
        let slices = node.slices().unwrap_or_else(|gap| panic!("{gap}: {text}"));
        assert_eq!(slices.len(), 1, "{text}");
        assert!(slices[0].endpoints.is_empty(), "{text}");
        assert_eq!(slices[0].service(), Some(("shop", "payments")), "{text}");
    }
    // A description that has no such line says nothing of them.
    let silent = evidence(service);
    assert!(silent.text(Item::EndpointSlices).is_err());
    let cut = evidence(
        "$ kubectl get ep -A\nNAMESPACE NAME ENDPOINTS AGE\nshop cart 10.42.1.23:8080,10.42.2.31:8080,10.42.3.5:8080 + 3 more... 4s\n",
    );
    assert!(
        cut.missing_part(Item::EndpointSlices)
            .unwrap()
            .contains("first three")
    );
}

#[test]
fn the_configuration_is_that_of_an_object_or_as_far_as_the_rules_show_it() {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: kube-proxy-config\n  namespace: kube-system\n\
               data:\n  config: |-\n    kind: KubeProxyConfiguration\n    mode: ipvs\n    clusterCIDR: 10.1.0.0/16\n";
    let args = "root@w1:~# cat /var/snap/microk8s/current/args/kube-proxy\n--kubeconfig=/x\n--cluster-cidr=10.1.0.0/16\n--proxy-mode=\"ipvs\"\n";
    for (text, is_whole) in [
        (map.to_owned(), true),
        (args.to_owned(), true),
        (
            "root@w1:~# ps aux\nroot 812 0.1 kube-proxy --cluster-cidr=10.1.0.0/16 --proxy-mode=ipvs\n".to_owned(),
            false,
        ),
    ] {
        let all = evidence(&text);
        let config = NodeSnapshot::new(&all).proxy_config().unwrap().clone();
        assert_eq!((config.mode.as_str(), config.cluster_cidr.as_str()), ("ipvs", "10.1.0.0/16"), "{text}");
        assert_eq!(all.missing_part(Item::ProxyConfig).is_none(), is_whole, "{text}");
    }
    let rules = "root@w1:~# iptables-save -t nat\n*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n\
                 :KUBE-POSTROUTING - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\n\
                 -A KUBE-SERVICES -d 10.43.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-SVC-AAAAAAAAAAAAAAAA\n\
                 -A KUBE-SERVICES -d 192.0.2.0/24 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n\
                 -A KUBE-SVC-AAAAAAAAAAAAAAAA ! -s 10.42.0.0/16 -d 10.43.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-MARK-MASQ\n\
                 -A KUBE-POSTROUTING -m mark ! --mark 0x8000/0x8000 -j RETURN\nCOMMIT\n";
    let all = evidence(rules);
    let config = NodeSnapshot::new(&all).proxy_config().unwrap().clone();
    assert_eq!(
        (
            config.mode.as_str(),
            config.cluster_cidr.as_str(),
            config.node_port_addresses.concat().as_str()
        ),
        ("iptables", "10.42.0.0/16", "192.0.2.0/24")
    );
    assert_eq!(config.iptables.masquerade_bit, Some(15));
    assert!(
        all.missing_part(Item::ProxyConfig)
            .unwrap()
            .contains("mode iptables")
    );
    assert!(matches!(
        all.without_parts().text(Item::ProxyConfig),
        Err(Gap::Partial(..))
    ));
    let table = sample("49-");
    let all = evidence(&format!("root@w1:~# nft list ruleset\n{table}"));
    let config = NodeSnapshot::new(&all).proxy_config().unwrap().clone();
    assert_eq!(config.mode, "nftables");
    // Rules of no mode show none.
    assert!(
        evidence(&format!("root@w1:~# iptables-save\n{SAVE}"))
            .text(Item::ProxyConfig)
            .is_err()
    );
}

#[test]
fn services_of_cilium_are_named_and_no_programs() {
    for (command, row) in [
        (
            "cilium-dbg service list",
            "1    10.43.0.1:443/TCP   ClusterIP   1 => 192.0.2.10:6443/TCP (active)",
        ),
        (
            "cilium bpf lb list",
            "10.43.0.1:443 (1)   192.0.2.10:6443 (1) (1)",
        ),
    ] {
        let all = evidence(&format!("root@w1:/# {command}\nID Frontend\n{row}\n"));
        let gap = all.text(Item::Bpf).unwrap_err();
        let why = format!("`{command}` shows 1 front end of Cilium, and not its programs");
        assert_eq!(gap, Gap::Partial(Item::Bpf, why));
    }
}

/// Returns the namespaces, names and cluster IPs of the Services of `text`.
fn placed(text: &str) -> Vec<String> {
    let of = evidence(text);
    let node = NodeSnapshot::new(&of);
    let services = node.services().unwrap().iter();
    let mut all: Vec<String> = services
        .map(|service| {
            format!(
                "{}/{} {}",
                service.metadata.namespace, service.metadata.name, service.spec.cluster_ip
            )
        })
        .collect();
    all.sort();
    all
}

const LOG: &str = "==== START logs for container kube-proxy of pod kube-system/kube-proxy-abcde ====\n\
    I1126 19:00:00.000000       1 server_linux.go:53] \"Using iptables proxy\"\n\
    ==== END logs for container kube-proxy of pod kube-system/kube-proxy-abcde ====\n";

#[test]
fn objects_above_a_log_are_read_however_they_are_broken_into_lines() {
    let list = "{\"kind\": \"ServiceList\", \"apiVersion\": \"v1\", \"items\": [{\"metadata\": {\"name\": \"cart\", \
        \"namespace\": \"shop\"}, \"spec\": {\"clusterIP\": \"10.97.54.248\", \"ports\": [{\"port\": 80}]}}]}\n";
    for text in [
        format!("{list}{LOG}"),
        format!("{list}\n{LOG}"),
        sample("57-"),
    ] {
        assert_eq!(placed(&text), ["shop/cart 10.97.54.248"], "{text}");
        assert!(evidence(&text).has(Item::ProxyLog), "{text}");
    }
}

#[test]
fn a_table_without_namespaces_has_that_of_its_cluster_ips() {
    let all = placed(&sample("52-"));
    assert_eq!(all.len(), 7, "{all:?}");
    assert!(
        all.contains(&"shop/cart 10.97.54.248".to_owned()),
        "{all:?}"
    );
    let of = evidence(&sample("52-"));
    let node = NodeSnapshot::new(&of);
    let slices = node.slices().unwrap();
    assert!(!slices.is_empty());
    assert!(
        slices
            .iter()
            .all(|slice| slice.metadata.namespace == "shop")
    );
    let title = "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE\n";
    let web = "web ClusterIP 10.101.213.102 <none> 80/TCP 5d\n";
    let rule = "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -d 10.101.213.102/32 -p tcp -m comment --comment \"demo/web:http \
        cluster IP\" -m tcp --dport 80 -j KUBE-SVC-XRY76EGRC3BSCIIJ\nCOMMIT\n";
    let other = "api ClusterIP 10.101.213.103 <none> 80/TCP 5d\n";
    assert_eq!(
        placed(&format!(
            "$ kubectl get svc\n{title}{web}{other}$ iptables-save\n{rule}"
        )),
        ["demo/api 10.101.213.103", "demo/web 10.101.213.102"]
    );
    // Nothing names it.
    let alone = format!("$ kubectl get svc\n{title}{web}");
    assert_eq!(placed(&alone), ["default/web 10.101.213.102"]);
    let of = evidence(&alone);
    let lost = of.missing_part(Item::Services).unwrap();
    assert!(lost.contains("does not show its namespace"), "{lost}");
}

#[test]
fn rows_without_titles_are_read_by_their_shape() {
    let rows = "web ClusterIP 10.101.213.102 <none> 80/TCP 5d\n\
        far ExternalName <none> far.example.org <none> 5d\n\
        db ClusterIP None <none> 5432/TCP 5d\n";
    assert_eq!(
        placed(&format!("$ kubectl get svc -n demo --no-headers\n{rows}")),
        ["demo/db None", "demo/far ", "demo/web 10.101.213.102"]
    );
    let eaten = "shop service/nginx NodePort 10.96.78.39 80:31781/TCP 63m app=nginx,tier=backend\n";
    assert_eq!(placed(eaten), ["shop/nginx 10.96.78.39"]);
    let old = "NAME         CLUSTER-IP   EXTERNAL-IP   PORT(S)   AGE\n\
        kubernetes   10.0.0.1     <none>        443/TCP   1d\n";
    assert_eq!(placed(old), ["default/kubernetes 10.0.0.1"]);
}

#[test]
fn the_first_prompt_may_be_behind_a_fence_or_a_tag() {
    let plain = session();
    let expected = items(&plain);
    let rules = plain.trim_end();
    for text in [
        format!("bob  10:02 AM\n```{rules}\n```\n"),
        format!("<html><body><h1>issue</h1><pre><code>{rules}</code></pre></body></html>\n"),
    ] {
        assert_eq!(items(&text), expected, "{text}");
        assert_eq!(read(&text).nodes[0].name, "w1");
    }
}

#[test]
fn addresses_that_a_terminal_broke_are_those_of_the_whole_lines() {
    let links = "root@w1:~# ip addr\n\
        1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000\n    \
        link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00\n    \
        inet 127.0.0.1/8 scope host lo\n       valid_lft forever preferred_lft forever\n\
        2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP group default qlen 1000\n    \
        link/ether 9e:2a:f7:e5:b4:a2 brd ff:ff:ff:ff:ff:ff\n    \
        inet 10.210.0.16/24 scope global eth0\n       valid_lft forever preferred_lft forever\n";
    let expected = items(links);
    assert!(expected.iter().any(|(item, ..)| *item == Item::Addresses));
    assert_eq!(items(&wrapped(links, 80)), expected);
}

#[test]
fn chosen_fields_of_kubectl_are_named_as_not_read() {
    let found = read(&format!(
        "{}root@w1:~# kubectl get svc web -o jsonpath={{.spec}}\n{{\"clusterIP\":\"10.0.0.1\"}}\n",
        session()
    ));
    assert_eq!(found.unread.len(), 1, "{:?}", found.unread);
    assert!(found.unread[0].contains("jsonpath"), "{:?}", found.unread);
}

#[test]
fn a_shell_on_a_node_names_it() {
    let found = read(&format!(
        "$ kubectl debug node/w1 -it --image=busybox\n/ # chroot /host\nsh-5.1# iptables-save\n{}",
        sample("14-iptables-matches.save")
    ));
    assert_eq!(found.nodes[0].name, "w1");
}
