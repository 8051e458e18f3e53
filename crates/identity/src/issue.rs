//! The scheduler's part: admits hosts with a token, and renews certificates of members.

use std::sync::Arc;
use std::time::Duration;

use rekindle_wire::{ApiError, ErrorCode};

use crate::accept::Caller;
use crate::authority::{Authority, AuthorityError};
use crate::join::{JoinRequest, JoinResponse, RenewRequest};
use crate::member::{Member, MemberError};
use crate::peer::Peer;
use crate::token::TokenError;
use rekindle_wire::interface::Role;

/// Pause after a failed renewal, and minimum pause between two renewals.
const PAUSE: Duration = Duration::from_millis(200);

/// The authority in operation.
#[derive(Debug)]
pub struct CertificateIssuer {
    authority: Authority,
    member: Arc<Member>,
    life: Duration,
}

impl CertificateIssuer {
    /// Starts with the scheduler's own certificate, which is created in `directory` each time. Certificates are valid
    /// for `life`.
    ///
    /// # Errors
    /// If that certificate cannot be created.
    pub fn new(authority: Authority, directory: &std::path::Path, life: Duration) -> Result<Self, MemberError> {
        let peer = Peer {
            role: Role::Scheduler,
            name: "main".to_owned(),
        };
        let member = Arc::new(Member::of_authority(&authority, directory, &peer, life)?);
        Ok(Self {
            authority,
            member,
            life,
        })
    }

    /// The scheduler as a member.
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Admits a host. Blocks on disk I/O for a moment.
    ///
    /// # Errors
    /// `unauthorized` for an unusable token, `bad_request` for an invalid name or request.
    pub fn join(&self, asked: &JoinRequest, cluster_token: &str) -> Result<JoinResponse, ApiError> {
        let refused = |message: String| ApiError::new(ErrorCode::Unauthorized, message);
        let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if asked.name.is_empty() || asked.name.len() > 63 || !asked.name.bytes().all(is_plain) {
            let message = format!("{:?} is not a name: use small letters, digits and hyphens", asked.name);
            return Err(ApiError::new(ErrorCode::BadRequest, message));
        }
        let peer = Peer {
            role: asked.role,
            name: asked.name.clone(),
        };
        self.refuse_revoked(&peer)?;
        let token = asked.token.parse().map_err(refused)?;
        self.authority.tokens().spend(&token, asked.role).map_err(|e| match e {
            TokenError::File(_) => ApiError::new(ErrorCode::Internal, format!("{e}: see the scheduler's log")),
            e => refused(e.to_string()),
        })?;
        tracing::info!(%peer, "a host has joined");
        self.sign(&asked.request, &peer, cluster_token)
    }

    /// Renews a member's certificate, with the same identity.
    ///
    /// # Errors
    /// `unauthorized` if the caller is not a member, `bad_request` for an invalid request.
    pub fn renew(&self, caller: &Caller, asked: &RenewRequest, cluster_token: &str) -> Result<JoinResponse, ApiError> {
        match caller {
            Caller::Member(peer) => {
                self.refuse_revoked(peer)?;
                self.sign(&asked.request, peer, cluster_token)
            }
            Caller::Plain | Caller::Stranger => Err(ApiError::new(
                ErrorCode::Unauthorized,
                "only a member's certificate is renewed: join with a token of `fn cluster token`",
            )),
        }
    }

    /// Refuses a member that is revoked.
    ///
    /// # Errors
    /// `unauthorized` if it is.
    pub fn refuse_revoked(&self, peer: &Peer) -> Result<(), ApiError> {
        if !self.member.revoked().has(peer) {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::Unauthorized,
            format!("the {peer} is revoked: set its host up anew, so that it joins under another name"),
        ))
    }

    fn sign(&self, request: &str, peer: &Peer, cluster_token: &str) -> Result<JoinResponse, ApiError> {
        let signed = self.authority.sign(request, peer, self.life);
        let unusable = |e: AuthorityError| ApiError::new(ErrorCode::BadRequest, format!("{e}: join again"));
        Ok(JoinResponse {
            certificate: signed.map_err(unusable)?,
            authority: self.authority.pem().to_owned(),
            cluster_token: cluster_token.to_owned(),
        })
    }

    /// Renews the scheduler's own certificate. Runs until dropped.
    pub async fn keep_renewed(&self) {
        loop {
            tokio::time::sleep(self.member.renew_in().max(PAUSE)).await;
            if let Err(error) = self.member.renew_by(&self.authority, self.life) {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the scheduler's certificate could not be renewed");
            }
        }
    }
}
