//! Where a rank can be called, and the certificate it presents.
use std::net::{SocketAddr, TcpListener};

use serde::{Deserialize, Serialize};
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

use super::HANDSHAKE;
use paceline_rendezvous::Listener;
use paceline_transport::error::{Result, RunError};

/// The name in all certificates. Ranks are distinguished by their certificates, not by names.
const NAME: &str = "paceline";

/// A rank's address for the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// Where it listens.
    pub address: SocketAddr,
    /// A random number of this process.
    pub nonce: [u8; 16],
    /// The certificate for calls to it, in PEM; without one they are not encrypted.
    pub certificate: Option<String>,
}

impl Offer {
    /// How to call it: only a host that has the key of this certificate is accepted.
    pub(super) fn tls(&self) -> Option<ClientTlsConfig> {
        let certificate = Certificate::from_pem(self.certificate.as_ref()?);
        Some(ClientTlsConfig::new().ca_certificate(certificate).domain_name(NAME).timeout(HANDSHAKE))
    }
}

/// A listening socket and its certificate.
pub struct GrpcListener {
    pub(super) listener: TcpListener,
    pub(super) tls: Option<ServerTlsConfig>,
    offer: Offer,
}

impl GrpcListener {
    /// Listens on this interface, on a port that the system chooses. `encrypted`: whether calls are; `None`: only if
    /// other machines can reach the interface.
    ///
    /// # Errors
    /// The interface does not exist, or random numbers are not available, or the certificate cannot be generated.
    pub fn open(interface: &str, encrypted: Option<bool>) -> Result<GrpcListener> {
        let (listener, address) = Listener::bind(interface)?.into_socket();
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|e| RunError::Failed(format!("cannot get random numbers: {e}")))?;
        let (mut tls, mut certificate) = (None, None);
        if encrypted.unwrap_or(!address.ip().to_canonical().is_loopback()) {
            // The key never leaves this process, and ends with it.
            let made = rcgen::generate_simple_self_signed([NAME.to_owned()])
                .map_err(|e| RunError::Failed(format!("cannot create a certificate: {e}")))?;
            let (public, key) = (made.cert.pem(), made.signing_key.serialize_pem());
            tls = Some(ServerTlsConfig::new().identity(Identity::from_pem(&public, key)).timeout(HANDSHAKE));
            certificate = Some(public);
        }
        Ok(GrpcListener { listener, tls, offer: Offer { address, nonce, certificate } })
    }

    /// The address that the others need.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.offer
    }
}
