//! Follows which sources there are: one reader for each, begun anew where fn.toml says something else, and stopped
//! where the source is gone. While no gateway answers, those of before are read on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_wire::api::{SourceInfo, SourceProgress, SourceReport, SourceReports, SourceState};
use rekindle_wire::{FunctionId, Namespace, SourceName};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::batch::Batches;
use crate::config::Config;
use crate::gateway::Gateway;
use crate::metrics::Metrics;
use crate::pace::Pace;
use crate::progress::Progress;
use crate::reader::Reader;

/// Maximum number of sources that one program reads.
const SOURCES_MAX: usize = 1_000;

type Key = (FunctionId, SourceName);

/// The readers, and what they share.
pub(crate) struct Follower {
    config: Arc<Config>,
    gateway: Gateway,
    metrics: Arc<Metrics>,
    /// This program's name in reports.
    name: String,
    places: Arc<Semaphore>,
    cut: CancellationToken,
    readers: BTreeMap<Key, Running>,
    /// Sources beyond the maximum.
    beyond: BTreeSet<Key>,
    tasks: JoinSet<()>,
    /// When sources were last listed.
    heard: Arc<Mutex<Option<Instant>>>,
    /// What the last failure was, which is logged once.
    failure: Option<String>,
}

struct Running {
    info: SourceInfo,
    stop: CancellationToken,
    progress: Arc<Progress>,
}

impl Follower {
    pub(crate) fn new(config: Arc<Config>, gateway: Gateway, metrics: Arc<Metrics>, name: String) -> Self {
        Self {
            places: Arc::new(Semaphore::new(config.batches)),
            config,
            gateway,
            metrics,
            name,
            cut: CancellationToken::new(),
            readers: BTreeMap::new(),
            beyond: BTreeSet::new(),
            tasks: JoinSet::new(),
            heard: Arc::default(),
            failure: None,
        }
    }

    /// When sources were last listed, for others to look at.
    pub(crate) fn heard(&self) -> Arc<Mutex<Option<Instant>>> {
        Arc::clone(&self.heard)
    }

    /// Follows until it is to stop, and then until what is in flight is settled or its time is over.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let pause = Duration::from_secs(self.config.poll_seconds);
        while !stop.is_cancelled() {
            for namespace in self.config.namespaces.clone() {
                tokio::select! {
                    () = self.look(&namespace) => {}
                    () = stop.cancelled() => break,
                }
            }
            while self.tasks.try_join_next().is_some() {}
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
        self.end().await;
    }

    /// Looks at the sources of a namespace.
    async fn look(&mut self, namespace: &Namespace) {
        let reports = self.reports(namespace);
        match self.gateway.follow(namespace, &reports).await {
            Ok(sources) => {
                self.metrics.followed(true);
                *self.heard.lock() = Some(Instant::now());
                if self.failure.take().is_some() {
                    tracing::info!("the gateway says again which sources there are");
                }
                self.change(namespace, sources);
            }
            Err(error) => {
                self.metrics.followed(false);
                let failure = format!("{error:#}");
                if self.failure.as_ref() != Some(&failure) {
                    tracing::warn!(%namespace, failure, "the sources are not known; those of before are read on");
                }
                self.failure = Some(failure);
            }
        }
    }

    fn reports(&self, namespace: &Namespace) -> SourceReports {
        let is_in = |(function, _): &&Key| function.namespace() == namespace.as_str();
        let report = |(function, source): &Key, progress| SourceReport {
            function: function.clone(),
            source: source.clone(),
            progress,
        };
        let read = self.readers.iter().filter(|(key, _)| is_in(key));
        let read = read.map(|(key, running)| report(key, running.progress.read()));
        let left = self.beyond.iter().filter(is_in).map(|key| {
            let problem =
                format!("this program reads at most {SOURCES_MAX} sources: have another one read some namespaces");
            let progress = SourceProgress {
                state: SourceState::Failing,
                problem: Some(problem),
                ..SourceProgress::default()
            };
            report(key, progress)
        });
        SourceReports {
            reader: self.name.clone(),
            sources: read.chain(left).collect(),
        }
    }

    /// Begins and stops readers as a namespace's sources want it.
    fn change(&mut self, namespace: &Namespace, sources: Vec<SourceInfo>) {
        let wanted: BTreeMap<Key, SourceInfo> = sources
            .into_iter()
            .map(|info| ((info.function.clone(), info.source.name.clone()), info))
            .collect();
        let gone: Vec<Key> = self
            .readers
            .iter()
            .filter(|((function, _), _)| function.namespace() == namespace.as_str())
            .filter(|(key, running)| wanted.get(*key).is_none_or(|info| !is_same(&running.info, info)))
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            if let Some(running) = self.readers.remove(&key) {
                tracing::info!(function = %key.0, source = %key.1, "a source is read no more as it was");
                running.stop.cancel();
            }
            if !wanted.keys().any(|(function, _)| *function == key.0) {
                self.metrics.forget(&key.0);
            }
        }
        self.beyond
            .retain(|(function, _)| function.namespace() != namespace.as_str());
        for (key, info) in wanted {
            if self.readers.contains_key(&key) {
                continue;
            }
            if self.readers.len() >= SOURCES_MAX {
                self.beyond.insert(key);
                continue;
            }
            let running = self.begin(info);
            self.readers.insert(key, running);
        }
    }

    /// Begins to read a source.
    fn begin(&mut self, info: SourceInfo) -> Running {
        let source = &info.source;
        tracing::info!(function = %info.function, source = %source.name, queue = %source, "a source is read");
        let (progress, stop) = (Arc::new(Progress::default()), CancellationToken::new());
        let batches = Batches {
            target: Arc::new(self.gateway.clone()),
            metrics: Arc::clone(&self.metrics),
            progress: Arc::clone(&progress),
            pace: Arc::new(Mutex::new(Pace::new(source.batch, source.concurrency))),
            places: Arc::clone(&self.places),
            stop: stop.clone(),
            cut: self.cut.clone(),
            info: info.clone(),
        };
        let reader = Reader {
            config: Arc::clone(&self.config),
            batches: Arc::new(batches),
        };
        self.tasks.spawn(reader.read());
        Running { info, stop, progress }
    }

    /// Stops every reader, and waits for what is in flight.
    async fn end(mut self) {
        for running in self.readers.values() {
            running.stop.cancel();
        }
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.config.stop_limit(), all).await.is_ok() {
            return;
        }
        tracing::warn!("not all batches ended in time: what is left is given back");
        self.cut.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // A queue that does not answer keeps its messages until their time is over.
        drop(tokio::time::timeout(Duration::from_secs(5), all).await);
    }
}

/// Whether both are read the same way.
fn is_same(one: &SourceInfo, other: &SourceInfo) -> bool {
    let times = |info: &SourceInfo| (info.timeout_ms, info.boot_timeout_ms);
    (&one.source, times(one)) == (&other.source, times(other))
}
