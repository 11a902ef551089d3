//! Schemas of the answers, as resources: in the list of tools, they would be half a megabyte.

/// Returns the schema of the report `kind`, as `docs/schema` has it.
pub(super) fn named(kind: &str) -> Option<&'static str> {
    let (_, text) = SCHEMAS.iter().find(|(name, _)| *name == kind)?;
    Some(text)
}

macro_rules! schemas {
    ($($kind:literal),*) => {
        /// The kinds of reports that tools answer with, each with its schema.
        pub(super) const SCHEMAS: &[(&str, &str)] =
            &[$(($kind, include_str!(concat!("../../../docs/schema/", $kind, ".json")))),*];
    };
}

schemas!(
    "CheckList",
    "DiffReport",
    "DoctorReport",
    "Document",
    "Explanation",
    "NodeReports",
    "PacketsReport",
    "ShowReport",
    "SnapshotReport",
    "TraceReport",
    "WhyReport"
);
