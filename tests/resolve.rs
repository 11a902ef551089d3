//! `kpx resolve` on the recorded clusters, with a DNS server of the tests.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

use simple_dns::rdata::{A, RData};
use simple_dns::{CLASS, Packet, PacketFlag, RCODE, ResourceRecord, TYPE};

use crate::support::{Ran, kpx, kpx_on, root};

#[tokio::test]
async fn a_bundle_gives_the_expected_records() {
    let mut told = String::new();
    for args in [
        "web --namespace edge --env",
        "db.shop",
        "legacy-db --namespace shop",
        "_pg._tcp.db.shop.svc.cluster.local.",
        "kubernetes --namespace shop --env",
        "web.edge --env",
        "cart",
        "www.example.com",
        "cart.shop.svc.example.org. --cluster-domain example.org",
    ] {
        let mut all = vec!["resolve"];
        all.extend(args.split(' '));
        let ran = kpx_on("full-iptables", &all).await;
        writeln!(told, "$ kpx resolve {args}\n{ran}\n").unwrap();
    }
    insta::assert_snapshot!(told);
}

/// A server that has `web.edge.svc.cluster.local` with `address`; with `cuts` its UDP answers are truncated.
fn server(address: Ipv4Addr, cuts: bool) -> SocketAddr {
    // A port that is free for both.
    let (udp, tcp) = std::iter::repeat_with(|| UdpSocket::bind("127.0.0.1:0").unwrap())
        .find_map(|udp| {
            let tcp = TcpListener::bind(udp.local_addr().unwrap());
            Some((udp, tcp.ok()?))
        })
        .unwrap();
    let at = udp.local_addr().unwrap();
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, from)) = udp.recv_from(&mut question) {
            let mut answer = reply(&question[..length], address);
            if cuts {
                answer[2] |= 0x02;
            }
            udp.send_to(&answer, from).unwrap();
        }
    });
    thread::spawn(move || {
        for stream in tcp.incoming() {
            let mut stream = stream.unwrap();
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut question).unwrap();
            let answer = reply(&question, address);
            let length = u16::try_from(answer.len()).unwrap();
            stream.write_all(&length.to_be_bytes()).unwrap();
            stream.write_all(&answer).unwrap();
        }
    });
    at
}

fn reply(question: &[u8], address: Ipv4Addr) -> Vec<u8> {
    let question = Packet::parse(question).unwrap();
    let asked = question.questions[0].clone();
    let mut reply = question.clone().into_reply();
    reply.set_flags(PacketFlag::RESPONSE);
    reply.questions.push(asked.clone());
    if asked.qname.to_string() != "web.edge.svc.cluster.local" {
        *reply.rcode_mut() = RCODE::NameError;
    } else if asked.qtype == TYPE::A.into() {
        let rdata = RData::A(A {
            address: address.into(),
        });
        let record = ResourceRecord::new(asked.qname, CLASS::IN, 5, rdata);
        reply.answers.push(record);
    }
    reply.build_bytes_vec().unwrap()
}

async fn ask(server: SocketAddr, name: &str) -> Ran {
    let bundle = root().join("testdata/nodes/full-iptables");
    let server = server.to_string();
    let mut args = vec!["--cluster-from", bundle.to_str().unwrap()];
    args.extend(["resolve", name, "--namespace", "edge", "--server", &server]);
    kpx(&args).await
}

#[tokio::test]
async fn answers_are_compared_with_the_expected_records() {
    let right = Ipv4Addr::new(10, 100, 2, 1);
    for cuts in [false, true] {
        let ran = ask(server(right, cuts), "web").await;
        assert_eq!(ran.code, 0, "{ran}");
        assert!(ran.out.contains("10.100.2.1  10.100.2.1\n"), "{ran}");
        assert!(
            ran.out
                .trim_end()
                .ends_with("resolves as web.edge.svc.cluster.local"),
            "{ran}"
        );
    }
    // A Service that the server does not know.
    let ran = ask(server(right, false), "np-local").await;
    assert_eq!(ran.code, 1, "{ran}");
    let words: Vec<&str> = ran.out.split_whitespace().collect();
    let row = "10.100.2.7 name not found differs";
    assert!(words.join(" ").contains(row), "{ran}");
    let ran = ask(server(Ipv4Addr::new(10, 9, 9, 9), false), "web").await;
    assert_eq!(ran.code, 1, "{ran}");
    assert!(ran.out.contains("10.100.2.1  10.9.9.9  differs"), "{ran}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_silent_or_missing_server_is_a_failure() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    let ran = ask(at, "web").await;
    assert_eq!(ran.code, 1, "{ran}");
    let out = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        out.contains(&format!("does not answer: {at}: no answer by UDP")),
        "{ran}"
    );
    assert!(
        out.ends_with("next: kpx trace kube-system/kube-dns:dns"),
        "{ran}"
    );
    silent
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let mut question = [0; 512];
    for _ in 0..2 {
        assert!(silent.recv(&mut question).unwrap() > 12);
    }
    drop(silent);
    let ran = ask(at, "web").await;
    assert_eq!(ran.code, 1, "{ran}");
    assert!(ran.out.contains("refused"), "{ran}");
}

#[tokio::test]
async fn an_invalid_name_is_refused() {
    let ran = ask("127.0.0.1:9".parse().unwrap(), &"a".repeat(64)).await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.err.contains("is not a valid DNS name"), "{ran}");
    let ran = kpx_on("full-iptables", &["resolve", "."]).await;
    assert_eq!(ran.code, 2, "{ran}");
}
