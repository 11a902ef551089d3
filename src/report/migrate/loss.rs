//! What the strategies of a journey are expected to cost, beside each other.

use serde::Serialize;

use crate::backend::Mode;
use crate::migrate::drain::Gauge;
use crate::migrate::journey::Strategy;
use crate::migrate::loss::{Established, Evicted, Loss, New, Plain};
use crate::render::Page;

/// Another strategy that could be asked for, and what it is expected to cost.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offer {
    /// Which.
    pub strategy: Strategy,
    /// What is expected to be lost.
    pub loss: Loss,
    /// Why it cannot be done here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What there is to choose from.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offers {
    /// Why the chosen one is chosen.
    pub why: String,
    /// The others.
    pub others: Vec<Offer>,
    /// What a restart of kube-proxy in the new mode would cost without kpx.
    pub without_kpx: Plain,
}

impl Offers {
    /// Lays them out, a row for each, with the `chosen` one from mode `from` to mode `to`.
    pub(super) fn page(
        &self,
        page: &mut Page,
        (strategy, loss): (Strategy, &Loss),
        from: Mode,
        to: Mode,
    ) {
        page.line("expected loss of connections, and how long endpoints are not followed:");
        let columns = [
            ("", 0),
            ("STRATEGY", 0),
            ("NEW", 0),
            ("ESTABLISHED", 0),
            ("HOST PROCESSES", 0),
            ("NOT FOLLOWED", 0),
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
            page.para("not known: ", &format!("established connections: {gap}"));
        }
        if losses.clone().any(|loss| loss.new == New::HostsAtRisk) {
            page.para(
                "at risk: ",
                "what processes of this host open to a Service, from when kube-ipvs0 has its address until kube-proxy's first sync",
            );
        }
        page.para("without kpx: ", &self.without(from, to));
    }

    /// Returns what a plain restart would cost, in words.
    fn without(&self, from: Mode, to: Mode) -> String {
        let plain = &self.without_kpx;
        if plain.unserved_seconds == 0 {
            return format!(
                "kube-proxy started in mode {to} leaves what mode {from} wrote, and nobody ever removes it"
            );
        }
        let established = match &plain.established {
            Established::None => String::new(),
            Established::All(gauge) | Established::AfterDrain(gauge) => {
                format!(", and {} established connections would break", gauge.count)
            }
            Established::Unknown(_) => ", and established connections would break".to_owned(),
        };
        format!(
            "kube-proxy started in mode {to} deletes what mode {from} wrote before its first sync: new connections would \
             fail for about {}{established}",
            time(plain.unserved_seconds)
        )
    }
}

fn row(mark: &str, strategy: Strategy, name: &str, loss: &Loss, from: Mode) -> Vec<String> {
    let established = match &loss.established {
        Established::None => "none".to_owned(),
        Established::AfterDrain(gauge) => format!("of {} what the wait leaves", gauge.count),
        Established::All(gauge) => format!("all {}", gauge.count),
        Established::Unknown(_) => "not known".to_owned(),
    };
    let established = match (&loss.evicted, established.as_str()) {
        (Evicted::None | Evicted::Pods(0), _) => established,
        (Evicted::Unknown(_), _) => "not known".to_owned(),
        (Evicted::Pods(pods), "none") => format!("all of {pods} pods"),
        (Evicted::Pods(pods), _) => format!("all of {pods} pods, else {established}"),
    };
    let hosts = match (loss.new, from, strategy) {
        (New::HostsAtRisk, ..) => "new ones at risk",
        // Theirs are among those that are waited for.
        (New::Kept, Mode::Ipvs, Strategy::Bridge) => "as established",
        (New::Kept, Mode::Ipvs, _) => "some lost",
        (New::Kept, ..) => "none",
    };
    let unfollowed = match loss.unfollowed_seconds {
        0 => "-".to_owned(),
        seconds => format!("about {}", time(seconds)),
    };
    [mark, name, "none", &established, hosts, &unfollowed]
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
    use crate::migrate::drain::Holder;
    use crate::render::Style;

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
    fn all_that_is_lost_has_its_figure() {
        let offers = Offers {
            why: "it was asked for".to_owned(),
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
        });
        let chosen = loss(Established::AfterDrain(gauge(42)), Evicted::None, 0);
        let chosen = (Strategy::Bridge, &chosen);
        offers.page(&mut page, chosen, Mode::Ipvs, Mode::Nftables);
        let text = page.into_text();
        let expected = "\
expected loss of connections, and how long endpoints are not followed:
    STRATEGY      NEW   ESTABLISHED                 HOST PROCESSES  NOT FOLLOWED
->  bridge        none  of 42 what the wait leaves  as established  -
    in-place      none  all 42                      some lost       about 119 s
    (drain-node)  none  all of 12 pods, else all 3  some lost       about 14 min
bridge: it was asked for
not drain-node: pod a/b has an emptyDir
established now: 42: shop/cart:http (42)
without kpx: kube-proxy started in mode nftables deletes what mode ipvs wrote before its first sync:
             new connections would fail for about 14 min, and 42 established connections would break
";
        assert_eq!(text, expected);
    }
}
