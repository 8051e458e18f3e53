//! Tells gateways of changes, so that they need not ask at each request: what aliases name, and which keys there are. A
//! gateway keeps a question open, which is answered as soon as something changes. The revision that it asks with is the
//! one it applies.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_wire::ids::GatewayId;
use tokio::sync::watch;
use uuid::Uuid;

use crate::clock::Millis;

/// A gateway that has not asked for this long is gone: its question is open for 5 s at most.
const HEARD_WITHIN: Duration = Duration::from_secs(10);
/// How long a lead has not heard of gateways that there are.
const UNHEARD: Millis = Millis(3_000);

/// How long a change waits for gateways to apply it.
const APPLIED_LIMIT: Duration = Duration::from_secs(1);

/// What gateways know of something that changes.
#[derive(Debug)]
pub(crate) struct RevisionTracker {
    /// Tells this lead's revisions from those of others.
    pub(crate) epoch: String,
    pub(crate) revision: watch::Sender<u64>,
    /// Which revision each gateway applies, and when it said so.
    applied: Mutex<HashMap<GatewayId, (u64, Instant)>>,
    /// Signalled when a gateway applies another revision.
    changed: watch::Sender<()>,
}

impl Default for RevisionTracker {
    fn default() -> Self {
        Self {
            epoch: Uuid::new_v4().simple().to_string(),
            revision: watch::Sender::new(0),
            applied: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }
}

impl RevisionTracker {
    /// Records that a gateway applies this revision.
    pub(crate) fn note_applied(&self, gateway: &GatewayId, revision: u64) {
        let mut applied = self.applied.lock();
        applied.retain(|_, (_, at)| at.elapsed() < HEARD_WITHIN);
        applied.insert(gateway.clone(), (revision, Instant::now()));
        drop(applied);
        self.changed.send_replace(());
    }

    /// Tells the gateways of a revision, and waits until all of them apply it, up to a limit. Returns whether they do.
    pub(crate) async fn publish(&self, revision: u64, led_for: impl Fn() -> Millis) -> bool {
        let mut changes = self.changed.subscribe();
        self.revision.send_replace(revision);
        let all_apply = async {
            while !self.is_applied(revision, led_for()) {
                // The sender lives as long as `self`.
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(APPLIED_LIMIT, all_apply).await.is_ok()
    }

    /// Whether every gateway applies the revision. A lead that begins has not heard of any yet.
    fn is_applied(&self, revision: u64, led_for: Millis) -> bool {
        let applied = self.applied.lock();
        if applied.is_empty() && led_for < UNHEARD {
            return false;
        }
        let mut heard = applied.values().filter(|(_, at)| at.elapsed() < HEARD_WITHIN);
        heard.all(|(known, _)| *known >= revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_applied_once_every_gateway_asks_with_it() {
        let followed = RevisionTracker::default();
        let is_applied = |followed: &RevisionTracker, revision| followed.is_applied(revision, UNHEARD);
        assert!(is_applied(&followed, 3), "there is no gateway");
        assert!(!followed.is_applied(3, Millis(0)), "there may be one");
        let [a, b] = ["g-a", "g-b"].map(|id| id.parse().unwrap());
        followed.note_applied(&a, 3);
        followed.note_applied(&b, 2);
        assert!(is_applied(&followed, 2) && !is_applied(&followed, 3));
        followed.note_applied(&b, 4);
        assert!(is_applied(&followed, 3));
    }
}
