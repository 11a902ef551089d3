//! The AWS VPC CNI.

use crate::check::core::MODE;
use crate::check::{
    Check, Example, Facts, Finding, Proof, Prose, Severity, Subject, Text, Verdict, When, Word,
};
use kpx_node::backend::Mode;
use kpx_node::cluster::version::Version;
use kpx_node::evidence::{Gap, Item};

pub(super) const CHECKS: &[Check] = &[Check {
    id: "CN09",
    name: "aws-vpc-cni",
    severity: Severity::Error,
    when: When::NowAndFor(&[Mode::Nftables]),
    title: "The AWS VPC CNI works with the nftables mode",
    symptom: "Pods with an address of a secondary network interface cannot reach Services.",
    why: "The VPC CNI marks connections in iptables before kube-proxy's nftables rules translate their destination, so the \
          kernel routes them by the mark of the Service's address: through the primary interface. Version 1.23.0 marks \
          them after the translation.",
    verify: "The image of the container aws-node must be 1.23.0 or newer.",
    commands: &[Example::anywhere(
        "kubectl -n kube-system get daemonset aws-node -o jsonpath='{..image}'",
    )],
    fix: Text::plain("Upgrade the VPC CNI to 1.23.0 or newer, or use the iptables mode."),
    incidents: &[
        "aws/amazon-vpc-cni-k8s#3563",
        "bottlerocket-os/bottlerocket#4674: network policies",
    ],
    needs: &[
        MODE,
        &[Item::Pods, Item::Nodes, Item::Addresses, Item::ProxyConfig],
    ],
    caused_by: &[],
    run: vpc_cni,
}];

/// The first version of the VPC CNI that works with the nftables mode.
const OLDEST: &str = "1.23.0";

fn vpc_cni(facts: &Facts<'_>) -> Verdict {
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
