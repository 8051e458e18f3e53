//! What users ask about functions: deploys, releases, logs.

use super::described::{Access, Described, Field, Message, Place, Reach, list, one};
use crate::api::{
    Alias, AliasTargets, CanarySteps, DeployCheck, FunctionDetail, FunctionSummary, InstanceObjects, LogLine, Rollback,
    RollbackRequest, VersionFiles, VersionInfo, VersionSummary,
};
use crate::asynchronous::Changed;
use crate::function_config::Base;
use crate::ids::{AliasName, FunctionName, InstanceId, Namespace, VersionNumber};
use crate::stats::FunctionStats;

described! {
    /// The operations about functions, which the scheduler serves as those of [`super::ADMIN`].
    FUNCTIONS, DESCRIBED_FUNCTIONS:

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
        InvalidConfig "with the line and the fix",
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
    } () => OK InstanceObjects "its objects; first those that prevent a snapshot"
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
}
