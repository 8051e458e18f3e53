//! `fn login`, `fn logout` and `fn whoami`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use rekindle_wire::api::{AuthStatus, Whoami};

use super::describe::when;
use crate::args::{ClientArgs, Listing, LoginArgs};
use crate::client::{Client, Logins};
use crate::show;
use crate::terminal::harmless;

/// Signs in at the issuer that the gateway names.
pub(crate) async fn login(mut connection: ClientArgs, args: &LoginArgs) -> Result<ExitCode> {
    connection.url = args.gateway.clone().unwrap_or(connection.url);
    let url = connection.url.clone();
    let logins = Logins::of_user().context("HOME is not set: there is no place to keep a login in")?;
    let status = Client::new(&connection)?.anonymous_auth().await?;
    let Some(wanted) = status.login else {
        bail!(
            "{url} names no issuer at which people sign in: its operator starts the gateways with --oidc-issuer and \
             --oidc-login-client; until then use a key (FN_KEY)"
        );
    };
    let shown = |address: &str, code: Option<&str>, user_code: &str| {
        let (address, user_code) = (harmless(address, &[]), harmless(user_code, &[]));
        match code {
            Some(_) => eprintln!("open {address} and enter the code {user_code}"),
            None => eprintln!("open {address} (it shows the code {user_code})"),
        }
        eprintln!("waiting for you to sign in at {} …", wanted.issuer);
    };
    logins.sign_in(&url, &wanted, shown).await?;
    connection.key = None;
    let status = Client::new(&connection)?.auth().await;
    match status.context("you are signed in at the issuer, and the gateway does not take its token")? {
        AuthStatus {
            caller: Some(caller), ..
        } => print(&caller),
        _ => bail!("{url} does not say who you are"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Forgets a login.
pub(crate) async fn logout(connection: ClientArgs, args: &LoginArgs) -> Result<ExitCode> {
    let url = args.gateway.clone().unwrap_or(connection.url);
    let logins = Logins::of_user().context("HOME is not set: no login is kept")?;
    match logins.sign_out(&url).await? {
        true => say!("you are signed out of {url}"),
        false => say!("you were not signed in at {url}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows who calls.
pub(crate) async fn whoami(client: &Client, listing: Listing) -> Result<ExitCode> {
    let Some(caller) = client.auth().await?.caller else {
        bail!("you are nobody here: sign in with `fn login`, or set FN_KEY");
    };
    match listing.json {
        true => show::print_json(&caller)?,
        false => print(&caller),
    }
    Ok(ExitCode::SUCCESS)
}

fn print(caller: &Whoami) {
    say!("{}", harmless(&caller.name, &[]));
    for grant in &caller.grants {
        let by = grant
            .rule
            .as_ref()
            .map_or(String::new(), |rule| format!(", by the rule {rule}"));
        say!("  {} for {}{by}", grant.role, grant.scope.in_words());
    }
    if let Some(end) = caller.expires_unix_s {
        say!("  until {}", when(end));
    }
}
