//! Plans that end early: by a step that fails, and by kpx being killed.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use kpx_judge::plan::Undo;
use kpx_node::action::Action;
use kpx_node::apply::StepError;

use super::node::{Node, Then, data};
use super::traffic::copy;
use crate::kernel::netns::{Netns, run};

/// Makes every kind of difference, to a node that has none.
fn disturb(netns: &Netns) {
    netns.feed(
        "ipset restore",
        "del KUBE-CLUSTER-IP 10.96.0.1,tcp:443\n\
         add KUBE-CLUSTER-IP 10.96.99.99,tcp:80\n\
         add KUBE-IPVS-IPS 10.96.99.99\n\
         add KUBE-LOOP-BACK 10.9.9.9,tcp:80,10.9.9.9\n\
         create SMALL bitmap:port range 0-40000\n\
         add SMALL 30089\n\
         swap SMALL KUBE-NODE-PORT-TCP\n\
         destroy SMALL\n\
         create KPX-CLUSTER-IP hash:ip,port\n",
    );
    netns.feed(
        "ipvsadm --restore",
        "-A -t 10.96.99.99:80 -s rr -p 60\n\
         -a -t 10.96.99.99:80 -r 10.244.1.99:80 -m -w 3\n\
         -a -t 10.97.54.248:80 -r 10.244.1.99:80 -m -w 2\n\
         -a -u 10.96.0.10:53 -r 10.244.1.99:53 -m -w 1\n",
    );
    netns.run("ipvsadm -D -t 10.100.0.11:6379");
    netns.run("ipvsadm -E -t 10.106.71.137:80 -s wrr");
    netns.run("ipvsadm -d -t 10.97.54.248:80 -r 10.244.1.14:80");
    netns.run("ipvsadm -e -t 10.97.54.248:80 -r 10.244.1.16:80 -m -w 7");
    netns.run("ip addr del 10.97.54.248/32 dev kube-ipvs0");
    netns.run("ip addr add 10.96.99.99/32 dev kube-ipvs0");
    netns.run("iptables -t nat -F KUBE-LOAD-BALANCER");
    netns.run("sysctl -qw net.ipv4.vs.conntrack=0");
}

#[tokio::test]
#[ignore = "needs root and ip_vs"]
async fn vm_wherever_a_plan_ends_the_node_is_as_it_was_or_as_it_should_be() {
    let node = Node::new("seed-ipvs");
    let blank = node.plan().await;
    node.run(&blank).await.unwrap();
    let whole = node.state();
    // Repeating a change has no effect, except that iptables inserts existing rules again.
    let mut again = blank.clone();
    again
        .steps
        .retain(|step| !matches!(step.action, Action::Iptables { .. }));
    node.run(&again).await.unwrap();
    assert_eq!(node.state(), whole);
    disturb(&node.netns);
    let disturbed = node.state();
    let plan = node.plan().await;
    let count = plan.steps.len();
    assert!(count >= 8, "{count} steps");
    for at in 0..count {
        let title = format!("step {at}: {}", plan.steps[at].title);
        let stopped = node.fail_at(&plan, at, Then::Undo).await.unwrap();
        assert_eq!((stopped.step, &stopped.left), (at, &Vec::new()), "{title}");
        assert!(matches!(stopped.error, StepError::Denied(_)), "{title}");
        assert_eq!(node.state(), disturbed, "{title}");

        node.fail_at(&plan, at, Then::Nothing).await;
        let rest = node.plan().await;
        node.run(&rest).await.unwrap();
        assert_eq!(node.state(), whole, "{title}");
        disturb(&node.netns);
    }
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_killed_in_each_of_its_steps_kpx_gets_there_by_starting_again() {
    let node = Node::new("seed-ipvs");
    let mut killed = 0;
    loop {
        let mut child = node
            .command("--mode", &["--apply", "--yes"])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        let mut lines = said.lines().map(Result::unwrap);
        // One step is done, and another begins.
        let goes_on = lines.any(|line| line.starts_with("kpx: step 2: "));
        if !goes_on {
            assert!(child.wait().unwrap().success());
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        killed += 1;
        assert!(killed < 50, "no run gets further than the one before");
    }
    assert!(killed >= 8, "killed {killed} times");
    assert_eq!(node.state(), node.recorded());
}

#[tokio::test]
#[ignore = "needs root and ip_vs"]
async fn vm_what_the_kernel_refuses_leaves_the_node_as_it_was() {
    // The scheduler is a module that cannot be loaded.
    run(&["modprobe", "ip_vs"], "");
    let node = Node::new("full-ipvs-lc-strictarp");
    let before = node.state();
    let file = "/etc/modprobe.d/kpx-test.conf";
    fs::write(file, "install ip_vs_lc /bin/false\n").unwrap();
    let ran = node.reconcile(&["--apply", "--yes"]);
    fs::remove_file(file).unwrap();
    assert_eq!(ran.code, Some(4), "{}", ran.text);
    // Whatever the width of its lines.
    let words: Vec<_> = ran.text.split_whitespace().collect();
    let words = words.join(" ");
    for part in [
        "scheduler lc is not available",
        "all changes were rolled back",
    ] {
        assert!(words.contains(part), "{}", ran.text);
    }
    assert_eq!(node.state(), before);

    // A set that is full.
    let mut plan = node.plan().await;
    let small = |action: &mut Action| {
        if let Action::Ipset { input } = action {
            *input = input.replace("maxelem 65536", "maxelem 3");
        }
    };
    for step in &mut plan.steps {
        small(&mut step.action);
        if let Undo::Do(action) = &mut step.undo {
            small(action);
        }
    }
    let stopped = node.run(&plan).await.unwrap_err();
    assert!(stopped.error.to_string().contains("full"), "{stopped}");
    assert_eq!(stopped.left, []);
    assert_eq!(node.state(), before);
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_what_kube_proxy_does_not_own_stays() {
    let node = Node::new("seed-ipvs");
    node.apply();
    let whole = node.state();
    node.netns.feed(
        "ipvsadm --restore",
        "-A -t 192.0.2.60:80 -s sh -p 60 -b sh-port\n\
         -a -t 192.0.2.60:80 -r 192.0.2.51:80 -g -w 5\n\
         -A -f 7 -s nq\n\
         -a -f 7 -r 192.0.2.52:0 -m -w 1\n",
    );
    node.netns.feed(
        "ipset restore",
        "create KUBE-LIKE hash:ip comment\nadd KUBE-LIKE 192.0.2.50 comment theirs\n\
         create other bitmap:port range 1-9\nadd other 3\n",
    );
    node.netns.run("ip addr add 127.0.0.9/32 dev lo");
    node.netns.run("iptables -N MINE");
    node.netns
        .run("iptables -A MINE -m set --match-set KUBE-LIKE src -j DROP");
    node.netns.run("iptables -I INPUT 2 -j MINE");
    let theirs = node.state();
    let sets = theirs.sets.difference(&whole.sets).count();
    let servers = theirs.servers.difference(&whole.servers).count();
    assert_eq!((sets, servers), (4, 4), "{theirs:?}");
    let ran = node.reconcile(&["--apply", "--yes"]);
    assert!(ran.text.contains("no changes needed"), "{}", ran.text);
    assert!(ran.text.contains("not changed, because"), "{}", ran.text);
    node.netns
        .run("ipset del KUBE-CLUSTER-IP 10.96.0.1,tcp:443");
    node.netns.run("ipset flush KUBE-IPVS-IPS");
    node.netns.run("ipvsadm -D -t 10.96.0.1:443");
    node.netns.run("ip addr del 10.96.0.1/32 dev kube-ipvs0");
    node.apply();
    assert_eq!(node.state(), theirs);
    assert!(
        node.netns
            .run("ip -o addr show dev lo")
            .contains("127.0.0.9/32")
    );
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_virtual_servers_of_excluded_networks_stay() {
    let bundle = tempfile::tempdir().unwrap();
    copy(&data("seed-ipvs"), bundle.path());
    let file = bundle.path().join("kube-proxy/config.conf");
    let text = fs::read_to_string(&file).unwrap();
    assert!(!text.contains("ipvs:"), "{text}");
    fs::write(&file, text + "ipvs:\n  excludeCIDRs: [192.0.2.0/28]\n").unwrap();
    let node = Node::from(bundle.path(), false);
    node.apply();
    // Both look as if kube-proxy had made them for a Service that is gone.
    for addr in ["192.0.2.9", "192.0.2.60"] {
        node.netns
            .run(&format!("ip addr add {addr}/32 dev kube-ipvs0"));
        node.netns.run(&format!("ipvsadm -A -t {addr}:80 -s rr"));
    }
    node.apply();
    let servers = node.state().servers;
    let there = |addr: &str| servers.iter().any(|line| line.contains(addr));
    assert!(there("192.0.2.9:80"), "{servers:?}");
    assert!(!there("192.0.2.60:80"), "{servers:?}");
}
