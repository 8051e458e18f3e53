//! The database's master key, from a key service that unwraps it.
//!
//! | the database has | what is done |
//! |---|---|
//! | no master key | the service makes one; the database keeps it wrapped |
//! | the id of one that is kept in a file | that file's key is wrapped, and the file is not needed any more |
//! | a wrapped one | the service unwraps it; if another of the service's keys is named by now, that one wraps it anew |
//!
//! Each is followed by a look at what the database has then: another scheduler may have been first, and what cannot be
//! unwrapped must be known before anything is sealed.

use rekindle_envelope::{KeyId, KeyService, KeyServiceError, MasterKey};

use crate::store::{Database, KnownMasterKey, Store, StoreError, despite_another_taking_the_lead};

/// How often the database is looked at. Three are enough, unless others change it meanwhile.
const LOOKS: u32 = 5;

/// Why there is no master key.
#[derive(Debug, thiserror::Error)]
pub enum MasterKeyError {
    /// The database cannot be used.
    #[error("the scheduler's database cannot be used")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The key service refuses, or does not answer.
    #[error("the key service did not return the master key")]
    Service(#[source] KeyServiceError),
    /// The key of the database's secrets is kept elsewhere.
    #[error(
        "the database's secrets were encrypted with master key {known}, which no key service has wrapped yet: \
         name its file with --master-key for this start"
    )]
    NoFile {
        /// The database's master key.
        known: String,
    },
    /// The file has another key.
    #[error(
        "the database's secrets were encrypted with master key {known}, and the file has {own}: name the right \
         file with --master-key for this start"
    )]
    OtherFile {
        /// The database's master key.
        known: String,
        /// The file's.
        own: KeyId,
    },
    /// The cluster had another name.
    #[error(
        "the database's master key was wrapped for the cluster {known}, and this one is named {own}: say \
         --master-key-cluster {known}"
    )]
    Cluster {
        /// The cluster it was wrapped for.
        known: String,
        /// This one's name.
        own: String,
    },
    /// What was unwrapped is another key.
    #[error(
        "what the key service unwraps is master key {own}, and the database's is {known}: restore the database's row"
    )]
    Other {
        /// The database's master key.
        known: String,
        /// What was unwrapped.
        own: KeyId,
    },
    /// It changes all the time.
    #[error("the database's master key is being changed by others: start again")]
    Changing,
}

/// The master key of a database, from `service`. `file` has the key that the database was used with before, if there is
/// such a file.
///
/// # Errors
/// If the database cannot be used, or the service does not give the key.
pub async fn unwrapped_master_key(
    database: &Database,
    service: &dyn KeyService,
    file: Option<&MasterKey>,
) -> Result<MasterKey, MasterKeyError> {
    despite_another_taking_the_lead(|| async {
        let store = Store::open(database).await.map_err(unusable)?;
        let unwrapped = unwrapped(&store, service, file).await;
        store.close().await;
        unwrapped
    })
    .await
}

async fn unwrapped(
    store: &Store,
    service: &dyn KeyService,
    file: Option<&MasterKey>,
) -> Result<MasterKey, MasterKeyError> {
    let by = service.key().await.map_err(MasterKeyError::Service)?;
    for _ in 0..LOOKS {
        let known = store.known_master_key().await.map_err(unusable)?;
        let Some(KnownMasterKey { id, wrapped }) = known else {
            let (key, wrapped) = service.generate().await.map_err(MasterKeyError::Service)?;
            let added = store.add_wrapped_key(&key.id().to_string(), &wrapped).await;
            added.map_err(unusable)?;
            continue;
        };
        let Some(mut wrapped) = wrapped else {
            let key = of_file(id, file)?;
            let wrapped = service.wrap(key).await.map_err(MasterKeyError::Service)?;
            let set = store.set_wrapped_key(&key.id().to_string(), &wrapped).await;
            set.map_err(unusable)?;
            tracing::info!(key = %key.id(), by, "the key service has wrapped the master key: its file can go");
            continue;
        };
        if wrapped.cluster != service.cluster() {
            return Err(MasterKeyError::Cluster {
                known: wrapped.cluster,
                own: service.cluster().to_owned(),
            });
        }
        let anew = !service.same(&wrapped.by, &by);
        if !anew {
            wrapped.by.clone_from(&by);
        }
        let key = service.unwrap(&wrapped).await.map_err(MasterKeyError::Service)?;
        let own = key.id();
        if own.to_string() != id {
            return Err(MasterKeyError::Other { known: id, own });
        }
        if !anew {
            tracing::info!(key = %own, by, "the key service has unwrapped the master key");
            return Ok(key);
        }
        let wrapped = service.wrap(&key).await.map_err(MasterKeyError::Service)?;
        store.set_wrapped_key(&id, &wrapped).await.map_err(unusable)?;
        tracing::info!(key = %own, by, "another key of the key service has wrapped the master key");
    }
    Err(MasterKeyError::Changing)
}

/// The key that the database was used with, which must be the file's.
fn of_file(known: String, file: Option<&MasterKey>) -> Result<&MasterKey, MasterKeyError> {
    match file {
        Some(key) if key.id().to_string() == known => Ok(key),
        Some(key) => Err(MasterKeyError::OtherFile { known, own: key.id() }),
        None => Err(MasterKeyError::NoFile { known }),
    }
}

fn unusable(error: StoreError) -> MasterKeyError {
    MasterKeyError::Store(Box::new(error))
}

#[cfg(test)]
mod tests;
