//! The order of endpoints.

use std::net::SocketAddr;

use serde_json::{Map, Value};

/// Numbers the endpoints of each Service in the order of their addresses as text: kube-proxy sorts them so, and their new
/// addresses have another order. The numbers of endpoints that are redacted already stay in order.
pub(super) fn number_endpoints(slices: &mut Value) {
    let mut all: Vec<(String, Place, &mut Map<String, Value>)> = Vec::new();
    for slice in list(slices, "items") {
        let metadata = &slice["metadata"];
        let service = &metadata["labels"]["kubernetes.io/service-name"];
        let service = format!("{} {service}", metadata["namespace"]);
        for endpoint in list(slice, "endpoints") {
            if let (Some(place), Some(of)) = (place(endpoint), endpoint.as_object_mut()) {
                all.push((service.clone(), place, of));
            }
        }
    }
    all.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    for service in all.chunk_by_mut(|a, b| a.0 == b.0) {
        let places = service.chunk_by_mut(|a, b| a.1 == b.1);
        for (number, same) in places.enumerate() {
            for (.., endpoint) in same {
                endpoint.insert("order".to_owned(), number.into());
            }
        }
    }
}

/// The number of an endpoint, and its address as in kube-proxy's order.
type Place = (u64, String);

fn place(endpoint: &Value) -> Option<Place> {
    let address = endpoint["addresses"][0].as_str()?.parse().ok()?;
    let number = endpoint["order"].as_u64().unwrap_or_default();
    Some((number, SocketAddr::new(address, 0).to_string()))
}

fn list<'v>(of: &'v mut Value, key: &str) -> impl Iterator<Item = &'v mut Value> {
    let list = of.get_mut(key).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn endpoints_are_numbered_in_the_order_of_their_addresses_as_text() {
        let slice = |service: &str, addresses: &[&str]| {
            let endpoints = addresses.iter().map(|at| json!({ "addresses": [at] }));
            json!({
                "metadata": {"namespace": "a", "labels": {"kubernetes.io/service-name": service}},
                "endpoints": endpoints.collect::<Value>(),
            })
        };
        let mut slices = json!({"items": [
            slice("x", &["10.0.0.2", "10.0.0.10", "10.0.0.1"]),
            slice("y", &["10.0.0.9", "fd00::1"]),
            slice("x", &["10.0.0.10", "10.0.0.100"]),
            "no slice",
        ]});
        let numbers = |slices: &Value| -> Vec<Vec<u64>> {
            let slices = slices["items"].as_array().unwrap().iter();
            let of = |slice: &Value| {
                let all = slice["endpoints"].as_array().into_iter().flatten();
                all.map(|endpoint| endpoint["order"].as_u64().unwrap())
                    .collect()
            };
            slices.map(of).collect()
        };
        let wanted = vec![vec![3, 1, 2], vec![0, 1], vec![1, 0], vec![]];
        number_endpoints(&mut slices);
        assert_eq!(numbers(&slices), wanted);
        // Other addresses, the same order.
        slices["items"][0]["endpoints"][0]["addresses"][0] = json!("10.0.0.0");
        number_endpoints(&mut slices);
        assert_eq!(numbers(&slices), wanted);
    }
}
