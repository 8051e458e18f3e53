//! AWS KMS by moto, a process of its own.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::Reply;
use crate::moto::{Moto, REGION};

/// The server. Dropping it stops it.
pub struct Kms(Moto);

impl Kms {
    /// Starts one on loopback. `None` if there is none.
    pub fn start() -> Option<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST)
    }

    /// Starts one at another address of this machine.
    pub fn start_at(address: Ipv4Addr) -> Option<Self> {
        Moto::start_at(address).map(Self)
    }

    /// The variables with which a scheduler finds it.
    pub fn environment(&self) -> Vec<(String, String)> {
        let variables = [
            ("AWS_ENDPOINT_URL_KMS", self.0.url()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
            ("AWS_REGION", REGION.to_owned()),
        ];
        variables.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    /// Calls an action of the API.
    pub fn call(&self, action: &str, parameters: &Value) -> Value {
        let reply = self
            .0
            .post("/", "kms")
            .header("content-type", "application/x-amz-json-1.1")
            .header("x-amz-target", &format!("TrentService.{action}"))
            .body(parameters.to_string())
            .send();
        assert_eq!(reply.status, 200, "{action}: {}", reply.text());
        match reply.body.is_empty() {
            true => Value::Null,
            false => reply.json(),
        }
    }

    /// Makes a key, and returns its ARN.
    pub fn make_key(&self) -> String {
        let made = self.call("CreateKey", &json!({"KeyUsage": "ENCRYPT_DECRYPT"}));
        made["KeyMetadata"]["Arn"].as_str().unwrap().to_owned()
    }

    /// What runs may go on, and what starts may not.
    pub fn disable(&self, arn: &str) {
        self.call("DisableKey", &json!({"KeyId": id(arn)}));
    }

    /// Undoes that.
    pub fn enable(&self, arn: &str) {
        self.call("EnableKey", &json!({"KeyId": id(arn)}));
    }

    /// Has a key deleted after a while; it is of no use from now on.
    pub fn delete(&self, arn: &str) {
        self.call(
            "ScheduleKeyDeletion",
            &json!({"KeyId": id(arn), "PendingWindowInDays": 7}),
        );
    }

    fn iam(&self, parameters: &str) -> Reply {
        let form = "application/x-www-form-urlencoded";
        let body = format!("{parameters}&Version=2010-05-08");
        self.0
            .post("/", "iam")
            .header("content-type", form)
            .body(body)
            .send()
            .ok()
    }

    /// From now on it asks for rights. Returns the id and the secret of somebody who has none.
    pub fn ask_for_rights(&self) -> [String; 2] {
        self.iam("Action=CreateUser&UserName=nobody");
        let made = self.iam("Action=CreateAccessKey&UserName=nobody").text();
        let part = |name: &str| {
            let (_, rest) = made.split_once(&format!("<{name}>")).unwrap();
            rest.split_once('<').unwrap().0.to_owned()
        };
        let keys = [part("AccessKeyId"), part("SecretAccessKey")];
        let asking = self
            .0
            .post("/moto-api/reset-auth", "kms")
            .header("content-type", "text/plain");
        asking.body("0").send().ok();
        keys
    }
}

/// moto takes no ARN where a key's state is changed.
fn id(arn: &str) -> &str {
    arn.rsplit('/').next().unwrap()
}
