//! `kpx reconcile --mode ipvs` on a kernel that has nothing of it, and on one that has more.

pub(crate) mod node;
mod stops;
mod traffic;

use node::Node;

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_a_blank_node_becomes_what_was_recorded() {
    for recording in [
        "seed-ipvs",
        "full-ipvs",
        "dual-ipvs",
        "full-ipvs-lc-strictarp",
    ] {
        let node = Node::new(recording);
        node.apply();
        let (state, recorded) = (node.state(), node.recorded());
        assert_eq!(state.sets, recorded.sets, "{recording}");
        assert_eq!(state.servers, recorded.servers, "{recording}");
        assert_eq!(state.addresses, recorded.addresses, "{recording}");
        assert_eq!(state.sysctls, recorded.sysctls, "{recording}");
        assert_eq!(state.rules, recorded.rules, "{recording}");
        if recording.starts_with("dual") {
            let again = node.reconcile(&["--apply", "--yes"]);
            assert_eq!(again.code, Some(0), "{}", again.text);
            let clean = again.text.contains("no changes needed");
            assert!(clean, "{}", again.text);
            assert_eq!(node.state(), state);
        }
    }
}
