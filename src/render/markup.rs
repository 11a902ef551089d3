//! HTML, SVG and XML: every text and attribute passes through [`Markup`], which escapes it.

use std::borrow::Cow;

/// An attribute: its name and its value.
pub(crate) type Attribute<'a> = (&'static str, &'a str);

/// A document of HTML, SVG or XML under construction.
///
/// The result is well-formed XML, and HTML reads it alike: an element without content ends with `/>` only if HTML has no
/// content for it, or if it is of SVG.
#[derive(Debug, Default)]
pub(crate) struct Markup {
    text: String,
}

impl Markup {
    /// Adds an element; `fill` adds its content.
    pub(crate) fn element(
        &mut self,
        tag: &'static str,
        attributes: &[Attribute<'_>],
        fill: impl FnOnce(&mut Self),
    ) {
        self.start(tag, attributes);
        self.text.push('>');
        fill(self);
        self.text.push_str("</");
        self.text.push_str(tag);
        self.text.push('>');
    }

    /// Adds an element whose content is `text`.
    pub(crate) fn leaf(&mut self, tag: &'static str, attributes: &[Attribute<'_>], text: &str) {
        self.element(tag, attributes, |markup| markup.text(text));
    }

    /// Adds an element without content.
    pub(crate) fn empty(&mut self, tag: &'static str, attributes: &[Attribute<'_>]) {
        self.start(tag, attributes);
        self.text.push_str("/>");
    }

    /// Adds a text.
    pub(crate) fn text(&mut self, text: &str) {
        escape(text, &mut self.text);
    }

    /// Adds a part of the program itself as it is: a style sheet, a script, a line break.
    pub(crate) fn fixed(&mut self, part: &'static str) {
        self.text.push_str(part);
    }

    /// Returns the finished text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    fn start(&mut self, tag: &'static str, attributes: &[Attribute<'_>]) {
        self.text.push('<');
        self.text.push_str(tag);
        for (name, value) in attributes {
            self.text.push(' ');
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(value, &mut self.text);
            self.text.push('"');
        }
    }
}

/// Returns `text`, escaped for texts and for attributes in double quotes.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    escape(text, &mut safe);
    safe
}

/// Adds `from` to `to`, escaped for texts and for attributes in double quotes.
fn escape(from: &str, to: &mut String) {
    for c in visible(from).chars() {
        match c {
            '&' => to.push_str("&amp;"),
            '<' => to.push_str("&lt;"),
            '>' => to.push_str("&gt;"),
            '"' => to.push_str("&quot;"),
            c => to.push(c),
        }
    }
}

/// Returns `text` with a visible `\u{…}` for each character that has no shape, or that changes the order of others: control
/// characters other than line breaks and tabs, marks of direction, characters without width.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_hidden(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// Returns whether a terminal may obey `c`, or show the text around it in another order than it has.
pub(super) fn is_obeyed(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        c => c.is_control(),
    }
}

fn is_hidden(c: char) -> bool {
    match c {
        // Soft hyphen, spaces without width, selectors of variants, tags.
        '\u{ad}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200d}'
        | '\u{2060}'..='\u{206f}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}' => true,
        // XML has no character for the last two of each plane.
        c => is_obeyed(c) || u32::from(c) & 0xfffe == 0xfffe,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> String {
        let mut markup = Markup::default();
        markup.leaf("p", &[("title", text)], text);
        markup.into_text()
    }

    #[test]
    fn marks_of_the_language_are_escaped_in_texts_and_attributes() {
        assert_eq!(
            of("<script>\"a\" & 'b'</script>"),
            "<p title=\"&lt;script&gt;&quot;a&quot; &amp; 'b'&lt;/script&gt;\">\
             &lt;script&gt;&quot;a&quot; &amp; 'b'&lt;/script&gt;</p>"
        );
    }

    #[test]
    fn characters_without_a_shape_are_visible() {
        assert_eq!(visible("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(
            visible("\u{1b}[31m\r\u{9b}\u{7f}"),
            "\\u{1b}[31m\\u{d}\\u{9b}\\u{7f}"
        );
        assert_eq!(
            visible("\u{200b}\u{ffff}\u{e0041}"),
            "\\u{200b}\\u{ffff}\\u{e0041}"
        );
        assert_eq!(visible("naïve →\tname\n"), "naïve →\tname\n");
    }

    proptest! {
        #[test]
        fn any_text_is_content_and_nothing_else(text in any::<String>()) {
            let document = of(&text);
            let parsed = roxmltree::Document::parse(&document).unwrap();
            let root = parsed.root_element();
            let shown = visible(&text);
            prop_assert_eq!(root.children().filter(roxmltree::Node::is_element).count(), 0);
            prop_assert_eq!(root.text().unwrap_or_default(), shown.as_ref());
            // XML reads a line break in an attribute as a space.
            let value = shown.replace(['\n', '\t'], " ");
            prop_assert_eq!(root.attribute("title"), Some(value.as_str()));
        }
    }
}
