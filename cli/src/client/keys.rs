//! Where a key is found if none is given, and for which gateways.

use std::net::IpAddr;
use std::path::PathBuf;
use std::{env, fs, io};

use anyhow::{Context as _, Result};

use crate::settings;
use crate::up::pid::PidFile;

/// Where a running platform is recorded, unless FN_RUN says otherwise.
const RUN: &str = "/run/rekindle";

/// Whether the gateway at `url` is on this machine.
pub(super) fn is_local(url: &str) -> bool {
    let Ok(url) = reqwest::Url::parse(url) else {
        return false;
    };
    let host = url.host_str().unwrap_or_default();
    let address: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
    host == "localhost" || host.ends_with(".localhost") || address.is_some_and(|a| a.is_loopback())
}

/// Where a key may be, in order.
pub(super) fn key_files() -> Vec<PathBuf> {
    let run = env::var_os("FN_RUN").map_or_else(|| PathBuf::from(RUN), PathBuf::from);
    let running = || Some(PidFile::at(&run).running().ok()??.data);
    let data = env::var_os("FN_DATA")
        .map(PathBuf::from)
        .or_else(running)
        .or_else(settings::data_dir);
    let data = data.unwrap_or_else(|| PathBuf::from("/var/lib/rekindle"));
    let mut files = vec![data.join("admin.key")];
    if let Some(home) = env::var_os("HOME") {
        files.push(PathBuf::from(home).join(".config/rekindle/key"));
    }
    files
}

/// The first key found, with its file. A file that may not be read counts as none, since its owner is root.
pub(super) fn key_from_files(files: impl IntoIterator<Item = PathBuf>) -> Result<Option<(PathBuf, String)>> {
    for file in files {
        match fs::read_to_string(&file) {
            Ok(key) => return Ok(Some((file, key.trim().to_owned()))),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
            Err(e) => return Err(e).with_context(|| format!("{}: the key cannot be read", file.display())),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_file_that_is_there_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let found = || key_from_files([a.clone(), b.clone()]).unwrap();
        assert_eq!(found(), None);
        fs::write(&b, "second\n").unwrap();
        assert_eq!(found(), Some((b.clone(), "second".to_owned())));
        fs::write(&a, "first").unwrap();
        assert_eq!(found(), Some((a.clone(), "first".to_owned())));
    }

    #[test]
    fn a_key_from_a_file_is_for_the_gateway_of_this_machine() {
        for url in [
            "http://127.0.0.1:8080",
            "http://localhost:8080/",
            "http://[::1]:8080",
            "http://LOCALHOST",
        ] {
            assert!(is_local(url), "{url}");
        }
        for url in [
            "http://10.0.0.1:8080",
            "http://localhost.example",
            "http://127.0.0.1.example",
            "nonsense",
        ] {
            assert!(!is_local(url), "{url}");
        }
    }
}
