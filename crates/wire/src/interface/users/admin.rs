//! The admin API, which the scheduler serves.

use super::described::{Access, Described, Field, Message, Place, Reach, list, one};
use crate::access::KeyId;
use crate::api::{
    Alias, AliasTargets, AuditPage, CanarySteps, CollectRequest, Collected, DeployCheck, FunctionDetail,
    FunctionSummary, InstanceInfo, InstanceObjects, KeySummary, LogLine, MigrateRequest, Migration, NamespaceSummary,
    NewKey, NewKeyRequest, Quota, QuotaStatus, Revocation, RevokeRequest, RevokedKey, Rollback, RollbackRequest,
    ScheduleInfo, SecretSummary, Status, UsageBy, UsageLine, VersionFiles, VersionInfo, VersionSummary, WorkerInfo,
};
use crate::asynchronous::{AcceptedCall, AsyncCall, CallState, Changed};
use crate::ids::{AliasName, CallId, FunctionId, FunctionName, InstanceId, Namespace, VersionNumber, WorkerId};
use crate::manifest::Base;
use crate::schedule::ScheduleName;
use crate::secret::SecretName;
use crate::stats::{FunctionStats, Stats};

described! {
    /// What the gateway passes on to the scheduler, once it has checked the caller's key and role.
    ADMIN, DESCRIBED_ADMIN:

    /// Deploy a folder
    ///
    /// The body is a `.tar.gz` of the function's folder with `fn.toml` at its top level, at most 256 MiB. The version
    /// is prepared after the response: poll it until its state is `live` or `failed`. Then the alias `live` names it
    /// alone, unless `traffic` is false; until then the previous version serves.
    functions [Deployer Content] POST "/v1/functions" Deploy {;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace,
        /// make no new version of a folder that the newest version was made of, if that can serve, and build nothing
        /// where only settings differ from the live version
        if_changed: bool,
        /// whether it serves the plain URL once it can; true when absent
        traffic: bool,
        /// the percentages of the plain URL's invocations that it has one after the other before it has all: `10` for
        /// 10, 25 and 50, or a list. It is rolled back by itself if it is worse than what serves now, which
        /// `canary` of the function's description shows
        canary: CanarySteps,
        /// how long each of these lasts at least, in seconds: 1 to 86400, 60 when absent
        step_s: u64
    } () => ACCEPTED VersionInfo "accepted"
    takes "application/gzip" String "the folder"
    or OK VersionInfo "with `if_changed`: nothing has changed, and this is the newest version, which serves now"
    fails
        InvalidManifest "with the line and the fix",
        BadRequest "a parameter cannot be read, or is out of its range",
        Conflict "a version of the function is being prepared",
        TooLarge,
        Throttled "32 deploys are under way",
        QuotaExceeded "the namespace has as many deploys under way, or as much stored, as it may",
        Unavailable "the object store or the scheduler does not answer";

    /// List functions
    functions [Reader Namespace] GET "/v1/functions" ListFunctions {;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK [FunctionSummary] "every function of the namespace, by name"
    fails;

    /// Describe a function
    functions [Reader Function] GET "/v1/functions/{name}" DescribeFunction {
        /// the function
        name: FunctionName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK FunctionDetail "its versions, newest first, and its instances"
    fails FunctionNotFound;

    /// Check a deploy
    ///
    /// What a deploy of the function would be refused for, or fail for, as far as that is known without its folder.
    functions [Deployer Function] GET "/v1/functions/{name}/check" CheckDeploy {
        /// the function, which need not be there yet
        name: FunctionName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace,
        /// the root filesystem that it needs; absent for a container image
        base: Base,
        /// the secrets that it needs, separated by commas
        secrets: String
    } () => OK DeployCheck "nothing, or what is wrong"
    fails
        BadRequest "a parameter cannot be read",
        Unavailable "the object store does not answer";

    /// Delete a function
    ///
    /// Stops its instances and removes all its versions and their snapshots.
    functions [Deployer Function] DELETE "/v1/functions/{name}" DeleteFunction {
        /// the function
        name: FunctionName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => NO_CONTENT () "it is gone"
    fails FunctionNotFound, Conflict "a version of it is being prepared";

    /// List versions
    ///
    /// Old versions are kept for a while (`--keep-versions`), and as long as an alias names them.
    functions [Reader Function] GET "/v1/functions/{name}/versions" ListVersions {
        /// the function
        name: FunctionName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK [VersionSummary] "every version that is kept, newest first"
    fails FunctionNotFound;

    /// Roll back
    ///
    /// An earlier version serves the plain URL again, at once: nothing is built, its instances are restored from its
    /// snapshot. Invocations in flight end where they are.
    functions [Deployer Function] POST "/v1/functions/{name}/rollback" RollBack {
        /// the function
        name: FunctionName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } (RollbackRequest) => OK Rollback "it serves"
    fails
        FunctionNotFound,
        NotFound "there is no such version, or no earlier one",
        Conflict "it serves already, or cannot serve";

    /// List aliases
    functions [Reader Function] GET "/v1/functions/{name}/aliases" ListAliases {
        /// the function
        name: FunctionName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK [Alias] "every alias of the function, by name"
    fails FunctionNotFound;

    /// Set an alias
    ///
    /// It names these versions from now on, and no others. Of several, each invocation goes to one, in proportion to
    /// their weights. `live` is what the plain URL serves. It is in force at every gateway when the answer comes, but
    /// for gateways that do not answer within a second.
    functions [Deployer Function] PUT "/v1/functions/{name}/aliases/{alias}" SetAlias {
        /// the function
        name: FunctionName,
        /// the alias: 1 to 13 of a-z, 0-9 and '-', starting with a letter
        alias: AliasName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } (AliasTargets) => OK Alias "what it names"
    fails
        BadRequest "there are no versions, too many, one twice, or a weight that is none of 1 to 10000",
        FunctionNotFound,
        NotFound "there is no such version",
        Conflict "a version cannot serve, or the function has 32 aliases";

    /// Remove an alias
    functions [Deployer Function] DELETE "/v1/functions/{name}/aliases/{alias}" RemoveAlias {
        /// the function
        name: FunctionName,
        /// the alias
        alias: AliasName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => NO_CONTENT () "it is gone"
    fails NotFound, Conflict "it is `live`";

    /// Describe a version
    functions [Reader Function] GET "/v1/functions/{name}/versions/{version}" DescribeVersion {
        /// the function
        name: FunctionName,
        /// its number
        version: VersionNumber;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK VersionInfo "the version"
    fails NotFound;

    /// List a version's files
    ///
    /// The folder as it was uploaded, without fn.toml, which is the version's `manifest`.
    functions [Reader Function] GET "/v1/functions/{name}/versions/{version}/files" ListFiles {
        /// the function
        name: FunctionName,
        /// its number
        version: VersionNumber;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK VersionFiles "its files with their digests"
    fails NotFound, Throttled "too many uploads are read", Unavailable "the object store does not answer";

    /// Renew a snapshot
    ///
    /// Renews the live version's snapshot in the background. The old one serves meanwhile, and running instances
    /// continue. The version's `renewal` shows the progress.
    functions [Deployer Function] POST "/v1/functions/{name}/snapshot/renew" RenewSnapshot {
        /// the function
        name: FunctionName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => ACCEPTED VersionInfo "the version, with its `renewal`"
    fails FunctionNotFound, Conflict "nothing of it is live, or it has no snapshot";

    /// Read a function's log
    functions [Reader Function] GET "/v1/functions/{name}/logs" ReadLogs {
        /// the function
        name: FunctionName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace,
        /// lines from the end, 100 when absent, at most 10000
        tail: usize,
        /// keep the answer open and send new lines as they are written
        follow: bool
    } () => OK () "one JSON object a line, oldest first"
    sends "application/x-ndjson" LogLine
    fails FunctionNotFound, Unavailable "no worker is connected";

    /// Look at an instance of a function
    ///
    /// What its processes have from the kernel, as they run, and what becomes of each object in copies.
    functions [Reader Function] GET "/v1/functions/{name}/instances/{id}/objects" ReadFunctionObjects {
        /// the function
        name: FunctionName,
        /// its instance
        id: InstanceId;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK InstanceObjects "its objects, those that are in the way of a snapshot first"
    fails NotFound, Unavailable "its worker does not answer";

    /// A function in numbers
    functions [Reader Function] GET "/v1/functions/{name}/stats" ReadFunctionStats {
        /// the function
        name: FunctionName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK FunctionStats "its invocations by start kind, its instances, its snapshot"
    fails FunctionNotFound;

    /// Queue all dead letters of a function again
    invocations [Deployer Function] POST "/v1/functions/{name}/async/retry" RetryCalls {
        /// the function
        name: FunctionName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK Changed "how many"
    fails;

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

    /// Remove a namespace
    ///
    /// Its keys are revoked.
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
    /// the hash of the one before. A key for one namespace reads the entries of that namespace.
    access [Admin Content] GET "/v1/audit" ReadAudit {;
        /// only entries with higher numbers
        after: u64,
        /// only entries at or after this time, in milliseconds since the Unix epoch
        since_unix_ms: i64,
        /// how many, at most 1000, which it is when absent
        limit: u32
    } () => OK AuditPage "oldest first"
    fails;

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
    } () => OK InstanceObjects "its objects, those that are in the way of a snapshot first"
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
