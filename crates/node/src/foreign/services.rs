//! Names that tools print without `-n`: the usual ones of `/etc/services`.

/// Ports with their names in `/etc/services`.
const NAMES: &[(&str, u16)] = &[
    ("ftp-data", 20),
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("domain", 53),
    ("bootps", 67),
    ("bootpc", 68),
    ("tftp", 69),
    ("http", 80),
    ("kerberos", 88),
    ("pop3", 110),
    ("sunrpc", 111),
    ("ntp", 123),
    ("netbios-ns", 137),
    ("netbios-dgm", 138),
    ("netbios-ssn", 139),
    ("imap2", 143),
    ("imap", 143),
    ("snmp", 161),
    ("snmp-trap", 162),
    ("bgp", 179),
    ("ldap", 389),
    ("https", 443),
    ("microsoft-ds", 445),
    ("isakmp", 500),
    ("syslog", 514),
    ("submission", 587),
    ("ldaps", 636),
    ("domain-s", 853),
    ("imaps", 993),
    ("pop3s", 995),
    ("ms-sql-s", 1433),
    ("mysql", 3306),
    ("ms-wbt-server", 3389),
    ("sip", 5060),
    ("sip-tls", 5061),
    ("mdns", 5353),
    ("postgresql", 5432),
    ("amqp", 5672),
    ("redis", 6379),
    ("ircd", 6667),
    ("http-alt", 8080),
    ("webcache", 8080),
    ("otv", 8472),
    ("ipsec-nat-t", 4500),
    ("vxlan", 4789),
    ("sun-sr-https", 6443),
];

/// Returns the port that `text` is, a number or a known name.
pub(super) fn port(text: &str) -> Option<u16> {
    let known = || {
        let mut all = NAMES.iter();
        all.find(|(name, _)| *name == text).map(|(_, port)| *port)
    };
    text.parse().ok().or_else(known)
}
