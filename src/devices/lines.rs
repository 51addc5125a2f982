//! Owns how a stream of bytes becomes numbered lines, in bounded memory.
//! Must never know: what a line says.

/// Longest line, bytes: a device with the longest token and its follows fits many times over.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

/// What is kept of a longer one: enough to tell what kind of file it is.
const PREFIX_BYTES: usize = 256;

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// From 1.
    pub no: u64,
    /// Without its end; only the beginning when it was longer than [`MAX_LINE_BYTES`].
    pub text: Vec<u8>,
    /// Whether it was.
    pub too_long: bool,
}

/// Splits bytes into lines. Lines end with LF, CR LF or CR, the last one may end with nothing; blank ones are counted
/// and left out, as is a byte order mark.
#[derive(Debug, Default)]
pub(super) struct Lines {
    begun: Vec<u8>,
    too_long: bool,
    /// The last line ended with CR: an LF next belongs to it.
    after_cr: bool,
    no: u64,
}

impl Lines {
    /// The next whole line of `input`, which is moved past it. `None` = no whole line is left; what there is of the
    /// next one is kept.
    pub(super) fn next(&mut self, input: &mut &[u8]) -> Option<Line> {
        while !input.is_empty() {
            if std::mem::take(&mut self.after_cr) && input[0] == b'\n' {
                *input = &input[1..];
                continue;
            }
            let end = input.iter().position(|b| matches!(b, b'\n' | b'\r'));
            self.keep(&input[..end.unwrap_or(input.len())]);
            self.after_cr = end.is_some_and(|at| input[at] == b'\r');
            *input = &input[end.map_or(input.len(), |at| at + 1)..];
            if end.is_some()
                && let Some(line) = self.cut()
            {
                return Some(line);
            }
        }
        None
    }

    /// Lines that have ended.
    pub(super) fn ended(&self) -> u64 {
        self.no
    }

    fn keep(&mut self, part: &[u8]) {
        let room = (MAX_LINE_BYTES + 1).saturating_sub(self.begun.len());
        if !self.too_long {
            self.begun.extend_from_slice(&part[..part.len().min(room)]);
        }
        if self.begun.len() > MAX_LINE_BYTES {
            self.too_long = true;
            self.begun.truncate(PREFIX_BYTES);
            self.begun.shrink_to_fit();
        }
    }

    /// The line that was begun and not ended, once the input has ended.
    pub(super) fn finish(&mut self) -> Option<Line> {
        if self.begun.is_empty() { None } else { self.cut() }
    }

    /// Ends the line that was begun; `None` when it is blank.
    fn cut(&mut self) -> Option<Line> {
        self.no += 1;
        let mut text = std::mem::take(&mut self.begun);
        let too_long = std::mem::take(&mut self.too_long);
        if self.no == 1 && text.starts_with(b"\xEF\xBB\xBF") {
            text.drain(..3);
        }
        let blank = text.iter().all(u8::is_ascii_whitespace);
        (too_long || !blank).then_some(Line { no: self.no, text, too_long })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(pieces: &[&[u8]]) -> Vec<(u64, Option<String>)> {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for piece in pieces {
            let mut input = *piece;
            found.extend(std::iter::from_fn(|| lines.next(&mut input)));
        }
        found.extend(lines.finish());
        let text = |line: Line| (!line.too_long).then(|| String::from_utf8(line.text).unwrap().trim_end().to_owned());
        found.into_iter().map(|line| (line.no, text(line))).collect()
    }

    #[test]
    fn every_line_keeps_its_number() {
        let found = split(&[b"\xEF\xBB\xBFone\r\n\n  \nfo", b"ur\nfive"]);
        let text = |s: &str| Some(s.to_owned());
        assert_eq!(found, [(1, text("one")), (4, text("four")), (5, text("five"))]);
        assert_eq!(split(&[b""]), []);
        assert_eq!(split(&[b"one\n"]).len(), 1);
        assert_eq!(split(&[b"old\rMac\r\r", b"\nfour"]), [(1, text("old")), (2, text("Mac")), (4, text("four"))]);
    }

    #[test]
    fn a_line_without_end_takes_no_more_memory_than_the_longest() {
        let mut lines = Lines::default();
        for _ in 0..1000 {
            assert_eq!(lines.next(&mut [b'x'; 8192].as_slice()), None);
            assert!(lines.begun.capacity() <= 2 * MAX_LINE_BYTES, "{}", lines.begun.capacity());
        }
        let mut rest = b"\nnext\n".as_slice();
        let prefix = vec![b'x'; PREFIX_BYTES];
        assert_eq!(lines.next(&mut rest), Some(Line { no: 1, text: prefix, too_long: true }));
        assert_eq!(lines.next(&mut rest), Some(Line { no: 2, text: b"next".to_vec(), too_long: false }));
    }

    #[test]
    fn the_longest_line_is_taken() {
        let longest = vec![b'x'; MAX_LINE_BYTES];
        assert!(split(&[&longest])[0].1.is_some());
        assert!(split(&[&longest, b"x"])[0].1.is_none());
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in "[ab \r\n]{0,60}", cuts in proptest::collection::vec(0_usize..60, 0..6)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(text.len())).chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &text.as_bytes()[w[0]..w[1]]).collect();
            prop_assert_eq!(split(&pieces), split(&[text.as_bytes()]));
        }
    }
}
