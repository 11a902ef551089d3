//! The AWS VPC CNI.

use crate::check::core::{Collector, MODE};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, Prose, Severity, Subject, Text, Verdict, When, Word,
};
use crate::verdict::tables_without_rules;
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::Target;
use kpx_node::cluster::Pod;
use kpx_node::cluster::version::Version;
use kpx_node::evidence::{Gap, IPTABLES, Item};
use kpx_node::net::Family;
use kpx_node::node::IptablesBackend;
use kpx_node::node::routes::Route;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "CN09",
    name: "aws-vpc-cni",
    severity: Severity::Error,
    when: When::NowAndFor(&[Mode::Nftables]),
    title: "The AWS VPC CNI leads packets of pods by their own interface",
    symptom: "Pods with an address of a secondary network interface cannot reach Services.",
    why: "The VPC CNI marks connections in iptables before kube-proxy's nftables rules translate their destination, so the \
          kernel routes them by the mark of the Service's address: through the primary interface. Version 1.23.0 marks \
          them after the translation. In every mode, a routing policy rule for each such pod leads to the table of its \
          interface; systemd-networkd removes them when it starts.",
    verify: "In nftables mode, the image of the container aws-node must be 1.23.0 or newer. Rules must lead to each table.",
    commands: &[
        Example::anywhere("kubectl -n kube-system get daemonset aws-node -o jsonpath='{..image}'"),
        Example::on_node("ip rule; ip route show table all | grep default"),
    ],
    fix: Text::with(
        "Upgrade the VPC CNI to 1.23.0 or newer, or use the iptables mode: {} lists what blocks it.",
        &[Example::kpx(&["doctor", "--to", "iptables"])],
    ),
    incidents: &[
        "aws/amazon-vpc-cni-k8s#3563",
        "bottlerocket-os/bottlerocket#4674: network policies",
        "aws/amazon-vpc-cni-k8s#3309: rules that systemd-networkd removes",
    ],
    needs: &[
        MODE,
        &[
            Item::Pods,
            Item::Nodes,
            Item::Addresses,
            Item::ProxyConfig,
            Item::Routes,
            Item::Rules,
        ],
        IPTABLES,
    ],
    caused_by: &[],
    run: vpc_cni,
}];

/// The first version of the VPC CNI that works with the nftables mode.
const OLDEST: &str = "1.23.0";

/// Returns a finding for each interface whose table no routing policy rule leads to, where the rules of all pods have gone.
fn unused_tables(facts: &Facts<'_>, agent: &Pod) -> Verdict {
    facts.node.rules()?;
    facts.node.routes()?;
    facts.node.pods()?;
    let own = tables_without_rules(facts.node)
        .unwrap_or_default()
        .into_iter();
    let finding = |route: &Route| {
        let device = route.devices().join(", ");
        let message = format!(
            "the routing policy rules of pods are gone, also those that lead to table {}: packets of pods with addresses of {device} leave \
             by another interface",
            route.table
        );
        let meta = &agent.metadata;
        let fix = Fix::kubectl(
            "Restart aws-node, which writes its rules when it starts. If systemd-networkd removed them, set \
             ManageForeignRoutingPolicyRules=no in /etc/systemd/networkd.conf.",
            format!("kubectl -n {} delete pod {}", meta.namespace, meta.name),
        );
        Finding::new(Severity::Warning, Subject::link(device), message).fix(fix)
    };
    Ok(own.map(finding).collect())
}

fn vpc_cni(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    let here = facts.node_name();
    let mut pods = facts.node.pods().into_iter().flatten();
    let agent = pods.find(|pod| {
        let mut containers = pod.spec.containers.iter();
        pod.spec.node_name == here && containers.any(|container| container.name == "aws-node")
    });
    if let Some(agent) = agent.filter(|_| facts.target().is_none()) {
        findings.add(unused_tables(facts, agent));
        findings.add(before_kube_proxy(facts));
    }
    findings.add(in_nftables(facts));
    findings.verdict()
}

/// Returns the finding on rules of the VPC CNI that come before kube-proxy's in mode iptables.
fn before_kube_proxy(facts: &Facts<'_>) -> Verdict {
    if facts.mode()? != Mode::Iptables {
        return Ok(Vec::new());
    }
    let rules = facts.node.iptables(IptablesBackend::InUse, Family::V4)?;
    let chain = rules.chain("nat", "PREROUTING");
    let rules = chain.into_iter().flat_map(|chain| &chain.rules);
    let mut jumps = rules.filter_map(|rule| match &rule.target {
        Some(Target::Jump(to)) => Some(&**to),
        _ => None,
    });
    let is_of_plugin = |to: &str| to.starts_with("AWS-CONNMARK-CHAIN-");
    let first = jumps.find(|to| is_of_plugin(to) || *to == "KUBE-SERVICES");
    let Some(before) = first.filter(|to| is_of_plugin(to)) else {
        return Ok(Vec::new());
    };
    let message = format!(
        "{before} marks connections before KUBE-SERVICES translates them: packets of pods with addresses of further interfaces leave by the \
         primary one"
    );
    let fix = Fix::on_node(
        "Put kube-proxy's jump first again; kube-proxy leaves the order as it is. Find out what wrote the rules of the node anew.",
        "iptables -t nat -I PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
    );
    let about = Subject::chain(Family::V4, "nat", "PREROUTING");
    Ok(vec![
        Finding::new(Severity::Warning, about, message).fix(fix),
    ])
}

/// Returns the findings on a VPC CNI that does not fit the nftables mode.
fn in_nftables(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Nftables])?;
    let here = facts.node_name();
    let pods = facts.node.pods()?.iter();
    let pods = pods.filter(|pod| here.is_none() || pod.spec.node_name == here);
    let containers: Vec<_> = pods.flat_map(|pod| &pod.spec.containers).collect();
    let named = |name: &str| containers.iter().find(|container| container.name == name);
    let Some(cni) = named("aws-node") else {
        let why = "the AWS VPC CNI does not run on this node";
        return Err(Gap::NotApplicable(why.to_owned()));
    };
    let image =
        |name: &str, image: &str| Proof::setting(format!("container {name}"), "image", image);
    let tag = cni.image.rsplit(':').next().unwrap_or_default();
    let version: Version = tag
        .parse()
        .map_err(|e| Gap::Failed(Item::Pods, format!("image of aws-node: {e}")))?;
    let mut findings = Vec::new();
    if OLDEST.parse().is_ok_and(|oldest: Version| version < oldest) {
        let message = format!(
            "pods' traffic to Services leaves by the wrong link: the AWS VPC CNI is older than {OLDEST}"
        );
        findings.push(
            Finding::new(Severity::Error, Subject::software("aws-node"), message)
                .evidence([image("aws-node", &cni.image)]),
        );
    }
    if let Some(agent) = named("aws-eks-nodeagent")
        && !agent
            .args
            .iter()
            .any(|arg| arg == "--enable-network-policy=false")
    {
        let message = "network policies of the AWS VPC CNI were reported to fail after about a day in nftables mode";
        findings.push(
            Finding::new(
                Severity::Info,
                Subject::software("aws-eks-nodeagent"),
                message,
            )
            .evidence([image("aws-eks-nodeagent", &agent.image)])
            .fix(
                Prose::from("The cause is unknown. Record the node now with ")
                    .kpx(["snapshot"])
                    .and(", again when a policy fails, and compare with ")
                    .kpx([
                        Word::from("diff"),
                        Word::Value("BUNDLE"),
                        Word::Value("BUNDLE"),
                    ])
                    .and("."),
            ),
        );
    }
    Ok(findings)
}
