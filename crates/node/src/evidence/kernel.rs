//! The release of a kernel.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The first two numbers of a kernel's release, which order kernels by their features.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Kernel(pub u16, pub u16);

/// A text that does not begin like a kernel's release.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{0:?} is not a kernel release such as 6.1.0")]
pub struct NotAKernel(pub String);

impl FromStr for Kernel {
    type Err = NotAKernel;

    /// Reads `6.1.0-13-amd64`, `4.18.0-553.el8_10.x86_64` or `6.6.87.2-microsoft-standard-WSL2`.
    fn from_str(release: &str) -> Result<Self, NotAKernel> {
        let mut parts = release.trim().split(|c: char| !c.is_ascii_digit());
        let mut next = || parts.next()?.parse().ok();
        let numbers = next().zip(next());
        let (major, minor) = numbers.ok_or_else(|| NotAKernel(release.to_owned()))?;
        Ok(Self(major, minor))
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions_are_read() {
        for (release, kernel) in [
            ("6.1.0-13-amd64\n", Kernel(6, 1)),
            ("4.18.0-553.el8_10.x86_64", Kernel(4, 18)),
            ("6.6.87.2-microsoft-standard-WSL2", Kernel(6, 6)),
            ("5.10-rc3", Kernel(5, 10)),
        ] {
            assert_eq!(release.parse(), Ok(kernel), "{release}");
        }
        for release in ["", "linux", "6", "v6.1"] {
            assert!(release.parse::<Kernel>().is_err(), "{release}");
        }
    }
}
