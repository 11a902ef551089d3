//! Reads the running kube-proxy: its configuration, its two HTTP servers and its log.

mod config_files;
mod http;
mod log;
mod process;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::OnceCell;

use super::context::Context;
use super::{files, os, processes, sockets};
use http::NoResponse;
#[cfg(fuzzing)]
pub use http::fuzz;
use kpx_node::cluster::config::{HEALTHZ_PORT, ORIGIN, ProxyConfig};
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::identity::NEEDS;
use process::Table;

/// Usual paths of kube-proxy's configuration, for a node where it does not run.
const COMMON_FILES: &[&str] = &[
    "var/lib/kube-proxy/config.conf",
    "var/lib/kube-proxy/kube-proxy-config.yaml",
    "var/lib/kube-proxy/config",
    "etc/kubernetes/kube-proxy-config.yaml",
    "etc/kubernetes/kube-proxy/config.conf",
];

const METRICS_PORT: u16 = 10249;

/// The running kube-proxy, determined once for all items.
#[derive(Debug, Default)]
pub(super) struct Proxy {
    running: OnceCell<Result<Running, Gap>>,
}

/// Local information about kube-proxy.
#[derive(Clone, Debug)]
struct Running {
    table: Table,
    /// Configuration from its file or command line.
    config: Result<String, Gap>,
    metrics: Vec<SocketAddr>,
    healthz: Vec<SocketAddr>,
    /// Node name that it is configured with.
    hostname: Option<String>,
}

/// Reads `item`, one of the running kube-proxy's.
pub(super) async fn read(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    match item {
        Item::ProxyConfig => config(context).await,
        Item::ProxyLog => {
            let root = context.options.root.clone();
            let local = async move |_: Arc<Context>| {
                let process = process::find(&root).here;
                let since =
                    process.and_then(|process| processes::start_of(item, &root, &process.folder));
                log::read(&root, since)
            };
            let local = context.inside(item, local).await;
            let Err(why) = local else {
                return local;
            };
            let node = own_node(context).await;
            let asked = context.cluster.proxy_log(&node, &context.options).await;
            asked.map_err(|gap| together(item, why, &gap))
        }
        Item::Healthz => {
            let running = running(context, item).await?;
            ask(context, item, running, "/healthz").await
        }
        Item::ProxyMode => {
            let running = running(context, item).await?;
            ask(context, item, running, "/proxyMode").await
        }
        Item::Metrics => {
            let running = running(context, item).await?;
            ask(context, item, running, "/metrics").await
        }
        Item::Configz => {
            let running = running(context, item).await?;
            ask(context, item, running, "/configz").await
        }
        Item::ProxyTools => tools(running(context, item).await?),
        Item::ProxyFiles => config_files::read(context, running(context, item).await?),
        other => Err(Gap::NotCollected(other)),
    }
}

/// Returns the tools in kube-proxy's own file system that it may run.
fn tools(running: &Running) -> Result<String, Gap> {
    const TOOLS: [&str; 5] = ["conntrack", "ipset", "iptables", "modprobe", "nft"];
    const FOLDERS: [&str; 6] = [
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    ];
    const PROTOCOLS: &str = "/etc/protocols";
    let item = Item::ProxyTools;
    let Some(process) = &running.table.here else {
        let why = format!("{} on this node", running.table.describe());
        return Err(Gap::Absent(item, why));
    };
    if process.embedded {
        let why = "kube-proxy is embedded in another program, which provides its tools";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    // An unreadable root would look empty.
    let root = process.file("/");
    std::fs::read_dir(&root).map_err(|e| super::context::gap(item, root.display(), &e))?;
    let mut found = String::new();
    // Some tools read the numbers of protocols from it.
    if process.file(PROTOCOLS).exists() {
        found.push_str(PROTOCOLS);
        found.push('\n');
    }
    for tool in TOOLS {
        let paths = FOLDERS.map(|folder| format!("{folder}/{tool}"));
        for path in paths.iter().filter(|path| process.file(path).exists()) {
            found.push_str(path);
            found.push('\n');
        }
    }
    Ok(found)
}

/// Returns the name of the Node: as given, as configured for kube-proxy, or the host name.
pub(super) async fn node_name(context: &Arc<Context>) -> String {
    if let Some(name) = &context.options.node {
        return name.clone();
    }
    let running = running(context, Item::ProxyConfig).await;
    if let Some(name) = running.ok().and_then(|running| running.hostname.clone()) {
        return name;
    }
    host_name(&context.options.root)
}

/// Returns the name of the Node whose pods run on this machine: kube-proxy may be configured with another one's.
pub(super) async fn own_node(context: &Arc<Context>) -> String {
    let configured = node_name(context).await;
    let options = &context.options;
    if options.node.is_some() || configured == host_name(&options.root) {
        return configured;
    }
    let mut known = Evidence::default();
    for item in NEEDS {
        known.insert(*item, Box::pin(super::read(*item, context)).await);
    }
    NodeSnapshot::new(&known).name().unwrap_or(configured)
}

/// Returns the host name, converted to a Node name as kube-proxy does.
pub(crate) fn host_name(root: &Path) -> String {
    // The kernel returns the name of the caller's namespace, which in a container is not the host's.
    let file = std::fs::read_to_string(root.join("etc/hostname")).ok();
    let name = if root == Path::new("/") {
        os::host_name().or(file)
    } else {
        file.or_else(os::host_name)
    };
    name.unwrap_or_default().trim().to_lowercase()
}

async fn running(context: &Arc<Context>, item: Item) -> Result<&Running, Gap> {
    let look = || {
        context.inside(Item::ProxyConfig, async |context: Arc<Context>| {
            Ok(Running::find(&context.options.root))
        })
    };
    let running = context.proxy.running.get_or_init(look).await;
    running.as_ref().map_err(|gap| gap.clone().about(item))
}

/// Returns the kubeconfig of the kube-proxy on the node below `root`, and the root of its paths.
pub(crate) fn kubeconfig(root: &Path) -> Option<(PathBuf, PathBuf)> {
    let table = process::find(root);
    let process = table.here.as_ref().filter(|process| !process.embedded)?;
    let config = local_config(root, &table).ok()?;
    let config = ProxyConfig::parse(&config).ok()?;
    let name = &config.client_connection.kubeconfig;
    (!name.is_empty()).then(|| (process.file(name), process.folder.join("root")))
}

impl Running {
    fn find(root: &Path) -> Self {
        let table = process::find(root);
        let config = local_config(root, &table);
        // A distribution's program has no configuration file, but flags with the listen addresses.
        let embedded = table.here.as_ref().filter(|process| process.embedded);
        let text = match embedded {
            Some(process) => Some(process.flags.to_config()),
            None => config.as_ref().ok().cloned(),
        };
        // Parse errors are reported elsewhere; here the defaults apply.
        let parsed = text.and_then(|text| ProxyConfig::parse(&text).ok());
        let flag = |name| {
            let process = table.here.as_ref()?;
            process.flags.value(name).map(str::to_owned)
        };
        let has_file = flag("config").is_some();
        let port = |name| {
            flag(name)
                .filter(|_| !has_file)
                .and_then(|p| p.parse().ok())
        };
        let parsed_ref = parsed.as_ref();
        let metrics = parsed_ref.map(|c| c.metrics_bind_address.as_str());
        let healthz = parsed_ref.and_then(|c| c.healthz_bind_address.as_deref());
        let hostname = flag("hostname-override")
            .or_else(|| parsed_ref.map(|c| c.hostname_override.clone()))
            .map(|name| name.trim().to_lowercase())
            .filter(|name| !name.is_empty());
        Self {
            metrics: addresses(metrics, port("metrics-port").unwrap_or(METRICS_PORT)),
            healthz: addresses(healthz, port("healthz-port").unwrap_or(HEALTHZ_PORT)),
            hostname,
            config,
            table,
        }
    }
}

/// Returns the addresses at which to reach a server configured to listen on `bind`.
fn addresses(bind: Option<&str>, port: u16) -> Vec<SocketAddr> {
    let v4 = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let bind = bind.unwrap_or_default().trim();
    let address = bind
        .parse::<SocketAddr>()
        .or_else(|_| bind.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, port)));
    match address {
        // A server on all IPv6 addresses usually listens on IPv4 as well.
        Ok(address) if address.ip().is_unspecified() && address.is_ipv6() => {
            vec![
                SocketAddr::new(v6, address.port()),
                SocketAddr::new(v4, address.port()),
            ]
        }
        Ok(address) if address.ip().is_unspecified() => vec![SocketAddr::new(v4, address.port())],
        Ok(address) => vec![address],
        Err(_) => vec![SocketAddr::new(v4, port), SocketAddr::new(v6, port)],
    }
}

/// Requests `path` from kube-proxy, at each possible address.
async fn ask(
    context: &Arc<Context>,
    item: Item,
    running: &Running,
    path: &'static str,
) -> Result<String, Gap> {
    let health = item == Item::Healthz;
    let places = if health {
        &running.healthz
    } else {
        &running.metrics
    };
    let mut refused = Vec::new();
    for &address in places {
        let process = running.table.here.clone();
        let asked = context.inside(item, async move |context| {
            if let Some(why) = process.and_then(|own| held(item, &context, address, &own)) {
                return Err(Gap::Unreachable(item, why));
            }
            // Slightly less than the whole limit, so that the more precise reason is reported.
            Ok(http::get(address, path, context.options.timeout / 10 * 9).await)
        });
        match asked.await? {
            Ok(answer) if answer.status == 200 => return Ok(answer.body),
            // An unhealthy kube-proxy reports the reason with this status.
            Ok(answer) if health && answer.status == 503 => return Ok(answer.body),
            Ok(answer) if answer.status == 404 => {
                let why = format!("{address} does not serve {path}");
                return Err(Gap::Absent(item, why));
            }
            Ok(answer) => {
                let why = format!("{address} answered {path} with status {}", answer.status);
                return Err(Gap::Failed(item, why));
            }
            Err(NoResponse::Unreachable(e)) => refused.push(format!("{address}: {e}")),
            Err(NoResponse::Late(why)) => {
                return Err(Gap::Late(item, format!("{address}{path}: {why}")));
            }
            Err(NoResponse::Broken(why)) => {
                return Err(Gap::Failed(item, format!("{address}{path}: {why}")));
            }
        }
    }
    let why = format!(
        "no answer from {}; {}",
        refused.join(", "),
        running.table.describe()
    );
    Err(Gap::Unreachable(item, why))
}

/// Returns that another program than kube-proxy, whose process is `own`, listens at `address`.
fn held(
    item: Item,
    context: &Context,
    address: SocketAddr,
    own: &process::Process,
) -> Option<String> {
    let others = sockets::others_at(item, &context.path("proc"), address, &own.folder)?;
    let proxy = |(_, pid): &(String, u32)| process::is_proxy(&context.options.root, *pid);
    if others.iter().any(proxy) {
        return None;
    }
    let holder = others.first().map_or_else(
        || "a process that is not seen here".to_owned(),
        |(name, pid)| format!("{name} (process {pid})"),
    );
    Some(format!(
        "port {} is held by {holder}, not by kube-proxy (process {})",
        address.port(),
        own.pid
    ))
}

/// Returns kube-proxy's configuration from the best available source.
async fn config(context: &Arc<Context>) -> Result<String, Gap> {
    let item = Item::ProxyConfig;
    let running = running(context, item).await?;
    let local = match &running.config {
        Ok(text) => return Ok(text.clone()),
        Err(gap) => gap.clone(),
    };
    if let Ok(text) = ask(context, Item::Configz, running, "/configz").await
        && let Some(text) = of_configz(&text)
    {
        return Ok(text);
    }
    let node = node_name(context).await;
    let asked = context.cluster.proxy_config(&node, &context.options).await;
    asked.map_err(|gap| together(item, local, &gap))
}

/// Returns the configuration in a response of `/configz`.
fn of_configz(text: &str) -> Option<String> {
    let parts: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).ok()?;
    let inner = parts.get("kubeproxy.config.k8s.io")?.get();
    Some(format!(
        "{ORIGIN}/configz of the running kube-proxy.\n{inner}\n"
    ))
}

/// Returns the configuration from the process's file or flags, or from the usual paths.
fn local_config(root: &Path, table: &Table) -> Result<String, Gap> {
    let item = Item::ProxyConfig;
    if let Some(process) = &table.here {
        let pid = process.pid;
        if let Some(path) = process.flags.value("config") {
            return files::text(item, &process.file(path));
        }
        if process.embedded {
            let why =
                format!("process {pid} embeds kube-proxy and has no configuration file for it");
            return Err(Gap::Absent(item, why));
        }
        let text = process.flags.to_config();
        return Ok(format!(
            "{ORIGIN}the command line of kube-proxy (process {pid}), which has no --config.\n{text}"
        ));
    }
    let paths: Vec<PathBuf> = COMMON_FILES.iter().map(|path| root.join(path)).collect();
    if let Some(path) = paths.iter().find(|path| path.exists()) {
        return files::text(item, path);
    }
    let why = format!(
        "{}, and there is no file at the usual paths",
        table.describe()
    );
    Err(Gap::Absent(item, why))
}

/// Returns the combined gap of two sources without data.
fn together(item: Item, first: Gap, second: &Gap) -> Gap {
    let (Gap::Absent(_, why), Some(reason)) = (&first, second.reason()) else {
        return first;
    };
    let both = format!("{why}; {reason}");
    if second.is_absence() {
        Gap::Absent(item, both)
    } else {
        second.clone().about(item).reworded(|_| both)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_called_where_they_can_be_reached() {
        for (bind, calls) in [
            (None, "127.0.0.1:10249 [::1]:10249"),
            (Some(""), "127.0.0.1:10249 [::1]:10249"),
            (Some("0.0.0.0:10250"), "127.0.0.1:10250"),
            (Some("[::]:10250"), "[::1]:10250 127.0.0.1:10250"),
            (Some("::"), "[::1]:10249 127.0.0.1:10249"),
            (Some("10.0.2.15"), "10.0.2.15:10249"),
        ] {
            let found = addresses(bind, METRICS_PORT);
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found.join(" "), calls, "{bind:?}");
        }
    }

    #[test]
    fn configz_holds_a_configuration() {
        let text = r#"{"kubeproxy.config.k8s.io":{"mode":"ipvs","iptables":{"syncPeriod":"30s","masqueradeBit":14}}}"#;
        let config = ProxyConfig::parse(&of_configz(text).unwrap()).unwrap();
        assert_eq!(config.mode, "ipvs");
        assert_eq!(config.iptables.masquerade_bit, Some(14));
        assert_eq!(of_configz(r#"{"kubelet":{}}"#), None);
    }
}
