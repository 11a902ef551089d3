//! Clients as people have them: kubeconfigs, users, impersonation, credential plugins, certificates.

use std::fs;
use std::future::ready;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kpx_host::{Environment, Options, Selection, collect};
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::net::Family;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;
use tempfile::TempDir;

use crate::fake_api::{Request, Server, kubeconfig, list, reply, status};
use crate::support::root;

/// A folder with kubeconfigs.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("proc")).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Options with the kubeconfig `text`.
    fn with(&self, text: &str) -> Options {
        let kubeconfig = self.write("kubeconfig", text);
        Options {
            kubeconfig: Some(kubeconfig),
            ..self.options()
        }
    }

    fn options(&self) -> Options {
        Options {
            netns: None,
            root: self.0.path().to_owned(),
            node: Some("node1".to_owned()),
            families: Family::BOTH.to_vec(),
            timeout: Duration::from_secs(10),
            kubeconfig: None,
            context: None,
            selection: Selection::default(),
            no_api: false,
            environment: Environment::default(),
        }
    }
}

async fn services(options: &Options) -> Evidence {
    collect(&[Item::Services], options).await
}

/// Returns why the Services cannot be read.
async fn why(options: &Options) -> String {
    let gap = services(options).await.text(Item::Services).unwrap_err();
    gap.to_string()
}

async fn works(options: &Options) {
    let read = services(options).await;
    assert!(read.text(Item::Services).is_ok(), "{read:?}");
}

/// An API server with Services for whom `allows`.
fn api(allows: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Server::start(listener, move |request| {
        let (code, body) = match request.path.as_str() {
            _ if !allows(&request) => status(401, "Unauthorized"),
            "/version" => (200, json!({"gitVersion": "v1.36.2"})),
            "/api/v1/services" => (200, list(7, &[])),
            _ => status(404, "not found"),
        };
        Box::pin(ready(reply(code, body)))
    })
}

fn bears(token: &str) -> impl Fn(&Request) -> bool + Send + Sync + 'static {
    let expected = format!("Bearer {token}");
    move |request| request.authorization == expected
}

/// A kubeconfig with two clusters and two users, and a context for the first of each.
fn two(first: &str, second: &str) -> String {
    format!(
        "current-context: one\n\
         contexts: [{{name: one, context: {{cluster: first, user: ann}}}}]\n\
         clusters:\n- name: first\n  cluster: {{server: \"{first}\"}}\n\
         - name: second\n  cluster: {{server: \"{second}\"}}\n\
         users:\n- name: ann\n  user: {{token: a}}\n- name: bob\n  user: {{token: b}}\n"
    )
}

#[tokio::test]
async fn a_list_of_kubeconfigs_is_merged_and_the_first_file_wins() {
    let api = api(bears("a"));
    let folder = Folder::new();
    let first = folder.write(
        "first",
        "current-context: one\ncontexts: [{name: one, context: {cluster: first, user: ann}}]\n\
         users: [{name: ann, user: {token: a}}]\n",
    );
    let second = folder.write(
        "second",
        &two(&api.url(), "http://127.0.0.1:1")
            .replace("current-context: one", "current-context: none")
            .replace("token: a", "token: other"),
    );
    let mut options = folder.options();
    let join = |paths: &[&Path]| std::env::join_paths(paths).unwrap();
    options.environment.kubeconfig = Some(join(&[&first, &folder.path("missing"), &second]));
    works(&options).await;
    options.environment.kubeconfig = Some(join(&[&second, &first]));
    let why = why(&options).await;
    assert!(
        why.contains("has no context \"none\"; available: one"),
        "{why}"
    );
}

#[tokio::test]
async fn a_cluster_and_a_user_replace_those_of_the_context() {
    let (first, second) = (api(bears("b")), api(bears("a")));
    let folder = Folder::new();
    let text = two(&first.url(), &second.url());
    let with = |cluster: Option<&str>, user: Option<&str>| Options {
        selection: Selection {
            cluster: cluster.map(str::to_owned),
            user: user.map(str::to_owned),
            ..Selection::default()
        },
        ..folder.with(&text)
    };
    works(&with(None, Some("bob"))).await;
    works(&with(Some("second"), None)).await;
    let refused = why(&with(None, None)).await;
    assert!(refused.contains("401 Unauthorized"), "{refused}");
    for (options, expected) in [
        (
            with(Some("third"), None),
            "kubeconfig has no cluster \"third\"; available: first, second",
        ),
        (
            with(None, Some("eve")),
            "kubeconfig has no user \"eve\"; available: ann, bob",
        ),
    ] {
        let why = why(&options).await;
        assert!(why.ends_with(expected), "{why}");
    }
    // A cluster and a user need no context.
    let bare = text.replace("current-context: one\n", "");
    let mut options = with(Some("first"), Some("bob"));
    options.kubeconfig = Some(folder.write("bare", &bare));
    works(&options).await;
    options.selection = Selection::default();
    let why = why(&options).await;
    assert!(
        why.ends_with("sets no current context; choose one with --context"),
        "{why}"
    );
}

#[tokio::test]
async fn requests_impersonate_a_user_and_groups() {
    let api = api(|request| {
        let all = |name: &str| -> Vec<String> {
            let values = request.headers.get_all(name).iter();
            values
                .map(|value| value.to_str().unwrap().to_owned())
                .collect()
        };
        all("impersonate-user") == ["jane"] && all("impersonate-group") == ["x", "y"]
    });
    let folder = Folder::new();
    let text = kubeconfig(&api.url(), "");
    let mut options = folder.with(&text);
    options.selection = Selection {
        impersonate: Some("jane".to_owned()),
        groups: vec!["x".to_owned(), "y".to_owned()],
        ..Selection::default()
    };
    works(&options).await;
    // It replaces the impersonation of the kubeconfig, which works as well.
    let own = |name: &str| {
        let user = format!("token: abc, as: {name}, as-groups: [x, y]");
        folder.write(name, &text.replace("token: abc", &user))
    };
    options.kubeconfig = Some(own("eve"));
    works(&options).await;
    options.selection = Selection::default();
    options.kubeconfig = Some(own("jane"));
    works(&options).await;
    options.kubeconfig = Some(own("eve"));
    let why = why(&options).await;
    assert!(
        why.contains("of ") && why.contains("/eve, as eve (401"),
        "{why}"
    );
}

#[tokio::test]
async fn a_plugin_supplies_the_token_and_runs_once() {
    let api = api(bears("from-plugin"));
    let folder = Folder::new();
    let runs = folder.path("runs");
    let script = format!(
        "echo \"$GREETING $1\" >>{}\n\
         echo '{{\"kind\": \"ExecCredential\", \"status\": {{\"token\": \"from-plugin\"}}}}'\n",
        runs.display()
    );
    let plugin = folder.write("login", &script);
    let exec = format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: [\"{}\", now], \
         env: [{{name: GREETING, value: hello}}], interactiveMode: Never}}",
        plugin.display()
    );
    let options = folder.with(&kubeconfig(&api.url(), "").replace("token: abc", &exec));
    works(&options).await;
    works(&options).await;
    assert_eq!(fs::read_to_string(runs).unwrap(), "hello now\n");
}

#[tokio::test]
async fn a_rejected_token_of_a_plugin_is_replaced() {
    let api = api(bears("second"));
    let folder = Folder::new();
    let script = format!(
        "cd {}\nif [ -e ran ]; then token=second; else token=first; touch ran; fi\n\
         echo \"{{\\\"status\\\": {{\\\"token\\\": \\\"$token\\\"}}}}\"\n",
        folder.path("").display()
    );
    let plugin = folder.write("login", &script);
    let exec = format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: [\"{}\"]}}",
        plugin.display()
    );
    let options = folder.with(&kubeconfig(&api.url(), "").replace("token: abc", &exec));
    let refused = why(&options).await;
    assert!(
        refused.contains("log in again: the token is from the credential plugin"),
        "{refused}"
    );
    works(&options).await;
}

#[tokio::test]
async fn an_expired_token_is_reported_with_its_time() {
    let api = api(|_| false);
    let folder = Folder::new();
    // {"sub": "jane", "exp": 1577836800}
    let token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiAiamFuZSIsICJleHAiOiAxNTc3ODM2ODAwfQ.c2ln";
    let options = folder.with(&kubeconfig(&api.url(), "").replace("abc", token));
    let gap = services(&options).await.text(Item::Services).unwrap_err();
    assert!(matches!(gap, Gap::Denied(..)));
    let why = gap.to_string();
    let expected = "(401 Unauthorized): the token expired at 2020-01-01T00:00:00Z; log in to the cluster again, or get a \
                    new kubeconfig";
    assert!(why.ends_with(expected), "{why}");
}

#[tokio::test]
async fn kube_proxys_credentials_are_used_only_on_request() {
    let api = api(|request| request.path == "/version" || request.authorization == "Bearer proxy");
    let folder = Folder::new();
    let config = "kind: KubeProxyConfiguration\nclientConnection:\n  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf\n";
    let of_proxy = kubeconfig(&api.url(), "").replace("token: abc", "token: proxy");
    let lib = "proc/71/root/var/lib/kube-proxy";
    let mut options = folder.options();
    options.selection.proxy_credentials = true;
    let none = why(&options).await;
    assert!(
        none.contains("--proxy-credentials: no kube-proxy with a kubeconfig"),
        "{none}"
    );

    folder.write(
        "proc/71/cmdline",
        "kube-proxy\0--config=/var/lib/kube-proxy/config.conf\0",
    );
    folder.write(&format!("{lib}/config.conf"), config);
    folder.write(&format!("{lib}/kubeconfig.conf"), &of_proxy);
    works(&options).await;
    options.selection.proxy_credentials = false;
    let offered = why(&options).await;
    assert!(
        offered.contains("no cluster is configured")
            && offered.contains("; --proxy-credentials uses kube-proxy's kubeconfig /"),
        "{offered}"
    );
    folder.write("etc/kubernetes/kubelet.conf", &kubeconfig(&api.url(), ""));
    let denied = why(&options).await;
    assert!(
        denied.ends_with(", or pass --proxy-credentials to use those of kube-proxy as well"),
        "{denied}"
    );
    // Credentials that were chosen are not those of the node.
    options.environment.kubeconfig = Some(folder.write("own", &kubeconfig(&api.url(), "")).into());
    let denied = why(&options).await;
    assert!(!denied.contains("--proxy-credentials"), "{denied}");
    options.selection.proxy_credentials = true;
    works(&options).await;
}

/// Returns the file `name` of the certificates that the tests use.
fn pem(name: &str) -> PathBuf {
    root().join("testdata/tls").join(format!("{name}.pem"))
}

/// Whom a server with TLS answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Clients {
    /// All.
    All,
    /// None: it answers 401.
    None,
    /// Clients with a certificate of its authority.
    Certified,
}

/// Starts a server with the certificate `name`.
fn tls(name: &str, clients: Clients) -> SocketAddr {
    let certificate = CertificateDer::from_pem_file(pem(name)).unwrap();
    let key = PrivateKeyDer::from_pem_file(pem(name)).unwrap();
    let builder = ServerConfig::builder();
    let builder = match clients {
        Clients::All | Clients::None => builder.with_no_client_auth(),
        Clients::Certified => {
            let mut roots = RootCertStore::empty();
            roots
                .add(CertificateDer::from_pem_file(pem("ca")).unwrap())
                .unwrap();
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
            builder.with_client_cert_verifier(verifier.unwrap())
        }
    };
    let config = builder.with_single_cert(vec![certificate], key).unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            let server = ServerConnection::new(Arc::clone(&config)).unwrap();
            thread::spawn(move || answer(StreamOwned::new(server, socket), clients));
        }
    });
    address
}

/// Answers one request, and closes the connection after the client has read the answer or the alert.
fn answer(mut stream: StreamOwned<ServerConnection, TcpStream>, clients: Clients) {
    let mut request = [0; 4096];
    if stream.read(&mut request).is_ok_and(|length| length > 0) {
        let (line, body) = match clients {
            Clients::None => ("401 Unauthorized", r#"{"message": "Unauthorized"}"#),
            Clients::All | Clients::Certified => ("200 OK", r#"{"items": []}"#),
        };
        let head = format!("HTTP/1.1 {line}\r\nContent-Length: {}\r\n", body.len());
        let answer = format!("{head}Connection: close\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).ok();
        stream.conn.send_close_notify();
        stream.flush().ok();
    }
    // Unread data would reset the connection before the client has read the rest.
    stream.sock.shutdown(Shutdown::Write).ok();
    std::io::copy(&mut stream.sock, &mut std::io::sink()).ok();
}

/// Options for the server at `address`, with the authority `ca` and the user's credentials `user`.
fn trusting(folder: &Folder, address: SocketAddr, ca: Option<&str>, user: &str) -> Options {
    let ca = ca.map_or(String::new(), |ca| {
        format!(", certificate-authority: \"{}\"", pem(ca).display())
    });
    let text = kubeconfig(&format!("https://{address}"), "");
    let text = text.replace(&format!("{address}\""), &format!("{address}\"{ca}"));
    folder.with(&text.replace("token: abc", user))
}

fn certified(name: &str) -> String {
    let path = pem(name);
    let path = path.display();
    format!("client-certificate: \"{path}\", client-key: \"{path}\"")
}

#[tokio::test]
async fn a_client_certificate_is_accepted() {
    let folder = Folder::new();
    let address = tls("server", Clients::Certified);
    works(&trusting(
        &folder,
        address,
        Some("ca"),
        &certified("client"),
    ))
    .await;
    // A credential plugin supplies one as well.
    let json = json!({"status": {
        "clientCertificateData": fs::read_to_string(pem("client")).unwrap(),
        "clientKeyData": fs::read_to_string(pem("client")).unwrap(),
    }});
    let file = folder.write("credential.json", &json.to_string());
    let exec = format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1, command: cat, args: [\"{}\"]}}",
        file.display()
    );
    works(&trusting(&folder, address, Some("ca"), &exec)).await;
}

#[tokio::test]
async fn tls_errors_say_what_is_wrong_and_what_to_do() {
    let folder = Folder::new();
    let unknown = "its certificate is signed by an unknown authority; check that certificate-authority in the kubeconfig is";
    for (server, clients, ca, user, expected) in [
        ("server", Clients::All, Some("other"), "client", unknown),
        // Of the same name, as the authorities of two clusters of kubeadm.
        ("server", Clients::All, Some("twin"), "client", unknown),
        ("server", Clients::All, None, "client", unknown),
        (
            "server-expired",
            Clients::All,
            Some("ca"),
            "client",
            "its certificate expired at 2021-01-01T00:00:00Z; renew it on the control plane",
        ),
        (
            "server-future",
            Clients::All,
            Some("ca"),
            "client",
            "its certificate is not valid before 2125-01-01T00:00:00Z; correct the clock",
        ),
        (
            "server-elsewhere",
            Clients::All,
            Some("ca"),
            "client",
            "its certificate is valid for kubernetes, 10.96.0.1, but not for 127.0.0.1; use one of its names in the server",
        ),
        (
            "server",
            Clients::Certified,
            Some("ca"),
            "",
            "it requires a client certificate, and the kubeconfig has none for this user",
        ),
        (
            "server",
            Clients::Certified,
            Some("ca"),
            "client-expired",
            "it refuses the client certificate (expired); get a new kubeconfig",
        ),
        (
            "server",
            Clients::None,
            Some("ca"),
            "client-expired",
            "(401 Unauthorized): the client certificate expired at 2021-01-01T00:00:00Z; get a new kubeconfig",
        ),
        (
            "server",
            Clients::None,
            Some("ca"),
            "client",
            "(401 Unauthorized): the client certificate may be of another cluster or revoked; get a new",
        ),
    ] {
        let address = tls(server, clients);
        let user = match user {
            "" => "token: abc".to_owned(),
            name => certified(name),
        };
        let why = why(&trusting(&folder, address, ca, &user)).await;
        let case = format!("{server} {clients:?} {ca:?} {user}: {why}");
        assert!(why.contains(expected), "{case}");
        assert!(why.contains(&format!("https://{address}")), "{case}");
    }
}

#[tokio::test]
async fn a_server_without_tls_is_noticed() {
    let api = api(|_| true);
    let folder = Folder::new();
    let why = why(&trusting(&folder, api.address, Some("ca"), "token: abc")).await;
    assert!(
        why.ends_with(
            "its answer is not TLS; check the port and the scheme of the server URL, and its proxy"
        ),
        "{why}"
    );
}
