//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write as _;

/// The content type of the format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric: its name, type, labels and help.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    /// Its name; that of a counter ends with `_total`.
    pub(crate) name: &'static str,
    /// `gauge` or `counter`.
    pub(crate) kind: &'static str,
    /// The names of its labels.
    pub(crate) labels: &'static [&'static str],
    /// A sentence.
    pub(crate) help: &'static str,
}

impl Metric {
    /// Returns a metric that goes up and down.
    pub(crate) const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            name,
            kind: "gauge",
            labels,
            help,
        }
    }

    /// Returns a metric that only goes up, or starts again from 0.
    pub(crate) const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            name,
            kind: "counter",
            labels,
            help,
        }
    }
}

/// Metrics with their samples, as text.
#[derive(Debug, Default)]
pub(crate) struct Exposition(pub(crate) String);

impl Exposition {
    /// Adds `metric` with its samples: the values of its labels, and a number. Adds nothing without samples.
    pub(crate) fn add<L: AsRef<str>>(
        &mut self,
        metric: &Metric,
        samples: impl IntoIterator<Item = (Vec<L>, f64)>,
    ) {
        let mut is_first = true;
        for (values, number) in samples {
            let Metric {
                name, kind, help, ..
            } = metric;
            if is_first {
                self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
                is_first = false;
            }
            let pairs = metric.labels.iter().zip(&values);
            let pairs: Vec<_> = pairs
                .map(|(label, value)| format!("{label}=\"{}\"", escaped(value.as_ref())))
                .collect();
            match pairs.as_slice() {
                [] => self.put(format_args!("{name} {number}\n")),
                pairs => self.put(format_args!("{name}{{{}}} {number}\n", pairs.join(","))),
            }
        }
    }

    /// Adds `metric`, which has no labels, if its value is known.
    pub(crate) fn one(&mut self, metric: &Metric, value: Option<f64>) {
        self.add(metric, value.map(|value| (Vec::<&str>::new(), value)));
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.0
            .write_fmt(text)
            .expect("writing to a String does not fail");
    }
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_and_nothing_known_is_no_metric() {
        let mut text = Exposition::default();
        text.one(&Metric::gauge("a", &[], "A."), None);
        text.one(&Metric::gauge("b_seconds", &[], "B."), Some(0.5));
        let counter = Metric::counter("c_total", &["x", "y"], "C.");
        text.add(
            &counter,
            [(vec!["1\"\\", "2\n"], 3.0), (vec!["4", "5"], 1e9)],
        );
        assert_eq!(
            text.0,
            "# HELP b_seconds B.\n# TYPE b_seconds gauge\nb_seconds 0.5\n\
             # HELP c_total C.\n# TYPE c_total counter\n\
             c_total{x=\"1\\\"\\\\\",y=\"2\\n\"} 3\nc_total{x=\"4\",y=\"5\"} 1000000000\n"
        );
    }
}
