//! A function's folder on its way to the platform: its config is read and checked, its build command run, and its
//! files packed.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};
use rekindle_relay::world::is_public;
use rekindle_wire::function_config::{self, FunctionConfig};
use rekindle_wire::{ApiError, ErrorCode};
use rekindle_worker::deploy::build::check_listing;

use super::pack::{self, Packed};
use super::{image, locks};
use crate::commands::runtimes;
use crate::show::{self, Tone};

/// A folder that is ready for an upload.
pub(crate) struct Packaged {
    pub(crate) config: FunctionConfig,
    pub(crate) packed: Packed,
}

impl Packaged {
    /// Runs the folder's build command and packs it. Blocks.
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        let config = read_config(folder)?;
        if let Some(command) = &config.build_command {
            build(folder, command)?;
        }
        if let Some(advice) = locks::advice(folder, &config) {
            eprintln!("{} {advice}", show::tinted_err("packages:", Tone::Warning));
        }
        let packed = match &config.image {
            None => pack::pack(folder)?,
            Some(image) => {
                let layout = image::layout(folder, image)?;
                pack::pack_image(&folder.join(function_config::FILE_NAME), &layout.path)?
            }
        };
        Ok(Self { config, packed })
    }

    /// Looks for what the function is started by in the packed files.
    ///
    /// # Errors
    /// If no build can find it, with what to do.
    pub(crate) fn check_entry(&self) -> Result<(), ApiError> {
        check_listing(&self.config, &self.packed.listing)
            .map_err(|e| ApiError::new(ErrorCode::InvalidConfig, e.to_string()))
    }
}

/// Reads and checks `fn.toml`, so that a mistake costs no upload.
pub(super) fn read_config(folder: &Path) -> Result<FunctionConfig> {
    let path = folder.join(function_config::FILE_NAME);
    let text = fs::read_to_string(&path).map_err(|e| {
        let context = format!(
            "{} cannot be read: name the function's folder, or make one with `fn init`",
            path.display()
        );
        anyhow!(e).context(context)
    })?;
    let config = function_config::parse(&text).map_err(|e| {
        let message = format!("{}: {e}", folder.display());
        ApiError::new(ErrorCode::InvalidConfig, message)
    })?;
    if let Some(advice) = function_config::advice(&text, &runtimes::month()) {
        eprintln!("{} {advice}", show::tinted_err("runtime:", Tone::Warning));
    }
    for warning in function_config::warnings(&text, &config) {
        eprintln!("{} {warning}", show::tinted_err("fn.toml:", Tone::Warning));
    }
    if let Some(address) = private_callback(&config) {
        eprintln!(
            "{} {address} is in a network that callbacks do not reach, unless the gateway has --callback-allow \
            {address}",
            show::tinted_err("callback:", Tone::Warning)
        );
    }
    Ok(config)
}

/// The address in the config's `callback`, if it is in a refused network.
fn private_callback(config: &FunctionConfig) -> Option<IpAddr> {
    let url = reqwest::Url::parse(config.asynchronous.callback.as_deref()?).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']);
    host.parse()
        .ok()
        .filter(|address: &IpAddr| !is_public(address.to_canonical()))
}

/// Runs the config's build command in the folder. Its output goes to standard error.
fn build(folder: &Path, command: &str) -> Result<()> {
    eprintln!("{} {command}", show::tinted_err("build", Tone::Faint));
    let status = Command::new("/bin/sh")
        .args(["-ec", command])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("{}: the build command could not be started", folder.display()))?;
    if !status.success() {
        bail!("{}: the build command ended with {status}: {command}", folder.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_error_is_shown_with_its_line_and_code() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("fn.toml"),
            "name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\nmemory = \"lots\"\n",
        )
        .unwrap();
        let error = read_config(dir.path()).unwrap_err();
        let api = error.downcast_ref::<ApiError>().unwrap();
        assert_eq!(api.code, ErrorCode::InvalidConfig);
        assert!(
            api.message.contains("fn.toml, line 4: memory: \"lots\" is not a size"),
            "{}",
            api.message
        );
    }

    #[test]
    fn what_starts_a_function_is_looked_for_in_the_packed_files() {
        let dir = tempfile::tempdir().unwrap();
        let wrong = |start: &str| {
            let text = format!("name = \"hello\"\n{start}\n");
            fs::write(dir.path().join("fn.toml"), text).unwrap();
            let checked = Packaged::of(dir.path()).unwrap().check_entry();
            checked.err().map(|e| e.message).unwrap_or_default()
        };
        for file in ["main.py", "server", "left.py"] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        fs::write(dir.path().join(".fnignore"), "left.py\n").unwrap();
        let python = |entry: &str| wrong(&format!("runtime = \"python3.13\"\nentry = \"{entry}\""));
        let http = |command: &str| wrong(&format!("runtime = \"http\"\ncommand = [\"{command}\"]"));
        assert_eq!(python("main.handler"), "");
        assert!(python("app.handler").contains("needs app.py"));
        assert!(python("left.handler").contains("needs left.py"), "it stays behind");
        assert!(http("./server").contains("run `chmod +x server`"));
        assert!(http("./bin/server").contains("not in the function's folder"));
        assert_eq!(http("gunicorn"), "", "a package may bring it");
        fs::write(dir.path().join("requirements.txt"), "app").unwrap();
        assert_eq!(python("app.handler"), "", "the same");
    }

    #[test]
    fn a_folder_without_a_config_says_how_to_make_one() {
        let dir = tempfile::tempdir().unwrap();
        let error = format!("{:#}", read_config(dir.path()).unwrap_err());
        assert!(error.contains("`fn init`"), "{error}");
    }

    #[test]
    fn a_callback_to_a_private_address_is_told_before_the_upload() {
        let told = |callback: &str| {
            let text =
                format!("name = \"x\"\nruntime = \"python\"\nentry = \"m.h\"\n[async]\ncallback = \"{callback}\"\n");
            private_callback(&function_config::parse(&text).unwrap()).map(|address| address.to_string())
        };
        assert_eq!(told("http://10.1.2.3:80/x").as_deref(), Some("10.1.2.3"));
        assert_eq!(told("https://[::1]/").as_deref(), Some("::1"));
        assert_eq!(
            told("http://[::ffff:169.254.169.254]/").as_deref(),
            Some("::ffff:169.254.169.254")
        );
        assert_eq!(told("https://8.8.8.8/"), None);
        assert_eq!(told("https://hooks.example.com/"), None);
    }

    #[test]
    fn a_build_command_that_fails_stops_the_deploy() {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path(), "echo built > out").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("out")).unwrap(), "built\n");
        let error = build(dir.path(), "exit 3").unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
    }
}
