//! Leader election: of the schedulers that share a database, one leads and the others stand by.
//!
//! ```text
//! stands by ─the row is free, or its holder silent for HOLD─> leads ─no renewal for GIVE_UP─> the process ends
//! ```
//!
//! A leader gives up by its own clock before another may take over by the database's. Its work in progress dies with
//! its process. If the process was suspended, its clock says nothing. So a successor first ends the old leader's
//! connections ([`Store::take_over`]), which then cannot write into another's state. The new leader begins as after a
//! restart: workers and gateways tell it what exists.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::standby_gate::StandbyGate;
use crate::store::{ElectionOutcome, Store, StoreError};

/// How long the lead lasts unless it is renewed.
const HOLD: Duration = Duration::from_secs(4);
/// How often it is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// Time without a renewal after which it is given up.
const GIVE_UP: Duration = Duration::from_millis(3_000);
/// How often a standby asks for the lead.
const TRY_EVERY: Duration = Duration::from_millis(400);

/// A candidate.
#[derive(Debug)]
pub(crate) struct Leadership {
    store: Store,
    address: String,
    /// When the last successful renewal was requested.
    renewed: Mutex<Instant>,
}

impl Leadership {
    pub(crate) fn new(store: Store, address: &str) -> Self {
        Self {
            store,
            address: address.to_owned(),
            renewed: Mutex::new(Instant::now()),
        }
    }

    async fn ask(&self) -> Result<ElectionOutcome, StoreError> {
        let hold_ms = i64::try_from(HOLD.as_millis()).unwrap_or(i64::MAX);
        self.store.lead(self.store.holder(), &self.address, hold_ms).await
    }

    /// Stands by until it leads, and meanwhile tells `front` who does.
    pub(crate) async fn win(&self, front: &StandbyGate) {
        let mut leader = None;
        loop {
            match self.ask().await {
                Ok(ElectionOutcome::Won { term }) => {
                    match self.take_up().await {
                        Ok(true) => {
                            tracing::info!(term, "this scheduler leads");
                            return;
                        }
                        Ok(false) => tracing::warn!("another scheduler leads before this one could"),
                        Err(error) => {
                            tracing::warn!(
                                error = &error as &dyn std::error::Error,
                                "the lead cannot be taken up; trying again"
                            );
                        }
                    }
                    // Nothing was read yet: it may stand by, and connect, as before.
                    self.store.has_not_led();
                }
                Ok(ElectionOutcome::LedBy { address }) => {
                    if leader.as_ref() != Some(&address) {
                        tracing::info!(leader = address, "this scheduler stands by");
                    }
                    front.stand_by(&address);
                    leader = Some(address);
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "who leads cannot be told");
                }
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
    }

    /// Ends the connections of the previous leader. That may have taken most of the lead's time: returns whether it
    /// still has it.
    async fn take_up(&self) -> Result<bool, StoreError> {
        self.store.take_over().await?;
        let asked = Instant::now();
        let led = self.ask().await?;
        *self.renewed.lock() = asked;
        Ok(matches!(led, ElectionOutcome::Won { .. }))
    }

    /// Renews the lead as long as possible. Returns when it is lost; never if the database is not shared.
    pub(crate) async fn keep(&self) {
        if !self.store.is_shared() {
            std::future::pending::<()>().await;
        }
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            let (asked, renewed) = (Instant::now(), *self.renewed.lock());
            let left = GIVE_UP.saturating_sub(renewed.elapsed());
            match tokio::time::timeout(left, self.ask()).await {
                Ok(Ok(ElectionOutcome::Won { .. })) => *self.renewed.lock() = asked,
                Ok(Ok(ElectionOutcome::LedBy { address })) => {
                    tracing::error!(leader = address, "another scheduler leads");
                    return;
                }
                Ok(Err(error)) if renewed.elapsed() < GIVE_UP => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the lead could not be renewed; trying again"
                    );
                }
                Ok(Err(_)) | Err(_) => {
                    tracing::error!("the lead could not be renewed in time");
                    return;
                }
            }
        }
    }

    /// Gives the lead up, so that another may lead at once.
    pub(crate) async fn step_down(&self) {
        if self.store.is_shared()
            && let Err(error) = self.store.step_down(self.store.holder()).await
        {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "the lead could not be given back"
            );
        }
    }
}
