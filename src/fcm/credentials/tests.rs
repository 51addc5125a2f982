//! Any bytes give a value or a refusal that shows nothing of them.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A key whose private key is this text.
fn key_with(private_key: &str) -> serde_json::Value {
    json!({"type": "service_account", "project_id": "demo-project", "private_key_id": "k1", "private_key": private_key,
        "client_email": "a@p.iam.gserviceaccount.com", "token_uri": "https://oauth2.googleapis.com/token"})
}

/// Fails when a message repeats 20 bytes of what was given.
fn shows_nothing(said: &str, given: &str) -> Result<(), TestCaseError> {
    let given = given.as_bytes();
    let run = said.as_bytes().windows(20).find(|run| given.windows(20).any(|window| window == *run));
    prop_assert!(run.is_none(), "{:?} shows {:?}", said, run.map(String::from_utf8_lossy));
    Ok(())
}

fn pem() -> String {
    rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap().serialize_pem()
}

#[test]
fn a_service_account_shows_its_address_and_no_key() {
    let account = ServiceAccount::parse(&key_with(&pem()).to_string()).unwrap();
    assert_eq!(format!("{account:?}"), "ServiceAccount(a@p.iam.gserviceaccount.com, key redacted)");
    assert_eq!((account.project_id.as_deref(), account.key_id.as_deref()), (Some("demo-project"), Some("k1")));
}

#[test]
fn a_value_goes_before_a_file() {
    let said = Credentials::load("{", Path::new("/nowhere/key.json")).unwrap_err();
    assert_eq!(said, CredentialsError::NotJson { line: 1 });
    let said = Credentials::load(" \n", Path::new("/nowhere/key.json")).unwrap_err();
    assert!(matches!(said, CredentialsError::File { .. }), "{said}");
}

#[test]
fn nesting_that_would_overflow_a_stack_is_refused() {
    let deep = "[".repeat(200_000);
    for text in [deep.clone(), format!("{{\"a\":{deep}"), format!("{{\"type\":\"service_account\",\"x\":{deep}}}")] {
        assert!(matches!(ServiceAccount::parse(&text), Err(CredentialsError::NotJson { .. })));
    }
    // Sequences within sequences, each with a length that fits.
    let mut der = vec![0x05, 0x00];
    while der.len() < 60_000 {
        let len = u16::try_from(der.len()).unwrap().to_be_bytes();
        der = [&[0x30, 0x82, len[0], len[1]], der.as_slice()].concat();
    }
    use base64::Engine;
    let body = base64::engine::general_purpose::STANDARD.encode(der);
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----");
    let said = ServiceAccount::parse(&key_with(&pem).to_string()).unwrap_err().to_string();
    assert!(said.contains("\"private_key\""), "{said}");
}

proptest! {
    #[test]
    fn any_bytes_are_refused_without_being_shown(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let said = Credentials::load("", file.path()).unwrap_err().to_string();
        shows_nothing(&said, &String::from_utf8_lossy(&bytes))?;
    }

    #[test]
    fn any_private_key_is_refused_by_name_without_being_shown(
        label in "(PRIVATE KEY|RSA PRIVATE KEY|CERTIFICATE|\\PC{0,12})", body in "(\\PC{0,200}|[A-Za-z0-9+/\\\\n]{0,400})",
    ) {
        let pem = format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n");
        for private_key in [&pem, &body] {
            let said = ServiceAccount::parse(&key_with(private_key).to_string()).unwrap_err().to_string();
            prop_assert!(said.contains("\"private_key\""), "{}", said);
            shows_nothing(&said, &body)?;
        }
    }

    #[test]
    fn any_values_in_the_other_fields_are_taken_or_refused_without_being_shown(
        field in "(type|token_uri|client_email|project_id|private_key_id|installed)", value in "\\PC{20,80}",
    ) {
        let mut key = key_with("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n");
        key[field] = value.clone().into();
        shows_nothing(&ServiceAccount::parse(&key.to_string()).unwrap_err().to_string(), &value)?;
    }
}

#[test]
fn a_key_that_was_damaged_on_the_way_is_taken_or_refused_without_being_shown() {
    let pem = pem();
    let text = key_with(&pem).to_string();
    let plain = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(plain);
    let damage = (0..text.len(), "\\PC{0,3}", 0..40_usize);
    let checked = runner.run(&damage, |(at, put, cut)| {
        let damaged = format!("{}{put}{}", &text[..at], &text[(at + cut).min(text.len())..]);
        match ServiceAccount::parse(&damaged) {
            Ok(_) => Ok(()),
            Err(error) => shows_nothing(&error.to_string(), &pem),
        }
    });
    checked.unwrap();
}
