//! Programs and maps of eBPF: what kpx reads of a program and of maps that the test loads. All of them end with it.

use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use kpx_node::evidence::Item;
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::bpf::{Kind, Place, Proxy, Sought};
use nix::errno::Errno;
use nix::libc;

use super::netns::{Netns, processes};

/// Commands and numbers of `linux/bpf.h`.
const MAP_CREATE: i32 = 0;
const MAP_UPDATE: i32 = 2;
const PROG_LOAD: i32 = 5;
const PROG_ATTACH: i32 = 8;
const HASH: u32 = 1;
const SCHED_CLS: u32 = 3;
const CGROUP_SOCK_ADDR: u32 = 18;
const INET4_CONNECT: u32 = 10;
const TCX_INGRESS: u32 = 46;
const ALLOW_MULTI: u32 = 2;

/// Arguments of the system call: fields by their offsets.
struct Arguments([u8; 144]);

impl Arguments {
    const fn new() -> Self {
        Self([0; 144])
    }

    fn number(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn memory(mut self, at: usize, bytes: &[u8]) -> Self {
        let address = bytes.as_ptr().expose_provenance() as u64;
        self.0[at..at + 8].copy_from_slice(&address.to_ne_bytes());
        self
    }

    fn name(mut self, at: usize, name: &str) -> Self {
        self.0[at..at + name.len()].copy_from_slice(name.as_bytes());
        self
    }

    fn file(self, at: usize, file: &OwnedFd) -> Self {
        self.number(at, file.as_raw_fd().try_into().unwrap())
    }

    #[expect(unsafe_code, reason = "libc has no function for this system call")]
    fn call(&mut self, command: i32) -> i64 {
        // SAFETY: the kernel reads the arguments and the memory that they name, which the caller keeps until then.
        let status = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), 144) };
        Errno::result(status).unwrap()
    }

    #[expect(
        unsafe_code,
        reason = "the system call returns a file descriptor as a number"
    )]
    fn open(&mut self, command: i32) -> OwnedFd {
        let number = RawFd::try_from(self.call(command)).unwrap();
        // SAFETY: the kernel has just opened it for this call.
        unsafe { OwnedFd::from_raw_fd(number) }
    }
}

/// Loads a program that returns `value`.
fn program(kind: u32, hook: u32, name: &str, value: u8) -> OwnedFd {
    // r0 = value; exit.
    let code = [0xb7, 0, 0, 0, value, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    Arguments::new()
        .number(0, kind)
        .number(4, 2)
        .memory(8, &code)
        .memory(16, b"GPL\0")
        .name(48, name)
        .number(68, hook)
        .open(PROG_LOAD)
}

fn map(name: &str, key: u32, value: u32, entries: &[(&[u8], &[u8])]) -> OwnedFd {
    let map = Arguments::new()
        .number(0, HASH)
        .number(4, key)
        .number(8, value)
        .number(12, 64)
        .name(28, name)
        .open(MAP_CREATE);
    for (key, value) in entries {
        Arguments::new()
            .file(0, &map)
            .memory(8, key)
            .memory(16, value)
            .call(MAP_UPDATE);
    }
    map
}

/// A control group of the test; programs attached to it end with it.
struct Cgroup(PathBuf, String);

impl Cgroup {
    fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts
            .lines()
            .find(|line| line.contains(" - cgroup2 "))
            .unwrap();
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next().unwrap(), fields.next().unwrap());
        let name = format!("kpx-test-{}-{}", processes(), process::id());
        let path = Path::new(point).join(&name);
        fs::create_dir(&path).unwrap();
        Self(path, Path::new(root).join(name).display().to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).unwrap();
    }
}

#[tokio::test]
#[ignore = "needs root, a control group and bpf()"]
async fn programs_and_maps_are_read_as_they_were_loaded() {
    let netns = Netns::new();
    netns.run("ip link add pod0 type veth peer name far0");
    let cgroup = Cgroup::new();
    let folder = OwnedFd::from(File::open(&cgroup.0).unwrap());
    let connect = program(CGROUP_SOCK_ADDR, INET4_CONNECT, "cil_sock4_conne", 1);
    Arguments::new()
        .file(0, &folder)
        .file(4, &connect)
        .number(8, INET4_CONNECT)
        .number(12, ALLOW_MULTI)
        .call(PROG_ATTACH);
    let ingress = program(SCHED_CLS, 0, "cil_from_netdev", 0);
    let link = netns.run("ip -o link show pod0");
    let index: u32 = link.split(':').next().unwrap().parse().unwrap();
    netns.inside(|| {
        Arguments::new()
            .number(0, index)
            .file(4, &ingress)
            .number(8, TCX_INGRESS)
            .call(PROG_ATTACH);
    });
    // 10.96.0.20:80/tcp with one backend, 10.244.1.7:8080; and a NodePort without any.
    let slots: &[(&[u8], &[u8])] = &[
        (
            &[10, 96, 0, 20, 0, 80, 0, 0, 6, 0, 0, 0],
            &[0, 0, 0, 0, 1, 0, 0, 4, 0, 0, 0, 0],
        ),
        (
            &[10, 96, 0, 20, 0, 80, 1, 0, 6, 0, 0, 0],
            &[9, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0],
        ),
        (
            &[0, 0, 0, 0, 0x75, 0x30, 0, 0, 6, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0, 5, 2, 0, 0, 0],
        ),
    ];
    let services = map("cilium_lb4_serv", 12, 12, slots);
    let backends = map(
        "cilium_lb4_back",
        4,
        12,
        &[(
            &[9, 0, 0, 0],
            &[10, 244, 1, 7, 0x1f, 0x90, 6, 0, 0, 0, 0, 0],
        )],
    );
    let evidence = netns.collect(&[Item::Bpf]).await;
    let node = NodeSnapshot::new(&evidence);
    let bpf = node.bpf().unwrap();
    let mut at_cgroup = bpf.cgroups().unwrap().iter();
    let at_cgroup = at_cgroup
        .find(|process| process.cgroup == cgroup.1)
        .unwrap();
    assert_eq!(at_cgroup.attach_type, "cgroup_inet4_connect");
    let known = bpf.program(at_cgroup.program).unwrap();
    assert_eq!(
        (known.name.as_str(), known.r#type.as_str(), known.uid),
        ("cil_sock4_conne", "cgroup_sock_addr", 0)
    );
    // Loaded less than ten minutes ago.
    let now = fs::metadata(&cgroup.0).unwrap().modified().unwrap();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(
        now.abs_diff(known.loaded_at.unwrap()) < 600,
        "{now} {known:?}"
    );
    let at_links = bpf.links().unwrap();
    assert_eq!(at_links.len(), 1, "{at_links:?}");
    assert_eq!(
        (at_links[0].dev.as_str(), at_links[0].attach_type.as_str()),
        ("pod0", "tcx_ingress")
    );
    assert_eq!(
        bpf.program(at_links[0].program).unwrap().name,
        "cil_from_netdev"
    );
    let table = bpf.table(Proxy::Cilium, Family::V4).unwrap().unwrap();
    let front = table
        .lookup(&Sought {
            address: "10.96.0.20".parse().unwrap(),
            port: 80,
            proto: Proto::Tcp,
            own: false,
            outside: false,
            client: None,
        })
        .unwrap();
    let ends: Vec<String> = front
        .active()
        .map(|backend| backend.addr.to_string())
        .collect();
    assert_eq!(ends, ["10.244.1.7:8080"]);
    let node_port = table
        .frontends
        .iter()
        .find(|frontend| frontend.at == Place::AnyNode)
        .unwrap();
    assert_eq!((node_port.port, node_port.kind), (30000, Kind::NodePort));
    assert!(node_port.backends.is_empty() && node_port.missing == 0);
    drop((services, backends, connect, ingress, folder, cgroup));
    // The kernel ends them a moment later.
    let mut left = true;
    for _ in 0..50 {
        let evidence = netns.collect(&[Item::Bpf]).await;
        let node = NodeSnapshot::new(&evidence);
        let bpf = node.bpf().unwrap();
        let maps = bpf.maps().unwrap().iter();
        left = bpf.program(at_cgroup.program).is_some()
            || maps.clone().any(|map| map.name.starts_with("cilium_lb4"));
        if !left {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!left);
}
