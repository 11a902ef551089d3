//! TLS errors in words, and expired client certificates.

use std::error::Error;
use std::io;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime, pem::PemObject as _};
use rustls::server::WebPkiClientVerifier;
use rustls::{AlertDescription, CertificateError, RootCertStore};

use kpx_node::evidence::Time;

/// Returns why the connection to the API server failed and what to do, if `error` has a TLS error among its causes.
pub(super) fn in_words(error: &(dyn Error + 'static)) -> Option<String> {
    use AlertDescription as Alert;
    let refused = |why: &str| {
        format!("it refuses the client certificate ({why}); get a new kubeconfig of this cluster")
    };
    Some(match cause(error)? {
        rustls::Error::InvalidCertificate(error) => certificate(error),
        rustls::Error::AlertReceived(alert) => match alert {
            Alert::CertificateRequired => {
                "it requires a client certificate, and the kubeconfig has none for this user"
                    .to_owned()
            }
            Alert::CertificateExpired => refused("expired"),
            Alert::CertificateRevoked => refused("revoked"),
            Alert::UnknownCA | Alert::BadCertificate | Alert::CertificateUnknown => {
                refused("not signed by an authority that it trusts")
            }
            Alert::AccessDenied | Alert::UnsupportedCertificate => refused("not allowed"),
            Alert::ProtocolVersion => {
                "it supports neither TLS 1.2 nor TLS 1.3; check the server URL and its proxy"
                    .to_owned()
            }
            other => format!("it ended the TLS handshake with the alert {other:?}"),
        },
        rustls::Error::InvalidMessage(_) => {
            "its answer is not TLS; check the port and the scheme of the server URL, and its proxy"
                .to_owned()
        }
        _ => return None,
    })
}

/// Returns the problem of the server's certificate, and the fix.
fn certificate(error: &CertificateError) -> String {
    match error {
        // Clusters of kubeadm have CAs of the same name, so the wrong one is only noticed by its signature.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is signed by an unknown authority; check that certificate-authority in the kubeconfig is the CA \
             of this cluster (without it, the CAs of this machine are used), and that no proxy intercepts TLS"
                .to_owned()
        }
        CertificateError::ExpiredContext { time, not_after } => format!(
            "its certificate expired at {}; renew it on the control plane (kubeadm: `kubeadm certs renew apiserver`), or \
             correct the clock of this machine, which shows {}",
            text(*not_after),
            text(*time)
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "its certificate is not valid before {}; correct the clock of this machine, which shows {}",
            text(*not_before),
            text(*time)
        ),
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let names: Vec<_> = presented.iter().map(|name| plain(name)).collect();
            let names = match names.as_slice() {
                [] => "no name at all".to_owned(),
                names => names.join(", "),
            };
            format!(
                "its certificate is valid for {names}, but not for {}; use one of its names in the server URL of the \
                 kubeconfig, or as tls-server-name there",
                expected.to_str()
            )
        }
        other => format!("its certificate is not valid: {other}"),
    }
}

/// Returns the name in a description such as `DnsName("kubernetes")` or `IpAddress(10.96.0.1)`.
fn plain(name: &str) -> &str {
    let inner = name.split_once('(').map_or(name, |(_, inner)| inner);
    inner.trim_end_matches(')').trim_matches('"')
}

fn text(time: UnixTime) -> String {
    time_of(time).map_or_else(|| "an unknown time".to_owned(), |time| time.to_string())
}

fn time_of(time: UnixTime) -> Option<Time> {
    let seconds = i64::try_from(time.as_secs()).ok()?;
    Some(Time { seconds })
}

/// Returns the TLS error among the causes of `error`.
fn cause<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // The source of an I/O error is the source of the error in it.
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// Returns when the first certificate of `pem` expired; `None` if it is valid, or not readable.
pub(super) fn expired(pem: &[u8]) -> Option<Time> {
    let certificate = CertificateDer::from_pem_slice(pem).ok()?;
    // The validity is checked before the signature, so the certificate itself may be the authority.
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).ok()?;
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
        .build()
        .ok()?;
    match verifier.verify_client_cert(&certificate, &[], UnixTime::now()) {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) => time_of(not_after),
        _ => None,
    }
}
