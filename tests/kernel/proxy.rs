//! kube-proxy is looked for in the network namespace that was asked for, and in no other.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::{fs, thread};

use kpx_node::evidence::{Gap, Item};
use nix::sched::{CloneFlags, setns};

use super::netns::Netns;

/// A program that calls itself kube-proxy; ended when dropped.
struct Impostor(Child);

impl Drop for Impostor {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts a server for `/proxyMode` and a process called kube-proxy inside `netns`.
#[expect(
    clippy::disallowed_methods,
    reason = "the process is what kpx looks for"
)]
fn kube_proxy(netns: &Netns) -> Impostor {
    let path = format!("/run/netns/{}", netns.options().netns.unwrap());
    let inside = thread::spawn(move || {
        setns(fs::File::open(path).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
        let listener = TcpListener::bind("127.0.0.1:10249").unwrap();
        let mut sleep = Command::new("sleep");
        // The socket is one of kube-proxy's own.
        let own = OwnedFd::from(listener.try_clone().unwrap());
        let sleep = sleep.arg0("kube-proxy").arg("60").stdin(own);
        let child = sleep.spawn().unwrap();
        // The kernel lets its parent go on before it shows what it is called.
        let called = format!("/proc/{}/cmdline", child.id());
        while fs::read(&called).unwrap().is_empty() {
            thread::yield_now();
        }
        (listener, child)
    });
    let (listener, child) = inside.join().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let length = stream.read(&mut [0; 4096]).unwrap();
            assert!(length > 0);
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nipvs";
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    Impostor(child)
}

#[tokio::test]
#[ignore = "needs root"]
async fn kube_proxy_is_found_in_its_namespace_and_in_no_other() {
    let (netns, other) = (Netns::new(), Netns::new());
    let proxy = kube_proxy(&netns);
    let pid = proxy.0.id();
    let items = [Item::ProxyMode, Item::ProxyConfig];

    let evidence = netns.collect(&items).await;
    assert_eq!(evidence.text(Item::ProxyMode), Ok("ipvs"));
    let config = evidence.text(Item::ProxyConfig).unwrap();
    let origin = format!("# From the command line of kube-proxy (process {pid}), which");
    assert!(config.starts_with(&origin), "{config}");

    let evidence = other.collect(&items).await;
    for item in items {
        let Err(Gap::Absent(_, why) | Gap::Unreachable(_, why)) = evidence.text(item) else {
            panic!("{evidence:?}");
        };
        let elsewhere = format!("kube-proxy (process {pid}) runs in another network namespace");
        assert!(why.contains(&elsewhere), "{why}");
    }
}
