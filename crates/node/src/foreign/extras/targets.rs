//! Options of a target: what each target of iptables prints, as `iptables-save` writes it.

use super::{Reader, quoted};

impl Reader<'_> {
    pub(super) fn tproxy(&mut self) -> Option<()> {
        self.takes("redirect").then_some(())?;
        let to = self.next()?;
        self.takes("mark").then_some(())?;
        let mark = self.next()?;
        let (addr, port) = to.rsplit_once(':')?;
        let addr = addr.trim_matches(['[', ']']);
        self.option(&format!(
            "--on-port {port} --on-ip {addr} --tproxy-mark {mark}"
        ));
        Some(())
    }

    pub(super) fn log(&mut self) -> Option<()> {
        const LEVELS: [&str; 8] = [
            "emerg", "alert", "crit", "error", "warn", "notice", "info", "debug",
        ];
        while let Some(word) = self.peek() {
            match word {
                "flags" => {
                    self.at += 1;
                    let bits = self.next()?;
                    let bits = bits.strip_prefix("0x").map_or_else(
                        || bits.parse::<u32>().ok(),
                        |hex| u32::from_str_radix(hex, 16).ok(),
                    )?;
                    for (bit, option) in [
                        (1, "--log-tcp-sequence"),
                        (2, "--log-tcp-options"),
                        (4, "--log-ip-options"),
                        (8, "--log-uid"),
                    ] {
                        if bits & bit != 0 {
                            self.option(option);
                        }
                    }
                }
                "level" => {
                    self.at += 1;
                    let level = self.next()?;
                    let number = LEVELS.iter().position(|name| *name == level);
                    let number = number.or_else(|| level.parse().ok())?;
                    if number != 4 {
                        self.option(&format!("--log-level {number}"));
                    }
                }
                "prefix" => {
                    self.at += 1;
                    let prefix = self.prefix()?;
                    self.option(&format!("--log-prefix {prefix}"));
                }
                _ => break,
            }
        }
        Some(())
    }

    /// Reads a prefix, in quotes or not.
    pub(super) fn prefix(&mut self) -> Option<String> {
        let text = self.words.get(self.at)?.text();
        self.at += 1;
        Some(quoted(text))
    }
}

/// Returns `MARK or 0x4000` as an option.
pub(super) fn set_mark(how: &str, text: &str) -> Option<String> {
    let number = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let mark = |value: u32, mask: u32| format!("--set-xmark {value:#x}/{mask:#x}");
    Some(match how {
        "or" => mark(number(text)?, number(text)?),
        "and" => mark(0, !number(text)?),
        "xor" => mark(number(text)?, 0),
        "set" => mark(number(text)?, u32::MAX),
        "xset" => {
            let (value, bits) = text.split_once('/')?;
            mark(number(value)?, number(bits)?)
        }
        _ => return None,
    })
}
