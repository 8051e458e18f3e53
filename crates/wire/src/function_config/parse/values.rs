//! Sizes, durations and counts within their ranges; variables, secrets, warm-up requests and hooks.

use std::collections::BTreeMap;
use std::ops::Range;

use http::{HeaderName, HeaderValue};
use toml::Spanned;

use super::super::{ByteSize, Hooks, Interface, Runtime, WarmupRequest, parse_duration};
use super::raw::{RawSecret, SecretTime};
use super::{Checker, FunctionConfigError};
use crate::secret::{SECRETS_OF_FUNCTION_MAX, SecretName};

const WARMUP_MAX: usize = 20;
/// Headers of a warm-up request that the platform sets.
const OWN_HEADERS: [&str; 5] = [
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "x-request-id",
];
/// `MAX_ARG_STRLEN` of the kernel, in bytes.
const VARIABLE_MAX: usize = 128 << 10;

impl Checker<'_> {
    pub(super) fn size(
        &self,
        key: &str,
        value: Option<Spanned<String>>,
        default: ByteSize,
        range: &Range<u64>,
    ) -> Result<ByteSize, FunctionConfigError> {
        let Some(value) = value else {
            return Ok(default);
        };
        match value.get_ref().parse::<ByteSize>() {
            Ok(size) if range.contains(&size.0) => Ok(size),
            Ok(size) => self.refuse(
                Some(value.span()),
                format!(
                    "{key} = \"{size}\" is impossible: use \"{}\" to \"{}\"",
                    ByteSize(range.start),
                    ByteSize(range.end - 1)
                ),
            ),
            Err(e) => self.refuse(Some(value.span()), format!("{key}: {e}")),
        }
    }

    /// The value in milliseconds. `default` and `range` are in seconds.
    pub(super) fn seconds(
        &self,
        key: &str,
        value: Option<Spanned<String>>,
        default: u64,
        range: &Range<u64>,
    ) -> Result<u64, FunctionConfigError> {
        let Some(value) = value else {
            return Ok(default * 1_000);
        };
        match parse_duration(value.get_ref()) {
            Ok(d) => match u64::try_from(d.as_millis()) {
                Ok(ms) if (range.start * 1_000..=(range.end - 1) * 1_000).contains(&ms) => Ok(ms),
                _ => self.refuse(
                    Some(value.span()),
                    format!(
                        "{key} = \"{}\" is impossible: use \"{}s\" to \"{}s\"",
                        value.get_ref(),
                        range.start,
                        range.end - 1
                    ),
                ),
            },
            Err(e) => self.refuse(Some(value.span()), format!("{key}: {e}")),
        }
    }

    pub(super) fn count(
        &self,
        key: &str,
        value: Option<Spanned<u64>>,
        default: u32,
        range: &Range<u64>,
    ) -> Result<u32, FunctionConfigError> {
        match value {
            None => Ok(default),
            Some(v) => match u32::try_from(*v.get_ref()) {
                Ok(n) if range.contains(v.get_ref()) => Ok(n),
                _ => self.refuse(
                    Some(v.span()),
                    format!(
                        "{key} = {} is impossible: use {} to {}",
                        v.get_ref(),
                        range.start,
                        range.end - 1
                    ),
                ),
            },
        }
    }

    pub(super) fn env(
        &self,
        env: BTreeMap<String, Spanned<String>>,
    ) -> Result<BTreeMap<String, String>, FunctionConfigError> {
        let mut out = BTreeMap::new();
        for (key, value) in env {
            let good = key.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
                && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !good {
                return self.refuse(
                    Some(value.span()),
                    format!("env: \"{key}\" is not a variable name: use letters, digits and '_'"),
                );
            }
            if key == "PORT" || key.starts_with("FN_") {
                return self.refuse(
                    Some(value.span()),
                    format!("env: {key} is set by the platform: choose another name"),
                );
            }
            // With `=` and the byte that ends it.
            if key.len() + value.get_ref().len() + 2 > VARIABLE_MAX {
                return self.refuse(
                    Some(value.span()),
                    format!(
                        "env: {key} is longer than the kernel takes, {} KiB: put it into a file of the folder",
                        VARIABLE_MAX >> 10
                    ),
                );
            }
            out.insert(key, value.into_inner());
        }
        Ok(out)
    }

    /// The secrets, and the place of one that is needed at the boot.
    pub(super) fn secrets(
        &self,
        secrets: &[Spanned<RawSecret>],
        env: &BTreeMap<String, Spanned<String>>,
    ) -> Result<(Vec<SecretName>, Option<Range<usize>>), FunctionConfigError> {
        if let Some(extra) = secrets.get(SECRETS_OF_FUNCTION_MAX) {
            let message = format!("more than {SECRETS_OF_FUNCTION_MAX} secrets: put several values into one");
            return self.refuse(Some(extra.span()), message);
        }
        let (mut names, mut at_boot) = (Vec::new(), None);
        for secret in secrets {
            let text = match secret.get_ref() {
                RawSecret::Name(text) => text,
                RawSecret::At { name, at } => {
                    at_boot = (*at == SecretTime::Boot).then(|| secret.span());
                    name
                }
            };
            let name: SecretName = match text.parse() {
                Ok(name) => name,
                Err(e) => return self.refuse(Some(secret.span()), format!("{e}")),
            };
            if names.contains(&name) || env.contains_key(text) {
                let message = format!("{name} is named twice in secrets and env: name it once");
                return self.refuse(Some(secret.span()), message);
            }
            names.push(name);
        }
        Ok((names, at_boot))
    }

    pub(super) fn warmup(
        &self,
        requests: Vec<Spanned<WarmupRequest>>,
    ) -> Result<Vec<WarmupRequest>, FunctionConfigError> {
        if let Some(extra) = requests.get(WARMUP_MAX) {
            return self.refuse(
                Some(extra.span()),
                format!("more than {WARMUP_MAX} warm-up requests: remove some"),
            );
        }
        for request in &requests {
            let r = request.get_ref();
            if !r.path.starts_with('/') || r.path.contains(char::is_whitespace) {
                return self.refuse(
                    Some(request.span()),
                    format!("warmup path \"{}\" must start with '/' and have no spaces", r.path),
                );
            }
            if r.method.is_empty() || !r.method.chars().all(|c| c.is_ascii_uppercase()) {
                return self.refuse(
                    Some(request.span()),
                    format!("warmup method \"{}\" is not an HTTP method: use GET, POST, …", r.method),
                );
            }
            for (name, value) in &r.headers {
                let is_header = HeaderName::from_bytes(name.as_bytes()).is_ok() && HeaderValue::from_str(value).is_ok();
                let lower = name.to_ascii_lowercase();
                if !is_header || lower.starts_with("x-fn-") || OWN_HEADERS.contains(&lower.as_str()) {
                    let message = format!(
                        "warmup header {name:?} cannot be sent: a name has letters, digits and dashes, does not begin \
                         with x-fn-, and its value is one line; {} are the platform's",
                        OWN_HEADERS.join(", ")
                    );
                    return self.refuse(Some(request.span()), message);
                }
            }
        }
        Ok(requests.into_iter().map(Spanned::into_inner).collect())
    }

    pub(super) fn hooks(
        &self,
        runtime: Runtime,
        interface: Interface,
        hooks: Option<Spanned<Hooks>>,
    ) -> Result<Hooks, FunctionConfigError> {
        let Some(hooks) = hooks else {
            return Ok(Hooks::default());
        };
        if interface == Interface::Lambda {
            let message = "hooks is not for interface = \"lambda\", whose runtimes have hooks of their own";
            return self.refuse(Some(hooks.span()), message);
        }
        if runtime != Runtime::Http {
            return self.refuse(
                Some(hooks.span()),
                "hooks is for runtime = \"http\" only: python and node register functions, see \
                 docs/reference/runtime-contract.md",
            );
        }
        let h = hooks.get_ref();
        for path in [&h.before_snapshot, &h.after_restore].into_iter().flatten() {
            if !path.starts_with('/') || path.contains(char::is_whitespace) {
                return self.refuse(
                    Some(hooks.span()),
                    format!("hook path \"{path}\" must start with '/' and have no spaces"),
                );
            }
        }
        Ok(hooks.into_inner())
    }
}
