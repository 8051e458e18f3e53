//! The checksums that a client sends with a body: computed while it passes, compared at its end.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Md5};
use serde::{Deserialize, Serialize};

/// `x-amz-checksum-*` values, in base64.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checksums {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) crc32: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) crc32c: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) crc64nvme: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sha1: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sha256: Option<String>,
}

const HEADERS: [&str; 5] = [
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
];

impl Checksums {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots().iter().all(|sum| sum.is_none())
    }

    fn slots(&self) -> [&Option<String>; 5] {
        [&self.crc32, &self.crc32c, &self.crc64nvme, &self.sha1, &self.sha256]
    }

    fn slots_mut(&mut self) -> [&mut Option<String>; 5] {
        [
            &mut self.crc32,
            &mut self.crc32c,
            &mut self.crc64nvme,
            &mut self.sha1,
            &mut self.sha256,
        ]
    }
}

/// Why a body is not what the client said it would be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChecksumError {
    #[error("content-md5 is not the base64 of 16 bytes")]
    BadMd5Header,
    #[error("content-md5 does not match the body")]
    Md5,
    #[error("{0} does not match the body")]
    Sum(&'static str),
    #[error("x-amz-trailer announces {0}, which did not come after the body")]
    NoTrailer(&'static str),
}

/// Checksums in progress for one body.
#[derive(Default)]
pub(crate) struct ChecksumVerifier {
    md5: Option<(Md5, [u8; 16])>,
    hasher: ChecksumHasher,
    expected: Checksums,
    /// Indexed as `HEADERS`: sums that come after the body.
    announced: [bool; 5],
}

impl ChecksumVerifier {
    /// `given` came in headers; `trailer` is `x-amz-trailer`, which names what comes after the body.
    pub(crate) fn expect(
        content_md5: Option<&str>,
        given: Checksums,
        trailer: Option<&str>,
    ) -> Result<ChecksumVerifier, ChecksumError> {
        let md5 = match content_md5 {
            Some(text) => {
                let bytes = STANDARD.decode(text).map_err(|_| ChecksumError::BadMd5Header)?;
                Some((Md5::new(), bytes.try_into().map_err(|_| ChecksumError::BadMd5Header)?))
            }
            None => None,
        };
        let mut announced = [false; 5];
        for name in trailer.unwrap_or_default().split(',') {
            if let Some(at) = HEADERS
                .iter()
                .position(|header| header.eq_ignore_ascii_case(name.trim()))
            {
                announced[at] = true;
            }
        }
        let wanted: Vec<bool> = given
            .slots()
            .iter()
            .zip(announced)
            .map(|(sum, announced)| sum.is_some() || announced)
            .collect();
        let hasher = ChecksumHasher {
            crc32: wanted[0].then(s3s::crypto::Crc32::new),
            crc32c: wanted[1].then(s3s::crypto::Crc32c::new),
            crc64nvme: wanted[2].then(s3s::crypto::Crc64Nvme::new),
            sha1: wanted[3].then(s3s::crypto::Sha1::new),
            sha256: wanted[4].then(s3s::crypto::Sha256::new),
        };
        Ok(ChecksumVerifier {
            md5,
            hasher,
            expected: given,
            announced,
        })
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if let Some((md5, _)) = &mut self.md5 {
            md5.update(bytes);
        }
        self.hasher.update(bytes);
    }

    /// Compares the sums, and returns those to keep. `trailers` are the headers that came after the body.
    pub(crate) fn finish(mut self, trailers: Option<&HeaderMap>) -> Result<Checksums, ChecksumError> {
        if let Some((md5, expected)) = self.md5
            && md5.finalize().as_ref() != expected
        {
            return Err(ChecksumError::Md5);
        }
        for ((slot, header), announced) in self.expected.slots_mut().into_iter().zip(HEADERS).zip(self.announced) {
            if announced {
                let value = trailers
                    .and_then(|trailers| trailers.get(header))
                    .and_then(|value| value.to_str().ok());
                *slot = Some(value.ok_or(ChecksumError::NoTrailer(header))?.trim().to_owned());
            }
        }
        let found = self.hasher.finalize();
        let found = Checksums {
            crc32: found.checksum_crc32,
            crc32c: found.checksum_crc32c,
            crc64nvme: found.checksum_crc64nvme,
            sha1: found.checksum_sha1,
            sha256: found.checksum_sha256,
        };
        for ((expected, found), header) in self.expected.slots().into_iter().zip(found.slots()).zip(HEADERS) {
            if expected.is_some() && expected != found {
                return Err(ChecksumError::Sum(header));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_sum_is_refused_and_a_right_one_kept() {
        // CRC-32 of "123456789" is 0xcbf43926.
        let right = Checksums {
            crc32: Some("y/Q5Jg==".into()),
            ..Checksums::default()
        };
        let mut checks = ChecksumVerifier::expect(None, right.clone(), None).unwrap();
        checks.update(b"12345");
        checks.update(b"6789");
        assert_eq!(checks.finish(None).unwrap(), right);
        let mut checks = ChecksumVerifier::expect(None, right, None).unwrap();
        checks.update(b"123456780");
        assert!(matches!(
            checks.finish(None),
            Err(ChecksumError::Sum("x-amz-checksum-crc32"))
        ));
    }

    #[test]
    fn an_announced_trailer_must_come_and_match() {
        let checks = ChecksumVerifier::expect(None, Checksums::default(), Some("x-amz-checksum-crc32")).unwrap();
        assert!(matches!(checks.finish(None), Err(ChecksumError::NoTrailer(_))));
        let mut checks =
            ChecksumVerifier::expect(None, Checksums::default(), Some("X-Amz-Checksum-CRC32, other")).unwrap();
        checks.update(b"123456789");
        let trailers = HeaderMap::from_iter([("x-amz-checksum-crc32".parse().unwrap(), "y/Q5Jg==".parse().unwrap())]);
        assert_eq!(
            checks.finish(Some(&trailers)).unwrap().crc32.as_deref(),
            Some("y/Q5Jg==")
        );
    }

    #[test]
    fn md5_is_compared() {
        let mut checks =
            ChecksumVerifier::expect(Some("kAFQmDzST7DWlj99KOF/cg=="), Checksums::default(), None).unwrap();
        checks.update(b"abc");
        assert!(checks.finish(None).is_ok());
        let checks = ChecksumVerifier::expect(Some("kAFQmDzST7DWlj99KOF/cg=="), Checksums::default(), None).unwrap();
        assert!(matches!(checks.finish(None), Err(ChecksumError::Md5)));
        assert!(matches!(
            ChecksumVerifier::expect(Some("abcd"), Checksums::default(), None),
            Err(ChecksumError::BadMd5Header)
        ));
    }
}
