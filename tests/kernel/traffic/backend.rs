//! The server in a pod: it sends its name, and sends back what it gets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::thread::JoinHandle;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::oneshot;

use crate::kernel::netns::Netns;

/// The length of a name: an address and blanks.
pub(crate) const NAME: usize = 40;

/// A pod's servers; ended when dropped, and its connections with them.
pub(super) struct Backend {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Backend {
    /// Listens at each of `addresses`, which the namespace must have, on each of `ports`.
    pub(super) fn start(netns: &Netns, addresses: &[&str], ports: &[u16]) -> Self {
        let (end, ended) = oneshot::channel();
        let addresses = addresses.iter().map(|text| text.parse().unwrap());
        let places = addresses.flat_map(|address: IpAddr| {
            let places = ports
                .iter()
                .map(move |port| SocketAddr::new(address, *port));
            places.collect::<Vec<_>>()
        });
        let places: Vec<SocketAddr> = places.collect();
        // Everything listens before this returns.
        let (ready, listens) = std::sync::mpsc::channel();
        let thread = netns.start_thread(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(async {
                for at in places {
                    let tcp = TcpListener::bind(at).await.unwrap();
                    let udp = UdpSocket::bind(at).await.unwrap();
                    let name = format!("{:<NAME$}", at.ip().to_string());
                    tokio::spawn(serve_tcp(tcp, name.clone()));
                    tokio::spawn(serve_udp(udp, name));
                }
                ready.send(()).unwrap();
                // The other end goes without a word.
                ended.await.ok();
            });
        });
        listens.recv().unwrap();
        Self {
            end: Some(end),
            thread: Some(thread),
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        drop(self.end.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

async fn serve_tcp(listener: TcpListener, name: String) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let name = name.clone();
        tokio::spawn(async move {
            // Clients leave as they like.
            echo(stream, &name).await.ok();
        });
    }
}

async fn echo(mut stream: TcpStream, name: &str) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(name.as_bytes()).await?;
    let mut bytes = [0; 64];
    loop {
        let count = stream.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&bytes[..count]).await?;
    }
}

async fn serve_udp(socket: UdpSocket, name: String) {
    let mut bytes = [0; 64];
    loop {
        // An error here means that an earlier answer was refused.
        if let Ok((_, from)) = socket.recv_from(&mut bytes).await {
            socket.send_to(name.as_bytes(), from).await.ok();
        }
    }
}
