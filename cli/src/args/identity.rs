//! Options of `fn access`, `fn login`, `fn logout` and `fn whoami`, and of gateways for whom they take without keys.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use rekindle_wire::FunctionName;
use rekindle_wire::access::{AccessRole, CertificateName, RuleId};
use rekindle_wire::function_config::parse_duration;

use super::Listing;

/// Whose tokens do as keys do.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct IdentityArgs {
    /// Address, as the tokens' iss has it, of an OpenID Connect issuer whose tokens (JWT) are taken in place of keys
    /// where `fn access` says so. The address of its keys follows after a `=` where no OpenID configuration names them.
    /// May be repeated.
    #[arg(long, value_name = "ISSUER[=KEYS]", env = "FN_OIDC_ISSUER", value_delimiter = ',')]
    pub(crate) oidc_issuer: Vec<rekindle_gateway::TokenIssuer>,
    /// What tokens of --oidc-issuer have to be for, as their aud has it. May be repeated.
    #[arg(
        long,
        value_name = "AUDIENCE",
        env = "FN_OIDC_AUDIENCE",
        default_value = "rekindle",
        value_delimiter = ','
    )]
    pub(crate) oidc_audience: Vec<String>,
    /// Public client at the first --oidc-issuer by which people sign in with `fn login`; it may use the device
    /// authorization grant.
    #[arg(long, value_name = "ID", env = "FN_OIDC_LOGIN_CLIENT", requires = "oidc_issuer")]
    pub(crate) oidc_login_client: Option<String>,
}

impl IdentityArgs {
    /// What a gateway is told.
    pub(crate) fn issuers(&self) -> rekindle_gateway::IdentityIssuers {
        rekindle_gateway::IdentityIssuers {
            issuers: self.oidc_issuer.clone(),
            audiences: self.oidc_audience.clone(),
            login_client: self.oidc_login_client.clone(),
        }
    }
}

/// `fn access`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn access add --issuer https://token.actions.githubusercontent.com --claim repository=org/x \\
    --claim ref=refs/heads/main --role deployer -n team
  fn access add --issuer https://id.example.com --claim groups=ops --role admin --all-namespaces
  fn access add --certificate spiffe://example.org/ci --role invoker --function hello
  fn access list
  fn access rm r-0123456789abcdef

Holders of such tokens and certificates need no key. Gateways take tokens of the issuers that they are started with
(--oidc-issuer). Who meets several rules has the roles of all of them.")]
pub(crate) struct AccessArgs {
    #[command(subcommand)]
    pub(crate) command: AccessCommand,
}

/// The commands of `fn access`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum AccessCommand {
    /// Let holders of tokens or of a certificate in.
    Add(AddRuleArgs),
    /// List the rules.
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Remove a rule, at once and everywhere.
    Rm {
        /// The rule's id, as `fn access list` shows it.
        id: RuleId,
        #[command(flatten)]
        listing: Listing,
    },
}

/// `fn access add`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("whom").required(true))]
pub(crate) struct AddRuleArgs {
    /// Issuer of the tokens, as their iss has it.
    #[arg(long, value_name = "URL", group = "whom", requires = "claim")]
    pub(crate) issuer: Option<String>,
    /// A claim that the tokens must have, such as sub=ada; with several, all of them.
    #[arg(long, value_name = "NAME=VALUE", value_parser = claim, requires = "issuer")]
    pub(crate) claim: Vec<(String, String)>,
    /// Name in the certificate: CN=NAME, DNS=NAME, or a URI such as spiffe://example.org/ci.
    #[arg(long, value_name = "NAME", group = "whom")]
    pub(crate) certificate: Option<CertificateName>,
    /// What they may do: admin, deployer, invoker or reader.
    #[arg(long)]
    pub(crate) role: AccessRole,
    /// The only function it is for; by default every one of the namespace.
    #[arg(long, value_name = "NAME", conflicts_with = "all_namespaces")]
    pub(crate) function: Option<FunctionName>,
    /// For every namespace and the platform's hosts, instead of the namespace of -n.
    #[arg(long)]
    pub(crate) all_namespaces: bool,
    /// How long the rule is valid, such as 90d; by default until it is removed.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) expires: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

fn claim(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("is no claim: write NAME=VALUE, such as sub=ada".to_owned()),
    }
}

/// `fn login` and `fn logout`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn login https://functions.example.com
  export FN_URL=https://functions.example.com
  fn whoami
  fn logout

Sign in only at a gateway that you trust: it is sent the token. Tokens are kept in ~/.config/rekindle/logins.json, which
no other user can read, and are refreshed while the issuer allows it. FN_KEY goes before them.")]
pub(crate) struct LoginArgs {
    /// Address of the gateway; by default that of --url.
    pub(crate) gateway: Option<String>,
}
