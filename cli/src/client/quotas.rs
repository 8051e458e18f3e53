//! Calls about quotas and usage.

use anyhow::Result;
use rekindle_wire::api::{Quota, QuotaStatus, UsageBy, UsageLine};
use rekindle_wire::interface::users::{ClearQuota, ReadQuota, ReadUsage, SetQuota};
use rekindle_wire::{DEFAULT_NAMESPACE, FunctionName, Namespace};

use super::{CALL_TIMEOUT, Client};

impl Client {
    pub(crate) async fn quota(&self, namespace: &Namespace) -> Result<QuotaStatus> {
        let namespace = Some(namespace.clone()).filter(|name| name.as_str() != DEFAULT_NAMESPACE);
        self.ask(&ReadQuota { namespace }).await
    }

    /// Sets a namespace's limits.
    pub(crate) async fn set_quota(&self, namespace: &Namespace, limits: &Quota) -> Result<QuotaStatus> {
        let namespace = namespace.clone();
        self.call(&SetQuota { namespace }, limits, CALL_TIMEOUT).await
    }

    /// Removes a namespace's own limits.
    pub(crate) async fn clear_quota(&self, namespace: &Namespace) -> Result<QuotaStatus> {
        let namespace = namespace.clone();
        self.ask(&ClearQuota { namespace }).await
    }

    /// What the namespace has used in so many days.
    pub(crate) async fn usage(
        &self,
        function: Option<&FunctionName>,
        days: u32,
        by: UsageBy,
    ) -> Result<Vec<UsageLine>> {
        let wanted = ReadUsage {
            namespace: self.other_namespace(),
            function: function.cloned(),
            days: Some(days),
            by: Some(by),
        };
        self.ask(&wanted).await
    }
}
