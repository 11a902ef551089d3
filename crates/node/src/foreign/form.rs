//! The form of a block of lines.

use super::{ipvs, kubectl, links, lists, rules, sets};

/// The form of a block of lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Form {
    Listing,
    Save,
    Servers,
    Sets,
    Links,
    Brief,
    Routes,
    Rules,
    Ifconfig,
    RouteTable,
    Sockets,
    Modules,
    Settings,
    Tracked,
    Counters,
    Nft,
    Table,
    Rows,
    Description,
    Yaml,
    Version,
}

/// Returns the form that begins with the first of `lines`.
pub(super) fn begins(lines: &[String]) -> Option<Form> {
    let (line, rest) = lines.split_first()?;
    let text = line.trim();
    let next = rest.first().map(String::as_str);
    let form = match () {
        () if rules::is_chain_line(line) => Form::Listing,
        () if text.starts_with("iptables v")
            || text.starts_with("ip6tables v")
            || text.starts_with("nftables v")
            || text.starts_with("ipset v") =>
        {
            Form::Version
        }
        () if rules::is_of_save(line) => Form::Save,
        () if sets::begins(line, next) => Form::Sets,
        () if kubectl::is_description(line, rest) => Form::Description,
        () if kubectl::is_title(text) => Form::Table,
        () if kubectl::is_service_row(line) => Form::Rows,
        () if ipvs::begins(line) => Form::Servers,
        () if links::is_link(line) => Form::Links,
        () if links::is_ifconfig(line) => Form::Ifconfig,
        () if links::is_rule(line) => Form::Rules,
        () if links::is_route_title(line) || links::is_plain_route_row(line) => Form::RouteTable,
        () if links::is_brief(line) => Form::Brief,
        () if lists::is_tracked(line) => Form::Tracked,
        () if lists::is_counter(line) => Form::Counters,
        () if lists::is_table(line) => Form::Nft,
        () if lists::is_socket(line) => Form::Sockets,
        () if kubectl::is_yaml(line) => Form::Yaml,
        () if lists::is_setting(line) => Form::Settings,
        () if lists::is_module(line) => Form::Modules,
        () if links::is_route(line) => Form::Routes,
        () if rules::is_of_listing(line) => Form::Listing,
        () => return None,
    };
    Some(form)
}

impl Form {
    /// Returns whether `line` goes on in a block of this form. Blank lines do not end most.
    pub(super) fn goes_on(self, line: &str, depth: i64) -> bool {
        let is_blank = line.trim().is_empty();
        if rules::is_cut(line) {
            return true;
        }
        match self {
            Self::Listing => {
                is_blank
                    || rules::is_of_listing(line)
                    || line.starts_with("# Warning")
                    || line.starts_with("====")
                    || line.starts_with("Total Number")
            }
            Self::Save => {
                is_blank
                    || rules::is_of_save(line)
                    || rules::begins_rule(line)
                    || line.starts_with("# ")
            }
            Self::Servers => is_blank || ipvs::goes_on(line),
            Self::Sets => sets::goes_on(line),
            Self::Links => links::is_of_links(line),
            Self::Brief => links::is_brief(line),
            Self::Routes => links::is_of_routes(line),
            Self::Rules => links::is_rule(line),
            Self::Ifconfig => {
                is_blank || links::is_ifconfig(line) || line.starts_with(char::is_whitespace)
            }
            Self::RouteTable => links::is_route_row(line),
            Self::Sockets => lists::is_socket(line) || line.starts_with('\t'),
            Self::Modules => lists::is_module(line),
            Self::Settings => lists::is_setting(line),
            Self::Tracked => lists::is_tracked(line),
            Self::Counters => lists::is_counter(line),
            Self::Nft => depth > 0 || is_blank || lists::is_table(line) || line.starts_with('#'),
            Self::Table => !is_blank && !kubectl::is_title(line.trim()),
            Self::Rows => kubectl::is_service_row(line),
            Self::Description => !line.starts_with("Name:"),
            Self::Yaml => kubectl::is_of_yaml(line),
            Self::Version => false,
        }
    }
}
