//! Clean-up of sets, virtual servers, and kube-ipvs0 with its addresses.

use crate::plan::draft::Draft;
use kpx_node::action::Undo;
use kpx_node::backend::ipvs::model::{DUMMY, Key};
use kpx_node::backend::{Mode, ipset, ipvs};
use kpx_node::evidence::Gap;
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::objects::{Found, Object};
use kpx_node::words::number_of;

impl Draft {
    /// Adds steps for unreferenced objects: sets, then virtual servers by exact key, then addresses, then the link.
    pub(super) fn ipvs_of(
        &mut self,
        node: &NodeSnapshot<'_>,
        families: &[Family],
    ) -> Result<(), Gap> {
        let found = node.objects_of(Mode::Ipvs)?;
        let ours =
            |found: &&Found<'_>| found.family.is_none_or(|family| families.contains(&family));
        let found: Vec<_> = found.iter().filter(ours).collect();
        let mut sets = ipset::change::Edits::default();
        let mut servers = ipvs::change::Edits::default();
        let mut addresses = Vec::new();
        let mut link = false;
        let (mut set_count, mut server_count, mut connections) = (0, 0, 0);
        for of in &found {
            match of.object {
                Object::Set { name, .. } => {
                    if let Some(set) = node.ipset()?.set(name) {
                        sets.destroy(set);
                        set_count += 1;
                    }
                }
                Object::Server { proto, at } => {
                    let key = Key::Address {
                        proto,
                        addr: at.ip(),
                        port: at.port(),
                    };
                    let mut all = node.ipvs()?.servers.iter();
                    if let Some(server) = all.find(|server| server.key == key) {
                        servers.delete_server(server);
                        server_count += 1;
                        let reals = server.reals.iter().filter_map(|real| real.connections);
                        connections += reals.map(|real| real.active).sum::<u32>();
                    }
                }
                Object::Address(addr) => addresses.push(addr),
                Object::Link => link = true,
                Object::Chain { .. } | Object::Jump { .. } | Object::Table { .. } => {}
            }
        }
        if connections > 0 {
            let (uses, breaks) = match connections {
                1 => ("uses", "breaks"),
                _ => ("use", "break"),
            };
            self.plan.notes.push(format!(
                "{} {uses} these virtual servers and {breaks} when they are deleted; see `ipvsadm -Lnc`",
                number_of(connections, "connection")
            ));
        }
        let mut step = |title: String, (make, undo)| self.plan.push(title, make, Undo::Do(undo));
        if set_count > 0 {
            step(
                format!("delete {}", number_of(set_count, "set")),
                sets.actions(),
            );
        }
        if server_count > 0 {
            step(
                format!("delete {}", number_of(server_count, "virtual server")),
                servers.actions(),
            );
        }
        if !addresses.is_empty() {
            let count = number_of(addresses.len(), "address");
            let title = format!("delete {count} from {DUMMY}");
            step(title, ipvs::change::delete_addresses(&addresses));
        }
        if link && families.len() == Family::BOTH.len() {
            step(format!("delete link {DUMMY}"), ipvs::change::delete_link());
        }
        Ok(())
    }
}
