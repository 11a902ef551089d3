//! SY15: overflows of the neighbour tables.

use kpx_judge::check::{self, Facts, Outcome, Severity};
use kpx_node::evidence::{self, Evidence, Gap, ITEMS, Item};
use kpx_node::node::NodeSnapshot;

use crate::support::{kpx_on, root};

fn full() -> Evidence {
    let node = root().join("testdata/nodes/sy15-neighbours");
    evidence::load(&node, ITEMS).unwrap()
}

fn outcome(evidence: &Evidence) -> Outcome {
    let node = NodeSnapshot::new(evidence);
    check::run(check::named("SY15")[0], &Facts::new(&node, None))
}

fn severities(evidence: &Evidence) -> Vec<Severity> {
    match outcome(evidence) {
        Outcome::Fail(findings) => findings.iter().map(|finding| finding.severity).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "current_thread")]
async fn overflows_are_reported_with_the_size_of_the_table() {
    let args = ["doctor", "--only", "SY15", "--verbose"];
    let ran = kpx_on("sy15-neighbours", &args).await;
    insta::assert_snapshot!(ran.to_string());
}

#[test]
fn an_overflow_is_a_note_once_the_table_is_large_enough() {
    let mut evidence = full();
    assert_eq!(severities(&evidence), [Severity::Warning, Severity::Info]);
    let sysctl = evidence.text(Item::Sysctl).unwrap();
    let raised = sysctl.replace("thresh3 = 1024", "thresh3 = 8192");
    evidence.insert(Item::Sysctl, Ok(raised));
    assert_eq!(severities(&evidence), [Severity::Info, Severity::Info]);
    let gap = Gap::NotCollected(Item::Sysctl);
    evidence.insert(Item::Sysctl, Err(gap));
    assert_eq!(
        severities(&evidence),
        [Severity::Warning, Severity::Warning]
    );
}

#[test]
fn a_kernel_without_the_counter_does_not_pass() {
    let old = "entries  allocs\n0000000a 00000001\n".to_owned();
    let absent = Gap::Absent(Item::Neighbours4, "arp_cache does not exist".to_owned());
    let late = Gap::Late(Item::Neighbours4, "no answer".to_owned());
    for (read, is_skipped) in [
        (Ok(old), true),
        (Err(absent), true),
        (Err(Gap::NotCollected(Item::Neighbours4)), false),
        (Err(late), false),
        (Ok(String::new()), false),
    ] {
        let mut evidence = full();
        evidence.insert(Item::Neighbours4, read.clone());
        // A finding in the other family's table stays.
        assert_eq!(severities(&evidence), [Severity::Info]);
        evidence.insert(Item::Neighbours6, read);
        match outcome(&evidence) {
            Outcome::Skip(_) => assert!(is_skipped),
            Outcome::Unknown(_) => assert!(!is_skipped),
            other => panic!("{other:?}"),
        }
    }
}

/// Without IPv6 the kernel has no IPv6 neighbour table.
#[test]
fn ipv4_is_checked_without_ipv6() {
    let mut evidence = full();
    let absent = Gap::Absent(Item::Neighbours6, "ndisc_cache does not exist".to_owned());
    evidence.insert(Item::Neighbours6, Err(absent));
    assert_eq!(severities(&evidence), [Severity::Warning]);
}
