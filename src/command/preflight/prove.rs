//! A trial of a mode's requirements of the kernel, in a separate network namespace.

use std::net::{IpAddr, Ipv4Addr};

use super::report::Proof;
use crate::command::shared::session::Session;
use kpx_host::{self as host, Live, Trial};
use kpx_node::action::{Action, Backend, IpvsCommand, IpvsVerb, LinkCommand};
use kpx_node::apply::{Apply as _, StepError};
use kpx_node::backend::Mode;
use kpx_node::evidence::Item;
use kpx_node::evidence::ipvs::Service;
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;

/// The address with which kube-proxy itself tests a scheduler: one for documentation.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 0));
const PORT: u16 = 20_000;

/// Each type of IP set that kube-proxy creates.
const SETS: &str = "\
create kpx-1 hash:ip family inet
create kpx-2 hash:ip,port family inet
create kpx-3 hash:ip,port,ip family inet
create kpx-4 hash:ip,port,net family inet
create kpx-5 bitmap:port range 0-65535
";

/// Each match and target of kube-proxy's rules in every cluster.
const RULES: &str = "\
*nat
:KPX - [0:0]
-A KPX -m comment --comment proof -m addrtype --dst-type LOCAL -m mark --mark 0x4000/0x4000 -j MASQUERADE
-A KPX -p tcp -m conntrack --ctstate NEW -j MARK --or-mark 0x4000
COMMIT
*filter
:KPX - [0:0]
-A KPX -p tcp -m tcp --dport 20000 -j REJECT
COMMIT
";

/// Each further match and target of mode iptables.
const CHANCE: &str = "\
*nat
:KPX - [0:0]
-A KPX -p tcp -m statistic --mode random --probability 0.5 -j DNAT --to-destination 198.51.100.0:20000
COMMIT
";

/// Each type of expression in kube-proxy's table.
const TABLE: &str = "\
table ip kpx-proof {
  chain prerouting {
    type nat hook prerouting priority -110;
    fib daddr type local ct state new tcp dport 20000 \
dnat to numgen random mod 1 map { 0 : 198.51.100.0 . 20000 }
  }
  chain postrouting {
    type nat hook postrouting priority 90;
    meta mark & 0x4000 == 0x4000 masquerade fully-random
  }
  chain input {
    type filter hook input priority 0;
    tcp dport 20000 reject
  }
}
";

/// Tries the requirements of mode `to` in the kernel, with each of `schedulers` in ipvs mode.
pub(super) async fn prove(
    node: &Live,
    session: &Session,
    to: Mode,
    schedulers: &[String],
) -> Vec<Proof> {
    let mut trial = match node.trial(&session.host) {
        Ok(trial) => trial,
        Err(e) => {
            return vec![Proof {
                what: "a network namespace for the trial".to_owned(),
                error: Some(e.to_string()),
            }];
        }
    };
    let mut proofs = Vec::new();
    match to {
        Mode::Ipvs => {
            for scheduler in schedulers {
                proofs.push(Proof {
                    what: format!(
                        "a virtual server {ADDRESS}:{PORT} with the scheduler {scheduler}"
                    ),
                    error: serve(&mut trial, scheduler).await.err(),
                });
            }
            let name = "kube-ipvs0".to_owned();
            let commands = vec![LinkCommand::AddDummy { name }];
            proofs.extend(tried(&mut trial, "a dummy link", Action::Link { commands }).await);
            let input = SETS.to_owned();
            proofs.extend(tried(&mut trial, "IP sets of each type", Action::Ipset { input }).await);
        }
        Mode::Iptables | Mode::Userspace => {
            proofs.extend(
                tried(
                    &mut trial,
                    "the matches and targets of every rule",
                    rules(RULES),
                )
                .await,
            );
            proofs.extend(tried(&mut trial, "a rule that matches at random", rules(CHANCE)).await);
        }
        Mode::Nftables => {
            let input = TABLE.to_owned();
            proofs.extend(
                tried(
                    &mut trial,
                    "the expressions of every nftables rule",
                    Action::Nft { input },
                )
                .await,
            );
        }
    }
    proofs
}

fn rules(text: &str) -> Action {
    Action::Iptables {
        backend: Backend::Plain,
        family: Family::V4,
        input: text.to_owned(),
    }
}

/// Applies `action`; proves nothing if the host lacks the tool, which kube-proxy's image may have.
async fn tried(trial: &mut Trial, what: &str, action: Action) -> Option<Proof> {
    let error = match trial.node.apply(&action).await {
        Ok(()) => None,
        Err(StepError::Absent(_)) => return None,
        Err(error) => Some(error.to_string()),
    };
    Some(Proof {
        what: what.to_owned(),
        error,
    })
}

/// Creates a virtual server with `scheduler`, checks that it is listed, and deletes it, which releases the module.
async fn serve(trial: &mut Trial, scheduler: &str) -> Result<(), String> {
    let made = trial
        .node
        .apply(&ipvs(IpvsVerb::AddServer, scheduler))
        .await;
    made.map_err(|error| error.to_string())?;
    let evidence = host::collect(&[Item::Ipvs], &trial.options).await;
    let node = NodeSnapshot::new(&evidence);
    let table = node.ipvs().map_err(|gap| gap.to_string())?;
    let there = table
        .servers
        .iter()
        .any(|server| server.scheduler == scheduler);
    let gone = trial
        .node
        .apply(&ipvs(IpvsVerb::DeleteServer, scheduler))
        .await;
    gone.map_err(|error| error.to_string())?;
    if !there {
        return Err("the kernel accepted it but does not list it".to_owned());
    }
    Ok(())
}

fn ipvs(verb: IpvsVerb, scheduler: &str) -> Action {
    let server = Service {
        family: Family::V4,
        protocol: Some(Proto::Tcp),
        address: Some(ADDRESS),
        port: Some(PORT),
        fwmark: None,
        scheduler: scheduler.to_owned(),
        flags: 0,
        timeout: 0,
        prefix: 32,
        engine: None,
        stats: None,
        destinations: Vec::new(),
        order: Vec::new(),
    };
    let line = match verb {
        IpvsVerb::DeleteServer => format!("-D -t {ADDRESS}:{PORT}"),
        _ => format!("-A -t {ADDRESS}:{PORT} -s {scheduler}"),
    };
    Action::Ipvs {
        commands: vec![IpvsCommand {
            verb,
            server,
            real: None,
            line,
        }],
    }
}
