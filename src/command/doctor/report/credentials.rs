//! One hint for all requests that the API server refused: the user, the missing permissions, and the remedy.

use std::collections::BTreeSet;

use kpx_judge::check::{Checked, Reason, Unknown};
use kpx_node::evidence::{Forbidden, Gap};

/// Returns the hint for the checks that are unknown because of a refused request; `None` if there are none.
pub(super) fn hint(checks: &[Checked]) -> Option<String> {
    let refused = checks.iter().filter_map(|check| match &check.reason {
        Some(Reason::Unknown(Unknown::Gap(Gap::Forbidden(_, refused)))) => Some(&**refused),
        _ => None,
    });
    let refused: Vec<&Forbidden> = refused.collect();
    if refused.is_empty() {
        return None;
    }
    let users = list(refused.iter().map(|refused| refused.user.clone()));
    let origins = list(refused.iter().map(|refused| refused.credentials.clone()));
    let verbs = list(
        refused
            .iter()
            .map(|refused| format!("{} {}", refused.verb, refused.resource)),
    );
    Some(format!(
        "the API server does not allow {users} ({origins}) to {verbs}. Use `--kubeconfig FILE` with an account that has the \
         permissions (an administrator's, or the account of `kubectl apply -f deploy/rbac.yaml`), or `--proxy-credentials` \
         where kube-proxy runs with a kubeconfig"
    ))
}

/// Returns `words` sorted, without duplicates, separated by commas.
fn list(words: impl Iterator<Item = String>) -> String {
    let words: BTreeSet<_> = words.collect();
    words.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::hint;
    use kpx_judge::check::{self, Checked, Reason, Status};
    use kpx_node::evidence::{Forbidden, Gap, Item};

    fn hint_for(gaps: Vec<Gap>) -> Option<String> {
        let checks = check::all().zip(gaps).map(|(check, gap)| Checked {
            check,
            status: Status::Unknown,
            reason: Some(Reason::Unknown(gap.into())),
        });
        hint(&checks.collect::<Vec<_>>())
    }

    #[test]
    fn refusals_become_one_hint() {
        let refused = |item: Item, resource: &str| {
            let refused = Forbidden {
                why: format!("list {resource}: not for you"),
                user: "system:node:w1".to_owned(),
                verb: "list".to_owned(),
                resource: resource.to_owned(),
                credentials: "/etc/kubernetes/kubelet.conf".to_owned(),
            };
            Gap::Forbidden(item, Box::new(refused))
        };
        let hint = hint_for(vec![
            refused(Item::Services, "services"),
            refused(Item::EndpointSlices, "endpointslices"),
            refused(Item::Services, "services"),
            Gap::Absent(Item::Nft, "there is no program `nft`".to_owned()),
        ]);
        let hint = hint.unwrap();
        assert!(
            hint.starts_with(
                "the API server does not allow system:node:w1 (/etc/kubernetes/kubelet.conf) to list endpointslices, list \
                 services. "
            ),
            "{hint}"
        );
        assert!(hint.contains("--kubeconfig") && hint.contains("deploy/rbac.yaml"));
    }

    #[test]
    fn other_reasons_need_no_hint() {
        assert_eq!(hint_for(vec![Gap::NotCollected(Item::Nft)]), None);
    }
}
