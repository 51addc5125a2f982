//! Owns the reading of small files people name in a setting: whole, or refused before they fill the memory.
//! Must never know: what is in them.

use std::io::{self, Read};
use std::path::Path;

/// Longest of them, bytes. The types of a hundred languages have fewer.
pub const LONGEST_FILE: u64 = 4 << 20;

/// The bytes of a file, a pipe, or what else can be read to an end.
///
/// # Errors
/// It cannot be opened or read, or goes on beyond [`LONGEST_FILE`].
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    read(std::fs::File::open(path)?)
}

/// The same of what is open already, such as standard input.
///
/// # Errors
/// It cannot be read, or goes on beyond [`LONGEST_FILE`].
pub fn read(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(LONGEST_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST_FILE {
        let text = format!("it is longer than {} MiB, so it is not the file that was meant", LONGEST_FILE >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// The same as text.
///
/// # Errors
/// As [`read_file`], or it is not UTF-8.
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text");
    String::from_utf8(read_file(path)?).map_err(not_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_is_refused_and_what_is_long_enough_is_not() {
        let endless = read(io::repeat(b' ')).unwrap_err();
        assert!(endless.to_string().contains("longer than 4 MiB"), "{endless}");
        assert_eq!(read(io::repeat(b' ').take(LONGEST_FILE)).unwrap().len() as u64, LONGEST_FILE);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [b'a', 0xff]).unwrap();
        assert_eq!(read_file(file.path()).unwrap(), [b'a', 0xff]);
        assert!(read_text(file.path()).unwrap_err().to_string().contains("UTF-8"));
    }
}
