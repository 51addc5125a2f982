//! Owns the fixed-length bitmap of a chunk: one bit per recipient, in frozen order.
//! Must never know: what a bit stands for, or how a database keeps it.

use std::fmt;

/// Recipients in a full chunk: the unit of claim and progress.
pub const CHUNK_SIZE: usize = 500;

/// A bitmap whose length is fixed when it is made. Bits are only ever set, never cleared.
#[derive(Clone, PartialEq, Eq)]
pub struct Bitmap {
    len: usize,
    words: Vec<u64>,
}

/// Why stored bits were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BitmapError {
    /// Stored and expected length differ.
    #[error("bitmap of {found} bits where {expected} belong")]
    Length {
        /// The chunk's number of recipients.
        expected: usize,
        /// What the row held.
        found: usize,
    },
    /// A character other than `0` and `1`.
    #[error("bitmap text holds something else than 0 and 1")]
    Text,
    /// A bit set behind the end.
    #[error("bitmap has a bit set behind its end")]
    Tail,
}

impl Bitmap {
    /// A bitmap of `len` clear bits.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { len, words: vec![0; len.div_ceil(64)] }
    }

    /// Number of bits, set or not.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bits at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether bit `i` is set; `false` behind the end.
    #[must_use]
    pub fn get(&self, i: usize) -> bool {
        i < self.len && self.words[i / 64] & (1 << (i % 64)) != 0
    }

    /// Sets bit `i`; returns whether it was clear. Behind the end nothing happens.
    pub fn set(&mut self, i: usize) -> bool {
        if i >= self.len {
            return false;
        }
        let word = &mut self.words[i / 64];
        let fresh = *word & (1 << (i % 64)) == 0;
        *word |= 1 << (i % 64);
        fresh
    }

    /// Number of set bits.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Sets every bit that `other` has set.
    ///
    /// # Errors
    /// [`BitmapError::Length`] when the lengths differ; nothing is changed then.
    pub fn union(&mut self, other: &Self) -> Result<(), BitmapError> {
        if self.len != other.len {
            return Err(BitmapError::Length { expected: self.len, found: other.len });
        }
        for (mine, theirs) in self.words.iter_mut().zip(&other.words) {
            *mine |= theirs;
        }
        Ok(())
    }

    /// Positions of the clear bits, in order.
    pub fn clear_positions(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.len).filter(|i| !self.get(*i))
    }

    /// `"0110…"`, position 0 first: what Postgres reads as `bit varying`.
    #[must_use]
    pub fn to_text(&self) -> String {
        (0..self.len).map(|i| if self.get(i) { '1' } else { '0' }).collect()
    }

    /// Reads [`Bitmap::to_text`].
    ///
    /// # Errors
    /// [`BitmapError`] when the length is not `expected` or a character is neither `0` nor `1`.
    pub fn from_text(text: &str, expected: usize) -> Result<Self, BitmapError> {
        if text.len() != expected {
            return Err(BitmapError::Length { expected, found: text.len() });
        }
        let mut map = Self::new(expected);
        for (i, c) in text.bytes().enumerate() {
            match c {
                b'1' => {
                    map.set(i);
                }
                b'0' => {}
                _ => return Err(BitmapError::Text),
            }
        }
        Ok(map)
    }

    /// Little-endian bytes, bit 0 of byte 0 first: what SQLite keeps as a BLOB.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.truncate(self.len.div_ceil(8));
        bytes
    }

    /// Reads [`Bitmap::to_bytes`].
    ///
    /// # Errors
    /// [`BitmapError`] when the number of bytes does not fit `expected` bits or a bit behind the end is set.
    pub fn from_bytes(bytes: &[u8], expected: usize) -> Result<Self, BitmapError> {
        if bytes.len() != expected.div_ceil(8) {
            return Err(BitmapError::Length { expected, found: bytes.len() * 8 });
        }
        let mut map = Self::new(expected);
        for (i, byte) in bytes.iter().enumerate() {
            map.words[i / 8] |= u64::from(*byte) << (8 * (i % 8));
        }
        let tail = expected % 64;
        if tail != 0 && map.words.last().is_some_and(|w| w >> tail != 0) {
            return Err(BitmapError::Tail);
        }
        Ok(map)
    }
}

impl fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bitmap({} of {})", self.count(), self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bitmap() -> impl Strategy<Value = Bitmap> {
        proptest::collection::vec(any::<bool>(), 0..=CHUNK_SIZE).prop_map(|bits| {
            let mut map = Bitmap::new(bits.len());
            for (i, set) in bits.iter().enumerate() {
                if *set {
                    map.set(i);
                }
            }
            map
        })
    }

    proptest! {
        #[test]
        fn both_stored_forms_round_trip(map in bitmap()) {
            prop_assert_eq!(Bitmap::from_text(&map.to_text(), map.len()), Ok(map.clone()));
            prop_assert_eq!(Bitmap::from_bytes(&map.to_bytes(), map.len()), Ok(map.clone()));
            prop_assert_eq!(map.count() + map.clear_positions().count(), map.len());
        }

        #[test]
        fn union_is_monotone_commutative_and_idempotent(a in bitmap(), seed in any::<u64>()) {
            let mut b = Bitmap::new(a.len());
            for i in 0..a.len() {
                if (seed >> (i % 64)) & 1 == 1 { b.set(i); }
            }
            let mut ab = a.clone();
            ab.union(&b).unwrap();
            let mut ba = b.clone();
            ba.union(&a).unwrap();
            prop_assert_eq!(&ab, &ba);
            for i in 0..a.len() {
                prop_assert_eq!(ab.get(i), a.get(i) || b.get(i));
            }
            let once = ab.clone();
            ab.union(&b).unwrap();
            prop_assert_eq!(ab, once);
        }

        #[test]
        fn any_stored_bytes_give_a_bitmap_or_a_typed_error(bytes in proptest::collection::vec(any::<u8>(), 0..80), n in 0usize..600) {
            if let Ok(map) = Bitmap::from_bytes(&bytes, n) {
                prop_assert_eq!(map.len(), n);
                prop_assert!(map.count() <= n);
            }
        }
    }

    #[test]
    fn lengths_and_tails_are_checked() {
        assert_eq!(Bitmap::from_text("01", 3), Err(BitmapError::Length { expected: 3, found: 2 }));
        assert_eq!(Bitmap::from_text("0x1", 3), Err(BitmapError::Text));
        assert_eq!(Bitmap::from_bytes(&[0b1000], 3), Err(BitmapError::Tail));
        assert_eq!(Bitmap::from_bytes(&[], 3), Err(BitmapError::Length { expected: 3, found: 0 }));
        let mut map = Bitmap::new(3);
        assert!(!map.set(3));
        assert!(map.set(2));
        assert!(!map.set(2));
    }
}
