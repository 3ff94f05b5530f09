//! The expiry of credentials, and the warnings before the expiry.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio_rustls::rustls::pki_types::CertificateDer;
use yasna::{ASN1Error, ASN1ErrorKind, ASN1Result, BERReader, Tag, tags::TAG_UTCTIME};

use super::bad;
use crate::{Result, protocol::CredentialExpiry};

/// The time before the expiry of credentials during which warnings appear.
const WARNED: Duration = Duration::from_secs(14 * 86_400);

/// The maximum lifetime of credentials. The lifetime is limited, since the year in a certificate has only four digits.
pub(super) const YEARS_100: Duration = Duration::from_secs(36_500 * 86_400);

impl CredentialExpiry {
    /// Returns a sentence for each credential that has expired or expires within 14 days, by the clock of this
    /// machine.
    pub fn warnings(&self, of: &str) -> Vec<String> {
        self.warnings_at(of, seconds_now())
    }

    fn warnings_at(&self, of: &str, now: u64) -> Vec<String> {
        self.each()
            .into_iter()
            .filter_map(|(name, at)| warning(&format!("the {name} of {of}"), at, now))
            .collect()
    }
}

/// Returns a sentence for an item that has expired or expires within [`WARNED`].
pub(super) fn warning(what: &str, expires: u64, now: u64) -> Option<String> {
    let at = time_text(expires);
    match expires.saturating_sub(now) {
        0 => Some(format!("{what} expired at {at}")),
        left if left > WARNED.as_secs() => None,
        left if left >= 2 * 86_400 => Some(format!("{what} expires in {} days, at {at}", left / 86_400)),
        left => Some(format!("{what} expires in {} hours, at {at}", left / 3600)),
    }
}

/// Formats a time as RFC 3339, in UTC.
pub fn time_text(seconds: u64) -> String {
    let at =
        i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    let text = at.and_then(|at| at.format(&Rfc3339).ok());
    text.unwrap_or_else(|| format!("{seconds} s after 1970"))
}

pub(super) fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Serializes seconds since 1970 in the format of token claims.
pub(super) mod rfc3339 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::{OffsetDateTime, Rfc3339, time_text};

    pub fn serialize<S: Serializer>(seconds: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&time_text(*seconds))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        let at = OffsetDateTime::parse(&text, &Rfc3339).map_err(D::Error::custom)?;
        u64::try_from(at.unix_timestamp()).map_err(D::Error::custom)
    }
}

/// Returns the expiry of a certificate, in seconds since 1970.
///
/// Source: RFC 5280, section 4.1.
pub(super) fn certificate_expires(certificate: &CertificateDer<'_>) -> Result<u64> {
    let parsed = yasna::parse_der(certificate, |reader| {
        reader.read_sequence(|certificate| {
            let end = certificate.next().read_sequence(|signed| {
                signed.next().read_tagged(Tag::context(0), |version| version.read_u8())?;
                // The skipped fields are the serial number, the algorithm and the issuer.
                for _ in 0..3 {
                    signed.next().read_der()?;
                }
                let end = signed.next().read_sequence(|validity| {
                    validity.next().read_der()?;
                    read_time(validity.next())
                })?;
                while signed.read_optional(|rest| rest.read_der())?.is_some() {}
                Ok(end)
            })?;
            // The skipped fields are the algorithm and the signature.
            for _ in 0..2 {
                certificate.next().read_der()?;
            }
            Ok(end)
        })
    });
    parsed.map_err(|error| bad(format!("a certificate: {error}")))
}

fn read_time(reader: BERReader<'_, '_>) -> ASN1Result<u64> {
    let at = match reader.lookahead_tag()? {
        TAG_UTCTIME => *reader.read_utctime()?.datetime(),
        _ => *reader.read_generalized_time()?.datetime(),
    };
    u64::try_from(at.unix_timestamp()).map_err(|_| ASN1Error::new(ASN1ErrorKind::Invalid))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    #[test]
    fn what_ends_within_14_days_is_told() {
        let now = 1_795_752_000;
        let told = |expires: u64| warning("the token of a", expires, now);
        assert_eq!(told(now + 14 * DAY + 1), None);
        assert_eq!(told(u64::MAX), None);
        for (expires, expected) in [
            (now + 14 * DAY, "the token of a expires in 14 days, at 2026-12-11T04:00:00Z"),
            (now + 2 * DAY - 1, "the token of a expires in 47 hours, at 2026-11-29T03:59:59Z"),
            (now, "the token of a expired at 2026-11-27T04:00:00Z"),
            (now - DAY, "the token of a expired at 2026-11-26T04:00:00Z"),
        ] {
            assert_eq!(told(expires).as_deref(), Some(expected));
        }
        let expires = CredentialExpiry { authority: now + 99 * DAY, certificate: now + 3 * DAY, token: now };
        let all = expires.warnings_at("a", now);
        assert!(all.len() == 2 && all[0].starts_with("the certificate of a expires in 3 days"), "{all:?}");
        assert_eq!(expires.first(), now);
    }

    #[test]
    fn the_end_of_a_certificate_is_read_out_of_it() {
        // From the year 2050 on, the time has another encoding.
        for seconds in [1_795_752_000, 2_524_607_999, 2_524_608_000, 4_102_444_800] {
            let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
            let mut params = rcgen::CertificateParams::new(vec!["a.lan".to_string()]).unwrap();
            params.not_after = OffsetDateTime::from_unix_timestamp(seconds).unwrap();
            let made = params.self_signed(&key).unwrap();
            assert_eq!(certificate_expires(made.der()).unwrap(), seconds as u64);
            let der = made.der();
            for end in 0..der.len() {
                assert!(certificate_expires(&der[..end].to_vec().into()).is_err(), "{end}");
            }
        }
    }
}
