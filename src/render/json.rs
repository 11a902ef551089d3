//! Reports as JSON, by one serializer: each one more would be a copy of the code of every report.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};

/// How JSON is laid out.
pub(super) enum Layout {
    /// In one line.
    Line(CompactFormatter),
    /// A line for each value, indented.
    Indented(PrettyFormatter<'static>),
}

impl Layout {
    pub(super) const LINE: Self = Self::Line(CompactFormatter);

    pub(super) fn indented() -> Self {
        Self::Indented(PrettyFormatter::new())
    }
}

/// Writes `value` to `out`, in many small pieces.
pub(super) fn write<T: Serialize>(
    value: &T,
    layout: Layout,
    out: &mut dyn Write,
) -> io::Result<()> {
    Ok(value.serialize(&mut Serializer::with_formatter(out, layout))?)
}

/// Returns `value` as JSON.
pub(super) fn text<T: Serialize>(value: &T, layout: Layout) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    write(value, layout, &mut text)?;
    Ok(text)
}

/// Returns `value` as YAML: what its JSON says.
pub(super) fn yaml<T: Serialize>(value: &T) -> io::Result<String> {
    let value: serde_json::Value = serde_json::from_slice(&text(value, Layout::LINE)?)?;
    serde_yaml::to_string(&value).map_err(io::Error::other)
}

/// Passes each call on to the formatter of the layout.
macro_rules! forward {
    ($($method:ident($($argument:ident: $type:ty),*);)+) => {
        impl Formatter for Layout {
            $(fn $method<W: ?Sized + Write>(&mut self, out: &mut W, $($argument: $type),*) -> io::Result<()> {
                match self {
                    Self::Line(formatter) => formatter.$method(out, $($argument),*),
                    Self::Indented(formatter) => formatter.$method(out, $($argument),*),
                }
            })+
        }
    };
}

// What `PrettyFormatter` does otherwise.
forward! {
    begin_array();
    end_array();
    begin_array_value(first: bool);
    end_array_value();
    begin_object();
    end_object();
    begin_object_key(first: bool);
    begin_object_value();
    end_object_value();
}
