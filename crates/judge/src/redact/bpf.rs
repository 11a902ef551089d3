//! Redaction of programs and maps of eBPF.

use super::Redactor;
use super::names::Kind;
use super::redactor::unreadable;
use super::words;
use kpx_node::evidence::bpf::{Content, Dump, Part};
use kpx_node::evidence::{Gap, Item};

/// Beginnings of the names that network plugins, systemd and compilers give programs and maps.
const KNOWN: &[&str] = &[
    ".", "cal_", "cali", "cil_", "cilium_", "sd_", "tail_", "xdp_cali",
];

impl Redactor {
    /// Redacts addresses, control groups, links, and names that no known software gives.
    pub(super) fn bpf(&mut self, item: Item, text: &str) -> Result<String, Gap> {
        let failed = |error| unreadable(item, &error);
        let mut dump: Dump = serde_json::from_str(text).map_err(failed)?;
        self.part(&mut dump.cgroups, |own, of| {
            of.cgroup = own.cgroup(&of.cgroup);
        });
        self.part(&mut dump.links, |own, of| of.dev = own.names.link(&of.dev));
        self.part(&mut dump.programs, |own, of| of.name = own.given(&of.name));
        self.part(&mut dump.pins, |own, of| *of = own.pin(of));
        self.part(&mut dump.maps, |own, of| {
            of.name = own.given(&of.name);
            of.unread = of.unread.as_ref().map(|gap| own.gap(gap));
            if let Some(content) = &mut of.content {
                own.content(content);
            }
        });
        serde_json::to_string(&dump)
            .map(|text| text + "\n")
            .map_err(failed)
    }

    fn part<T>(&mut self, part: &mut Part<T>, mut edit: impl FnMut(&mut Self, &mut T)) {
        match part {
            Part::Read(all) => all.iter_mut().for_each(|entry| edit(self, entry)),
            Part::Unread { unread } => *unread = self.gap(unread),
        }
    }

    /// Returns the replacement of the name of a program or map.
    fn given(&mut self, name: &str) -> String {
        if KNOWN.iter().any(|prefix| name.starts_with(prefix)) || words::in_names(name) {
            name.to_owned()
        } else {
            self.names.map(Kind::Other, name)
        }
    }

    /// Returns the replacement of a path of bpffs, which may contain names of links.
    fn pin(&mut self, path: &str) -> String {
        let parts = path.split('/').map(|part| {
            if let Some(link) = self.names.known_link(part) {
                return link;
            }
            let mut pieces = part.split(['_', '-', '.']);
            if pieces.all(words::in_names) || words::is_common_link(part) {
                part.to_owned()
            } else {
                self.given(part)
            }
        });
        parts.collect::<Vec<_>>().join("/")
    }

    fn content(&mut self, content: &mut Content) {
        let own = &mut self.addresses;
        match content {
            Content::CiliumServices(all) => {
                for of in all {
                    of.address = own.map(of.address);
                }
            }
            Content::CiliumBackends(all) => {
                for of in all {
                    of.address = own.map(of.address);
                }
            }
            Content::CiliumReverseNat(all) => {
                for of in all {
                    of.address = own.map(of.address);
                }
            }
            Content::CiliumAffinity(all) => {
                for of in all {
                    of.client = of.client.map(|ip| own.map(ip));
                }
            }
            Content::CiliumSourceRanges(all) => {
                for of in all {
                    of.source = own.map_prefix(of.source);
                }
            }
            Content::CalicoFrontends(all) => all.iter_mut().for_each(|frontend| {
                frontend.address = own.map(frontend.address);
                frontend.source = frontend.source.map(|source| own.map_prefix(source));
            }),
            Content::CalicoBackends(all) => {
                for of in all {
                    of.address = own.map(of.address);
                }
            }
        }
    }
}
