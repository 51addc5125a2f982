//! Owns API keys: how they are written in the configuration, made, and recognised.
//! Must never know: what is asked for with them.
//!
//! A key is stored as `name:scope+scope:sha256hex`, with `:bulk` behind it when all its calls are bulk work. The secret has
//! 256 random bits, so a plain hash is enough: there is nothing to guess. A given secret is compared with every key, each
//! time to the last bit, so that the time tells neither how near a guess came nor whether there is such a key.

use std::fmt;

use sha2::{Digest, Sha256};

macro_rules! scopes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// What a key may do.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Scope { $($(#[$doc])* $name,)+ }

        impl Scope {
            /// Every scope.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Its name in the configuration.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// The scope with this name.
            #[must_use]
            pub fn parse(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|s| s.as_str() == name)
            }
        }
    };
}

scopes! {
    /// Post events and read their fan-outs.
    Events = "events",
    /// Register, read, delete and import devices.
    Devices = "devices",
    /// Read fan-outs and the numbers in force.
    Ops = "ops",
}

/// Longest name of a key, bytes.
const MAX_NAME_BYTES: usize = 64;

/// Keys of one name that may be live at once: the old and the new one, while callers change over.
pub const LIVE_KEYS: usize = 2;

/// Why a list of keys was refused. Entries are named by position and name, never by hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not three parts.
    #[error("entry {0} must be name:scope+scope:sha256hex, or the same with :bulk behind it")]
    Form(usize),
    /// A name of other characters, or none.
    #[error("entry {0}: a name has 1 to 64 letters, digits, `-`, `_` or `.`")]
    Name(usize),
    /// A name given to more keys than [`LIVE_KEYS`].
    #[error("the key name `{0}` is given more than twice; two keys of a name are for the time of exchanging one")]
    TooManyOfName(String),
    /// A scope that does not exist, or none.
    #[error("key `{name}`: unknown scope `{scope}`; there are events, devices and ops, joined by +")]
    Scope {
        /// The key.
        name: String,
        /// What was written.
        scope: String,
    },
    /// Not a SHA-256.
    #[error("key `{0}`: the hash must be 64 hex digits, as printed by `fanfare key`")]
    Hash(String),
    /// One secret under two names.
    #[error("the keys `{0}` and `{1}` have the same secret")]
    DuplicateSecret(String, String),
}

/// A key that was recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name, for logs and quota.
    pub name: String,
    /// What it may do, sorted.
    pub scopes: Vec<Scope>,
    /// Whether all its calls are bulk work, whatever their path.
    pub bulk: bool,
}

/// All keys, each with the hash of its secret.
#[derive(Clone, Default)]
pub struct Keys(Vec<([u8; 32], Key)>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(_, key)| key)).finish()
    }
}

impl Keys {
    /// Reads `name:scope+scope:sha256hex,…`. Spaces around entries and a comma at the end are allowed; nothing at all
    /// means that nobody may call.
    ///
    /// # Errors
    /// [`KeyError`] names the entry.
    pub fn parse(list: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::<([u8; 32], Key)>::new();
        let entries = list.split(',').map(str::trim).enumerate().filter(|(_, entry)| !entry.is_empty());
        for (i, entry) in entries {
            let (hash, key) = parse_entry(i + 1, entry)?;
            if let Some((_, other)) = keys.iter().find(|(other, _)| *other == hash) {
                return Err(KeyError::DuplicateSecret(other.name.clone(), key.name));
            }
            if keys.iter().filter(|(_, other)| other.name == key.name).count() >= LIVE_KEYS {
                return Err(KeyError::TooManyOfName(key.name));
            }
            keys.push((hash, key));
        }
        Ok(Self(keys))
    }

    /// All of them, in the order of the configuration; their secrets are not known here.
    pub fn each(&self) -> impl Iterator<Item = &Key> {
        self.0.iter().map(|(_, key)| key)
    }

    /// The key with this secret.
    #[must_use]
    pub fn find(&self, secret: &str) -> Option<&Key> {
        let given = hash(secret);
        // To the end even after a match.
        self.0.iter().fold(None, |found, (hash, key)| if same(hash, &given) { Some(key) } else { found })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nobody may call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn parse_entry(no: usize, entry: &str) -> Result<([u8; 32], Key), KeyError> {
    let mut parts = entry.split(':').map(str::trim);
    let (Some(name), Some(scopes), Some(hex)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(KeyError::Form(no));
    };
    let bulk = match (parts.next(), parts.next()) {
        (None, None) => false,
        (Some("bulk"), None) => true,
        _ => return Err(KeyError::Form(no)),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(plain) {
        return Err(KeyError::Name(no));
    }
    // A key in the scope's place is not shown.
    let shown = |scope: &str| if scope.len() > 16 { "...".to_owned() } else { scope.to_owned() };
    let unknown = |scope: &str| KeyError::Scope { name: name.to_owned(), scope: shown(scope) };
    let scope = |raw: &str| Scope::parse(raw.trim()).ok_or_else(|| unknown(raw.trim()));
    let mut scopes = scopes.split('+').map(scope).collect::<Result<Vec<_>, _>>()?;
    scopes.sort_unstable();
    scopes.dedup();
    let hash = unhex(hex).ok_or_else(|| KeyError::Hash(name.to_owned()))?;
    Ok((hash, Key { name: name.to_owned(), scopes, bulk }))
}

fn unhex(raw: &str) -> Option<[u8; 32]> {
    if raw.len() != 64 || !raw.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(raw.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Compares in the same time whatever differs.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |differs, (x, y)| std::hint::black_box(differs | (x ^ y))) == 0
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// Makes a key: the secret, to be given to the caller once, and the entry for the configuration.
///
/// # Errors
/// [`KeyError`] when the name is not one, or when there is no scope.
pub fn generate(name: &str, scopes: &[Scope]) -> Result<(String, String), KeyError> {
    let bytes: [u8; 32] = rand::random();
    // The prefix lets people and secret scanners see what a stray string is.
    let secret = format!("fanfare_{}", hex(&bytes));
    let scopes: Vec<&str> = scopes.iter().map(|s| s.as_str()).collect();
    let entry = format!("{name}:{}:{}", scopes.join("+"), hex(&hash(&secret)));
    parse_entry(1, &entry).map(|_| (secret, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // of "abc"

    #[test]
    fn a_generated_key_is_recognised_and_no_other() {
        let (secret, entry) = generate("ci", &[Scope::Ops, Scope::Events]).unwrap();
        assert!(!entry.contains(&secret));
        let keys = Keys::parse(&format!(" {entry} ,\n other:devices:{HASH},")).unwrap();
        let expected = Key { name: "ci".into(), scopes: vec![Scope::Events, Scope::Ops], bulk: false };
        assert_eq!(keys.find(&secret), Some(&expected));
        assert_eq!(keys.find("abc").unwrap().name, "other");
        assert_eq!(keys.find(&format!("{secret} ")), None);
        assert_eq!(keys.find(""), None);
        assert_ne!(generate("ci", &[Scope::Ops]).unwrap().0, generate("ci", &[Scope::Ops]).unwrap().0);
    }

    #[test]
    fn every_fault_is_named() {
        let parse = |list: &str| Keys::parse(list).unwrap_err();
        assert_eq!(parse("ci"), KeyError::Form(1));
        assert_eq!(parse(&format!("ci:ops:{HASH}:x")), KeyError::Form(1));
        assert_eq!(parse(&format!("a:ops:{HASH},b c:ops:{HASH}")), KeyError::Name(2));
        assert_eq!(parse(&format!(":ops:{HASH}")), KeyError::Name(1));
        assert_eq!(parse(&format!("ci::{HASH}")), KeyError::Scope { name: "ci".into(), scope: String::new() });
        assert_eq!(parse(&format!("ci:op:{HASH}")), KeyError::Scope { name: "ci".into(), scope: "op".into() });
        for bad in ["", "abc", &HASH[1..], &format!("{}zz", &HASH[2..]), &format!("{}é", &HASH[2..])] {
            assert_eq!(parse(&format!("ci:ops:{bad}")), KeyError::Hash("ci".into()), "{bad:?}");
        }
        let other = HASH.replace("ba", "bb");
        let third = HASH.replace("ba", "bc");
        let thrice = format!("ci:ops:{HASH},ci:ops:{other},ci:ops:{third}");
        assert_eq!(parse(&thrice), KeyError::TooManyOfName("ci".into()));
        assert_eq!(parse(&format!("a:ops:{HASH},b:ops:{HASH}")), KeyError::DuplicateSecret("a".into(), "b".into()));
        assert!(generate("ci", &[]).is_err());
    }

    #[test]
    fn two_keys_of_a_name_are_live_while_one_is_exchanged() {
        let [(old, first), (new, second)] = [(); 2].map(|()| generate("ci", &[Scope::Events]).unwrap());
        let keys = Keys::parse(&format!("{first},{second}")).unwrap();
        assert_eq!(keys.find(&old), keys.find(&new));
        assert!(keys.find(&old).is_some() && Keys::parse(&second).unwrap().find(&old).is_none());
    }

    #[test]
    fn a_difference_of_one_bit_anywhere_is_a_difference() {
        let hash = hash("abc");
        assert!(same(&hash, &hash));
        for bit in 0..256 {
            let mut other = hash;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!same(&hash, &other), "bit {bit}");
        }
    }

    #[test]
    fn a_key_can_be_for_bulk_work_only() {
        let (secret, entry) = generate("nightly", &[Scope::Devices]).unwrap();
        assert!(Keys::parse(&format!("{entry}:bulk")).unwrap().find(&secret).unwrap().bulk);
        assert_eq!(Keys::parse(&format!("{entry}:urgent")).unwrap_err(), KeyError::Form(1));
        assert_eq!(Keys::parse(&format!("{entry}:bulk:bulk")).unwrap_err(), KeyError::Form(1));
    }

    #[test]
    fn no_keys_means_nobody() {
        assert!(Keys::parse(" ").unwrap().is_empty());
    }

    #[test]
    fn neither_hash_nor_secret_is_shown() {
        let shown = format!("{:?} {}", Keys::parse(&format!("ci:ops:{HASH}")).unwrap(), KeyError::Hash("ci".into()));
        assert!(shown.contains("ci") && !shown.contains(&HASH[..8]), "{shown}");
    }
}
