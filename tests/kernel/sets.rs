//! IP sets as kpx reads them from the kernel, and as `ipset save` prints them.

use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use kpx_node::evidence::{Item, load};

use super::netns::{Netns, run};
use crate::random::Dice;

/// Each type that kpx decodes, with every option of members that the type has.
const EVERY: &str = "\
create a hash:ip family inet hashsize 1024 maxelem 65536 netmask 24 timeout 100000 counters comment skbinfo
create b hash:ip,port family inet6 counters comment skbinfo
create c hash:ip,port,ip counters
create d hash:ip,port,net timeout 100000 counters comment skbinfo
create e hash:net family inet6
create f hash:net,iface timeout 100000 counters comment skbinfo
create g hash:net,port comment counters
create h bitmap:port range 0-65535 timeout 100000 counters comment skbinfo
create i bitmap:ip range 192.168.0.0/16
create j bitmap:ip range 192.168.0.0/16 netmask 24
create k bitmap:ip range 192.168.0.3-192.168.0.77
create l bitmap:ip,mac range 192.168.0.0/24
create m list:set size 16 counters comment
add a 10.0.0.7 timeout 0 packets 5 bytes 77 comment \"two words\" skbmark 0x1/0xff skbprio 1:10 skbqueue 3
add a 10.0.4.7 timeout 0 skbmark 0x5
add b ::1.2.3.4,tcp:80 comment \"x\"
add b ::ffff:1.2.3.4,udp:80
add b fe80::1,sctp:80
add c 10.0.0.1,tcp:80,10.0.0.1
add d 10.0.0.1,tcp:80,10.0.0.0/8 timeout 0 skbqueue 2
add d 10.0.0.1,tcp:80,10.0.0.9/32 timeout 0 comment \"x\" nomatch
add e 2001:db8::/32
add e 2001:db8::1
add e 2001:db8:1::/64 nomatch
add f 10.0.0.0/8,eth0 timeout 0
add f 10.0.0.0/8,physdev:eth1 timeout 0
add f 0.0.0.0/0,eth timeout 0 wildcard nomatch comment \"x\" skbprio 1:a
add f 10.0.0.1,lo timeout 0 nomatch
add g 10.0.0.0/8,tcp:80 nomatch
add g 10.1.0.0/16,udp:80 comment \"x\"
add h 80 timeout 0 comment \"a\"
add h 1000-1002 timeout 0
add i 192.168.0.5
add j 192.168.5.0/24
add k 192.168.0.5
add l 192.168.0.5,01:23:45:67:89:ab
add l 192.168.0.6
add m a comment \"q\"
add m b
";

/// Writes a program `ipset` that runs `script`, which finds the real one in `$real`.
fn stand_in(dir: &Path, script: &str) {
    let path = dir.join("ipset");
    let real = run(&["which", "ipset"], "");
    fs::write(
        &path,
        format!("#!/bin/sh\nreal={}\n{script}\n", real.trim()),
    )
    .unwrap();
    run(&["chmod", "+x", path.to_str().unwrap()], "");
}

/// Returns the IP sets of a bundle of `netns`, taken with the programs of `dir` before all others.
#[expect(clippy::disallowed_methods, reason = "the program under test")]
fn sets(netns: &Netns, dir: &Path) -> String {
    let bundle = dir.join("bundle");
    let options = netns.options();
    let output = Command::new(env!("CARGO_BIN_EXE_kpx"))
        .args(["--netns", options.netns.as_deref().unwrap(), "--no-api"])
        .args(["snapshot", "--file"])
        .arg(&bundle)
        .env(
            "PATH",
            format!("{}:/usr/sbin:/sbin:/usr/bin:/bin", dir.display()),
        )
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let read = load(&bundle, &[Item::Ipset]).unwrap_or_else(|e| panic!("{e}\n{said}"));
    read.text(Item::Ipset)
        .unwrap_or_else(|e| panic!("{e}\n{said}"))
        .to_owned()
}

/// Compares the sets that kpx reads without a working `ipset` with the output of `ipset save`.
#[track_caller]
fn same(netns: &Netns, what: &str) {
    let dir = tempfile::tempdir().unwrap();
    stand_in(dir.path(), "exit 1");
    let own = sets(netns, dir.path());
    let tool = netns.run("ipset save");
    assert_eq!(own, tool, "{what}");
}

fn recordings() -> Vec<PathBuf> {
    let nodes = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes");
    let all = fs::read_dir(nodes).unwrap();
    let files = all.map(|node| node.unwrap().path().join("node/ipset-save.txt"));
    let mut files: Vec<_> = files.filter(|file| file.exists()).collect();
    files.sort();
    files
}

#[test]
#[ignore = "needs root and a network namespace"]
fn every_type_and_option_is_read_as_ipset_saves_it() {
    let netns = Netns::new();
    netns.feed("ipset restore", EVERY);
    same(&netns, "every type");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_sets_of_every_recording_are_read_as_ipset_saves_them() {
    let mut compared = 0;
    for file in recordings() {
        let text = fs::read_to_string(&file).unwrap();
        if !text.contains("create ") {
            continue;
        }
        let netns = Netns::new();
        // Some releases of ipset print the number of the set before with a bitmap, which has none.
        let lines = text.lines().map(|line| match line.split_once(" initval ") {
            Some((bitmap, _)) if bitmap.contains(" bitmap:") => bitmap,
            _ => line,
        });
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        netns.feed("ipset restore", &text);
        same(&netns, &file.display().to_string());
        compared += 1;
    }
    assert!(compared >= 10, "{compared} recordings have IP sets");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn random_sets_are_read_as_ipset_saves_them() {
    random_sets_are_read(0..3);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_more_random_sets_are_read_as_ipset_saves_them() {
    random_sets_are_read(3..10);
}

fn random_sets_are_read(seeds: Range<u64>) {
    const KINDS: [(&str, &str); 6] = [
        ("hash:ip", "A"),
        ("hash:ip,port", "A,P"),
        ("hash:ip,port,ip", "A,P,A"),
        ("hash:ip,port,net", "A,P,N"),
        ("hash:net", "N"),
        ("hash:net,port", "N,P"),
    ];
    for seed in seeds {
        let mut dice = Dice::new(seed);
        let mut text = String::new();
        for set in 0..10 {
            let (kind, shape) = KINDS[usize::try_from(dice.below(6)).unwrap()];
            let v6 = dice.below(2) == 0;
            let family = if v6 { "inet6" } else { "inet" };
            let (timeout, counters) = (dice.below(2) == 0, dice.below(2) == 0);
            write!(text, "create s{set} {kind} family {family}").unwrap();
            text.push_str(if timeout { " timeout 0" } else { "" });
            text.push_str(if counters { " counters\n" } else { "\n" });
            // More than one message of the kernel has.
            for _ in 0..dice.below(1500) {
                let parts = shape.split(',').map(|part| part_of(part, v6, &mut dice));
                let parts: Vec<_> = parts.collect();
                write!(text, "add -exist s{set} {}", parts.join(",")).unwrap();
                if counters {
                    write!(text, " packets {} bytes 7", dice.below(1 << 40)).unwrap();
                }
                text.push('\n');
            }
        }
        let netns = Netns::new();
        netns.feed("ipset restore", &text);
        same(&netns, &format!("seed {seed}"));
    }
}

fn part_of(part: &str, v6: bool, dice: &mut Dice) -> String {
    let address = |dice: &mut Dice| {
        let mut octet = || dice.below(255) + 1;
        if v6 {
            format!("{:x}::{:x}:{:x}", octet() + 0x2000, octet(), octet())
        } else {
            format!("{}.{}.{}.{}", octet(), octet(), octet(), octet())
        }
    };
    match part {
        "A" => address(dice),
        "N" => {
            let address = address(dice);
            let longest = if v6 { 128 } else { 32 };
            format!("{address}/{}", dice.below(longest) + 1)
        }
        _ => {
            let proto = ["tcp", "udp", "sctp"][usize::try_from(dice.below(3)).unwrap()];
            format!("{proto}:{}", dice.below(65536))
        }
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_set_that_kpx_does_not_decode_is_read_by_ipset() {
    for set in [
        "create a hash:ip,port\nadd a 10.0.0.1,tcp:80\nadd a 10.0.0.1,icmp:echo-request\n",
        // ipset 7.17 does not print this option, and other releases do.
        "create a hash:ip forceadd\nadd a 10.0.0.1\n",
    ] {
        let netns = Netns::new();
        netns.feed("ipset restore", set);
        let dir = tempfile::tempdir().unwrap();
        stand_in(dir.path(), "echo \"$*\" >>$0.ran\nexec $real \"$@\"");
        assert_eq!(sets(&netns, dir.path()), netns.run("ipset save"));
        let ran = fs::read_to_string(dir.path().join("ipset.ran")).unwrap();
        assert!(ran.lines().any(|line| line == "save"), "{ran}");
    }
}
