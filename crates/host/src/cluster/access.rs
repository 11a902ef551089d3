//! Finds the API server and kpx's credentials: loads kubeconfigs one explicit step at a time.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use http::Uri;
use http::header::InvalidHeaderValue;
use kube::Config;
use kube::config::{
    AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo,
    NamedCluster, NamedContext,
};
use serde_json::Value;

use super::plugin::bearer;
use super::refusal::Refusal;
use super::token::TokenSource;
use crate::{Options, machine, root_path};

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

/// Cluster and user that replace those of the kubeconfig's context.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Selection {
    /// Name of a cluster in the kubeconfig.
    pub cluster: Option<String>,
    /// Name of a user in the kubeconfig.
    pub user: Option<String>,
    /// User to impersonate.
    pub impersonate: Option<String>,
    /// Groups to impersonate.
    pub groups: Vec<String>,
    /// Whether kube-proxy's kubeconfig on the node may be used.
    pub proxy_credentials: bool,
}

/// One way to access the API server.
#[derive(Debug)]
pub(super) struct Access {
    /// Source of the credentials, for messages.
    pub(super) origin: String,
    /// Configuration of the client, without the token.
    pub(super) config: Config,
    /// Source of the token.
    pub(super) token: Option<TokenSource>,
    /// Advice for a request that these credentials may not make; begins with a comma.
    pub(super) advice: &'static str,
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

/// Advice if kube-proxy's credentials are available, but not used.
const PROXY_HELPS: &str = ", or pass --proxy-credentials to use those of kube-proxy as well";

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
    if options.no_api {
        let why = "not queried: --no-api";
        return Err(Refusal::NotApplicable(why.to_owned()));
    }
    if let Some(path) = &options.kubeconfig {
        let access = open(std::slice::from_ref(path), options).await?;
        return Ok(vec![access]);
    }
    if options.selection.proxy_credentials {
        return on_the_node(options).await;
    }
    if let Some(paths) = in_environment(options) {
        return Ok(vec![open(&paths, options).await?]);
    }
    if let Some(access) = in_cluster(options).await? {
        return Ok(vec![access]);
    }
    if let Some(path) = at_home(options) {
        return Ok(vec![open(&[path], options).await?]);
    }
    on_the_node(options).await
}

/// Returns the kubeconfigs that the environment names. Like kubectl, kpx skips missing files unless all are missing.
fn in_environment(options: &Options) -> Option<Vec<PathBuf>> {
    let paths = options.environment.kubeconfig.as_ref();
    let paths = paths.filter(|paths| !paths.is_empty())?;
    let named: Vec<_> = std::env::split_paths(paths)
        .filter(|path| !path.as_os_str().is_empty())
        .collect();
    let there: Vec<_> = named.iter().filter(|path| path.exists()).cloned().collect();
    Some(if there.is_empty() { named } else { there })
}

fn at_home(options: &Options) -> Option<PathBuf> {
    let home = options.environment.home.as_ref();
    let path = home.map(|home| home.join(".kube/config"));
    path.filter(|path| path.exists())
}

/// Returns the names of the contexts in the user's kubeconfig.
pub(super) fn contexts(options: &Options) -> Vec<String> {
    let named = options.kubeconfig.clone().map(|path| vec![path]);
    let paths = named
        .or_else(|| in_environment(options))
        .or_else(|| Some(vec![at_home(options)?]));
    let read = paths.into_iter().flatten();
    let read = read.filter_map(|path| Kubeconfig::read_from(path).ok());
    let contexts = read.flat_map(|config| config.contexts);
    contexts.map(|context| context.name).collect()
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
    let of_proxy = machine::proxy_kubeconfig(&options.root);
    let mut offer = String::new();
    match (of_proxy, options.selection.proxy_credentials) {
        (Some((path, inside)), true) => {
            let mut access = open_inside(&path, &inside, options).await?;
            access.origin = format!("kube-proxy ({})", access.origin);
            found.push(access);
        }
        (None, true) => {
            let why = "--proxy-credentials: no kube-proxy with a kubeconfig of its own runs on this machine";
            return Err(Refusal::Failed(why.to_owned()));
        }
        (Some((path, _)), false) => {
            for access in &mut found {
                access.advice = PROXY_HELPS;
            }
            offer = format!(
                "; --proxy-credentials uses kube-proxy's kubeconfig {}",
                path.display()
            );
        }
        (None, false) => {}
    }
    match (found.is_empty(), refusal) {
        (false, _) => Ok(found),
        (true, Some(why)) => Err(why),
        (true, None) => Err(Refusal::NotApplicable(format!(
            "no cluster is configured: neither --kubeconfig nor KUBECONFIG is set, and there is no ~/.kube/config and no \
             kubelet's kubeconfig{offer}"
        ))),
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
            if let Ok(found) = root_path::resolve(root, inside) {
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

/// Returns the choices of `options` in `kubeconfig`, which has all of them.
fn choose(
    kubeconfig: &mut Kubeconfig,
    origin: &str,
    options: &Options,
) -> Result<KubeConfigOptions, Refusal> {
    let Selection { cluster, user, .. } = options.selection.clone();
    let clusters = kubeconfig.clusters.iter().map(|cluster| &cluster.name);
    exists("cluster", cluster.as_ref(), clusters, origin)?;
    let users = kubeconfig
        .auth_infos
        .iter()
        .map(|auth_info| &auth_info.name);
    exists("user", user.as_ref(), users, origin)?;
    let current = kubeconfig.current_context.clone();
    let context = options.context.clone().or(current);
    let context = context.filter(|name| !name.is_empty());
    let contexts = kubeconfig.contexts.iter().map(|context| &context.name);
    exists("context", context.as_ref(), contexts, origin)?;
    let of = kubeconfig
        .contexts
        .iter()
        .find(|named_context| Some(&named_context.name) == context.as_ref())
        .and_then(|context| context.context.clone());
    let namespace = of.as_ref().and_then(|context| context.namespace.clone());
    let (cluster, user) = match (of, cluster) {
        (Some(of), cluster) => {
            let cluster = cluster.unwrap_or(of.cluster);
            (cluster, user.or(of.user).filter(|user| !user.is_empty()))
        }
        // Like kubectl, kpx needs no context if the cluster is given.
        (None, Some(cluster)) => (cluster, user),
        (None, None) => {
            return Err(Refusal::Failed(format!(
                "{origin} sets no current context; choose one with --context"
            )));
        }
    };
    let clusters = kubeconfig.clusters.iter().map(|cluster| &cluster.name);
    exists("cluster", Some(&cluster), clusters, origin)?;
    let users = kubeconfig
        .auth_infos
        .iter()
        .map(|auth_info| &auth_info.name);
    exists("user", user.as_ref(), users, origin)?;
    // The client library looks for the cluster and the user in a context.
    let name = "kpx".to_owned();
    kubeconfig.contexts = vec![NamedContext {
        name: name.clone(),
        context: Some(Context {
            cluster: cluster.clone(),
            user: user.clone(),
            namespace,
            ..Context::default()
        }),
        ..NamedContext::default()
    }];
    Ok(KubeConfigOptions {
        context: Some(name),
        cluster: Some(cluster),
        user,
    })
}

/// Fails unless the kubeconfig `origin` has a `what` named `name`, one of `known`.
fn exists<'n>(
    what: &str,
    name: Option<&String>,
    known: impl Iterator<Item = &'n String>,
    origin: &str,
) -> Result<(), Refusal> {
    let known: Vec<&str> = known.map(String::as_str).collect();
    match name {
        Some(name) if !known.contains(&name.as_str()) => Err(Refusal::Failed(format!(
            "{origin} has no {what} {name:?}; available: {}",
            if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            }
        ))),
        _ => Ok(()),
    }
}

async fn load(
    mut kubeconfig: Kubeconfig,
    mut origin: String,
    options: &Options,
) -> Result<Access, Refusal> {
    let choice = choose(&mut kubeconfig, &origin, options)?;
    let elsewhere = PROXIES.iter().any(|name| std::env::var_os(name).is_some());
    let mut proxy = None;
    for named in &mut kubeconfig.clusters {
        if let Some(body) = &mut named.cluster {
            let asked = body.proxy_url.take();
            body.proxy_url = elsewhere.then(|| NO_PROXY.to_owned());
            if Some(&named.name) == choice.cluster.as_ref() {
                proxy = asked.filter(|url| !url.is_empty());
            }
        }
    }
    let proxy = proxy.map(|url| proxy_of(&url, &origin)).transpose()?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &choice)
        .await
        .map_err(|e| match e {
            KubeconfigError::ParseNoProxy(e) => Refusal::Failed(format!(
                "invalid environment variable NO_PROXY: {}; unset it for kpx, which uses only the \
                 proxy of the kubeconfig",
                root_cause(&e)
            )),
            e => Refusal::Failed(format!("{origin}: {}", root_cause(&e))),
        })?;
    config.proxy_url = proxy;
    let user = &mut config.auth_info;
    let token = token_of(user).map_err(|_| {
        Refusal::Failed(format!("{origin}: its token is not one line of plain text"))
    })?;
    let selection = &options.selection;
    if selection.impersonate.is_some() {
        user.impersonate.clone_from(&selection.impersonate);
        user.impersonate_groups = Some(selection.groups.clone());
        user.impersonate_uid = None;
        user.impersonate_user_extra = None;
    }
    if let Some(name) = &user.impersonate {
        origin = format!("{origin}, as {name}");
    }
    // The client library would retry a failed read for minutes.
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
        advice: "",
    })
}

/// Takes the token's source from `user`, in the precedence of the client library: it would also send the newline at the
/// end of a file, and run a plugin several times.
fn token_of(user: &mut AuthInfo) -> Result<Option<TokenSource>, InvalidHeaderValue> {
    if user.auth_provider.is_some() || (user.username.is_some() && user.password.is_some()) {
        return Ok(None);
    }
    // The secret is only readable in this form.
    let all = serde_json::to_value(&*user).unwrap_or_default();
    let inline = all.get("token").and_then(Value::as_str);
    let inline = inline.filter(|token| !token.is_empty());
    user.token = None;
    let (file, plugin) = (user.token_file.take(), user.exec.take());
    Ok(match (inline, file, plugin) {
        (Some(token), ..) => Some(TokenSource::Kubeconfig(bearer(token.trim())?)),
        (None, Some(file), _) => Some(TokenSource::File(file.into())),
        (None, None, Some(plugin)) => Some(TokenSource::Plugin(Box::new(plugin))),
        (None, None, None) => None,
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
        e => {
            // The other lines quote the file, which may have secrets.
            let cause = root_cause(e);
            let first = cause.lines().next().unwrap_or_default();
            let first = first.strip_prefix("error: ").unwrap_or(first);
            Refusal::Failed(format!("{name} is not a kubeconfig: {first}"))
        }
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
            selection: Selection::default(),
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
            let file = PathBuf::from(format!("{folder}/token"));
            assert!(matches!(access.token, Some(TokenSource::File(of)) if of == file));
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
