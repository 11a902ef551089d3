//! The names that a resolver in a pod asks for.

/// How many dots a name must have to be asked for as it is, first: `ndots` of a pod's resolv.conf.
const DOTS: usize = 5;

/// Returns what a pod in `namespace` asks for, in order, when a program looks for `name`; without the dot at the end.
///
/// As `ClusterFirst` has it (pkg/kubelet/network/dns). The search domains of the node's own resolv.conf, which come after
/// those of the cluster, are not known here.
pub fn candidates(name: &str, namespace: &str, domain: &str) -> Vec<String> {
    let name = name.to_lowercase();
    if let Some(whole) = name.strip_suffix('.') {
        return vec![whole.to_owned()];
    }
    let searched = [
        format!("{name}.{namespace}.svc.{domain}"),
        format!("{name}.svc.{domain}"),
        format!("{name}.{domain}"),
    ];
    let mut all = Vec::from(searched);
    if name.matches('.').count() >= DOTS {
        all.insert(0, name);
    } else {
        all.push(name);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_dots_are_searched_first_and_a_last_one_ends_it() {
        let of = |name| candidates(name, "demo", "cluster.local");
        assert_eq!(
            of("Web"),
            [
                "web.demo.svc.cluster.local",
                "web.svc.cluster.local",
                "web.cluster.local",
                "web"
            ]
        );
        assert_eq!(of("www.example.com").len(), 4);
        assert_eq!(of("www.example.com.")[..], ["www.example.com"]);
        assert_eq!(of("a.b.c.d.e.f")[0], "a.b.c.d.e.f");
    }
}
