//! The reason why a finding follows from one of another check: the parts that both must share, as the tables of checks
//! state it.

use crate::check::{Finding, ProcessState, Severity, Subject, kube_proxy};
use kpx_node::net::Family;

/// A check whose findings explain findings of another one, and what both must share: without the cause, the consequence is
/// gone, too.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Because {
    /// The cause breaks it on the whole node.
    Node(&'static str),
    /// Both are about the same object.
    Same(&'static str),
    /// The cause concerns every Service that the consequence concerns.
    Services(&'static str),
    /// The cause is the known bug with this key, in every Service that the consequence concerns.
    Bug(&'static str, &'static str),
    /// Both are about the same IP family; the kernel, its modules and kube-proxy belong to both families.
    Family(&'static str),
    /// Something is missing that kube-proxy cannot provide without the cause's object.
    Loss(&'static str),
    /// All missing objects were in the objects of causes, or depend on them.
    In(&'static str),
    /// kube-proxy exits because of the cause, so it does not run.
    Exit(&'static str),
    /// The cause says that no Node has kube-proxy's name: it waits for that Node, and does not answer.
    Waits(&'static str),
    /// The cause says that kube-proxy does not run, so it provides nothing.
    Absence(&'static str),
    /// The cause says that kube-proxy does not run, or that its syncs fail, so what it has written is outdated.
    OutdatedBy(&'static str),
    /// The same, of any check of [`kube_proxy::OF_PROXY`].
    Outdated,
}

impl Because {
    /// Returns the ids of the checks that may be the cause, in the order in which they are tried.
    pub fn checks(&self) -> &[&'static str] {
        match self {
            Self::Node(id)
            | Self::Same(id)
            | Self::Services(id)
            | Self::Bug(id, _)
            | Self::Family(id)
            | Self::Loss(id)
            | Self::In(id)
            | Self::Exit(id)
            | Self::Waits(id)
            | Self::Absence(id)
            | Self::OutdatedBy(id) => std::slice::from_ref(id),
            Self::Outdated => &kube_proxy::OF_PROXY,
        }
    }

    /// Returns the position of the first of `causes`, the findings of its check, that explains `finding`.
    pub(super) fn explain(self, causes: &[Finding], finding: &Finding) -> Option<usize> {
        let is_shared = |cause: &Finding| match self {
            Self::Node(_) => true,
            Self::Same(_) => cause.about == finding.about,
            Self::Services(_) => concerns_all(cause, finding),
            Self::Bug(_, key) => {
                let is_of_node = cause.services.is_empty() && finding.services.is_empty();
                cause.about == Subject::bug(key) && (is_of_node || concerns_all(cause, finding))
            }
            Self::Family(_) => family(finding).is_some_and(|family| covers(cause, family)),
            Self::Loss(_) => finding.ties.is_loss,
            Self::In(_) => finding.ties.places.first() == Some(&cause.about),
            Self::Exit(_) => process(finding).is_some_and(ProcessState::is_exit),
            Self::Waits(_) => {
                process(finding) == Some(ProcessState::Silent)
                    && matches!(cause.about, Subject::Node { name: Some(_) })
            }
            Self::Absence(_) => {
                let is_it = process(finding) == Some(ProcessState::Absent);
                (is_it || finding.ties.is_loss) && process(cause).is_some_and(ProcessState::is_gone)
            }
            Self::OutdatedBy(_) | Self::Outdated => outdates(cause, family(finding)),
        };
        let is_complete = match self {
            Self::In(_) => {
                let among = |place: &Subject| causes.iter().any(|cause| cause.about == *place);
                finding.ties.places.iter().all(among)
            }
            _ => true,
        };
        causes.iter().position(is_shared).filter(|_| is_complete)
    }
}

/// Returns whether `cause` concerns every Service that `finding` concerns, and that there are any.
fn concerns_all(cause: &Finding, finding: &Finding) -> bool {
    let among = |service| {
        cause
            .services
            .iter()
            .any(|affected| affected.overlaps(service))
    };
    !finding.services.is_empty() && finding.services.iter().all(among)
}

/// Returns the IP family that `finding` is about.
fn family(finding: &Finding) -> Option<Family> {
    finding.ties.family.or_else(|| finding.about.family())
}

/// Returns whether `cause` is about `family`, or about what both families share.
fn covers(cause: &Finding, wanted: Family) -> bool {
    match &cause.about {
        Subject::Kernel
        | Subject::Module { .. }
        | Subject::Proxy
        | Subject::ProxyProcess { .. } => true,
        _ => family(cause) == Some(wanted),
    }
}

/// Returns whether `cause` says that kube-proxy does not run, or that its syncs of `wanted` fail.
pub(super) fn outdates(cause: &Finding, wanted: Option<Family>) -> bool {
    let differs = matches!((family(cause), wanted), (Some(a), Some(b)) if a != b);
    let is_of_syncs = matches!(cause.about, Subject::Proxy | Subject::Family { .. });
    process(cause).is_some_and(ProcessState::is_gone)
        || is_of_syncs && cause.severity == Severity::Error && !differs
}

/// Returns the state of kube-proxy's process, if `finding` is about that.
pub(super) const fn process(finding: &Finding) -> Option<ProcessState> {
    match finding.about {
        Subject::ProxyProcess { state } => Some(state),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::ServiceRef;

    fn about(about: impl Into<Subject>) -> Finding {
        Finding::new(Severity::Error, about, "is wrong")
    }

    fn explains(because: Because, causes: &[Finding], finding: &Finding) -> bool {
        because.explain(causes, finding).is_some()
    }

    #[test]
    fn a_cause_shares_its_object_or_its_services() {
        let same = Because::Same("");
        let link = |name: &str| about(Subject::link(name));
        assert!(explains(same, &[link("a"), link("b")], &link("b")));
        assert!(!explains(same, &[link("a")], &link("b")));

        let services = Because::Services("");
        let of = |names: &[&str]| {
            let names = names.iter().map(|name| ServiceRef::new("shop", name));
            about(Subject::Kernel).services(names)
        };
        assert!(explains(services, &[of(&["a", "b"])], &of(&["b"])));
        assert!(!explains(services, &[of(&["a"])], &of(&["a", "b"])));
        assert!(!explains(services, &[of(&["a"])], &about(Subject::Kernel)));
    }

    #[test]
    fn a_cause_of_one_family_does_not_explain_the_other() {
        let because = Because::Family("");
        let (four, six) = (about(Family::V4), about(Family::V6));
        assert!(explains(because, &[about(Family::V4)], &four));
        assert!(!explains(because, &[about(Family::V4)], &six));
        assert!(explains(because, &[about(Subject::module("ip_vs"))], &six));
        assert!(!explains(because, &[about(Subject::setting("mode"))], &six));
        assert!(!explains(because, &[four], &about(Subject::Kernel)));
    }

    #[test]
    fn everything_that_is_missing_must_have_been_in_the_objects_of_causes() {
        let because = Because::In("");
        let table = |name: &str| Subject::table(Family::V4, name);
        let lost = about(Subject::Kernel).lost_in([table("nat"), table("filter")]);
        let (nat, filter) = (about(table("nat")), about(table("filter")));
        assert!(!explains(because, std::slice::from_ref(&nat), &lost));
        assert!(explains(because, &[nat, filter], &lost));
        assert!(!explains(
            because,
            &[about(table("nat"))],
            &about(Subject::Kernel)
        ));
    }

    #[test]
    fn a_kube_proxy_that_is_gone_explains_what_is_missing_alone() {
        let because = Because::Absence("");
        let process = |state| about(Subject::ProxyProcess { state });
        let gone = [process(ProcessState::Crashes)];
        assert!(explains(because, &gone, &process(ProcessState::Absent)));
        assert!(explains(because, &gone, &about(Subject::Kernel).loss()));
        assert!(!explains(because, &gone, &process(ProcessState::Stopped)));
        assert!(!explains(because, &gone, &about(Subject::Kernel)));
        let again = [process(ProcessState::Restarts)];
        assert!(!explains(because, &again, &process(ProcessState::Absent)));
        let waits = Because::Waits("");
        let unknown = [about(Subject::Node {
            name: Some("x".into()),
        })];
        assert!(explains(waits, &unknown, &process(ProcessState::Silent)));
        assert!(!explains(
            waits,
            &[about(Subject::Proxy)],
            &process(ProcessState::Silent)
        ));
        let exit = Because::Exit("");
        assert!(explains(exit, &again, &process(ProcessState::Crashes)));
        assert!(!explains(exit, &again, &process(ProcessState::Unstarted)));
    }
}
