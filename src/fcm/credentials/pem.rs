//! Owns the private key in PEM form: read as it arrives, with its line breaks or what became of them.
//! Must never know: the rest of the key file.

use jsonwebtoken::EncodingKey;

use super::CredentialsError;
use super::der::{Found, look};
use super::wrapped::{from_base64, trimmed, unquoted};

/// Google makes keys of 2048 bits, and signing with fewer is refused by the library too.
const FEWEST_BITS: usize = 2048;

/// What is said of a key that is none.
pub(super) const UNREADABLE: CredentialsError =
    bad("is not an RSA private key in PEM form; download the key again and keep its line breaks (\\n)");

const fn bad(problem: &'static str) -> CredentialsError {
    CredentialsError::Bad { field: "private_key", problem }
}

/// Reads it.
///
/// # Errors
/// [`CredentialsError::Bad`] says what it is instead.
pub(super) fn private_key(text: &str) -> Result<EncodingKey, CredentialsError> {
    let plain = with_breaks(text);
    let (label, body) = armoured(&plain)?;
    if label == "ENCRYPTED PRIVATE KEY" || body.contains("ENCRYPTED") {
        return Err(bad(
            "is encrypted; Google's keys are not: download the key again, or decrypt it with `openssl pkey`",
        ));
    }
    if label.contains("PUBLIC KEY") || label.contains("CERTIFICATE") {
        return Err(bad("is a public key or certificate; the label of the right one is PRIVATE KEY"));
    }
    if !label.ends_with("PRIVATE KEY") {
        return Err(bad("has a label that no private key has; the right one is PRIVATE KEY"));
    }
    let der = from_base64(body).ok_or(bad(
        "is not base64 between its BEGIN and END lines; it was cut or changed on the way: download the key again",
    ))?;
    match look(&der) {
        Found::Rsa { bits, .. } if bits < FEWEST_BITS => {
            Err(bad("is an RSA key of fewer than 2048 bits; make a new key in the Google Cloud console"))
        }
        Found::Rsa { pkcs1, .. } => Ok(EncodingKey::from_rsa_der(pkcs1)),
        Found::Other => Err(bad("is a key, but not RSA; Google signs with RSA: download the key again")),
        Found::Nothing => Err(UNREADABLE),
    }
}

/// Any number of backslashes before an `n` is a line break: none of the two occurs in PEM otherwise.
fn with_breaks(text: &str) -> String {
    let text = trimmed(text);
    let mut plain = String::with_capacity(text.len());
    let mut escaped = false;
    for c in trimmed(unquoted(text).unwrap_or(text)).chars() {
        match c {
            '\\' => {}
            'n' | 'r' | 't' if escaped => plain.push('\n'),
            _ => plain.push(c),
        }
        escaped = c == '\\';
    }
    plain
}

/// What stands between the lines BEGIN and END, and what they say it is.
fn armoured(text: &str) -> Result<(&str, &str), CredentialsError> {
    let begin = "has no line that begins with -----BEGIN; download the key again and copy all of it";
    let (_, rest) = text.split_once("-----BEGIN ").ok_or(bad(begin))?;
    let (label, rest) = rest.split_once("-----").ok_or(bad(begin))?;
    let end = bad("has no line -----END of its own, so it was cut; download the key again and copy all of it");
    let (body, last) = rest.split_once("-----END ").ok_or(end.clone())?;
    let closes = last.strip_prefix(label).is_some_and(|rest| rest.starts_with("-----"));
    if closes { Ok((label, body)) } else { Err(end) }
}
