//! One hint for all requests that the API server refused: the user, the missing permissions, and the remedy.

use std::collections::BTreeSet;

/// The refusals, by part.
#[derive(Debug, Default)]
struct Refused {
    users: BTreeSet<String>,
    origins: BTreeSet<String>,
    verbs: BTreeSet<String>,
}

/// Returns the hint for checks that are unknown for these `reasons`; `None` if none of them is a refusal.
pub(super) fn hint<'r>(reasons: impl Iterator<Item = &'r str>) -> Option<String> {
    let mut refused = Refused::default();
    for reason in reasons.filter(|reason| reason.contains(" is forbidden: User ")) {
        // `services is forbidden: User "X" cannot list resource "services" in API group "" at the cluster scope`.
        let quoted = |before: &str| {
            let (_, rest) = reason.split_once(before)?;
            rest.split_once('"').map(|(word, _)| word.to_owned())
        };
        let verb = reason.split_once(" cannot ").and_then(|(_, rest)| {
            let (verb, rest) = rest.split_once(" resource \"")?;
            let (resource, _) = rest.split_once('"')?;
            Some(format!("{verb} {resource}"))
        });
        let origin = reason
            .split_once("(credentials: ")
            .and_then(|(_, rest)| rest.split_once(')'));
        refused.users.extend(quoted("User \""));
        refused.verbs.extend(verb);
        refused
            .origins
            .extend(origin.map(|(origin, _)| origin.to_owned()));
    }
    if refused.users.is_empty() {
        return None;
    }
    let list = |all: &BTreeSet<String>| all.iter().cloned().collect::<Vec<_>>().join(", ");
    let from = if refused.origins.is_empty() {
        String::new()
    } else {
        format!(" ({})", list(&refused.origins))
    };
    Some(format!(
        "the API server does not allow {}{from} to {}. Use `--kubeconfig FILE` with an account that has the permissions: \
         kube-proxy's own, an administrator's, or the account of `kubectl apply -f deploy/rbac.yaml`",
        list(&refused.users),
        list(&refused.verbs)
    ))
}

#[cfg(test)]
mod tests {
    use super::hint;

    #[test]
    fn refusals_become_one_hint() {
        let refused = |verb: &str, what: &str| {
            format!(
                "permission denied reading cluster/{what}.json: {verb} {what}: {what} is forbidden: User \
                 \"system:node:w1\" cannot {verb} resource \"{what}\" in API group \"\" at the cluster scope \
                 (credentials: /etc/kubernetes/kubelet.conf); deploy/rbac.yaml allows it"
            )
        };
        let reasons = [
            refused("list", "services"),
            refused("list", "endpointslices"),
            refused("list", "services"),
            "node/nft.json: there is no program `nft`".to_owned(),
        ];
        let hint = hint(reasons.iter().map(String::as_str)).unwrap();
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
        assert_eq!(hint(["node/nft.json was not collected"].into_iter()), None);
    }
}
