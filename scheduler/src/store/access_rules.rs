//! Rules of access.

use rekindle_wire::access::{RuleId, Scope};
use rekindle_wire::api::AccessRule;

use super::{Store, StoreError, failed, unreadable};

type Row = (String, String, String, String, String, i64, Option<i64>);

impl Store {
    pub(crate) async fn access_rules(&self) -> Result<Vec<AccessRule>, StoreError> {
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT id, admits, role, scope, created_by, created_unix_s, expires_unix_s FROM access_rules",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read the rules of access"))?;
        rows.into_iter().map(read).collect()
    }

    pub(crate) async fn add_access_rule(&self, rule: &AccessRule) -> Result<(), StoreError> {
        let admits = serde_json::to_string(&rule.admits).map_err(unreadable("access_rules.admits"))?;
        sqlx::query(
            "INSERT INTO access_rules (id, admits, role, scope, created_by, created_unix_s, expires_unix_s) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(rule.id.as_str())
        .bind(admits)
        .bind(rule.role.as_str())
        .bind(rule.scope().to_string())
        .bind(&rule.created_by)
        .bind(rule.created_unix_s)
        .bind(rule.expires_unix_s)
        .execute(&self.writes)
        .await
        .map(drop)
        .map_err(failed("add a rule of access"))
    }

    pub(crate) async fn remove_access_rule(&self, id: &RuleId) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM access_rules WHERE id = $1")
            .bind(id.as_str())
            .execute(&self.writes)
            .await
            .map(drop)
            .map_err(failed("remove a rule of access"))
    }
}

fn read(row: Row) -> Result<AccessRule, StoreError> {
    let (id, admits, role, scope, created_by, created_unix_s, expires_unix_s) = row;
    let scope: Scope = scope.parse().map_err(unreadable("access_rules.scope"))?;
    let role = role.parse().map_err(std::io::Error::other);
    Ok(AccessRule {
        id: id.parse().map_err(unreadable("access_rules.id"))?,
        admits: serde_json::from_str(&admits).map_err(unreadable("access_rules.admits"))?,
        role: role.map_err(unreadable("access_rules.role"))?,
        namespace: scope.namespace(),
        function: scope.function(),
        created_by,
        created_unix_s,
        expires_unix_s,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rekindle_wire::access::{AccessRole, Admitted, TokenHolder};

    use super::super::tests::each_database;
    use super::*;

    fn rule(admits: Admitted, scope: &str, expires_unix_s: Option<i64>) -> AccessRule {
        let scope: Scope = scope.parse().unwrap();
        AccessRule {
            id: RuleId::generate(),
            admits,
            role: AccessRole::Deployer,
            namespace: scope.namespace(),
            function: scope.function(),
            created_by: "admin".to_owned(),
            created_unix_s: 7,
            expires_unix_s,
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_rule_is_there_until_it_or_its_namespace_is_removed() {
        each_database(async |store| {
            let holder = TokenHolder {
                issuer: "https://id.example.com".to_owned(),
                claims: BTreeMap::from([("sub".to_owned(), "repo:org/x".to_owned())]),
            };
            let certificate = "spiffe://example.org/ci".parse().unwrap();
            let rules = [
                rule(Admitted::Token(holder), "hello.team", Some(9)),
                rule(Admitted::Certificate(certificate), "*", None),
                rule(Admitted::Certificate("CN=ci".parse().unwrap()), "*.team", None),
            ];
            store.add_namespace(&"team".parse().unwrap(), 7).await.unwrap();
            for rule in &rules {
                store.add_access_rule(rule).await.unwrap();
            }
            let all = async || {
                let mut all = store.access_rules().await.unwrap();
                all.sort_by_key(|rule| rules.iter().position(|r| r.id == rule.id));
                all
            };
            assert_eq!(all().await, rules);
            store.remove_access_rule(&rules[2].id).await.unwrap();
            assert_eq!(all().await, rules[..2]);
            store.remove_access_rule(&rules[0].id).await.unwrap();
            let again = rule(rules[0].admits.clone(), "hello.team", None);
            store.add_access_rule(&again).await.unwrap();
            let ids = std::slice::from_ref(&again.id);
            assert!(
                store
                    .remove_namespace(&"team".parse().unwrap(), &[], ids)
                    .await
                    .unwrap()
            );
            assert_eq!(all().await, rules[1..2]);
        })
        .await;
    }
}
