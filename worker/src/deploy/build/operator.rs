//! The operator's configuration for installers on this host, and what a build gets of it: settings, the files that they
//! name, and the hosts that may be reached for them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use rekindle_confined::BindMount;

use super::allow::Host;

/// Variables of the worker's environment that an operator sets for installers.
const PASSED_PREFIXES: [&str; 3] = ["PIP_", "NPM_CONFIG_", "npm_config_"];
const PASSED: [&str; 5] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
];
/// Settings that would lead past the build's proxy, or to a place other than the build's.
const NOT_PASSED: [&str; 6] = ["proxy", "https_proxy", "http_proxy", "noproxy", "cache_dir", "cache"];
/// Files of the host with the same settings, and the variable that names them.
const FILES: [(&str, &str); 2] = [
    ("/etc/pip.conf", "PIP_CONFIG_FILE"),
    ("/etc/npmrc", "NPM_CONFIG_GLOBALCONFIG"),
];
/// The host's root certificates. A build gets them instead of those of its root filesystem.
const ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Where a build sees the files that settings name.
const SEEN_AT: &str = "/run/host";
/// How much of a settings file is read, in bytes.
const FILE_MAX: usize = 1 << 20;

/// The configuration that a build gets.
#[derive(Debug, Default)]
pub(super) struct OperatorConfig {
    /// `NAME=value`, sorted.
    pub(super) environment: Vec<String>,
    /// Files that these variables name.
    pub(super) shown: Vec<BindMount>,
    /// Hosts that they name, reachable like those of the option `--build-allow`.
    pub(super) hosts: Vec<Host>,
    /// All of it, for a cache key.
    pub(super) identity: Vec<u8>,
}

impl OperatorConfig {
    pub(super) fn read() -> Self {
        let mut all = Self::from(std::env::vars_os(), &FILES);
        if Path::new(ROOTS).is_file() {
            all.shown.push(read_only(Path::new(ROOTS), PathBuf::from(ROOTS)));
        }
        all
    }

    fn from(variables: impl Iterator<Item = (OsString, OsString)>, files: &[(&str, &str)]) -> Self {
        let mut settings: Vec<(String, String)> = variables
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| is_passed(name))
            .collect();
        for (file, variable) in files {
            if Path::new(file).is_file() && !settings.iter().any(|(name, _)| name.eq_ignore_ascii_case(variable)) {
                settings.push(((*variable).to_owned(), (*file).to_owned()));
            }
        }
        settings.sort();
        let mut all = Self::default();
        for (name, value) in settings {
            let (text, shown) = (all.found(&value), all.shown.len());
            let value = if text.is_some() {
                seen_at(shown - 1).display().to_string()
            } else {
                value
            };
            all.hosts.extend(Host::named_in(&value));
            if let Some(text) = text {
                all.hosts.extend(Host::named_in(&String::from_utf8_lossy(&text)));
                all.identity.extend(text);
            }
            let line = format!("{name}={value}");
            all.identity.extend(line.bytes());
            all.environment.push(line);
        }
        all
    }

    /// Shows the build what is at `value`, if that is an absolute path. Returns a file's contents, or nothing for a
    /// directory.
    fn found(&mut self, value: &str) -> Option<Vec<u8>> {
        let path = Path::new(value);
        let metadata = path.is_absolute().then(|| fs::metadata(path).ok()).flatten()?;
        self.shown.push(read_only(path, seen_at(self.shown.len())));
        let mut text = Vec::new();
        if metadata.is_file() {
            text = fs::read(path).unwrap_or_default();
            text.truncate(FILE_MAX);
        }
        Some(text)
    }
}

fn seen_at(number: usize) -> PathBuf {
    Path::new(SEEN_AT).join(number.to_string())
}

fn read_only(source: &Path, at: PathBuf) -> BindMount {
    BindMount {
        source: source.to_owned(),
        at,
        write: false,
    }
}

fn is_passed(name: &str) -> bool {
    let setting = PASSED_PREFIXES.iter().find_map(|p| name.strip_prefix(p));
    PASSED.contains(&name) || setting.is_some_and(|s| !NOT_PASSED.contains(&s.to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_passed_with_the_files_and_hosts_that_they_name_and_without_ways_past_the_proxy() {
        let directory = tempfile::tempdir().unwrap();
        let roots = directory.path().join("roots.pem");
        fs::write(&roots, "pem").unwrap();
        let file = directory.path().join("pip.conf");
        fs::write(
            &file,
            "[global]\nextra-index-url = https://u:p@second.example.org:8443/simple\n",
        )
        .unwrap();
        let roots = roots.to_str().unwrap().to_owned();
        let variables = [
            ("PIP_INDEX_URL", "https://token@Index.example.org/simple"),
            ("PIP_CERT", &roots),
            ("PIP_PROXY", "http://proxy.example.org:3128"),
            ("npm_config_registry", "http://[::1]:4873/"),
            ("npm_config_https_proxy", "http://proxy.example.org:3128"),
            ("HTTPS_PROXY", "http://proxy.example.org:3128"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let all = OperatorConfig::from(variables.into_iter(), &[(file.to_str().unwrap(), "PIP_CONFIG_FILE")]);
        let shown: Vec<_> = all.shown.iter().map(|s| s.source.file_name().unwrap()).collect();
        assert_eq!(shown, ["roots.pem", "pip.conf"]);
        assert_eq!(
            all.environment,
            [
                "PIP_CERT=/run/host/0",
                "PIP_CONFIG_FILE=/run/host/1",
                "PIP_INDEX_URL=https://token@Index.example.org/simple",
                "npm_config_registry=http://[::1]:4873/",
            ]
        );
        let hosts: Vec<_> = all.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(
            hosts,
            ["second.example.org:8443", "index.example.org:443", "[::1]:4873"]
        );
    }
}
