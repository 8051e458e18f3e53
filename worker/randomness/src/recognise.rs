//! Recognises libraries and runtimes with unreachable generators by the files that a process has mapped.

use crate::Kind;

/// What copies may share, with advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreachableGenerator {
    /// The library or runtime.
    pub name: &'static str,
    /// What repeats in copies, and how to avoid it.
    pub advice: &'static str,
}

const REDIS: UnreachableGenerator = UnreachableGenerator {
    name: "Redis",
    advice: "it is seeded once: ACL GENPASS, math.random of Lua and SRANDMEMBER repeat; draw passwords and ids outside \
             of it",
};

/// Names of mapped files, without their directory and without everything from the first dot or dash on.
const KNOWN: [(&str, UnreachableGenerator); 15] = [
    (
        "libgcrypt",
        UnreachableGenerator {
            name: "libgcrypt",
            advice: "its keys and nonces may repeat: draw none before the snapshot, or use OpenSSL",
        },
    ),
    (
        "libgnutls",
        UnreachableGenerator {
            name: "GnuTLS",
            advice: "its keys and nonces may repeat: draw none before the snapshot, or use OpenSSL",
        },
    ),
    (
        "libsoftokn3",
        UnreachableGenerator {
            name: "NSS",
            advice: "its keys and nonces may repeat: draw none before the snapshot, or use OpenSSL",
        },
    ),
    (
        "libmbedcrypto",
        UnreachableGenerator {
            name: "Mbed TLS",
            advice: "its generators are the program's to reseed: call mbedtls_ctr_drbg_reseed in an after-restore hook",
        },
    ),
    (
        "perl",
        UnreachableGenerator {
            name: "Perl",
            advice: "rand repeats: call srand in an after-restore hook, and draw ids and keys from /dev/urandom",
        },
    ),
    (
        "php8",
        UnreachableGenerator {
            name: "PHP",
            advice: "mt_rand, lcg_value and uniqid may repeat: draw ids and keys from random_int and random_bytes",
        },
    ),
    (
        "lua5",
        UnreachableGenerator {
            name: "Lua",
            advice: "math.random repeats: call math.randomseed() in an after-restore hook, and draw ids and keys from \
                     /dev/urandom",
        },
    ),
    (
        "libcoreclr",
        UnreachableGenerator {
            name: ".NET",
            advice: "Random.Shared repeats: draw ids and keys from Guid.NewGuid or RandomNumberGenerator",
        },
    ),
    (
        "beam",
        UnreachableGenerator {
            name: "Erlang",
            advice: "rand repeats in processes that drew before the snapshot: draw from crypto:strong_rand_bytes",
        },
    ),
    ("redis-server", REDIS),
    // What Debian's `redis-server` is a link to.
    ("redis-check-rdb", REDIS),
    (
        "mariadbd",
        UnreachableGenerator {
            name: "MariaDB",
            advice: "rand() of open connections and uuid_short() repeat: connect in an after-restore hook, and draw \
                     ids outside of it",
        },
    ),
    (
        "libduckdb",
        UnreachableGenerator {
            name: "DuckDB",
            advice: "uuid() and random() of open connections repeat: connect in an after-restore hook, or draw ids \
                     outside of it",
        },
    ),
    (
        "_kuzu",
        UnreachableGenerator {
            name: "Kuzu",
            advice: "gen_random_uuid() of open connections repeats: connect in an after-restore hook, or draw ids \
                     outside of it",
        },
    ),
    (
        "_libwasmtime",
        UnreachableGenerator {
            name: "Wasmtime",
            advice: "random_get of WASI repeats in stores from before the snapshot: make them in an after-restore \
                     hook",
        },
    ),
];

/// The same, of which nothing repeats where generators of a kind were found.
const FOUND: [(&str, Kind, UnreachableGenerator); 5] = [
    (
        "libjvm",
        Kind::Java,
        UnreachableGenerator {
            name: "the JVM",
            advice: "Math.random, ThreadLocalRandom and SHA1PRNG may repeat: take JDK 17 or later, with a heap below \
                     32 GiB and not of ZGC, or draw ids and keys from new SecureRandom() or UUID.randomUUID",
        },
    ),
    (
        "deno",
        Kind::DrawnAhead,
        UnreachableGenerator {
            name: "Deno",
            advice: "crypto.randomUUID draws ahead, and may repeat: draw one in a warm-up request, so that it is \
                     found, or draw ids from crypto.getRandomValues",
        },
    ),
    (
        "libruby",
        Kind::Ruby,
        UnreachableGenerator {
            name: "Ruby",
            advice: "Kernel#rand may repeat: call srand in an after-restore hook, and draw ids and keys from \
                     SecureRandom",
        },
    ),
    (
        "bun",
        Kind::Copies,
        UnreachableGenerator {
            name: "Bun",
            advice: "crypto.randomUUID, getRandomValues and randomInt draw ahead, and repeat: set base = \"node\" in \
                     fn.toml, or draw ids and keys from randomBytes of node:crypto",
        },
    ),
    (
        "node",
        Kind::Copies,
        UnreachableGenerator {
            name: "Node.js",
            advice: "crypto.randomUUID and randomInt draw ahead, and repeat: set base = \"node\" in fn.toml, or \
                     draw ids and keys from randomBytes of node:crypto",
        },
    ),
];

/// What is unreachable in processes that have files with these paths mapped and contain these generators.
pub fn unreached<'a>(paths: impl Iterator<Item = &'a str>, found: &[Kind]) -> Vec<UnreachableGenerator> {
    let names: Vec<_> = paths.map(|path| path.rsplit('/').next().unwrap_or(path)).collect();
    let is_mapped = |known: &str| {
        let rest = names.iter().filter_map(|name| name.strip_prefix(known));
        rest.into_iter()
            .any(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
    };
    let not_found = FOUND.iter().filter(|(_, kind, _)| !found.contains(kind));
    let not_found = not_found.map(|(name, _, unreached)| (*name, *unreached));
    let known = KNOWN
        .iter()
        .copied()
        .chain(not_found)
        .filter(|(name, _)| is_mapped(name));
    known.map(|(_, unreached)| unreached).collect()
}
