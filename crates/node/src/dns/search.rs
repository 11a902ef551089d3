//! Names that a resolver queries.

/// Minimum number of dots in a name that the resolver queries unchanged first: `ndots` in a pod's resolv.conf.
const DOTS: usize = 5;

/// Returns the queries of a pod in `namespace` for `name`, in order, without trailing dots.
///
/// Follows `ClusterFirst` (pkg/kubelet/network/dns). The search domains of the node's resolv.conf, which come last, are
/// unknown here.
pub fn candidates(name: &str, namespace: &str, domain: &str) -> Vec<String> {
    let search = [
        format!("{namespace}.svc.{domain}"),
        format!("svc.{domain}"),
        domain.to_owned(),
    ];
    queries(name, &search, DOTS)
}

/// Returns the queries of a resolver for `name`, in order, without trailing dots. A name with at least `dots` dots is
/// queried unchanged before the domains `search`, others after them.
pub(super) fn queries(name: &str, search: &[String], dots: usize) -> Vec<String> {
    let name = name.to_lowercase();
    if let Some(whole) = name.strip_suffix('.') {
        return vec![whole.to_owned()];
    }
    let searched = search.iter().map(|domain| format!("{name}.{domain}"));
    let mut all: Vec<String> = searched.collect();
    if name.matches('.').count() >= dots {
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
