//! What `fn login` got, by gateway: kept in a file that only its owner can read, and refreshed before it expires.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rekindle_wire::api::Login as Wanted;
use rekindle_wire::clock::unix_s;
use serde::{Deserialize, Serialize};

use super::is_local;
use super::oidc::{Provider, Tokens, shown};

/// How long before its end a token is refreshed, in seconds.
const EARLY_S: i64 = 30;
/// How long one `fn` waits for another that refreshes.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
const LOCK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Login {
    issuer: String,
    client_id: String,
    id_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refresh_token: Option<String>,
    expires_unix_s: i64,
}

type LoginsByGateway = BTreeMap<String, Login>;

/// The file of a user's logins.
#[derive(Debug, Clone)]
pub(crate) struct Logins(PathBuf);

impl Logins {
    /// Those of this user. `None` without a home.
    pub(crate) fn of_user() -> Option<Self> {
        let home = std::env::var_os("HOME")?;
        Some(Self(PathBuf::from(home).join(".config/rekindle/logins.json")))
    }

    fn read(&self) -> Result<LoginsByGateway> {
        match fs::read(&self.0) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("{}: cannot be read: remove it, and sign in again", self.0.display())),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
                Ok(LoginsByGateway::new())
            }
            Err(e) => Err(e).with_context(|| format!("{}: cannot be read", self.0.display())),
        }
    }

    /// The login at a gateway, if there is one.
    pub(crate) fn at(&self, gateway: &str) -> Result<Option<Login>> {
        Ok(self.read()?.remove(&named(gateway)))
    }

    /// Changes them, while no other `fn` does.
    fn change<T>(&self, _held: &LoginsLock, change: impl FnOnce(&mut LoginsByGateway) -> T) -> Result<T> {
        let mut all = self.read()?;
        let changed = change(&mut all);
        let new = self.0.with_extension(format!("new-{}", std::process::id()));
        let written = (|| {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(&serde_json::to_vec_pretty(&all)?)?;
            file.sync_all()?;
            fs::rename(&new, &self.0)
        })();
        if written.is_err() {
            drop(fs::remove_file(&new));
        }
        written.with_context(|| format!("{}: cannot be written", self.0.display()))?;
        Ok(changed)
    }

    async fn hold(&self) -> Result<LoginsLock> {
        let directory = self.0.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("{}: cannot be made", directory.display()))?;
        let path = self.0.with_extension("lock");
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("{}: cannot be opened", path.display()))?;
        let end = Instant::now() + LOCK_LIMIT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(LoginsLock(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < end => tokio::time::sleep(LOCK_AGAIN).await,
                Err(TryLockError::WouldBlock) => bail!("{}: another fn holds it for long", path.display()),
                Err(TryLockError::Error(e)) => {
                    return Err(e).with_context(|| format!("{}: cannot be locked", path.display()));
                }
            }
        }
    }

    /// Signs in at the issuer that a gateway names. `show` is given the address to open, and the code to enter there
    /// unless the address has it.
    pub(crate) async fn sign_in(
        &self,
        gateway: &str,
        wanted: &Wanted,
        show: impl FnOnce(&str, Option<&str>, &str),
    ) -> Result<()> {
        if gateway.starts_with("http://") && !is_local(gateway) {
            bail!("{gateway}: whoever listens could take the token: sign in at the gateway's https address");
        }
        let provider = Provider::find(&wanted.issuer, &wanted.client_id).await?;
        let device = provider.begin().await?;
        let code = shown(&device.user_code);
        match &device.verification_uri_complete {
            Some(whole) => show(&shown(whole), None, &code),
            None => show(&shown(&device.verification_uri), Some(&code), &code),
        }
        let tokens = provider.wait(&device).await?;
        let login = Login::of(&wanted.issuer, &wanted.client_id, tokens);
        let held = self.hold().await?;
        self.change(&held, |all| all.insert(named(gateway), login))?;
        Ok(())
    }

    /// Forgets the login at a gateway, and has its issuer end it. Returns whether there was one.
    pub(crate) async fn sign_out(&self, gateway: &str) -> Result<bool> {
        let held = self.hold().await?;
        let Some(login) = self.change(&held, |all| all.remove(&named(gateway)))? else {
            return Ok(false);
        };
        drop(held);
        if let Some(token) = &login.refresh_token {
            let revoked = async {
                Provider::find(&login.issuer, &login.client_id)
                    .await?
                    .revoke(token)
                    .await
            };
            if let Err(error) = revoked.await {
                eprintln!("{} may still think that you are signed in: {error:#}", login.issuer);
            }
        }
        Ok(true)
    }

    /// The token of the login at a gateway, refreshed if it is about to expire.
    ///
    /// # Errors
    /// If it has expired and cannot be refreshed.
    pub(crate) async fn token(&self, gateway: &str) -> Result<String> {
        let gone = || anyhow!("you are not signed in at {gateway} any more: `fn login {gateway}`");
        let login = self.at(gateway)?.ok_or_else(gone)?;
        if login.lasts() {
            return Ok(login.id_token);
        }
        // A refresh token may be good for one use alone: of several fn, one refreshes.
        let held = self.hold().await?;
        let login = self.at(gateway)?.ok_or_else(gone)?;
        if login.lasts() {
            return Ok(login.id_token);
        }
        let Some(refresh_token) = &login.refresh_token else {
            bail!("the login at {gateway} has expired: `fn login {gateway}`");
        };
        let provider = Provider::find(&login.issuer, &login.client_id).await?;
        let tokens = provider.refresh(refresh_token).await;
        let tokens = tokens.with_context(|| format!("the login at {gateway} cannot be refreshed"))?;
        let login = Login::of(&login.issuer, &login.client_id, tokens);
        let token = login.id_token.clone();
        self.change(&held, |all| all.insert(named(gateway), login))?;
        Ok(token)
    }
}

impl Login {
    fn of(issuer: &str, client_id: &str, tokens: Tokens) -> Self {
        Self {
            issuer: issuer.to_owned(),
            client_id: client_id.to_owned(),
            id_token: tokens.id_token,
            refresh_token: tokens.refresh_token,
            expires_unix_s: tokens.expires_unix_s,
        }
    }

    fn lasts(&self) -> bool {
        self.expires_unix_s > unix_s().saturating_add(EARLY_S)
    }
}

/// The lock of the file; it goes with the value.
struct LoginsLock(#[expect(dead_code, reason = "it is held")] File);

fn named(gateway: &str) -> String {
    gateway.trim_end_matches('/').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn login(expires_unix_s: i64) -> Login {
        Login {
            issuer: "https://id.example.com".to_owned(),
            client_id: "fn".to_owned(),
            id_token: format!("token until {expires_unix_s}"),
            refresh_token: None,
            expires_unix_s,
        }
    }

    #[tokio::test]
    async fn a_login_is_its_owners_alone_and_for_its_gateway_alone() {
        let home = tempfile::tempdir().unwrap();
        let logins = Logins(home.path().join("a/logins.json"));
        assert_eq!(logins.at("https://a.example").unwrap(), None);
        let held = logins.hold().await.unwrap();
        let lasting = login(i64::MAX);
        logins
            .change(&held, |all| {
                all.insert(named("https://A.example/"), lasting.clone());
                all.insert(named("https://old.example"), login(1));
            })
            .unwrap();
        drop(held);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&logins.0), mode(logins.0.parent().unwrap())), (0o600, 0o700));
        assert_eq!(logins.token("https://a.example").await.unwrap(), lasting.id_token);
        let expired = logins.token("https://old.example").await.unwrap_err().to_string();
        assert!(expired.contains("`fn login https://old.example`"), "{expired}");
        let other = logins.token("https://b.example").await.unwrap_err().to_string();
        assert!(other.contains("not signed in"), "{other}");
        assert!(logins.sign_out("https://a.example").await.unwrap());
        assert!(!logins.sign_out("https://a.example").await.unwrap());
        let wanted = Wanted {
            issuer: "https://id.example.com".to_owned(),
            client_id: "fn".to_owned(),
        };
        let plain = logins.sign_in("http://functions.example", &wanted, |_, _, _| {}).await;
        assert!(plain.unwrap_err().to_string().contains("https"));
    }
}
