//! Revoked members of the cluster, kept forever.

use rekindle_identity::{Peer, Role};

use super::{Store, StoreError, failed, unreadable};

/// A revoked member, and since when, in seconds since 1970.
pub(crate) type Revocation = (Peer, i64);

impl Store {
    /// All revocations, oldest first.
    pub(crate) async fn revocations(&self) -> Result<Vec<Revocation>, StoreError> {
        let rows: Vec<(String, String, i64)> =
            sqlx::query_as("SELECT role, name, since_unix_s FROM revocations ORDER BY since_unix_s, role, name")
                .fetch_all(&self.pool)
                .await
                .map_err(failed("read who is revoked"))?;
        let read = rows.into_iter().map(|(role, name, since)| {
            let role: Role = role
                .parse()
                .map_err(|e: String| unreadable("member's role")(std::io::Error::other(e)))?;
            Ok((Peer { role, name }, since))
        });
        read.collect()
    }

    /// Records that a member is revoked; does nothing if it already is.
    pub(crate) async fn revoke(&self, peer: &Peer, now_unix_s: i64) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO revocations (role, name, since_unix_s) VALUES ($1, $2, $3) ON CONFLICT (role, name) DO \
             NOTHING",
        )
        .bind(peer.role.as_str())
        .bind(&peer.name)
        .bind(now_unix_s)
        .execute(&self.writes)
        .await
        .map_err(failed("note who is revoked"))?;
        Ok(())
    }
}
