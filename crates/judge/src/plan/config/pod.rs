//! Finds the ConfigMap that a DaemonSet's pods read.

use serde_json::Value;

use kpx_node::cluster::flags::Flags;
use kpx_node::cluster::{Container, PodSpec};

/// Source of kube-proxy's configuration in a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Source {
    /// A key of a ConfigMap.
    Key { map: String, key: String },
    /// A file of the node.
    HostFile(String),
    /// Flags on its command line.
    Flags,
    /// Another place: the file, and the volume or image that contains it.
    Other(String),
}

/// Returns the source of kube-proxy's configuration in `spec`; `None` if it has no kube-proxy.
pub(super) fn source(spec: &PodSpec) -> Option<Source> {
    let (container, flags) = spec.containers.iter().find_map(|container| {
        let words = words(container);
        let at = words.iter().position(|word| is_proxy(word))?;
        Some((container, Flags::parse(&words[at + 1..])))
    })?;
    let Some(path) = flags.value("config") else {
        return Some(Source::Flags);
    };
    Some(behind(spec, container, path))
}

/// Returns the words of a container's command line, including those in a shell's argument.
fn words(container: &Container) -> Vec<&str> {
    let all = container.command.iter().chain(&container.args);
    all.flat_map(|part| part.split_whitespace()).collect()
}

fn is_proxy(word: &str) -> bool {
    word.rsplit('/').next() == Some("kube-proxy")
}

/// Returns the source of the file `path` in `container`.
fn behind(spec: &PodSpec, container: &Container, path: &str) -> Source {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let mounts = container.volume_mounts.iter();
    let over = mounts.filter_map(|mount| {
        let at = text(mount, "mountPath");
        let at = at.trim_end_matches('/');
        let rest = path.strip_prefix(at)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| (at.len(), rest.to_owned(), mount))
    });
    let Some((_, rest, mount)) = over.max_by_key(|(length, ..)| *length) else {
        return Source::Other(format!("{path}, which is in the image"));
    };
    let inside = format!("{}{rest}", text(mount, "subPath"));
    let inside = inside.trim_start_matches('/').to_owned();
    let name = text(mount, "name");
    let volume = spec
        .volumes
        .iter()
        .find(|volume| volume["name"] == name.as_str());
    let Some(volume) = volume else {
        return Source::Other(format!(
            "{path}, on the volume {name:?}, which does not exist"
        ));
    };
    let map = &volume["configMap"];
    if let Some(map_name) = map["name"].as_str() {
        let items = map["items"].as_array().into_iter().flatten();
        let mut renamed = items.filter(|item| item["path"] == inside.as_str());
        let key = renamed
            .next()
            .map_or(inside.clone(), |item| text(item, "key"));
        return Source::Key {
            map: map_name.to_owned(),
            key,
        };
    }
    match volume["hostPath"]["path"].as_str() {
        Some(folder) if inside.is_empty() => Source::HostFile(folder.to_owned()),
        Some(folder) => Source::HostFile(format!("{}/{inside}", folder.trim_end_matches('/'))),
        None => Source::Other(format!(
            "{path}, on the volume {name:?}, which is not a ConfigMap"
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(args: &Value, mount: &Value, volume: &Value) -> PodSpec {
        let spec = json!({
            "containers": [
                {"name": "sidecar", "command": ["sleep"]},
                {"name": "kube-proxy", "command": args, "volumeMounts": [{"name": "lib", "mountPath": "/lib/modules"}, mount]},
            ],
            "volumes": [{"name": "lib", "hostPath": {"path": "/lib/modules"}}, volume],
        });
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn the_configuration_file_leads_to_its_config_map() {
        let key = |map: &str, key: &str| {
            Some(Source::Key {
                map: map.to_owned(),
                key: key.to_owned(),
            })
        };
        let kubeadm = json!([
            "/usr/local/bin/kube-proxy",
            "--config=/var/lib/kube-proxy/config.conf"
        ]);
        let mount = json!({"name": "kube-proxy", "mountPath": "/var/lib/kube-proxy"});
        let volume = json!({"name": "kube-proxy", "configMap": {"name": "kube-proxy"}});
        assert_eq!(
            source(&spec(&kubeadm, &mount, &volume)),
            key("kube-proxy", "config.conf")
        );
        let eks = json!([
            "kube-proxy",
            "--v=2",
            "--config=/var/lib/kube-proxy-config/config"
        ]);
        let mount = json!({"name": "config", "mountPath": "/var/lib/kube-proxy-config/"});
        let volume = json!({"name": "config", "configMap": {"name": "kube-proxy-config"}});
        assert_eq!(
            source(&spec(&eks, &mount, &volume)),
            key("kube-proxy-config", "config")
        );
        let renamed = json!({"name": "config", "configMap": {"name": "m", "items": [{"key": "a", "path": "config"}]}});
        assert_eq!(source(&spec(&eks, &mount, &renamed)), key("m", "a"));
        let shell = json!(["sh", "-c", "exec /kube-proxy --config /c/f 2>&1"]);
        let single = json!({"name": "config", "mountPath": "/c/f", "subPath": "a"});
        let volume = json!({"name": "config", "configMap": {"name": "m"}});
        assert_eq!(source(&spec(&shell, &single, &volume)), key("m", "a"));
    }

    #[test]
    fn other_sources_are_named() {
        let args = json!(["kube-proxy", "--config=/c/f"]);
        let mount = json!({"name": "config", "mountPath": "/c"});
        let host = json!({"name": "config", "hostPath": {"path": "/etc/kp/"}});
        assert_eq!(
            source(&spec(&args, &mount, &host)),
            Some(Source::HostFile("/etc/kp/f".to_owned()))
        );
        let secret = json!({"name": "config", "secret": {"secretName": "s"}});
        assert!(matches!(
            source(&spec(&args, &mount, &secret)),
            Some(Source::Other(_))
        ));
        let flags = json!(["kube-proxy", "--proxy-mode=ipvs"]);
        assert_eq!(source(&spec(&flags, &mount, &host)), Some(Source::Flags));
        assert_eq!(source(&spec(&json!(["cilium"]), &mount, &host)), None);
    }
}
