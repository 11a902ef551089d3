//! The HTTP client of the API server: the layers of the Kubernetes client library, over connections that resolve names
//! without the C library.

use std::thread;
use std::time::Duration;

use http::{HeaderValue, Uri};
use hyper::rt::{Read, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tower::util::MapErr;
use tower::{BoxError, Service, ServiceExt as _, service_fn};

use super::access::root_cause;
use super::socks;
use crate::machine::{Names, Unresolved};

/// Creates the client. An authentication provider of the kubeconfig may be a program, and the client blocks until it ends:
/// this runs on a thread of its own.
pub(super) async fn client(
    config: Config,
    names: Names,
    limit: Duration,
) -> Result<Client, String> {
    let (sender, receiver) = oneshot::channel();
    let runtime = Handle::current();
    let make = move || {
        let _inside = runtime.enter();
        // The caller may have given up.
        sender.send(build(&config, names)).ok();
    };
    thread::Builder::new()
        .name("credentials".to_owned())
        .spawn(make)
        .map_err(|e| e.to_string())?;
    match timeout(limit, receiver).await {
        Ok(Ok(client)) => client.map_err(|e| root_cause(&e)),
        Ok(Err(_)) => Err("the client stopped early".to_owned()),
        Err(_) => Err(format!(
            "its authentication provider took longer than {limit:?}; increase --timeout"
        )),
    }
}

/// Returns the client for `config`, through its proxy if there is one.
fn build(config: &Config, names: Names) -> kube::Result<Client> {
    let resolve = service_fn(move |name: Name| {
        let names = names.clone();
        async move {
            let found = names.lookup(name.as_str()).await?;
            // The connector sets the port.
            let found = found.into_iter().map(|ip| (ip, 0).into());
            Ok::<_, Unresolved>(found.collect::<Vec<_>>().into_iter())
        }
    });
    let mut tcp = HttpConnector::new_with_resolver(resolve);
    tcp.enforce_http(false);
    // Divided among the addresses of a name, so that an address without an answer leaves time for the others.
    tcp.set_connect_timeout(config.connect_timeout);
    let Some(proxy) = config.proxy_url.clone() else {
        return over(tcp, config);
    };
    let login = Matcher::builder().all(proxy.to_string()).build();
    let login = login.intercept(&config.cluster_url);
    match proxy.scheme_str() {
        Some("socks5") => {
            let login = login.as_ref().and_then(Intercept::raw_auth);
            let login = login.map(|(user, password)| (user.to_owned(), password.to_owned()));
            let socks = service_fn(move |server: Uri| {
                let (tcp, proxy, login) = (tcp.clone(), proxy.clone(), login.clone());
                async move {
                    let mut stream = tcp.oneshot(proxy).await?.into_inner();
                    socks::join(&mut stream, &server, login.as_ref()).await?;
                    Ok::<_, BoxError>(TokioIo::new(stream))
                }
            });
            over(socks, config)
        }
        scheme => {
            let login = login.as_ref().and_then(Intercept::basic_auth).cloned();
            if scheme == Some("https") {
                let tls = config.rustls_https_connector_with_connector(tcp)?;
                let tunnel = Tunnel::new(proxy, tls);
                return over(with_login(tunnel, login), config);
            }
            over(with_login(Tunnel::new(proxy, tcp), login), config)
        }
    }
}

fn with_login<C>(tunnel: Tunnel<C>, login: Option<HeaderValue>) -> Tunnel<C> {
    match login {
        Some(login) => tunnel.with_auth(login),
        None => tunnel,
    }
}

/// Returns the client for `config` over the connections of `connector`.
fn over<C>(connector: C, config: &Config) -> kube::Result<Client>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let tls = config.rustls_https_connector_with_connector(connector)?;
    let mut connector = TimeoutConnector::new(tls);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let client = legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let client = MapErr::new(client, BoxError::from);
    let builder = ClientBuilder::new(client, config.default_namespace.clone())
        .with_layer(&config.extra_headers_layer()?);
    let base = config.base_uri_layer();
    Ok(match config.auth_layer()? {
        Some(auth) => builder.with_layer(&auth).with_layer(&base).build(),
        None => builder.with_layer(&base).build(),
    })
}
