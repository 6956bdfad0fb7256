//! Text from a peer, made fit for a terminal or a log.
//!
//! Names, addresses and messages of peers reach people. Raw, they could move the cursor, recolour or retitle a terminal, begin a
//! forged line, or show text in another order than it has. One function escapes all of that: [`foreign`].

use std::fmt::{self, Write};

/// Upper bound on the characters of foreign text that are shown; no iSCSI name or address is as long.
pub const FOREIGN_CHARS_MAX: usize = 1024;

/// Foreign text, as [`foreign`] shows it.
#[derive(Clone, Copy, Debug)]
pub struct Foreign<'a> {
    text: &'a str,
    chars_max: usize,
}

/// Shows `text`, which a peer has sent, with every character escaped (`\u{1b}`) that is not simply seen where it stands: C0 and C1
/// controls, bidirectional controls, zero-width and other invisible format characters, line and paragraph separators. What is longer
/// than [`FOREIGN_CHARS_MAX`] is cut, and ends with `…`.
pub fn foreign(text: &str) -> Foreign<'_> {
    Foreign { text, chars_max: FOREIGN_CHARS_MAX }
}

/// As [`foreign`], without a bound on its length: of text that is ours and has foreign text in it.
pub fn with_foreign_parts(text: &str) -> Foreign<'_> {
    Foreign { text, chars_max: usize::MAX }
}

impl fmt::Display for Foreign<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.text.chars();
        for character in chars.by_ref().take(self.chars_max) {
            match is_plainly_visible(character) {
                true => f.write_char(character)?,
                false => write!(f, "{}", character.escape_unicode())?,
            }
        }
        if chars.next().is_some() {
            f.write_char('…')?;
        }
        Ok(())
    }
}

/// Whether a terminal shows the character itself, in its place, and nothing else happens.
fn is_plainly_visible(character: char) -> bool {
    // `escape_debug` knows what Unicode calls printable: neither controls, format characters, separators other than the space, nor what
    // is not assigned. It escapes quotes and the backslash too, which are visible.
    if matches!(character, '"' | '\'' | '\\') {
        return true;
    }
    // Combining characters, and characters that take no room or fill it invisibly, though Unicode calls them letters or marks.
    let is_invisible = matches!(character,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}' | '\u{3164}'
        | '\u{ffa0}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}');
    !is_invisible && character.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_they_are() {
        for name in ["iqn.2026-11.org.example:vault", "[fe80::1]:3260,1", "größe-日本", "it's \"so\" \\ 1 + 1", ""]
        {
            assert_eq!(foreign(name).to_string(), name);
        }
    }

    /// What a peer could send to change how a terminal shows text, or which text it shows.
    #[test]
    fn attack_terminal_controls_in_foreign_text() {
        let hostile = [
            "\u{1b}[2J",
            "\u{1b}]0;title\u{7}",
            "\u{9b}31m",
            "\r\nroot: all is well",
            "\u{8}\u{8}",
            "\0",
            "\t",
            "\u{7f}",
            "\u{85}",
            "\u{202e}gpj.exe",
            "\u{202a}",
            "\u{2066}",
            "\u{2069}",
            "\u{61c}",
            "\u{200e}",
            "\u{200f}",
            "\u{200b}",
            "\u{200c}",
            "\u{200d}",
            "\u{2060}",
            "\u{feff}",
            "\u{2028}",
            "\u{2029}",
            "\u{ad}",
            "\u{180e}",
            "\u{fff9}",
            "\u{e0041}",
            "\u{a0}",
            "\u{3164}",
            "\u{fe0f}",
        ];
        for text in hostile {
            let shown = foreign(text).to_string();
            let first = text.chars().next().unwrap();
            assert!(shown.starts_with(&format!("\\u{{{:x}}}", u32::from(first))), "{text:?} is shown as {shown:?}");
            assert!(!shown.contains(first), "{shown:?}");
        }
    }

    /// No character passes that Unicode's controls and separators have; the ranges are those of the Unicode Character Database.
    #[test]
    fn no_control_and_no_separator_passes() {
        let forbidden = |c: u32| matches!(c, 0..=0x1f | 0x7f..=0xa0 | 0xad | 0x61c | 0x2000..=0x200f | 0x2028..=0x202f | 0x205f..=0x206f | 0x3000 | 0xfeff);
        for code in (0..0x11_0000).filter(|code| forbidden(*code)) {
            let character = char::from_u32(code).expect("no surrogate among them");
            let shown = foreign(character.encode_utf8(&mut [0; 4])).to_string();
            assert!(shown.is_ascii() && shown.len() > 1, "U+{code:04X} is shown as {shown:?}");
        }
    }

    #[test]
    fn endless_text_is_cut() {
        let shown = foreign(&"a".repeat(FOREIGN_CHARS_MAX + 1)).to_string();
        assert_eq!(shown.chars().count(), FOREIGN_CHARS_MAX + 1);
        assert!(shown.ends_with("a…"));
        assert_eq!(with_foreign_parts(&"a".repeat(5000)).to_string().len(), 5000);
    }
}
