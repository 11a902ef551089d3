//! Addresses of kube-ipvs0.

use crate::render::Page;
use crate::view::addresses::Row;

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let services = row.services.iter();
        let services = services.map(|service| {
            format!(
                "{} of {} ({})",
                service.role,
                service.service,
                service.ports.join(", ")
            )
        });
        let services: Vec<String> = services.collect();
        let services = match row.extra {
            Some(true) => "EXTRA: no Service has it".to_owned(),
            None => "?".to_owned(),
            Some(false) => services.join("; "),
        };
        vec![row.address.to_string(), services]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(&[("ADDRESS", 0), ("SERVICES", 0)], &cells);
}
