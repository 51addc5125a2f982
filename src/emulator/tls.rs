//! Owns the emulator's certificates: an authority of its own and what it signed for the listener.
//! Must never know: what goes over the connection.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::EmulatorError;

/// What the listener needs, and what clients have to trust.
pub(super) struct Identity {
    /// For the listener: ALPN `h2`, `http/1.1`.
    pub(super) config: Arc<ServerConfig>,
    /// The authority's certificate, PEM.
    pub(super) ca_pem: String,
}

/// A fresh authority and a certificate for these names and addresses, as long valid as rcgen's defaults say.
pub(super) fn identity(names: Vec<String>) -> Result<Identity, EmulatorError> {
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "FCM emulator authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Identity { config: Arc::new(config), ca_pem: authority.pem() })
}
