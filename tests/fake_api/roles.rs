//! The roles of the one user of the API server.

use std::collections::BTreeSet;

use serde_json::Value;

use super::rest::Call;

/// Permissions by roles that are bound: without them, everything is allowed.
#[derive(Default)]
pub(crate) struct Roles {
    rules: Vec<Rule>,
    /// The requests that no role allows.
    denied: Vec<String>,
}

#[derive(Debug)]
struct Rule {
    namespace: Option<String>,
    group: String,
    resource: String,
    names: Vec<String>,
    verb: String,
    used: bool,
}

impl Rule {
    fn allows(&self, call: &Call) -> bool {
        let group = call.version.rsplit_once('/').map_or("", |(group, _)| group);
        self.allows_words(
            call.verb,
            group,
            &call.full_resource(),
            call.namespace.as_deref().unwrap_or_default(),
            call.name.as_deref().unwrap_or_default(),
        )
    }

    fn allows_words(
        &self,
        verb: &str,
        group: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> bool {
        self.verb == verb
            && self.group == group
            && self.resource == resource
            && self
                .namespace
                .as_deref()
                .is_none_or(|own_namespace| own_namespace == namespace)
            && (self.names.is_empty() || self.names.iter().any(|own_name| own_name == name))
    }

    fn words(&self) -> String {
        let namespace = self.namespace.as_deref().unwrap_or("all");
        format!("{} {} {} {namespace}", self.verb, self.resource, self.group)
    }
}

impl Roles {
    /// Adds the roles that `manifest` binds; every role in it must be bound.
    pub(crate) fn bind(&mut self, manifest: &str) {
        let documents = manifest.split("---\n").map(serde_yaml::from_str);
        let documents: Vec<Value> = documents.map(Result::unwrap).collect();
        let of = |kind: &str| {
            let kind = kind.to_owned();
            documents
                .iter()
                .filter(move |object| object["kind"] == *kind)
        };
        for kind in ["ClusterRole", "Role"] {
            for role in of(kind) {
                let metadata = &role["metadata"];
                let binding = of(&format!("{kind}Binding")).find(|binding| {
                    let to = &binding["roleRef"];
                    to["name"] == metadata["name"]
                        && to["kind"] == *kind
                        && binding["metadata"]["namespace"] == metadata["namespace"]
                });
                let subjects =
                    &binding.unwrap_or_else(|| panic!("no binding for {role}"))["subjects"];
                assert_eq!(subjects.as_array().unwrap().len(), 1, "{subjects}");
                assert_eq!(kind == "Role", metadata["namespace"].is_string());
                self.add(role);
            }
        }
    }

    fn add(&mut self, role: &Value) {
        let words = |value: &Value| -> Vec<String> {
            let words = value.as_array().into_iter().flatten();
            words
                .map(|word| word.as_str().unwrap().to_owned())
                .collect()
        };
        for rule in role["rules"].as_array().unwrap() {
            let [groups, resources, verbs] =
                ["apiGroups", "resources", "verbs"].map(|key| words(&rule[key]));
            assert!(
                ![&groups, &resources, &verbs]
                    .iter()
                    .any(|words| words.is_empty())
            );
            for group in &groups {
                for resource in &resources {
                    for verb in &verbs {
                        self.rules.push(Rule {
                            namespace: role["metadata"]["namespace"].as_str().map(str::to_owned),
                            group: group.clone(),
                            resource: resource.clone(),
                            names: words(&rule["resourceNames"]),
                            verb: verb.clone(),
                            used: false,
                        });
                    }
                }
            }
        }
    }

    /// Returns the API server's message if no role allows one of `calls`; records what is used.
    pub(super) fn refuse(&mut self, calls: &[Call]) -> Option<String> {
        for call in calls {
            if call.resource == "selfsubjectaccessreviews" || self.rules.is_empty() {
                continue;
            }
            let mut allowed = false;
            // A request that two rules allow may need either.
            for rule in self.rules.iter_mut().filter(|rule| rule.allows(call)) {
                rule.used = true;
                allowed = true;
            }
            if !allowed {
                let (resource, group) = (call.full_resource(), &call.version);
                let what = format!(
                    "{} {resource} {group} {:?} {:?}",
                    call.verb, call.namespace, call.name
                );
                self.denied.push(what);
                return Some(format!(
                    "{resource} is forbidden: User \"kpx\" cannot {} resource \"{resource}\" in API group \"{group}\": no role in \
                     crates/node/src/access/rules.rs allows it",
                    call.verb
                ));
            }
        }
        None
    }

    /// Returns whether the request of a self-review is allowed.
    pub(super) fn reviews(&self, attributes: &Value) -> bool {
        let word = |key: &str| attributes[key].as_str().unwrap_or_default();
        let resource = match word("subresource") {
            "" => word("resource").to_owned(),
            sub => format!("{}/{sub}", word("resource")),
        };
        let (verb, group) = (word("verb"), word("group"));
        let (namespace, name) = (word("namespace"), word("name"));
        let mut rules = self.rules.iter();
        self.rules.is_empty()
            || rules.any(|rule| rule.allows_words(verb, group, &resource, namespace, name))
    }

    /// Returns the requests that no role allows.
    pub(crate) fn denied(&self) -> &[String] {
        &self.denied
    }

    /// Returns the permissions that no request used.
    pub(crate) fn unused(&self) -> BTreeSet<String> {
        let unused = self.rules.iter().filter(|rule| !rule.used);
        unused.map(Rule::words).collect()
    }
}
