//! DNS queries and replies.

use std::net::{Ipv4Addr, Ipv6Addr};

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, RCODE, TYPE};
use thiserror::Error;

use super::{Records, Server};

/// Record type of a query.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Question {
    /// IPv4 addresses (A).
    A,
    /// IPv6 addresses (AAAA).
    Aaaa,
    /// Ports and host names (SRV).
    Srv,
}

/// Reply of a DNS server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reply {
    /// Records of the name; may be empty.
    Records(Records),
    /// The name does not exist (NXDOMAIN).
    NoName,
    /// The server failed or refused; its response code.
    Failed(String),
}

/// Why a query cannot be sent or a reply cannot be used.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Unreadable {
    /// The name is not valid in DNS; name and reason.
    #[error("{0:?} is not a valid DNS name: {1}")]
    Name(String, String),
    /// The reply is not a DNS message.
    #[error("the reply is not a DNS message: {0}")]
    Reply(String),
    /// The reply belongs to another query.
    #[error("the reply belongs to another query")]
    Other,
}

impl Question {
    /// Returns the query for `name` with the transaction ID `id`.
    pub fn ask(self, name: &str, id: u16) -> Result<Vec<u8>, Unreadable> {
        let unfit =
            |e: simple_dns::SimpleDnsError| Unreadable::Name(name.to_owned(), e.to_string());
        let kind = match self {
            Self::A => TYPE::A,
            Self::Aaaa => TYPE::AAAA,
            Self::Srv => TYPE::SRV,
        };
        let mut packet = Packet::new_query(id);
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
        let asked = Name::new(name).map_err(unfit)?;
        let question = simple_dns::Question::new(asked, kind.into(), CLASS::IN.into(), false);
        packet.questions.push(question);
        packet.build_bytes_vec().map_err(unfit)
    }
}

/// Returns whether `message` is truncated: the whole reply is available over TCP.
pub fn is_truncated(message: &[u8]) -> bool {
    message.get(2).is_some_and(|flags| flags & 0x02 != 0)
}

impl Reply {
    /// Parses `message`, the reply to the query with the transaction ID `id`.
    pub fn read(message: &[u8], id: u16) -> Result<Self, Unreadable> {
        let packet = Packet::parse(message).map_err(|e| Unreadable::Reply(e.to_string()))?;
        if packet.id() != id || !packet.has_flags(PacketFlag::RESPONSE) {
            return Err(Unreadable::Other);
        }
        match packet.rcode() {
            RCODE::NoError => {}
            RCODE::NameError => return Ok(Self::NoName),
            code => return Ok(Self::Failed(format!("{code:?}"))),
        }
        let mut records = Records::default();
        for answer in &packet.answers {
            match &answer.rdata {
                RData::A(a) => {
                    records.addresses.insert(Ipv4Addr::from(a.address).into());
                }
                RData::AAAA(a) => {
                    records.addresses.insert(Ipv6Addr::from(a.address).into());
                }
                // The first record of a chain is the alias of the queried name.
                RData::CNAME(name) if records.alias.is_none() => {
                    records.alias = Some(name.0.to_string());
                }
                RData::SRV(srv) => {
                    records.servers.insert(Server {
                        host: srv.target.to_string(),
                        port: srv.port,
                    });
                }
                _ => {}
            }
        }
        Ok(Self::Records(records))
    }
}

#[cfg(test)]
mod tests {
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::{A, AAAA, CNAME, SRV};

    use super::*;

    /// `dig +noedns +qr web.demo.svc.cluster.local AAAA`, as sent.
    #[test]
    fn a_query_equals_the_one_of_dig() {
        let asked = Question::Aaaa
            .ask("web.demo.svc.cluster.local", 0x1234)
            .unwrap();
        let mut expected = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00".to_vec();
        for label in ["web", "demo", "svc", "cluster", "local"] {
            expected.push(u8::try_from(label.len()).unwrap());
            expected.extend(label.as_bytes());
        }
        expected.extend(b"\x00\x00\x1c\x00\x01");
        assert_eq!(asked, expected);
        let long = "a".repeat(64);
        assert!(matches!(
            Question::A.ask(&long, 1),
            Err(Unreadable::Name(..))
        ));
    }

    #[test]
    fn only_a_reply_to_the_same_query_is_accepted() {
        let name = Name::new("x.example").unwrap();
        let mut packet = Packet::new_reply(7);
        packet.set_flags(PacketFlag::RESPONSE);
        for rdata in [
            RData::CNAME(CNAME(Name::new("y.example").unwrap())),
            RData::A(A {
                address: 0x0a00_0001,
            }),
            RData::AAAA(AAAA { address: 1 }),
            RData::SRV(SRV {
                priority: 0,
                weight: 100,
                port: 80,
                target: Name::new("z.example").unwrap(),
            }),
        ] {
            let record = ResourceRecord::new(name.clone(), CLASS::IN, 5, rdata);
            packet.answers.push(record);
        }
        let bytes = packet.build_bytes_vec_compressed().unwrap();
        let Reply::Records(records) = Reply::read(&bytes, 7).unwrap() else {
            panic!("{bytes:?}");
        };
        let addresses: Vec<String> = records.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1", "::1"]);
        assert_eq!(records.alias.as_deref(), Some("y.example"));
        let host = "z.example".to_owned();
        assert!(records.servers.contains(&Server { host, port: 80 }));
        assert_eq!(Reply::read(&bytes, 8), Err(Unreadable::Other));
        assert!(matches!(
            Reply::read(&bytes[..20], 7),
            Err(Unreadable::Reply(_))
        ));
        *packet.rcode_mut() = RCODE::NameError;
        let bytes = packet.build_bytes_vec().unwrap();
        assert_eq!(Reply::read(&bytes, 7), Ok(Reply::NoName));
        *packet.rcode_mut() = RCODE::ServerFailure;
        let bytes = packet.build_bytes_vec().unwrap();
        assert_eq!(
            Reply::read(&bytes, 7),
            Ok(Reply::Failed("ServerFailure".to_owned()))
        );
    }

    #[test]
    fn a_truncated_reply_is_detected() {
        assert!(is_truncated(b"\x00\x01\x83\x80"));
        assert!(!is_truncated(b"\x00\x01\x81\x80"));
        assert!(!is_truncated(b""));
    }
}
