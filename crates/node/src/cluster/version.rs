//! Versions of Kubernetes components, and detection of kube-proxy's version.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use thiserror::Error;

use super::{Container, DaemonSet, Labels, Node, Pod, PodSpec};
use crate::evidence::{Gap, Item};

/// A release of Kubernetes. Vendors' suffixes (`-eksbuild.3`, `+k3s1`) and pre-release tags are dropped.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Version {
    /// Major version.
    pub major: u16,
    /// Minor version: the release.
    pub minor: u16,
    /// Patch version.
    pub patch: u16,
}

impl Version {
    /// Returns `v<major>.<minor>.<patch>`.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }

    /// Returns whether this is release `major.minor`, any patch, or a newer one.
    pub fn at_least(self, major: u16, minor: u16) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

/// A text that is not a version.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{0:?} is not a version such as v1.36.2")]
pub struct NotAVersion(pub String);

impl FromStr for Version {
    type Err = NotAVersion;

    /// Parses `v1.36.2`, `1.36`, `v1.30.5+k3s1`, `v1.29.0-eks-a5ec690`.
    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let wrong = || NotAVersion(text.to_owned());
        let bare = text.trim().trim_start_matches('v');
        let end = bare
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(bare.len());
        // `1.31-5` and `1.31.2-x` are versions; `1x` and `1.2.3.4` are not.
        if !matches!(bare[end..].chars().next(), None | Some('-' | '+' | '_')) {
            return Err(wrong());
        }
        let mut parts = bare[..end].split('.');
        let mut number = || parts.next().map(str::parse::<u16>);
        let (Some(Ok(major)), Some(Ok(minor))) = (number(), number()) else {
            return Err(wrong());
        };
        let patch = match number() {
            None => 0,
            Some(patch) => patch.map_err(|_| wrong())?,
        };
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Self::new(major, minor, patch))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Sources of kube-proxy's version, most reliable first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// `kubernetes_build_info` in the metrics of the running process.
    Metrics,
    /// Image tag of the node's kube-proxy pod.
    PodImage,
    /// Image tag of the DaemonSet; the node's pod may not be updated yet.
    DaemonSetImage,
    /// The Node's `kubeProxyVersion`, which is really the kubelet's version.
    Node,
    /// The Node's `kubeletVersion`; kube-proxy may be up to three releases older.
    Kubelet,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Metrics => "kube-proxy's metrics",
            Self::PodImage => "its pod's image",
            Self::DaemonSetImage => "its DaemonSet's image",
            Self::Node => "the Node's kubeProxyVersion",
            Self::Kubelet => "the Node's kubeletVersion",
        })
    }
}

/// kube-proxy's version and its source.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct ProxyVersion {
    /// Version of kube-proxy.
    pub version: Version,
    /// Source of the version.
    pub source: Source,
}

/// Possible sources of kube-proxy's version; each is known or has the reason why not.
#[derive(Clone, Debug)]
pub(crate) struct Clues<'a> {
    /// Name of the Node. If it is unknown, pods and Nodes count only if all of them agree.
    pub node: Option<&'a str>,
    /// `git_version` of `kubernetes_build_info`; `None` if the metrics do not contain it.
    pub build: Result<Option<&'a str>, Gap>,
    /// Pods, of every workload.
    pub pods: Result<&'a [Pod], Gap>,
    /// DaemonSets of kube-system.
    pub daemon_sets: Result<&'a [DaemonSet], Gap>,
    /// Node objects.
    pub nodes: Result<&'a [Node], Gap>,
}

/// Returns kube-proxy's version from the most reliable source that has it.
pub(crate) fn find(clues: &Clues<'_>) -> Result<ProxyVersion, Gap> {
    let here = |name: Option<&str>| clues.node.is_none_or(|node| name == Some(node));
    let pods = clues.pods.as_ref().map(|pods| {
        let ours = pods
            .iter()
            .filter(|pod| runs_kube_proxy(&pod.metadata.labels));
        let ours = ours.filter(|pod| here(pod.spec.node_name.as_deref()));
        agreed(ours.flat_map(|pod| tags(&pod.spec)))
    });
    let sets = clues.daemon_sets.as_ref().map(|sets| {
        let ours = sets.iter().filter(|set| {
            set.metadata.name == "kube-proxy" || runs_kube_proxy(&set.metadata.labels)
        });
        agreed(ours.flat_map(|set| tags(&set.spec.template.spec)))
    });
    let nodes = |version: fn(&Node) -> &str| {
        clues.nodes.as_ref().map(|nodes| {
            let ours = nodes.iter().filter(|node| here(Some(&node.metadata.name)));
            agreed(ours.map(version))
        })
    };
    let sources = [
        (
            Source::Metrics,
            clues.build.as_ref().map(|build| agreed(build.iter())),
        ),
        (Source::PodImage, pods),
        (Source::DaemonSetImage, sets),
        (
            Source::Node,
            nodes(|node| &node.status.node_info.kube_proxy_version),
        ),
        (
            Source::Kubelet,
            nodes(|node| &node.status.node_info.kubelet_version),
        ),
    ];
    let mut gap = None;
    for (source, clue) in sources {
        match clue {
            Ok(Some(version)) => return Ok(ProxyVersion { version, source }),
            Ok(None) => {}
            // The gap of the running process comes first: a user can act on it.
            Err(why) => gap = gap.or(Some(why.clone())),
        }
    }
    let nothing = "kube-proxy's version is not in its metrics, its image tag or the Node object";
    Err(gap.unwrap_or_else(|| Gap::Absent(Item::Metrics, nothing.to_owned())))
}

/// Returns the version that all `texts` agree on; texts that are not versions are ignored.
fn agreed<T: AsRef<str>>(texts: impl Iterator<Item = T>) -> Option<Version> {
    let mut versions = texts.filter_map(|text| text.as_ref().parse().ok());
    let first = versions.next()?;
    versions.all(|other| other == first).then_some(first)
}

fn runs_kube_proxy(labels: &Labels) -> bool {
    // Static pods of kube-proxy carry the label `component`.
    ["k8s-app", "component", "app"]
        .iter()
        .any(|key| labels.get(*key).is_some_and(|value| value == "kube-proxy"))
}

/// Returns the image of kube-proxy in the first DaemonSet that runs it.
pub fn proxy_image(sets: &[DaemonSet]) -> Option<&str> {
    let ours = sets
        .iter()
        .filter(|set| runs_kube_proxy(&set.spec.template.metadata.labels));
    ours.flat_map(|set| proxies(&set.spec.template.spec))
        .map(|container| container.image.as_str())
        .next()
}

fn tags(spec: &PodSpec) -> impl Iterator<Item = &str> {
    proxies(spec).filter_map(|container| tag(&container.image))
}

fn proxies(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let ours =
        |container: &&Container| container.name == "kube-proxy" || spec.containers.len() == 1;
    spec.containers.iter().filter(ours)
}

/// Returns the tag of an image reference; a registry port or a digest is not a tag.
fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next()?;
    let last = name.rsplit('/').next()?;
    last.split_once(':').map(|(_, tag)| tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_and_without_suffix_are_parsed() {
        for (text, version) in [
            ("v1.36.2", Version::new(1, 36, 2)),
            ("1.29", Version::new(1, 29, 0)),
            ("v1.30.5+k3s1", Version::new(1, 30, 5)),
            ("v1.29.0-eks-a5ec690", Version::new(1, 29, 0)),
            ("v1.31-6", Version::new(1, 31, 0)),
        ] {
            assert_eq!(text.parse(), Ok(version));
        }
        for text in [
            "",
            "v",
            "latest",
            "1",
            "1.2.3.4",
            "v1.x",
            "1.99999.0",
            "1.2rc",
        ] {
            assert_eq!(
                text.parse::<Version>(),
                Err(NotAVersion(text.to_owned())),
                "{text}"
            );
        }
        assert_eq!(Version::new(1, 36, 2).to_string(), "v1.36.2");
        assert!(Version::new(1, 36, 0).at_least(1, 36) && !Version::new(1, 35, 9).at_least(1, 36));
    }

    #[test]
    fn a_tag_is_not_a_port_or_a_digest() {
        assert_eq!(
            tag("host:5000/kube-proxy:v1.30.1@sha256:00"),
            Some("v1.30.1")
        );
        assert_eq!(tag("host:5000/kube-proxy"), None);
        assert_eq!(tag("kube-proxy@sha256:00"), None);
    }

    fn pod(node: &str, image: &str) -> Pod {
        let json = format!(
            r#"{{"metadata":{{"labels":{{"k8s-app":"kube-proxy"}}}},
                "spec":{{"nodeName":"{node}","containers":[{{"name":"kube-proxy","image":"{image}"}}]}}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    fn nothing() -> Clues<'static> {
        let gap = |item| Gap::NotCollected(item);
        Clues {
            node: Some("a"),
            build: Err(gap(Item::Metrics)),
            pods: Err(gap(Item::Pods)),
            daemon_sets: Err(gap(Item::DaemonSets)),
            nodes: Err(gap(Item::Nodes)),
        }
    }

    #[test]
    fn the_running_process_comes_first_and_the_nodes_pod_second() {
        let pods = [
            pod("a", "x/kube-proxy:v1.34.1"),
            pod("b", "x/kube-proxy:v1.35.0"),
        ];
        let mut clues = Clues {
            pods: Ok(&pods),
            build: Ok(Some("v1.33.3")),
            ..nothing()
        };
        let found = find(&clues).unwrap();
        assert_eq!(found.version, Version::new(1, 33, 3));
        assert_eq!(found.source, Source::Metrics);
        clues.build = Ok(None);
        let found = find(&clues).unwrap();
        assert_eq!(found.version, Version::new(1, 34, 1));
        assert_eq!(found.source, Source::PodImage);
        // Without a node name, either pod could be this node's.
        clues.node = None;
        assert!(find(&clues).is_err());
    }

    #[test]
    fn an_unknown_version_is_a_gap() {
        assert_eq!(find(&nothing()), Err(Gap::NotCollected(Item::Metrics)));
        let clues = Clues {
            build: Ok(None),
            pods: Ok(&[]),
            daemon_sets: Ok(&[]),
            nodes: Ok(&[]),
            ..nothing()
        };
        assert!(matches!(find(&clues), Err(Gap::Absent(Item::Metrics, _))));
    }
}
