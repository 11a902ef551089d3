//! The strategies of a migration with their expected loss, side by side.

use serde::Serialize;

use crate::render::Page;
use kpx_migrate::drain::Gauge;
use kpx_migrate::loss::{Established, Evicted, Loss, New, Plain};
use kpx_migrate::migration::Strategy;
use kpx_node::backend::Mode;
use kpx_node::words::number_of;

/// Another strategy, with its expected loss.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Offer {
    /// The strategy.
    pub strategy: Strategy,
    /// The expected loss.
    pub loss: Loss,
    /// Why it cannot be used on this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The strategies.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Offers {
    /// The reason for the chosen one.
    pub why: String,
    /// The others.
    pub others: Vec<Offer>,
    /// The expected loss of a plain restart of kube-proxy in the new mode.
    pub without_kpx: Plain,
}

impl Offers {
    /// Prints a row for each strategy, the chosen one first, for a migration from mode `from` to mode `to`.
    pub(super) fn page(
        &self,
        page: &mut Page,
        (strategy, loss): (Strategy, &Loss),
        from: Mode,
        to: Mode,
    ) {
        page.line("cost of the switch: lost connections, and how long endpoints are not updated:");
        let columns = [
            ("", 0),
            ("STRATEGY", 0),
            ("NEW", 0),
            ("ESTABLISHED", 0),
            ("HOST PROCESSES", 0),
            ("NOT UPDATED", 0),
        ];
        let mut rows = vec![row("->", strategy, &strategy.to_string(), loss, from)];
        for offer in &self.others {
            let name = match &offer.refused {
                None => offer.strategy.to_string(),
                Some(_) => format!("({})", offer.strategy),
            };
            rows.push(row("", offer.strategy, &name, &offer.loss, from));
        }
        page.grid(&columns, &rows);
        page.para(&format!("{strategy}: "), &self.why);
        for offer in &self.others {
            if let Some(why) = &offer.refused {
                page.para(&format!("not {}: ", offer.strategy), why);
            }
        }
        let others = self.others.iter().map(|offer| &offer.loss);
        let losses = std::iter::once(loss).chain(others);
        if let Some(gauge) = losses.clone().find_map(|loss| gauge(&loss.established)) {
            let holders = gauge.holders();
            page.para("established now: ", &format!("{}: {holders}", gauge.count));
        }
        if let Some(gap) = losses.clone().find_map(|loss| gap(&loss.established)) {
            page.para("unknown: ", &format!("established connections: {gap}"));
        }
        if losses.clone().any(|loss| loss.new == New::HostsAtRisk) {
            page.para(
                "at risk: ",
                "connections of host processes to a Service, from the moment kube-ipvs0 has its address until kube-proxy's first sync",
            );
        }
        page.para("without kpx: ", &self.without(from, to));
    }

    /// Returns the expected loss of a plain restart, in words.
    fn without(&self, from: Mode, to: Mode) -> String {
        let plain = &self.without_kpx;
        if plain.unserved_seconds == 0 {
            return format!(
                "a kube-proxy that starts in mode {to} does not remove the rules of mode {from}: they stay as leftovers"
            );
        }
        let established = match &plain.established {
            Established::None => String::new(),
            Established::All(gauge) | Established::AfterDrain(gauge) => {
                format!(
                    ", and {} would break",
                    number_of(gauge.count, "established connection")
                )
            }
            Established::Unknown(_) => ", and established connections would break".to_owned(),
        };
        if from == Mode::Userspace {
            return format!(
                "the rules of mode userspace lead to ports of kube-proxy's process, which close when it restarts: new \
                 connections would fail for about {}{established}",
                time(plain.unserved_seconds)
            );
        }
        format!(
            "a kube-proxy that starts in mode {to} deletes the rules of mode {from} before its first sync: new connections \
             would fail for about {}{established}",
            time(plain.unserved_seconds)
        )
    }
}

fn row(mark: &str, strategy: Strategy, name: &str, loss: &Loss, from: Mode) -> Vec<String> {
    let established = match &loss.established {
        Established::None => "none".to_owned(),
        Established::AfterDrain(gauge) => format!("those of {} open after the drain", gauge.count),
        Established::All(gauge) => format!("all {}", gauge.count),
        Established::Unknown(_) => "unknown".to_owned(),
    };
    let established = match (&loss.evicted, established.as_str()) {
        (Evicted::None | Evicted::Pods(0), _) => established,
        (Evicted::Unknown(_), _) => "unknown".to_owned(),
        (Evicted::Pods(pods), "none") => format!("all of {}", number_of(*pods, "pod")),
        (Evicted::Pods(pods), _) => {
            format!("all of {}; others: {established}", number_of(*pods, "pod"))
        }
    };
    let hosts = match (loss.new, from, strategy) {
        (New::HostsAtRisk, ..) => "new ones at risk",
        (New::Refused(_), ..) => "as others",
        // The drain waits for connections of host processes, too.
        (New::Kept, Mode::Ipvs, Strategy::Bridge) => "as established",
        (New::Kept, Mode::Ipvs, _) => "some lost",
        (New::Kept, ..) => "none",
    };
    let unfollowed = match loss.unfollowed_seconds {
        0 => "-".to_owned(),
        seconds => format!("about {}", time(seconds)),
    };
    let new = match loss.new {
        New::Refused(seconds) => format!("refused for about {}", time(seconds)),
        New::Kept | New::HostsAtRisk => "none".to_owned(),
    };
    [mark, name, &new, &established, hosts, &unfollowed]
        .map(str::to_owned)
        .to_vec()
}

fn gauge(established: &Established) -> Option<&Gauge> {
    match established {
        Established::AfterDrain(gauge) | Established::All(gauge) => Some(gauge),
        Established::None | Established::Unknown(_) => None,
    }
}

fn gap(established: &Established) -> Option<String> {
    match established {
        Established::Unknown(gap) => Some(gap.to_string()),
        _ => None,
    }
}

fn time(seconds: u64) -> String {
    if seconds < 120 {
        format!("{seconds} s")
    } else {
        format!("{} min", seconds.div_ceil(60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::Style;
    use kpx_migrate::drain::Holder;

    fn gauge(count: usize) -> Gauge {
        let service = "shop/cart:http".to_owned();
        Gauge {
            count,
            top: vec![Holder { service, count }],
        }
    }

    fn loss(established: Established, evicted: Evicted, unfollowed_seconds: u64) -> Loss {
        Loss {
            new: New::Kept,
            established,
            evicted,
            unfollowed_seconds,
        }
    }

    #[test]
    fn every_loss_has_its_figure() {
        let offers = Offers {
            why: "requested".to_owned(),
            others: vec![
                Offer {
                    strategy: Strategy::InPlace,
                    loss: loss(Established::All(gauge(42)), Evicted::None, 119),
                    refused: None,
                },
                Offer {
                    strategy: Strategy::DrainNode,
                    loss: loss(Established::All(gauge(3)), Evicted::Pods(12), 798),
                    refused: Some("pod a/b has an emptyDir".to_owned()),
                },
            ],
            without_kpx: Plain {
                unserved_seconds: 798,
                established: Established::All(gauge(42)),
            },
        };
        let mut page = Page::new(Style {
            width: 100,
            color: false,
            ascii: true,
            wide: false,
            verbose: 0,
            program: "kpx",
        });
        let chosen = loss(Established::AfterDrain(gauge(42)), Evicted::None, 0);
        let chosen = (Strategy::Bridge, &chosen);
        offers.page(&mut page, chosen, Mode::Ipvs, Mode::Nftables);
        let text = page.into_text();
        let expected = "\
cost of the switch: lost connections, and how long endpoints are not updated:
    STRATEGY      NEW   ESTABLISHED                       HOST PROCESSES  NOT UPDATED
->  bridge        none  those of 42 open after the drain  as established  -
    in-place      none  all 42                            some lost       about 119 s
    (drain-node)  none  all of 12 pods; others: all 3     some lost       about 14 min
bridge: requested
not drain-node: pod a/b has an emptyDir
established now: 42: shop/cart:http (42)
without kpx: a kube-proxy that starts in mode nftables deletes the rules of mode ipvs before its
             first sync: new connections would fail for about 14 min, and 42 established connections
             would break
";
        assert_eq!(text, expected);
    }
}
