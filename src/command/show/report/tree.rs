//! The rules of a Service or chain as a tree.

use std::collections::BTreeSet;

use crate::render::Page;
use crate::view::tree::Node;
use kpx_node::net::Family;
use kpx_node::words::number_of;

/// The characters that draw branches.
struct Ink {
    branch: &'static str,
    last: &'static str,
    bar: &'static str,
    gap: &'static str,
}

const LINES: Ink = Ink {
    branch: "├─ ",
    last: "└─ ",
    bar: "│  ",
    gap: "   ",
};

const ASCII: Ink = Ink {
    branch: "|- ",
    last: "`- ",
    bar: "|  ",
    gap: "   ",
};

pub(super) fn page(roots: &[Node], page: &mut Page) {
    let mut pen = Pen {
        ink: if page.style().ascii { ASCII } else { LINES },
        drawn: BTreeSet::new(),
    };
    let mut at = None;
    for root in roots {
        if at != Some((root.family, &root.at)) {
            page.line(&format!("{} {}", root.family, root.at));
            at = Some((root.family, &root.at));
        }
        pen.draw(root, "  ", "  ", page);
    }
}

struct Pen<'n> {
    ink: Ink,
    /// Chains that were drawn before, with their rules.
    drawn: BTreeSet<(Family, &'n str, &'n str)>,
}

impl<'n> Pen<'n> {
    fn draw(&mut self, node: &'n Node, lead: &str, below: &str, page: &mut Page) {
        let mut text = match node.probability {
            Some(share) => format!("{:.1}% {}", share * 100.0, node.rule),
            None => node.rule.clone(),
        };
        if let Some(pod) = &node.pod {
            text = format!("{text} = {pod}");
        }
        if let Some(packets) = node.packets.filter(|&packets| packets > 0) {
            text = format!("{text} [{}]", number_of(packets, "packet"));
        }
        let table = node.at.split(' ').next().unwrap_or_default();
        let chain = node.leads_to.as_deref();
        let again = chain.is_some_and(|to| {
            !node.children.is_empty() && !self.drawn.insert((node.family, table, to))
        });
        if again {
            text.push_str(" (as\u{a0}above)");
        }
        let children = if again { &[][..] } else { &node.children };
        let count = children.len();
        let ink = &self.ink;
        let bar = if count > 0 { ink.bar } else { ink.gap };
        page.hang(lead, &format!("{below}{bar}"), &text);
        for (at, child) in children.iter().enumerate() {
            let ink = &self.ink;
            let last = at + 1 == count;
            let lead = format!("{below}{}", if last { ink.last } else { ink.branch });
            let under = format!("{below}{}", if last { ink.gap } else { ink.bar });
            self.draw(child, &lead, &under, page);
        }
    }
}
