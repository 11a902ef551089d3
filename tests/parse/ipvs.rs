//! IPVS and IP sets.

use kpx_node::backend::ipset;
use kpx_node::backend::ipvs::model::*;
use kpx_node::backend::ipvs::parse::{records, saved, table};
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::net::{Family, Proto};

use crate::support::{recorded, recordings};

#[test]
fn every_recorded_table_parses_with_counters_and_timeouts() {
    let mut seen = 0;
    for name in recordings() {
        let mut evidence = Evidence::default();
        for item in [Item::IpvsSave, Item::IpvsStats, Item::IpvsTimeout] {
            if let Some(text) = recorded(&name, item.file()) {
                evidence.insert(item, Ok(text));
            }
        }
        // Nodes derived from recordings have no counters, only the evidence that the checks need.
        let (Ok(save), Ok(_)) = (
            evidence.text(Item::IpvsSave),
            evidence.text(Item::IpvsStats),
        ) else {
            continue;
        };
        let table = table(&evidence).unwrap();
        let lines = |verb| save.lines().filter(|line| line.starts_with(verb)).count();
        let reals = table.servers.iter().map(|s| s.reals.len()).sum::<usize>();
        assert_eq!((table.servers.len(), reals), (lines("-A"), lines("-a")));
        assert!(table.timeouts.is_some() && table.info.is_some(), "{name}");
        for server in &table.servers {
            assert!(server.stats.is_some(), "{name}: {:?}", server.key);
            assert!(server.reals.iter().all(|real| real.stats.is_some()));
        }
        seen += 1;
    }
    assert!(seen >= 14, "only {seen} recordings have a table");
}

#[test]
fn every_option_of_ipvsadm_is_parsed() {
    let table = saved(
        "-A -t 10.0.0.1:80 -s sh -p 600 -M 255.255.255.0 -b sh-fallback,flag-2\n\
         -a -t 10.0.0.1:80 -r 10.1.0.1:8080 -i -w 0 -x 10 -y 5 --tun-type gue --tun-port 1 --tun-nocsum\n\
         -A -u [fd00::1]:53 -s rr -o --pe sip\n\
         -A --sctp-service 10.0.0.1:9 -s wrr\n\
         -A -f 7 -6 -s lc -p 5 -M 64\n\
         -a -f 7 -6 -r [fd00::2]:0 -g -w 1\n",
    )
    .unwrap();
    let [sh, sip, sctp, mark] = table.servers.as_slice() else {
        panic!("{table:?}");
    };
    assert_eq!((sh.timeout, sh.prefix), (600, 24));
    assert_eq!(
        sh.flags.0,
        Flags::PERSISTENT | Flags::SCHED1 | Flags::SCHED2
    );
    assert_eq!((sh.reals[0].upper, sh.reals[0].lower), (10, 5));
    assert_eq!(sh.reals[0].forwarding, Forwarding::Tunnel);
    assert_eq!((sip.flags.0, sip.prefix), (Flags::ONE_PACKET, 128));
    assert_eq!(sip.engine.as_deref(), Some("sip"));
    assert!(matches!(
        sctp.key,
        Key::Address {
            proto: Proto::Sctp,
            ..
        }
    ));
    let family = Family::V6;
    assert_eq!(mark.key, Key::Fwmark { mark: 7, family });
    assert_eq!(mark.prefix, 64);
    assert_eq!(mark.reals[0].forwarding, Forwarding::Route);
}

#[test]
fn abbreviated_counters_and_servers_added_between_two_listings_are_read() {
    let mut evidence = Evidence::default();
    let save = "-A -t 10.0.0.1:80 -s rr\n-A -f 3 -s rr\n";
    let stats = "IP Virtual Server version 1.2.1 (size=4096)\n\
        Prot LocalAddress:Port Conns InPkts OutPkts InBytes OutBytes\n  -> RemoteAddress:Port\n\
        TCP  10.0.0.1:80 1 2K 3M 4G 5\n  -> 10.9.9.9:1 0 0 0 0 0\nUDP 10.9.9.9:2 0 0 0 0 0\nFWM  3 7 0 0 0 0\n";
    evidence.insert(Item::IpvsSave, Ok(save.to_owned()));
    evidence.insert(Item::IpvsStats, Ok(stats.to_owned()));
    let read = table(&evidence).unwrap();
    let stats = read.servers[0].stats.unwrap();
    assert_eq!((stats.packets_in, stats.bytes_in), (2_000, 4_000_000_000));
    assert_eq!(read.servers[1].stats.unwrap().conns, 7);
    assert_eq!(read.timeouts, None);
    let info = read.info.unwrap();
    assert_eq!((info.version, info.conn_tab_size), (0x1_02_01, 4096));
}

#[test]
fn fields_that_the_kernel_adds_are_not_in_the_model() {
    let json = r#"{"info":{"version":66049,"connTabSize":4096},"timeouts":{"tcp":900,"tcpFin":120,"udp":300},
        "services":[{"family":"IPv4","protocol":"tcp","address":"10.0.0.1","port":80,"scheduler":"rr","flags":2,
        "timeout":300,"prefix":32,"destinations":[{"address":"10.1.0.1","port":8080,"weight":1,"forwarding":"masq"}]}]}"#;
    let table = records(json).unwrap();
    let server = &table.servers[0];
    assert_eq!((server.flags, server.timeout), (Flags(0), 0));
    assert_eq!(server.reals[0].forwarding, Forwarding::Masq);
    let nothing = r#"{"services":[{"family":"IPv4","scheduler":"rr","prefix":32}]}"#;
    assert!(matches!(records(nothing), Err(Gap::Failed(Item::Ipvs, _))));
}

#[test]
fn a_missing_table_is_a_gap_with_the_reason() {
    let mut evidence = Evidence::default();
    assert_eq!(table(&evidence), Err(Gap::NotCollected(Item::IpvsSave)));
    let denied = Gap::Denied(Item::Ipvs, "needs CAP_NET_ADMIN".to_owned());
    evidence.insert(Item::Ipvs, Err(denied.clone()));
    assert_eq!(table(&evidence), Err(denied));
}

#[test]
fn every_recorded_set_parses() {
    for name in recordings() {
        let Some(text) = recorded(&name, Item::Ipset.file()) else {
            continue;
        };
        let sets = ipset::parse(&text).unwrap();
        let members = sets.sets.iter().map(|s| s.members.len()).sum::<usize>();
        assert_eq!(sets.sets.len() + members, text.lines().count(), "{name}");
    }
    let text = "create a hash:ip family inet comment\nadd a 10.0.0.1 timeout 0 comment \"x y\"\n";
    let sets = ipset::parse(text).unwrap();
    assert_eq!(sets.sets[0].members[0].options, "timeout 0 comment \"x y\"");
    assert_eq!(
        ipset::parse("add a 10.0.0.1\n"),
        Err(Gap::Failed(
            Item::Ipset,
            "line 1: no set a was created".to_owned()
        ))
    );
}

#[test]
fn a_firewall_mark_that_ipvsadm_prints_as_negative_is_read() {
    let table = saved("-A -f -2147483640 -s rr\n").unwrap();
    let mark = 0x8000_0008;
    let family = Family::V4;
    assert_eq!(table.servers[0].key, Key::Fwmark { mark, family });
}
