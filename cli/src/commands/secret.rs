//! `fn secret`.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use console::Term;
use rekindle_wire::secret::SECRET_MAX;
use rekindle_wire::{FunctionId, SecretValue};

use super::describe::when;
use crate::args::{SecretCommand, SetSecretArgs};
use crate::client::Client;
use crate::show;

/// Sets, lists or removes secrets.
pub(crate) async fn run(client: &Client, command: &SecretCommand) -> Result<ExitCode> {
    match command {
        SecretCommand::Set(args) => set(client, args, false).await?,
        SecretCommand::Rotate(args) => set(client, args, true).await?,
        SecretCommand::List(listing) => {
            let secrets = client.secrets().await?;
            if listing.json {
                show::print_json(&secrets)?;
                return Ok(ExitCode::SUCCESS);
            }
            let mut table = show::table(["SECRET", "VERSION", "SET", "STATE", "USED BY"]);
            for secret in secrets {
                let state = if secret.readable {
                    "set"
                } else {
                    "sealed with another key"
                };
                let used_by: Vec<_> = secret.used_by.iter().map(FunctionId::as_str).collect();
                table.add_row([
                    secret.name.to_string(),
                    secret.version.to_string(),
                    when(secret.set_unix_s),
                    state.to_owned(),
                    used_by.join(", "),
                ]);
            }
            show::print_table(&table);
        }
        SecretCommand::Rm { name, force } => {
            client.remove_secret(name, *force).await?;
            say!("{name} is removed");
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn set(client: &Client, args: &SetSecretArgs, existing: bool) -> Result<()> {
    let value = value(args)?;
    let set = client.set_secret(&args.name, &value, existing).await?;
    if args.json {
        return show::print_json(&set);
    }
    say!("{} is set, version {}", set.name, set.version);
    Ok(())
}

/// Reads a value from its file, the terminal or standard input.
fn value(args: &SetSecretArgs) -> Result<SecretValue> {
    let bytes = match &args.file {
        Some(path) => {
            let file = File::open(path).with_context(|| format!("{}: cannot be read", path.display()))?;
            read(file).with_context(|| format!("{}: cannot be read", path.display()))?
        }
        None if io::stdin().is_terminal() => {
            let term = Term::stderr();
            if !term.is_term() {
                bail!("there is no terminal to ask on: use --file, or pipe the value");
            }
            term.write_str(&format!("value of {}: ", args.name))?;
            term.read_secure_line()
                .context("the value cannot be read")?
                .into_bytes()
        }
        None => without_newline(read(io::stdin()).context("standard input cannot be read")?),
    };
    Ok(SecretValue::new(&bytes)?)
}

/// At most one byte more than a value may have.
fn read(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(SECRET_MAX as u64 + 2).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Without the newline that `echo` and editors put at the end.
fn without_newline(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_newline_at_the_end_is_left_out() {
        let table: [(&[u8], &[u8]); 6] = [
            (b"a", b"a"),
            (b"a\n", b"a"),
            (b"a\r\n", b"a"),
            (b"a\n\n", b"a\n"),
            (b"a\nb", b"a\nb"),
            (b"\n", b""),
        ];
        for (given, kept) in table {
            assert_eq!(without_newline(given.to_vec()), kept);
        }
    }
}
