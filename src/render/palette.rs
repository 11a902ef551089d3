//! The colours of HTML and SVG, on light and on dark paper.

use std::fmt::Write as _;

use super::Tone;

/// A colour: its name in style sheets, and its values on light and on dark paper.
type Color = (&'static str, &'static str, &'static str);

/// All colours. The name of a tone is the colour of its text and frame; with `-box`, that of the paper below it.
const COLORS: &[Color] = &[
    ("paper", "#ffffff", "#15181d"),
    ("box", "#f4f6f8", "#1f242b"),
    ("ink", "#1b1f24", "#e6e9ee"),
    ("dim", "#56606b", "#a7b0bb"),
    ("line", "#7d8792", "#7a8491"),
    ("link", "#0b57b0", "#8ab8ff"),
    ("bad", "#b3261e", "#ff9a91"),
    ("bad-box", "#fdeceb", "#3a1a1a"),
    ("doubtful", "#7a4b00", "#f2bd62"),
    ("doubtful-box", "#fff5df", "#33270f"),
    ("good", "#1a6634", "#7fd698"),
    ("good-box", "#e9f6ed", "#14301d"),
    ("unclear", "#66399c", "#cdaaf7"),
    ("unclear-box", "#f4edfb", "#2a1f3a"),
];

impl Tone {
    /// Returns the class of the tone in style sheets.
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Doubtful => "doubtful",
            Self::Good => "good",
            Self::Unclear => "unclear",
            Self::Strong => "strong",
        }
    }
}

/// Returns the rules that define the colours as variables: light or dark as the reader prefers, light on paper.
pub(crate) fn variables() -> String {
    let all = |shade: fn(&Color) -> &'static str| {
        let mut text = ":root{".to_owned();
        for color in COLORS {
            // Writing to a string cannot fail.
            write!(text, "--{}:{};", color.0, shade(color)).ok();
        }
        text + "}"
    };
    let (light, dark) = (all(|color| color.1), all(|color| color.2));
    format!("{light}@media screen and (prefers-color-scheme:dark){{{dark}}}")
}

/// Returns `sheet` with the values of the variables in their place, for readers that know no variables: on light paper and,
/// if the reader prefers that, on dark.
pub(crate) fn themed(sheet: &str) -> String {
    let with = |shade: fn(&Color) -> &'static str| {
        COLORS.iter().fold(sheet.to_owned(), |text, color| {
            text.replace(&format!("var(--{})", color.0), shade(color))
        })
    };
    let (light, dark) = (with(|color| color.1), with(|color| color.2));
    format!("{light}@media screen and (prefers-color-scheme:dark){{{dark}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the relative luminance of a colour, as WCAG defines it.
    fn luminance(color: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&color[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn every_text_stands_out_from_every_paper_below_it() {
        assert!((contrast("#000000", "#ffffff") - 21.0).abs() < 1e-9);
        assert!((contrast("#767676", "#ffffff") - 4.54).abs() < 0.01);
        let of = |name: &str, at: fn(&Color) -> &'static str| {
            at(COLORS.iter().find(|color| color.0 == name).unwrap())
        };
        let papers = COLORS.iter().map(|color| color.0);
        let papers = papers.filter(|name| *name == "paper" || name.ends_with("box"));
        for paper in papers {
            for at in [(|c| c.1) as fn(&Color) -> &'static str, |c| c.2] {
                let mut texts = vec![("ink", 4.5), ("dim", 4.5), ("link", 4.5), ("line", 3.0)];
                let tone = paper.strip_suffix("-box");
                let tones = ["bad", "doubtful", "good", "unclear"];
                let own = tones
                    .into_iter()
                    .filter(|own| tone.is_none_or(|tone| tone == *own));
                texts.extend(own.map(|own| (own, 4.5)));
                for (text, least) in texts {
                    let found = contrast(of(text, at), of(paper, at));
                    assert!(found >= least, "{text} on {paper}: {found:.2}");
                }
            }
        }
    }

    #[test]
    fn a_themed_sheet_has_no_variables() {
        let sheet = themed(".a{fill:var(--bad-box);stroke:var(--bad)}");
        assert_eq!(
            sheet,
            ".a{fill:#fdeceb;stroke:#b3261e}@media screen and (prefers-color-scheme:dark)\
             {.a{fill:#3a1a1a;stroke:#ff9a91}}"
        );
    }
}
