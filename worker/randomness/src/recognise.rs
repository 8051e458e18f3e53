//! Libraries and runtimes whose generators cannot be reached, by the files that a process has mapped.

/// What copies may share, and what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreached {
    /// The library or runtime.
    pub name: &'static str,
    /// What repeats in copies, and the way out.
    pub advice: &'static str,
}

/// Beginnings of names of mapped files, without their directory.
const KNOWN: [(&str, Unreached); 8] = [
    (
        "libjvm.so",
        Unreached {
            name: "the JVM",
            advice: "Math.random, ThreadLocalRandom and each java.util.Random that was made before the snapshot repeat: draw ids and keys from \
                     SecureRandom or UUID.randomUUID",
        },
    ),
    (
        "libgcrypt.so",
        Unreached {
            name: "libgcrypt",
            advice: "its keys and nonces may repeat: draw none before the snapshot, or use OpenSSL",
        },
    ),
    (
        "libgnutls.so",
        Unreached {
            name: "GnuTLS",
            advice: "its keys and nonces may repeat: draw none before the snapshot, or use OpenSSL",
        },
    ),
    (
        "libsoftokn3.so",
        Unreached {
            name: "NSS",
            advice: "its keys and nonces may repeat: draw none before the snapshot, or use OpenSSL",
        },
    ),
    (
        "libmbedcrypto.so",
        Unreached {
            name: "Mbed TLS",
            advice: "its generators are the program's to reseed: call mbedtls_ctr_drbg_reseed in an after-restore hook",
        },
    ),
    (
        "libruby",
        Unreached {
            name: "Ruby",
            advice: "Kernel#rand repeats: call srand in an after-restore hook, and draw ids and keys from SecureRandom",
        },
    ),
    (
        "libcoreclr.so",
        Unreached {
            name: ".NET",
            advice: "Random.Shared repeats: draw ids and keys from Guid.NewGuid or RandomNumberGenerator",
        },
    ),
    (
        "beam.smp",
        Unreached {
            name: "Erlang",
            advice: "rand repeats in processes that drew before the snapshot: draw from crypto:strong_rand_bytes",
        },
    ),
];

/// What cannot be reached in a process that has files of these paths mapped.
pub fn unreached<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<Unreached> {
    let names: Vec<_> = paths.map(|path| path.rsplit('/').next().unwrap_or(path)).collect();
    let known = KNOWN
        .iter()
        .filter(|(begin, _)| names.iter().any(|name| name.starts_with(begin)));
    known.map(|(_, unreached)| *unreached).collect()
}
