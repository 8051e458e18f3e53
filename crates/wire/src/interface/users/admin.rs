//! The admin API, which the scheduler serves, but for what is about functions.

use super::described::{Access, Described, Field, Message, Place, Reach, list, one};
use crate::access::{KeyId, RuleId};
use crate::api::{
    AccessRule, AuditPage, CollectRequest, Collected, InstanceInfo, InstanceObjects, KeySummary, MigrateRequest,
    Migration, NamespaceSummary, NewKey, NewKeyRequest, NewRuleRequest, Quota, QuotaStatus, RemovedRule, Revocation,
    RevokeRequest, RevokedKey, ScheduleInfo, SecretSummary, SourceInfo, SourceReports, Status, UsageBy, UsageLine,
    WorkerInfo,
};
use crate::asynchronous::{AcceptedCall, AsyncCall, CallState};
use crate::ids::{CallId, FunctionId, FunctionName, InstanceId, Namespace, WorkerId};
use crate::schedule::ScheduleName;
use crate::secret::SecretName;
use crate::stats::Stats;

described! {
    /// What the gateway passes on to the scheduler, once it has checked the caller's key and role.
    ADMIN, DESCRIBED_ADMIN:

    /// List schedules
    ///
    /// Those of the versions that serve.
    schedules [Reader Namespace] GET "/v1/schedules" ListSchedules {;
        /// only this function's
        function: FunctionName,
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK [ScheduleInfo] "every schedule, by function and name"
    fails FunctionNotFound;

    /// Pause a schedule
    ///
    /// No run of it is due until it is resumed, whatever is deployed or restarted meanwhile. A run in progress goes on.
    schedules [Deployer Function] PUT "/v1/functions/{name}/schedules/{schedule}/pause" PauseSchedule {
        /// the function
        name: FunctionName,
        /// the schedule
        schedule: ScheduleName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK ScheduleInfo "the schedule as it is now"
    fails FunctionNotFound, NotFound "the version that serves has no such schedule";

    /// Resume a schedule
    ///
    /// Runs that would have been due meanwhile are not caught up on.
    schedules [Deployer Function] DELETE "/v1/functions/{name}/schedules/{schedule}/pause" ResumeSchedule {
        /// the function
        name: FunctionName,
        /// the schedule
        schedule: ScheduleName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK ScheduleInfo "the schedule as it is now"
    fails FunctionNotFound, NotFound "the version that serves has no such schedule";

    /// Run a schedule now
    ///
    /// Once more, besides the runs that are due, even if it is paused.
    schedules [Invoker Function] POST "/v1/functions/{name}/schedules/{schedule}/run" RunSchedule {
        /// the function
        name: FunctionName,
        /// the schedule
        schedule: ScheduleName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => ACCEPTED AcceptedCall "the run is kept as an asynchronous call, and follows at once"
    fails
        FunctionNotFound,
        NotFound "the version that serves has no such schedule",
        Throttled "the function's queue is full",
        QuotaExceeded;

    /// List sources
    ///
    /// Those of the versions that serve, with what each of their readers says.
    sources [Reader Namespace] GET "/v1/sources" ListSources {;
        /// only this function's
        function: FunctionName,
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK [SourceInfo] "every source, by function and name"
    fails FunctionNotFound;

    /// Follow sources
    ///
    /// For readers: says how they get on with sources, and is answered which there are. Nothing is changed by it.
    sources [Invoker Namespace] POST "/v1/sources/reports" ReportSources {;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } (SourceReports) => OK [SourceInfo] "every source of the namespace, by function and name"
    fails BadRequest "the reader's name cannot be used, or it reports too many sources";

    /// List secrets
    ///
    /// No operation answers with a value.
    secrets [Reader Namespace] GET "/v1/secrets" ListSecrets {;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK [SecretSummary] "every secret of the namespace, by name"
    fails;

    /// Set a secret
    ///
    /// The value is kept encrypted, in place of the one before.
    secrets [Deployer Namespace] PUT "/v1/secrets/{name}" SetSecret {
        /// the secret: 1 to 64 of A-Z, 0-9 and '_', not starting with a digit
        name: SecretName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace,
        /// set it only if there is one of that name
        existing: bool
    } () => OK SecretSummary "it is set"
    takes "application/octet-stream" String "the value as it is: 1 byte to 64 KiB"
    fails
        BadRequest "the name cannot be used, or the value is empty",
        NotFound "with `existing`: there is none of that name",
        Conflict "the namespace has 100 secrets",
        TooLarge "the value has more than 64 KiB";

    /// Remove a secret
    ///
    /// It is taken from instances that run, too. Without it no others of these functions start.
    secrets [Deployer Namespace] DELETE "/v1/secrets/{name}" RemoveSecret {
        /// the secret
        name: SecretName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace,
        /// remove it although a version that serves names it
        force: bool
    } () => NO_CONTENT () "it is gone"
    fails NotFound, Conflict "a version that serves names it";

    /// Make a key
    ///
    /// The answer is the only place that ever shows the key: the platform keeps its hash. It can have no role and no
    /// scope beyond those of the key that it is made with.
    access [Admin Content] POST "/v1/keys" CreateKey {} (NewKeyRequest) => OK NewKey "the key"
    fails
        BadRequest "its name is too long, or its life is none of 60 seconds to ten years",
        NamespaceNotFound,
        Conflict "there are too many keys";

    /// List keys
    ///
    /// Without the keys themselves.
    access [Admin Content] GET "/v1/keys" ListKeys {}
    () => OK [KeySummary] "every key within the scope of the caller's, the newest first"
    fails;

    /// Revoke a key
    ///
    /// Every gateway refuses it when the answer comes, but for those that do not answer within a second.
    access [Admin Content] DELETE "/v1/keys/{id}" RevokeKey {
        /// the key
        id: KeyId
    } () => OK RevokedKey "it is refused"
    fails NotFound;

    /// Add a rule of access
    ///
    /// From then on holders of such tokens or certificates have the role. It can have no role and no scope beyond those
    /// of whoever adds it.
    access [Admin Content] POST "/v1/access" AddRule {} (NewRuleRequest) => OK AccessRule "the rule"
    fails
        BadRequest "it would let everybody in, or a part of it cannot be used",
        NamespaceNotFound,
        Conflict "there are too many rules";

    /// List rules of access
    access [Admin Content] GET "/v1/access" ListRules {}
    () => OK [AccessRule] "every rule within the scope of the caller, the newest first"
    fails;

    /// Remove a rule of access
    ///
    /// No gateway lets anybody in by it when the answer comes, but for those that do not answer within a second.
    access [Admin Content] DELETE "/v1/access/{id}" RemoveRule {
        /// the rule
        id: RuleId
    } () => OK RemovedRule "it is gone"
    fails NotFound;

    /// List namespaces
    access [Reader Content] GET "/v1/namespaces" ListNamespaces {}
    () => OK [NamespaceSummary] "those within the scope of the caller's key, by name"
    fails;

    /// Make a namespace
    ///
    /// Does nothing if there is one of that name.
    access [Admin Platform] PUT "/v1/namespaces/{namespace}" CreateNamespace {
        /// the namespace: 1 to 63 of a-z, 0-9 and '-', starting with a letter
        namespace: Namespace
    } () => OK NamespaceSummary "there is one"
    fails BadRequest "the name cannot be used", Conflict "there are too many";

    /// Encrypt a namespace's snapshots
    ///
    /// Those that are made from now on, with a key of the namespace's own that goes with it. Those that there are stay
    /// as they are until they are renewed. It cannot be undone. Does nothing if they are encrypted.
    access [Admin Platform] PUT "/v1/namespaces/{namespace}/encryption" EncryptNamespace {
        /// the namespace
        namespace: Namespace
    } () => OK NamespaceSummary "they are encrypted"
    fails NamespaceNotFound;

    /// Remove a namespace
    ///
    /// Its keys are revoked, its rules of access are removed, and what is left of its encrypted snapshots cannot be
    /// read any more.
    access [Admin Platform] DELETE "/v1/namespaces/{namespace}" RemoveNamespace {
        /// the namespace
        namespace: Namespace
    } () => NO_CONTENT () "it is gone"
    fails NamespaceNotFound, Conflict "it has functions or secrets, or is the default one";

    /// Read a quota
    ///
    /// The limits of a namespace, and what of each is in use.
    access [Reader Namespace] GET "/v1/quota" ReadQuota {;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK QuotaStatus "its limits, its own or those for namespaces without any"
    fails;

    /// Set a quota
    ///
    /// These are the limits of the namespace from now on, in place of those before; what is absent has none. What is in
    /// use stays. Gateways keep the limit of invocations a second within three seconds.
    access [Admin Platform] PUT "/v1/namespaces/{namespace}/quota" SetQuota {
        /// the namespace
        namespace: Namespace
    } (Quota) => OK QuotaStatus "its limits are set"
    fails NamespaceNotFound;

    /// Clear a quota
    ///
    /// The namespace has the limits for namespaces without any of their own.
    access [Admin Platform] DELETE "/v1/namespaces/{namespace}/quota" ClearQuota {
        /// the namespace
        namespace: Namespace
    } () => OK QuotaStatus "it has no limits of its own"
    fails NamespaceNotFound;

    /// Read usage
    ///
    /// What the functions of a namespace have used by day (UTC), deleted functions included. It is kept for 400 days,
    /// and complete but for the last seconds.
    access [Reader Namespace] GET "/v1/usage" ReadUsage {;
        /// the namespace; one that was removed has usage too
        namespace: Namespace,
        /// only this function's
        function: FunctionName,
        /// how many days, today included: 1 to 400, 7 when absent
        days: u32,
        /// what lines are apart by: `day`, `function` and `version`, separated by commas; `day,function` when absent
        by: UsageBy
    } () => OK [UsageLine] "by day, function and version"
    fails BadRequest "too many lines, or a parameter is out of its range";

    /// Read the audit log
    ///
    /// Every change that was asked for over the API, and what came of it; not what a gateway refused. Each entry has
    /// the hash of the one before. A key for one namespace reads the entries of that namespace, and whoever is an admin
    /// of several namespaces those of the one that the request names.
    access [Admin Content] GET "/v1/audit" ReadAudit {;
        /// only entries with higher numbers
        after: u64,
        /// only entries at or after this time, in milliseconds since the Unix epoch
        since_unix_ms: i64,
        /// how many, at most 1000, which it is when absent
        limit: u32,
        /// only entries about this namespace
        of: Namespace
    } () => OK AuditPage "oldest first"
    fails BadRequest "the caller is an admin of several namespaces, and `of` names none";

    /// The platform as a whole
    platform [Reader Platform] GET "/v1/status" ReadStatus {} () => OK Status "workers, functions, instances"
    fails;

    /// The platform in numbers
    ///
    /// Counts of all gateways together since their start, by function and start kind; how full the workers' pools and
    /// caches are.
    platform [Reader Platform] GET "/v1/stats" ReadStats {} () => OK Stats "workers and functions"
    fails;

    /// List instances
    platform [Reader Platform] GET "/v1/instances" ListInstances {
    } () => OK [InstanceInfo] "every instance, oldest first"
    fails;

    /// Look at an instance
    ///
    /// What its processes have from the kernel, as they run, and what becomes of each object in copies.
    platform [Reader Platform] GET "/v1/instances/{id}/objects" ReadInstanceObjects {
        /// the instance
        id: InstanceId
    } () => OK InstanceObjects "its objects; first those that prevent a snapshot"
    fails NotFound, Unavailable "its worker does not answer";

    /// Stop an instance
    ///
    /// Requests in it end with it.
    platform [Admin Platform] DELETE "/v1/instances/{id}" StopInstance {
        /// the instance
        id: InstanceId
    } () => NO_CONTENT () "it is gone"
    fails NotFound, Unavailable "its worker does not answer";

    /// Move an instance
    ///
    /// Moves it to another worker with its memory, or makes a copy there. Invocations wait meanwhile and continue
    /// there. The response comes when it runs there. Until then it may continue where it was, and after any error
    /// except `migration_lost` it does.
    platform [Admin Platform] POST "/v1/instances/{id}/migrate" MigrateInstance {
        /// the instance
        id: InstanceId
    } (MigrateRequest) => OK Migration "it runs there"
    fails
        NotFound "no such instance or worker",
        Conflict "it is starting, stopping or moving, or an invocation in it did not end in time",
        MigrationLost "it is gone",
        NoCapacity "the worker has no room, or there is no other",
        Unavailable "a worker does not answer";

    /// List workers
    platform [Reader Platform] GET "/v1/workers" ListWorkers {}
    () => OK [WorkerInfo] "every worker that was heard of within the hour, by id"
    fails;

    /// DrainWorker a worker
    ///
    /// The worker is given nothing new, its idle instances go, and gateways send elsewhere; requests in it finish. The
    /// response does not wait for that: the worker is empty when its state is `drained`. The setting lasts until it is
    /// undone, whatever is restarted.
    platform [Admin Platform] PUT "/v1/workers/{name}/drain" DrainWorker {
        /// the worker's id, its address with or without the port, or its host's name
        name: String
    } () => OK WorkerInfo "the worker as it is now"
    fails BadRequest "several workers are called that", NotFound;

    /// Use a worker again
    platform [Admin Platform] DELETE "/v1/workers/{name}/drain" UndrainWorker {
        /// the worker's id, its address with or without the port, or its host's name
        name: String
    } () => OK WorkerInfo "the worker as it is now"
    fails BadRequest "several workers are called that", NotFound;

    /// A worker's metrics
    platform [Reader Platform] GET "/v1/workers/{id}/metrics" ReadWorkerMetrics {
        /// the worker
        id: WorkerId
    } () => OK () "as `/metrics`"
    sends "text/plain" String
    fails NotFound, Unavailable "it does not answer";

    /// The scheduler's metrics
    platform [Reader Platform] GET "/v1/metrics" ReadSchedulerMetrics {} () => OK () "as `/metrics`"
    sends "text/plain" String
    fails;

    /// Revoke a member of the cluster
    ///
    /// Its certificate, and any that it got in the meantime, is refused by all roles from then on, and connections
    /// with it are closed. A worker's instances are gone, and its host cannot join again under that name. A revocation
    /// cannot be undone.
    platform [Admin Platform] POST "/v1/revocations" Revoke {
    } (RevokeRequest) => OK Revocation "who is revoked, and since when"
    fails BadRequest "no member, or a cluster without an authority", Conflict "too many are";

    /// List revoked members
    platform [Reader Platform] GET "/v1/revocations" ListRevocations {
    } () => OK [Revocation] "all of them, the oldest first"
    fails;

    /// Remove unneeded objects
    ///
    /// Removes old versions beyond those kept, and snapshots, chunks, layers and uploaded folders that no version
    /// needs. The platform also does this automatically. It may take minutes; a client that goes away does not stop
    /// it.
    platform [Admin Platform] POST "/v1/collections" Collect {} (CollectRequest) => OK Collected "what was removed"
    fails
        Conflict "one is under way, or the object store is another scheduler's",
        Unavailable "the object store does not answer";

    /// List asynchronous calls
    invocations [Reader Content] GET "/v1/async" ListCalls {;
        /// only this function's: `NAME`, or `NAME.NAMESPACE`
        function: FunctionId,
        /// only those in this state
        state: CallState,
        /// only those older than this call: the last one of the page before
        before: CallId,
        /// how many, 100 when absent, at most 1000
        limit: u32
    } () => OK [AsyncCall] "newest first"
    fails BadRequest;

    /// Describe an asynchronous call
    invocations [Reader Content] GET "/v1/async/{id}" ShowCall {
        /// the call
        id: CallId
    } () => OK AsyncCall "where it stands"
    fails NotFound;

    /// Delete an asynchronous call
    ///
    /// A waiting call is not run any more.
    invocations [Deployer Content] DELETE "/v1/async/{id}" RemoveCall {
        /// the call
        id: CallId
    } () => NO_CONTENT () "it is gone"
    fails NotFound, Conflict "it runs";

    /// Queue a dead letter again
    invocations [Deployer Content] POST "/v1/async/{id}/retry" RetryCall {
        /// the call
        id: CallId
    } () => OK AsyncCall "it waits, as if it came now"
    fails NotFound, Conflict "it is no dead letter";
}
