//! Owns whom we trust: the system's root certificates and those of `fcm.ca_file`.
//! Must never know: HTTP.
//!
//! The roots are read once and shared by all connections. Left to the HTTP client, every connection would read the
//! system's files again, on the sender thread, and an emulator on `http://` could not be used on a machine without them.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::error::FcmError;

/// Protocols offered in the handshake (RFC 7301), most wanted first.
pub const HTTP2_ONLY: &[&[u8]] = &[b"h2"];
/// For servers of which HTTP/2 is not asked.
pub const HTTP2_OR_1: &[&[u8]] = &[b"h2", b"http/1.1"];

/// A TLS configuration that trusts the system's roots and those in `ca_pem`.
///
/// # Errors
/// [`FcmError::CaFile`] when `ca_pem` holds no certificate; [`FcmError::NoRoots`] when `needed` and nothing is trusted.
pub fn client_config(ca_pem: Option<&[u8]>, alpn: &[&[u8]], needed: bool) -> Result<ClientConfig, FcmError> {
    let roots = roots(ca_pem)?;
    if needed && roots.is_empty() {
        return Err(FcmError::NoRoots);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| FcmError::Client(e.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

fn roots(ca_pem: Option<&[u8]>) -> Result<RootCertStore, FcmError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    let (_, ignored) = roots.add_parsable_certificates(system.certs);
    if ignored > 0 || !system.errors.is_empty() {
        tracing::debug!(target: "fanfare::fcm", ignored, errors = system.errors.len(), "some system roots were not read");
    }
    if let Some(pem) = ca_pem {
        add_own(&mut roots, pem)?;
    }
    Ok(roots)
}

fn add_own(roots: &mut RootCertStore, pem: &[u8]) -> Result<(), FcmError> {
    let mut found = false;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|e| FcmError::CaFile(e.to_string()))?;
        roots.add(certificate).map_err(|e| FcmError::CaFile(e.to_string()))?;
        found = true;
    }
    if found { Ok(()) } else { Err(FcmError::CaFile("no certificate in it".to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_certificate_is_refused_by_name() {
        for pem in ["", "hello", "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n"] {
            let error = client_config(Some(pem.as_bytes()), HTTP2_ONLY, false).unwrap_err();
            assert!(matches!(error, FcmError::CaFile(_)), "{pem:?}: {error}");
            assert!(error.to_string().contains("fcm.ca_file"), "{error}");
        }
    }

    #[test]
    fn an_own_root_is_enough_without_system_roots() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let config = client_config(Some(made.cert.pem().as_bytes()), HTTP2_ONLY, true).unwrap();
        assert_eq!(config.alpn_protocols, vec![b"h2".to_vec()]);
    }
}
