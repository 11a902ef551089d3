//! Names that a pod's resolver queries.

/// Minimum number of dots in a name that the resolver queries unchanged first: `ndots` in a pod's resolv.conf.
const DOTS: usize = 5;

/// Returns the queries of a pod in `namespace` for `name`, in order, without trailing dots.
///
/// Follows `ClusterFirst` (pkg/kubelet/network/dns). The search domains of the node's resolv.conf, which come last, are
/// unknown here.
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
    fn names_with_few_dots_use_the_search_list_and_absolute_names_do_not() {
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
