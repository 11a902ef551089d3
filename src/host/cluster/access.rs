//! Finds the API server and kpx's credentials: loads kubeconfigs one explicit step at a time.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use http::Uri;
use kube::Config;
use kube::config::{
    AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo,
    NamedCluster, NamedContext,
};

use super::refusal::Refusal;
use crate::host::{Options, proxy, rooted};

/// Environment variables that select the cluster.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `KUBECONFIG`: files separated by colons.
    pub kubeconfig: Option<OsString>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `KUBERNETES_SERVICE_HOST`, set in every pod.
    pub service_host: Option<String>,
    /// `KUBERNETES_SERVICE_PORT`, set in every pod.
    pub service_port: Option<String>,
}

/// One way to access the API server.
#[derive(Debug)]
pub(super) struct Access {
    /// Source of the credentials, for messages.
    pub(super) origin: String,
    /// Configuration of the client.
    pub(super) config: Config,
    /// File of the token, which is replaced regularly.
    pub(super) token: Option<PathBuf>,
    /// Root of the file system that the configuration comes from.
    pub(super) root: PathBuf,
}

/// Kubeconfigs of kubelets and admins, relative to the host's root, least privileged first.
const ON_THE_NODE: &[&str] = &[
    "etc/kubernetes/kubelet.conf",
    "etc/kubernetes/admin.conf",
    "etc/kubernetes/super-admin.conf",
    "etc/rancher/k3s/k3s.yaml",
    "etc/rancher/rke2/rke2.yaml",
    "var/lib/rancher/k3s/agent/kubelet.kubeconfig",
    "var/lib/rancher/rke2/agent/kubelet.kubeconfig",
    "var/lib/k0s/kubelet.conf",
    "var/lib/k0s/pki/admin.conf",
    "var/snap/microk8s/current/credentials/client.config",
    "var/lib/kubelet/kubeconfig",
];

/// Folder of a pod's service account credentials.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Environment variables that name a proxy. kpx uses only the proxy in the kubeconfig.
const PROXIES: &[&str] = &["HTTPS_PROXY", "https_proxy"];

/// Proxy schemes that the client supports.
const PROXY_SCHEMES: &[&str] = &["http", "https", "socks5"];

/// Placeholder for a proxy, so that the client ignores the environment.
const NO_PROXY: &str = "http://unused.invalid";

/// Returns the ways to access the API server: the requested one, or all that the node has.
pub(super) async fn find(options: &Options) -> Result<Vec<Access>, Refusal> {
    let env = &options.environment;
    if options.no_api {
        let why = "not queried: --no-api";
        return Err(Refusal::NotApplicable(why.to_owned()));
    }
    if let Some(path) = &options.kubeconfig {
        let access = open(std::slice::from_ref(path), options).await?;
        return Ok(vec![access]);
    }
    if let Some(paths) = env.kubeconfig.as_ref().filter(|paths| !paths.is_empty()) {
        // Like kubectl, kpx skips missing files unless all are missing.
        let named: Vec<_> = std::env::split_paths(paths)
            .filter(|path| !path.as_os_str().is_empty())
            .collect();
        let there: Vec<_> = named.iter().filter(|path| path.exists()).cloned().collect();
        let paths = if there.is_empty() { named } else { there };
        return Ok(vec![open(&paths, options).await?]);
    }
    if let Some(access) = in_cluster(options).await? {
        return Ok(vec![access]);
    }
    let home = env.home.as_ref().map(|home| home.join(".kube/config"));
    if let Some(path) = home.filter(|path| path.exists()) {
        return Ok(vec![open(&[path], options).await?]);
    }
    on_the_node(options).await
}

async fn on_the_node(options: &Options) -> Result<Vec<Access>, Refusal> {
    let mut found = Vec::new();
    let mut refusal = None;
    for name in ON_THE_NODE {
        let path = options.root.join(name);
        // A folder without search permission hides the file; opening it reports the reason.
        if let Ok(false) = path.try_exists() {
            continue;
        }
        match open_below(&path, options).await {
            Ok(access) => found.push(access),
            Err(why) => refusal = refusal.or(Some(why)),
        }
    }
    // On a worker, a kubelet may have fewer list permissions than kube-proxy.
    if let Some((path, inside)) = proxy::kubeconfig(&options.root) {
        match open_inside(&path, &inside, options).await {
            Ok(mut access) => {
                access.origin = format!("kube-proxy ({})", access.origin);
                found.push(access);
            }
            Err(why) => refusal = refusal.or(Some(why)),
        }
    }
    match (found.is_empty(), refusal) {
        (false, _) => Ok(found),
        (true, Some(why)) => Err(why),
        (true, None) => Err(Refusal::NotApplicable(
            "no cluster is configured: neither --kubeconfig nor KUBECONFIG is set, and there is no ~/.kube/config and no \
             kubelet's kubeconfig"
                .to_owned(),
        )),
    }
}

/// Opens kubeconfigs with paths of this process, merged as kubectl does.
async fn open(paths: &[PathBuf], options: &Options) -> Result<Access, Refusal> {
    let mut merged = Kubeconfig::default();
    for path in paths {
        let next = Kubeconfig::read_from(path).map_err(|e| unreadable(path, &e))?;
        merged = merged.merge(next).map_err(|e| unreadable(path, &e))?;
    }
    let names: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    load(merged, names.join(":"), options).await
}

/// Opens a kubeconfig below the host's root; paths in it are the host's.
async fn open_below(path: &Path, options: &Options) -> Result<Access, Refusal> {
    open_inside(path, &options.root, options).await
}

/// Opens the kubeconfig `path`; paths in it are below `root`.
async fn open_inside(path: &Path, root: &Path, options: &Options) -> Result<Access, Refusal> {
    let mut config = Kubeconfig::read_from(path).map_err(|e| unreadable(path, &e))?;
    if root != Path::new("/") {
        let mut files: Vec<&mut String> = Vec::new();
        for cluster in config.clusters.iter_mut().flat_map(|c| &mut c.cluster) {
            files.extend(&mut cluster.certificate_authority);
        }
        for user in config.auth_infos.iter_mut().flat_map(|u| &mut u.auth_info) {
            files.extend(&mut user.client_certificate);
            files.extend(&mut user.client_key);
            files.extend(&mut user.token_file);
        }
        for file in files {
            // A relative path is already absolute below the root.
            let inside = Path::new(&*file);
            let inside = inside.strip_prefix(root).unwrap_or(inside);
            if let Ok(found) = rooted::resolve(root, inside) {
                *file = found.display().to_string();
            }
        }
    }
    let mut access = load(config, path.display().to_string(), options).await?;
    root.clone_into(&mut access.root);
    Ok(access)
}

/// Returns the access of the pod that kpx runs in; `None` outside a pod or without a service account.
async fn in_cluster(options: &Options) -> Result<Option<Access>, Refusal> {
    let env = &options.environment;
    let (Some(host), Some(port)) = (&env.service_host, &env.service_port) else {
        return Ok(None);
    };
    let token = format!("{SERVICE_ACCOUNT}/token");
    if !Path::new(&token).exists() {
        return Ok(None);
    }
    let config = of_pod(host, port, SERVICE_ACCOUNT);
    let origin = "the pod's service account".to_owned();
    load(config, origin, options).await.map(Some)
}

/// Returns a kubeconfig for a pod's environment variables and service account `folder`.
fn of_pod(host: &str, port: &str, folder: &str) -> Kubeconfig {
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let name = "pod".to_owned();
    Kubeconfig {
        clusters: vec![NamedCluster {
            name: name.clone(),
            cluster: Some(Cluster {
                server: Some(format!("https://{host}:{port}")),
                certificate_authority: Some(format!("{folder}/ca.crt")),
                ..Cluster::default()
            }),
            ..NamedCluster::default()
        }],
        auth_infos: vec![NamedAuthInfo {
            name: name.clone(),
            auth_info: Some(AuthInfo {
                token_file: Some(format!("{folder}/token")),
                ..AuthInfo::default()
            }),
            ..NamedAuthInfo::default()
        }],
        contexts: vec![NamedContext {
            name: name.clone(),
            context: Some(Context {
                cluster: name.clone(),
                user: Some(name.clone()),
                ..Context::default()
            }),
            ..NamedContext::default()
        }],
        current_context: Some(name),
        ..Kubeconfig::default()
    }
}

async fn load(
    mut kubeconfig: Kubeconfig,
    origin: String,
    options: &Options,
) -> Result<Access, Refusal> {
    let context = options
        .context
        .as_ref()
        .or(kubeconfig.current_context.as_ref());
    let context = kubeconfig
        .contexts
        .iter()
        .find(|named| Some(&named.name) == context);
    let cluster = context.and_then(|named| named.context.as_ref().map(|c| c.cluster.clone()));
    let elsewhere = PROXIES.iter().any(|name| std::env::var_os(name).is_some());
    let mut proxy = None;
    for named in &mut kubeconfig.clusters {
        if let Some(body) = &mut named.cluster {
            let asked = body.proxy_url.take();
            body.proxy_url = elsewhere.then(|| NO_PROXY.to_owned());
            if Some(&named.name) == cluster.as_ref() {
                proxy = asked.filter(|url| !url.is_empty());
            }
        }
    }
    let proxy = proxy.map(|url| proxy_of(&url, &origin)).transpose()?;
    let choice = KubeConfigOptions {
        context: options.context.clone(),
        ..KubeConfigOptions::default()
    };
    let known: Vec<_> = kubeconfig.contexts.iter().map(|c| c.name.clone()).collect();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &choice)
        .await
        .map_err(|e| match e {
            KubeconfigError::LoadContext(name) => Refusal::Failed(format!(
                "{origin} has no context {name:?}; available: {}",
                if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                }
            )),
            KubeconfigError::CurrentContextNotSet => Refusal::Failed(format!(
                "{origin} sets no current context; choose one with --context"
            )),
            KubeconfigError::ParseNoProxy(e) => Refusal::Failed(format!(
                "invalid environment variable NO_PROXY: {}; unset it for kpx, which uses only the \
                 proxy of the kubeconfig",
                root_cause(&e)
            )),
            e => Refusal::Failed(format!("{origin}: {}", root_cause(&e))),
        })?;
    config.proxy_url = proxy;
    // The client would also send the newline at the end.
    let token = config.auth_info.token_file.take().map(PathBuf::from);
    let token = token.filter(|_| config.auth_info.token.is_none());
    // The client would retry a failed read for minutes.
    config.default_retry = false;
    config.connect_timeout = Some(options.timeout);
    config.write_timeout = Some(options.timeout);
    if config.cluster_url.scheme_str() == Some("http") {
        // The client requires certificates even if it does not need them, and not every node has a certificate store.
        config.root_cert = Some(Vec::new());
    }
    Ok(Access {
        origin,
        config,
        token,
        root: PathBuf::from("/"),
    })
}

/// Returns the proxy `url` of the kubeconfig `origin`.
fn proxy_of(url: &str, origin: &str) -> Result<Uri, Refusal> {
    let known = |uri: &Uri| {
        let scheme = uri.scheme_str();
        scheme.is_some_and(|scheme| PROXY_SCHEMES.contains(&scheme)) && uri.host().is_some()
    };
    url.parse().ok().filter(known).ok_or_else(|| {
        Refusal::Failed(format!(
            "{origin}: proxy-url {url:?} is not supported; use an http://, https:// or socks5:// URL"
        ))
    })
}

fn unreadable(path: &Path, error: &KubeconfigError) -> Refusal {
    let name = path.display();
    match error {
        KubeconfigError::ReadConfig(e, _) if e.kind() == ErrorKind::PermissionDenied => {
            Refusal::Denied(format!(
                "permission denied reading {name}; run kpx as root, or choose another file with --kubeconfig"
            ))
        }
        KubeconfigError::ReadConfig(e, _) => Refusal::Failed(format!("cannot read {name}: {e}")),
        e => Refusal::Failed(format!("{name} is not a kubeconfig: {}", root_cause(e))),
    }
}

/// Returns the innermost error: the client's outer errors repeat it.
pub(super) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;

    fn options(root: &Path) -> Options {
        Options {
            netns: None,
            root: root.to_owned(),
            node: None,
            families: Vec::new(),
            timeout: Duration::from_secs(1),
            kubeconfig: None,
            context: None,
            no_api: false,
            environment: Environment::default(),
        }
    }

    #[tokio::test]
    async fn a_pod_of_either_family_reaches_its_server() {
        let root = tempfile::tempdir().unwrap();
        let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        fs::write(root.path().join("ca.crt"), pem).unwrap();
        let folder = root.path().display().to_string();
        let options = options(root.path());
        for (host, url) in [
            ("10.96.0.1", "https://10.96.0.1:443/"),
            ("fd00::1", "https://[fd00::1]:443/"),
        ] {
            let config = of_pod(host, "443", &folder);
            let access = load(config, "pod".to_owned(), &options).await.unwrap();
            assert_eq!(access.config.cluster_url.to_string(), url);
            assert_eq!(access.config.root_cert, Some(vec![vec![0, 0, 0]]));
            assert_eq!(access.token, Some(PathBuf::from(format!("{folder}/token"))));
            assert!(!access.config.default_retry);
        }
    }

    #[tokio::test]
    async fn a_kubelets_files_are_found_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let pki = dir.join("var/lib/kubelet/pki");
        fs::create_dir_all(&pki).unwrap();
        fs::create_dir_all(dir.join("etc/kubernetes")).unwrap();
        fs::write(pki.join("2026.pem"), "").unwrap();
        symlink("/var/lib/kubelet/pki/2026.pem", pki.join("current.pem")).unwrap();
        let text = "current-context: a\n\
            clusters: [{name: c, cluster: {server: 'http://10.0.2.15:6443', proxy-url: 'http://10.9.9.9:3128'}}]\n\
            contexts: [{name: a, context: {cluster: c, user: u}}]\n\
            users: [{name: u, user: {client-certificate: /var/lib/kubelet/pki/current.pem, client-key: pki/key}}]\n";
        fs::write(dir.join("etc/kubernetes/kubelet.conf"), text).unwrap();
        let found = find(&options(dir)).await.unwrap();
        assert_eq!(found.len(), 1);
        let user = &found[0].config.auth_info;
        let file = |path: &str| Some(dir.join(path).display().to_string());
        assert_eq!(
            user.client_certificate,
            file("var/lib/kubelet/pki/2026.pem")
        );
        assert_eq!(user.client_key, file("etc/kubernetes/pki/key"));
        let proxy = found[0].config.proxy_url.as_ref().unwrap();
        assert_eq!(proxy.to_string(), "http://10.9.9.9:3128/");
        fs::write(
            dir.join("etc/kubernetes/kubelet.conf"),
            text.replace("http://10.9", "ftp://10.9"),
        )
        .unwrap();
        let Err(Refusal::Failed(why)) = find(&options(dir)).await else {
            panic!();
        };
        assert!(
            why.contains("\"ftp://10.9.9.9:3128\" is not supported"),
            "{why}"
        );
    }
}
