//! Owns cutting a file into parts of whole lines: each is a request of its own, so that whoever sends them knows how far
//! it came, whatever happens to the service.
//! Must never know: what a line says, but for the header of CSV, which goes before every part.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::wire::{Format, ImportAnswer};

/// Bytes of one part: what is held in memory, and sent again after a failure.
const PART_BYTES: usize = 4 * 1024 * 1024;

/// What is sent of a line without end: more than the service takes of one, so that it is the service who refuses it.
const LONG_LINE: usize = 128 * 1024;

/// Some whole lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) bytes: Vec<u8>,
    /// Lines of the file before these.
    before: u64,
    /// A header that is no line of this part goes first.
    header: bool,
}

impl Part {
    /// The answer about this part, in lines of the file.
    pub(super) fn place(&self, mut answer: ImportAnswer) -> ImportAnswer {
        let line = |line: u64| (line + self.before).saturating_sub(u64::from(self.header));
        for reject in &mut answer.rejected {
            reject.line = line(reject.line);
        }
        answer.kept_through = line(answer.kept_through).max(self.before);
        answer
    }
}

/// A file, part by part.
pub(super) struct Parts<R> {
    input: R,
    format: Format,
    from_line: u64,
    header: Vec<u8>,
    rest: Vec<u8>,
    lines: u64,
    bytes: u64,
    begun: bool,
    size: usize,
}

impl<R: AsyncRead + Unpin> Parts<R> {
    /// The parts of `input` from this line on.
    pub(super) fn new(input: R, format: Format, from_line: u64) -> Self {
        let (header, rest) = (Vec::new(), Vec::new());
        Self { input, format, from_line, header, rest, lines: 0, bytes: 0, begun: false, size: PART_BYTES }
    }

    /// Bytes of the file read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Lines of the file read so far.
    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    /// The next part; the only one of an empty file is empty.
    pub(super) async fn next(&mut self) -> io::Result<Option<Part>> {
        loop {
            let ended = self.fill().await?;
            if ended && self.rest.is_empty() && self.begun {
                return Ok(None);
            }
            let cut = if ended { self.rest.len() } else { whole_lines(&self.rest) };
            let after = self.rest.split_off(cut);
            let lines = std::mem::replace(&mut self.rest, after);
            let first = !std::mem::replace(&mut self.begun, true);
            if let Some(part) = self.part(lines, first) {
                return Ok(Some(part));
            }
        }
    }

    fn part(&mut self, mut lines: Vec<u8>, first: bool) -> Option<Part> {
        if first && self.format == Format::Csv {
            self.header = header(&lines);
        }
        let mut before = self.lines;
        self.lines += count(&lines);
        let mut skipped = 0;
        while before + 1 < self.from_line
            && let Some(line) = after_line(&lines[skipped..])
        {
            skipped += line;
            before += 1;
        }
        if skipped == lines.len() && skipped > 0 {
            return None;
        }
        let header = self.format == Format::Csv && (!first || skipped > 0);
        lines.drain(..skipped);
        if header {
            lines.splice(..0, self.header.iter().copied());
        }
        Some(Part { bytes: lines, before, header })
    }

    /// Reads until there is a part with a whole line in it; whether the input has ended.
    async fn fill(&mut self) -> io::Result<bool> {
        let mut piece = vec![0; 64 * 1024];
        loop {
            let n = self.input.read(&mut piece).await?;
            if n == 0 {
                return Ok(true);
            }
            self.bytes += n as u64;
            self.rest.extend_from_slice(&piece[..n]);
            if self.rest.len() < self.size {
                continue;
            }
            if whole_lines(&self.rest) > 0 {
                return Ok(false);
            }
            // A CR at the end is the line's end after all, unless an LF follows.
            let ends = self.rest.last() == Some(&b'\r');
            self.rest.truncate(LONG_LINE.min(self.size / 2));
            self.rest.extend(ends.then_some(b'\r'));
        }
    }
}

/// Bytes up to and with the first line end, or all there are of a last line; `None` when there is nothing.
fn after_line(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().position(|b| matches!(b, b'\n' | b'\r'));
    match end {
        Some(at) => Some(at + 1 + usize::from(bytes[at..].starts_with(b"\r\n"))),
        None => (!bytes.is_empty()).then_some(bytes.len()),
    }
}

/// Bytes up to and with the last line end. A CR at the very end may have its LF still to come.
fn whole_lines(bytes: &[u8]) -> usize {
    let known = bytes.len().saturating_sub(1);
    let end = if bytes.last() == Some(&b'\n') {
        Some(known)
    } else {
        bytes[..known].iter().rposition(|b| matches!(b, b'\n' | b'\r'))
    };
    end.map_or(0, |at| at + 1)
}

fn count(bytes: &[u8]) -> u64 {
    let ends =
        bytes.iter().enumerate().filter(|(i, b)| **b == b'\n' || (**b == b'\r' && bytes.get(i + 1) != Some(&b'\n')));
    let open = bytes.last().is_some_and(|b| !matches!(b, b'\n' | b'\r'));
    ends.count() as u64 + u64::from(open)
}

/// The first line with something in it, with a line end.
fn header(bytes: &[u8]) -> Vec<u8> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let line = bytes.split(|b| matches!(b, b'\n' | b'\r')).find(|line| !line.trim_ascii().is_empty());
    [line.unwrap_or_default(), b"\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    async fn parts(text: &[u8], format: Format, from_line: u64, size: usize) -> Vec<Part> {
        let mut parts = Parts { size, ..Parts::new(text, format, from_line) };
        let mut found = Vec::new();
        while let Some(part) = parts.next().await.unwrap() {
            found.push(part);
        }
        found
    }

    #[tokio::test]
    async fn every_part_of_csv_begins_with_the_header_and_keeps_its_place() {
        let found = parts(b"\xEF\xBB\xBFid\r\n1\r\n2\r\n3\r\n4", Format::Csv, 1, 10).await;
        let texts: Vec<&str> = found.iter().map(|part| std::str::from_utf8(&part.bytes).unwrap()).collect();
        assert_eq!(texts, ["\u{feff}id\r\n1\r\n2\r\n3\r\n", "id\n4"]);
        assert_eq!((found[1].before, found[1].header), (4, true));
        let mut answer = ImportAnswer { kept_through: 2, ..Default::default() };
        answer.reject(2, "x", String::new());
        let later = Part { bytes: Vec::new(), before: 700, header: true }.place(answer);
        assert_eq!((later.rejected[0].line, later.kept_through), (701, 701));
    }

    #[tokio::test]
    async fn lines_before_the_first_wanted_are_left_out() {
        let found = parts(b"id\na\nb\nc\n", Format::Csv, 4, PART_BYTES).await;
        assert_eq!(found, [Part { bytes: b"id\nc\n".to_vec(), before: 3, header: true }]);
        assert_eq!(parts(b"a\nb\n", Format::Ndjson, 3, PART_BYTES).await, []);
        let empty = Part { bytes: Vec::new(), before: 0, header: false };
        assert_eq!(parts(b"", Format::Ndjson, 1, PART_BYTES).await, [empty]);
    }

    #[tokio::test]
    async fn a_line_without_end_is_not_held() {
        let text = [vec![b'x'; 3 * PART_BYTES], b"\nnext\n".to_vec()].concat();
        let found = parts(&text, Format::Ndjson, 1, PART_BYTES).await;
        let sizes: usize = found.iter().map(|part| part.bytes.len()).sum();
        assert!(sizes < PART_BYTES + LONG_LINE + 6, "{sizes}");
        assert!(found.last().unwrap().bytes.ends_with(b"\nnext\n"));
    }

    proptest! {
        #[test]
        fn parts_are_the_file_and_know_their_lines(text in "([ab]{0,3}(\n|\r\n|\r)){0,40}b?", size in 1_usize..60) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            // One byte at a time, so that parts end wherever they can.
            let slow = byte_by_byte(text.as_bytes());
            let found = runtime.block_on(async {
                let mut parts = Parts { size, ..Parts::new(slow, Format::Ndjson, 1) };
                let mut found = Vec::new();
                while let Some(part) = parts.next().await.unwrap() {
                    found.push(part);
                }
                found
            });
            let whole: Vec<u8> = found.iter().flat_map(|part| part.bytes.clone()).collect();
            prop_assert!(whole == text.as_bytes() || size <= 4, "long lines are shortened");
            if whole == text.as_bytes() {
                let mut seen = Vec::new();
                for part in &found {
                    prop_assert_eq!(part.before, count(&seen));
                    seen.extend_from_slice(&part.bytes);
                }
            }
        }
    }

    /// Gives one byte a read.
    fn byte_by_byte(text: &[u8]) -> impl AsyncRead + Unpin {
        let bytes: Vec<_> = text.iter().map(|b| Ok::<_, io::Error>(bytes::Bytes::copy_from_slice(&[*b]))).collect();
        tokio_util::io::StreamReader::new(futures_util::stream::iter(bytes))
    }
}
