//! Calls to another worker about a migration, and the pages that come back.
//!
//! ```text
//! page block   first:u64 pages:u32 len:u32 bytes[len]     little-endian; no bytes: all zero
//! ```

use std::time::Duration;

use futures::StreamExt;
use rekindle_identity::Transport;
use rekindle_init::causes::chain;
use rekindle_pager::{PAGE, SourceError};
use rekindle_wire::headers::CLUSTER_TOKEN;
use rekindle_wire::ids::MigrationId;
use rekindle_wire::interface::Endpoint;
use rekindle_wire::interface::worker::{
    CancelTarget, EndSource, PrepareTarget, ReadPage, ReadPages, ReadTarget, ResumeTarget, SendImages,
};
use rekindle_wire::migration::{HeldCopy, TargetOrder, TargetState};
use rekindle_wire::{ApiError, ErrorCode};

use super::bundle::Bundle;
use super::page_numbering::BLOCK;

/// Size of a block's header, in bytes.
pub(super) const HEAD: usize = 16;
/// How long the other side may be silent in the middle of a response.
const SILENCE: Duration = Duration::from_secs(10);
/// How long one page block may take.
const BLOCK_LIMIT: Duration = Duration::from_secs(5);

/// Pages that have arrived.
pub(super) struct Frame<'a> {
    pub(super) first: u64,
    pub(super) pages: u64,
    /// Their bytes; empty if they are all zero.
    pub(super) bytes: &'a [u8],
}

/// Appends a block's header and bytes to `into`, without the bytes if they are all zero.
pub(super) fn write_frame(first: u64, bytes: &[u8], into: &mut Vec<u8>) {
    let is_zero = bytes.iter().all(|byte| *byte == 0);
    let sent = if is_zero { &[][..] } else { bytes };
    into.extend_from_slice(&first.to_le_bytes());
    into.extend_from_slice(&((bytes.len() as u64 / PAGE) as u32).to_le_bytes());
    into.extend_from_slice(&(sent.len() as u32).to_le_bytes());
    into.extend_from_slice(sent);
}

/// Takes the complete blocks from the front of `buffer`.
fn take_frames(
    buffer: &mut Vec<u8>,
    mut take: impl FnMut(&Frame<'_>) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    let mut done = 0;
    while let Some((head, rest)) = buffer[done..].split_first_chunk::<HEAD>() {
        let [f0, f1, f2, f3, f4, f5, f6, f7, p0, p1, p2, p3, l0, l1, l2, l3] = *head;
        let pages = u64::from(u32::from_le_bytes([p0, p1, p2, p3]));
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if pages > BLOCK || length as u64 > BLOCK * PAGE {
            let message = "the source sends no pages".to_owned();
            return Err(SourceError { message });
        }
        let Some(bytes) = rest.get(..length) else { break };
        take(&Frame {
            first: u64::from_le_bytes([f0, f1, f2, f3, f4, f5, f6, f7]),
            pages,
            bytes,
        })?;
        done += HEAD + length;
    }
    buffer.drain(..done);
    Ok(())
}

/// Another worker, for one migration.
#[derive(Clone)]
pub(super) struct Peer {
    transport: Transport,
    token: String,
    address: String,
    id: MigrationId,
}

fn unreachable(error: &dyn std::error::Error) -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        format!("the other worker cannot be asked: {}", chain(error)),
    )
}

/// The other workers.
#[derive(Clone)]
pub struct Peers {
    /// Transport of calls to them.
    pub transport: Transport,
    /// The cluster's secret.
    pub token: String,
}

impl Peers {
    /// Returns the worker at this address, for one migration.
    pub(super) fn at(&self, address: &str, id: &MigrationId) -> Peer {
        Peer {
            transport: self.transport.clone(),
            token: self.token.clone(),
            address: address.to_owned(),
            id: id.clone(),
        }
    }
}

impl Peer {
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    fn call<E: Endpoint>(&self, at: &E, body: &E::Body) -> reqwest::RequestBuilder {
        let call = self.transport.call(&self.address, at, body);
        call.header(CLUSTER_TOKEN, &self.token)
    }

    async fn send(&self, call: reqwest::RequestBuilder) -> Result<reqwest::Response, ApiError> {
        let answer = self.transport.send(call).await.map_err(|e| unreachable(&e))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let text = answer.text().await.unwrap_or_default();
        let plain = || {
            ApiError::new(
                ErrorCode::Internal,
                format!("the other worker answered {status}: {text}"),
            )
        };
        Err(serde_json::from_str(&text).unwrap_or_else(|_| plain()))
    }

    async fn ask<E: Endpoint>(&self, call: reqwest::RequestBuilder, limit: Duration) -> Result<E::Answer, ApiError> {
        let answer = self.send(call.timeout(limit)).await?;
        let body = answer.bytes().await.map_err(|e| unreachable(&e))?;
        E::decode(&body).map_err(|e| unreachable(&e))
    }

    /// Has a migration target prepared.
    pub(super) async fn order(&self, order: &TargetOrder, limit: Duration) -> Result<(), ApiError> {
        let call = self.call(&PrepareTarget {}, order);
        self.ask::<PrepareTarget>(call, limit).await
    }

    /// Sends the bundle to a migration target.
    pub(super) async fn images(&self, bundle: Bundle, limit: Duration) -> Result<HeldCopy, ApiError> {
        let call = self.call(&SendImages { id: self.id.clone() }, &());
        let call = call.body(reqwest::Body::wrap_stream(bundle.into_stream()));
        self.ask::<SendImages>(call, limit).await
    }

    pub(super) async fn resume(&self, limit: Duration) -> Result<TargetState, ApiError> {
        let call = self.call(&ResumeTarget { id: self.id.clone() }, &());
        self.ask::<ResumeTarget>(call, limit).await
    }

    /// Reads the state of a migration target.
    pub(super) async fn state(&self, limit: Duration) -> Result<TargetState, ApiError> {
        let call = self.call(&ReadTarget { id: self.id.clone() }, &());
        self.ask::<ReadTarget>(call, limit).await
    }

    pub(super) async fn cancel(&self, limit: Duration) -> Result<(), ApiError> {
        let call = self.call(&CancelTarget { id: self.id.clone() }, &());
        self.ask::<CancelTarget>(call, limit).await
    }
}

/// The worker that an instance came from.
pub(super) struct SourcePeer(pub(super) Peer);

impl SourcePeer {
    /// Requests the block that contains a page.
    ///
    /// # Errors
    /// Returns an error when the block is not available now.
    pub(super) async fn block(
        &self,
        number: u64,
        put: impl FnMut(&Frame<'_>) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let id = self.0.id.clone();
        let call = self.0.call(&ReadPage { id, number }, &());
        let answer = self.0.send(call.timeout(BLOCK_LIMIT)).await.map_err(lost)?;
        let mut bytes = answer.bytes().await.map_err(|e| lost(unreachable(&e)))?.to_vec();
        take_frames(&mut bytes, put)
    }

    /// Receives the pages `number..end`.
    ///
    /// # Errors
    /// Returns an error when the stream breaks off. Pages that have arrived are kept.
    pub(super) async fn stream(
        &self,
        number: u64,
        end: u64,
        mut put: impl FnMut(&Frame<'_>) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let wanted = ReadPages {
            id: self.0.id.clone(),
            to: end,
            from: Some(number),
        };
        let call = self.0.call(&wanted, &());
        let answer = self.0.send(call).await.map_err(lost)?;
        let (mut chunks, mut buffer) = (answer.bytes_stream(), Vec::new());
        loop {
            let next = tokio::time::timeout(SILENCE, chunks.next()).await;
            let silent = || SourceError {
                message: format!(
                    "the worker the instance came from was silent for {} s",
                    SILENCE.as_secs()
                ),
            };
            match next.map_err(|_| silent())? {
                None => return Ok(()),
                Some(Err(e)) => return Err(lost(unreachable(&e))),
                Some(Ok(chunk)) => {
                    buffer.extend_from_slice(&chunk);
                    take_frames(&mut buffer, &mut put)?;
                }
            }
        }
    }

    /// Tells the source that all pages have arrived.
    pub(super) async fn done(&self) -> Result<(), ApiError> {
        let id = self.0.id.clone();
        let call = self.0.call(&EndSource { id }, &());
        self.0.ask::<EndSource>(call, BLOCK_LIMIT).await
    }
}

fn lost(error: ApiError) -> SourceError {
    SourceError { message: error.message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_taken_as_they_come_in_and_zeros_take_no_bytes() {
        let mut sent = Vec::new();
        write_frame(7, &[3; 2 * PAGE as usize], &mut sent);
        write_frame(9, &[0; PAGE as usize], &mut sent);
        assert_eq!(sent.len(), 2 * HEAD + 2 * PAGE as usize);
        let (mut buffer, mut taken) = (Vec::new(), Vec::new());
        for part in sent.chunks(1000) {
            buffer.extend_from_slice(part);
            take_frames(&mut buffer, |f| {
                taken.push((f.first, f.pages, f.bytes.len()));
                Ok(())
            })
            .unwrap();
        }
        assert_eq!(taken, [(7, 2, 2 * PAGE as usize), (9, 1, 0)]);
        assert!(buffer.is_empty());
        let mut foul = vec![0xff; 64];
        assert!(take_frames(&mut foul, |_| Ok(())).is_err());
    }
}
