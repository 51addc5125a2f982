//! Owns the little of DER that tells what a private key is: RSA and how long, or something else (RFC 8017, RFC 5958).
//! Must never know: where the bytes are from.
//!
//! The JWT library would parse the whole tree, and recurse as deep as the bytes ask it to.

/// Of rsaEncryption, 1.2.840.113549.1.1.1.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const SEQUENCE: u8 = 0x30;

/// What a private key is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// RSA.
    Rsa {
        /// The key as PKCS#1 has it.
        pkcs1: &'a [u8],
        /// Length of the modulus.
        bits: usize,
    },
    /// A key of another algorithm.
    Other,
    /// No key.
    Nothing,
}

/// Looks at PKCS#8, PKCS#1 or SEC 1.
pub(super) fn look(der: &[u8]) -> Found<'_> {
    pkcs8(der).or_else(|| pkcs1(der)).or_else(|| sec1(der)).unwrap_or(Found::Nothing)
}

fn pkcs8(der: &[u8]) -> Option<Found<'_>> {
    let mut info = Reader(Reader(der).next(SEQUENCE)?);
    info.next(INTEGER)?;
    let algorithm = Reader(info.next(SEQUENCE)?).next(OID)?;
    let key = info.next(OCTET_STRING)?;
    if algorithm == RSA { pkcs1(key) } else { Some(Found::Other) }
}

fn pkcs1(der: &[u8]) -> Option<Found<'_>> {
    let mut numbers = Reader(Reader(der).next(SEQUENCE)?);
    numbers.next(INTEGER)?;
    let modulus = numbers.next(INTEGER)?;
    let modulus = &modulus[modulus.iter().take_while(|byte| **byte == 0).count()..];
    let bits = modulus.len() * 8 - modulus.first().map_or(0, |byte| byte.leading_zeros() as usize);
    // Exponents and primes follow; without them it is a public key.
    (0..4).try_for_each(|_| numbers.next(INTEGER).map(drop))?;
    Some(Found::Rsa { pkcs1: der, bits })
}

/// An elliptic key outside of PKCS#8.
fn sec1(der: &[u8]) -> Option<Found<'_>> {
    let mut key = Reader(Reader(der).next(SEQUENCE)?);
    key.next(INTEGER)?;
    key.next(OCTET_STRING).map(|_| Found::Other)
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The content of the next element, if it has this tag.
    fn next(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (&found, rest) = self.0.split_first()?;
        let (&short, rest) = rest.split_first()?;
        let (len, rest) = match short {
            0..=0x7f => (usize::from(short), rest),
            // A length of more than three bytes is longer than any key.
            0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(short & 0x7f))?;
                (bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        (found == tag).then_some(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_rsa_key_is_found_in_pkcs8_and_an_elliptic_one_is_told_apart() {
        let rsa = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap().serialize_der();
        let Found::Rsa { pkcs1, bits } = look(&rsa) else { panic!("not found") };
        assert_eq!((bits, look(pkcs1)), (2048, Found::Rsa { pkcs1, bits }));
        for other in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ED25519] {
            assert_eq!(look(&rcgen::KeyPair::generate_for(other).unwrap().serialize_der()), Found::Other);
        }
        for end in 0..rsa.len() {
            assert_eq!(look(&rsa[..end]), Found::Nothing, "cut after {end} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(der in proptest::collection::vec(any::<u8>(), 0..200)) {
            look(&der);
            let mut nested = vec![SEQUENCE, 0x82, (der.len() >> 8) as u8, der.len() as u8];
            nested.extend(&der);
            look(&nested);
        }
    }
}
