//! Points in time as values: only the edges of kpx read a clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const DAY: i64 = 86_400;

/// A point in time, to the second.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Time {
    /// Seconds since 1970-01-01T00:00:00Z.
    pub seconds: i64,
}

impl Time {
    /// Returns the point `seconds` after 1970-01-01T00:00:00Z, truncated to seconds; `None` if out of range.
    pub fn from_epoch(seconds: f64) -> Option<Self> {
        // Up to 2^53, a float represents every whole second exactly.
        if !seconds.is_finite() || seconds.abs() > 9e15 {
            return None;
        }
        format!("{:.0}", seconds.floor())
            .parse()
            .ok()
            .map(|seconds| Self { seconds })
    }

    /// Returns it as klog writes times in UTC, `mmdd hh:mm:ss`.
    pub fn as_logged(self) -> String {
        let text = self.to_string();
        format!("{}{} {}", &text[5..7], &text[8..10], &text[11..19])
    }

    /// Returns the time that was `duration` earlier.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Self {
            seconds: self.seconds - i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        }
    }

    /// Returns it as text, to the minute: `20 Nov 2026 12:44 UTC`.
    pub fn as_said(self) -> String {
        const MONTHS: [&str; 12] = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ];
        let text = self.to_string();
        let said = || {
            let (date, time) = text.split_once('T')?;
            let (year_month, day) = date.rsplit_once('-')?;
            let (year, month) = year_month.rsplit_once('-')?;
            let month = MONTHS.get(month.parse::<usize>().ok()?.checked_sub(1)?)?;
            let (day, minute) = (day.trim_start_matches('0'), time.get(..5)?);
            Some(format!("{day} {month} {year} {minute} UTC"))
        };
        said().unwrap_or(text.clone())
    }

    /// Returns the time elapsed since `earlier`; zero if `earlier` is not in the past.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_secs(u64::try_from(self.seconds - earlier.seconds).unwrap_or(0))
    }
}

/// A text that is not a point in time.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0:?} is not a time such as 2026-11-20T12:44:05Z")]
pub struct NotATime(pub String);

impl FromStr for Time {
    type Err = NotATime;

    /// Parses RFC 3339 and Go's own format (`2026-11-20 12:38:00.98 +0000 UTC m=+49.7`); fractions are truncated.
    fn from_str(text: &str) -> Result<Self, NotATime> {
        read(text).ok_or_else(|| NotATime(text.to_owned()))
    }
}

fn read(text: &str) -> Option<Time> {
    let text = text.trim();
    let (date, rest) = (text.get(..10)?, text.get(11..)?);
    let mut parts = date.split('-').map(str::parse::<i64>);
    let (year, month, day) = (
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    );
    let mut parts = rest.get(..8)?.split(':').map(str::parse::<i64>);
    let (hour, minute, second) = (
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    );
    let fits = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    if !fits {
        return None;
    }
    let zone = rest
        .get(8..)?
        .trim_start_matches(|c: char| c == '.' || c.is_ascii_digit())
        .trim_start();
    let offset = match zone.bytes().next()? {
        b'Z' | b'z' => 0,
        sign @ (b'+' | b'-') => {
            let digits: String = zone[1..]
                .chars()
                .take_while(|&c| c.is_ascii_digit() || c == ':')
                .filter(char::is_ascii_digit)
                .collect();
            let hours: i64 = digits.get(..2)?.parse().ok()?;
            let minutes: i64 = digits.get(2..4)?.parse().ok()?;
            let offset = hours * 3600 + minutes * 60;
            if sign == b'-' { -offset } else { offset }
        }
        _ => return None,
    };
    Some(Time {
        seconds: days(year, month, day) * DAY + hour * 3600 + minute * 60 + second - offset,
    })
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar (Hinnant's `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Returns the date `days` after 1970-01-01 (Hinnant's `civil_from_days`).
fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    (year, month, day)
}

impl fmt::Display for Time {
    /// Writes RFC 3339 in UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(self.seconds.div_euclid(DAY));
        let clock = self.seconds.rem_euclid(DAY);
        let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
        )
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <Box<str>>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_of_kube_proxy_are_parsed() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-11-20T12:44:05.87799579Z", 1_795_178_645),
            ("2026-11-20T13:44:05+01:00", 1_795_178_645),
            (
                "2026-11-20 12:44:05.98 +0000 UTC m=+49.748371141",
                1_795_178_645,
            ),
            ("2024-02-29T23:59:59Z", 1_709_251_199),
            ("1969-12-31T23:59:59Z", -1),
        ] {
            let time: Time = text.parse().unwrap();
            assert_eq!(time.seconds, seconds, "{text}");
            assert_eq!(time.to_string().parse(), Ok(time));
        }
        assert_eq!(
            Time { seconds: 0 }.to_string(),
            "1970-01-01T00:00:00Z".to_owned()
        );
    }

    #[test]
    fn texts_that_are_not_times_are_refused() {
        for text in [
            "",
            "yesterday",
            "2026-13-01T00:00:00Z",
            "2026-11-20",
            "2026-11-20T12:44:05",
            "2026-11-20T12:44:05é",
            "2026-11-20T12:44:05+",
        ] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
        assert_eq!(Time::from_epoch(f64::NAN), None);
        assert_eq!(Time::from_epoch(1.9), Some(Time { seconds: 1 }));
    }

    #[test]
    fn times_in_logs_are_those_of_klog() {
        let time = Time::from_epoch(1_795_176_703.12).unwrap();
        assert_eq!(time.as_logged(), "1120 12:11:43");
    }
}
