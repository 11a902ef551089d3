//! Connections that are there, and whether a later packet of them gets through.

use std::cell::Cell;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::network::{Network, Place, Source};

/// A packet that passes is there within microseconds; this is for a busy machine.
const ARRIVAL: Duration = Duration::from_millis(300);

/// TCP sends what was lost again after some tenths of a second, then after twice that.
const AGAIN: Duration = Duration::from_secs(30);

/// A connection between a client and a pod.
pub(crate) struct Connection {
    pub(crate) source: Source,
    pub(crate) target: SocketAddr,
    client: TcpStream,
    server: TcpStream,
    lost: Cell<bool>,
}

/// Opens connections from a pod, the node and outside to the Service of the tutorial.
pub(crate) fn open(network: &Network) -> Vec<Connection> {
    let pods = network.at(Place::Backend);
    pods.run("nft delete table inet mute");
    let listener = pods.inside(|| TcpListener::bind("0.0.0.0:80").unwrap());
    let from = |place, addr: &str| Source {
        place,
        addr: Some(addr.parse().unwrap()),
    };
    let sources = [
        (from(Place::Client, "10.244.1.200"), "10.97.54.248:80"),
        (from(Place::Host, "10.0.2.15"), "10.97.54.248:80"),
        (from(Place::Outside, "192.0.2.10"), "10.0.2.15:31082"),
        (from(Place::Outside, "192.0.2.10"), "10.97.54.248:80"),
    ];
    let connections = sources.into_iter().map(|(source, target)| {
        let target: SocketAddr = target.parse().unwrap();
        let client = network.at(source.place).inside(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            let own = SocketAddr::new(source.addr.unwrap(), 0);
            socket.bind(&own.into()).unwrap();
            socket
                .connect_timeout(&target.into(), Duration::from_secs(10))
                .unwrap();
            TcpStream::from(socket)
        });
        client.set_nodelay(true).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        Connection {
            source,
            target,
            client,
            server,
            lost: Cell::new(false),
        }
    });
    connections.collect()
}

impl Connection {
    /// Sends a packet; returns whether it arrives.
    pub(crate) fn passes(&self) -> bool {
        (&self.client).write_all(b"?").unwrap();
        let arrives = self.arrives(ARRIVAL);
        self.lost.set(!arrives);
        arrives
    }

    /// Waits until what was lost has arrived after all.
    pub(crate) fn settle(&self) {
        if self.lost.take() {
            assert!(self.arrives(AGAIN), "{} stays lost", self.target);
        }
    }

    fn arrives(&self, limit: Duration) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < limit {
            match (&self.server).read(&mut [0; 1]) {
                Ok(count) => return count == 1,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(2));
                }
                Err(e) => panic!("{}: {e}", self.target),
            }
        }
        false
    }
}
